//! What a mutant is put through.

use super::{Fate, Target};
use crate::choice;
use crate::gates::{self, Outcome, PlannedVariant, StandardCase, Thresholds, correctness};
use crate::inputs::{Family, Inputs};
use crate::simulate::Schedule;
use crate::{kernel, pages, simulate};
use eightfold::cuda::driver::Device;
use eightfold::cuda::quantize::{DeviceQuantizer, DeviceValues};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Error, Fp8Format, Fp8Tensor, Granularity, Layout, Mask, Problem, Result, Shape};

/// The name of the quantiser's check.
const BITS: &str = "codes, scales and means as the host's";
/// The name of the check of attention to pages.
const PAGES: &str = "output and log-sum-exp beside float64";
/// Under how many schedules pages are attended to on the simulated device: of some races one tells and another does not.
const SCHEDULES: u64 = 6;
/// What compilers' errors have in common.
const COMPILER: &str = "does not compile";

/// Whether anything notices what is compiled now: the first family of inputs that shows it decides.
pub(super) fn judge(target: &Target, thresholds: &Thresholds) -> Result<Fate> {
    if let Some(case) = &target.pages {
        return attend_to_pages(case);
    }
    let shape: Shape = target.shape.parse()?;
    match &target.variant {
        Some(variant) => {
            let mask = Mask::causal_if(target.causal);
            let problem = Problem::new(shape)?.with_mask(mask).with_lse(true);
            let variant = kernel::suited(variant, shape.head_dim, mask)?;
            attend(&PlannedVariant(variant), &choice::in_format_of(&problem, &variant), thresholds)
        }
        None => Ok(quantize(shape, target.centred)),
    }
}

fn attend(variant: &PlannedVariant, problem: &Problem, thresholds: &Thresholds) -> Result<Fate> {
    let quantizer = Quantizer::new(problem.input_format()).with_largest_code(SMALL_CODES);
    for &family in Family::ALL {
        let case = StandardCase { problem: *problem, family, seed: 1 };
        let case = case.prepare(&quantizer, &thresholds.correctness.reference)?;
        let tolerance = thresholds.tolerance(&variant.0);
        let report = gates::check(&mut { *variant }, std::slice::from_ref(&case), tolerance, thresholds).gate;
        match report.outcome {
            Outcome::Pass => {}
            Outcome::Unavailable => {
                return Err(Error::unavailable("the device", report.summary, "see eightfold doctor"));
            }
            _ if report.summary.contains(COMPILER) => return Ok(Fate::DoesNotCompile { reason: report.summary }),
            _ => {
                let check = report.failed().next().map_or(correctness::checks::ERRORS, |check| &check.name);
                return Ok(killed(check, &report.summary));
            }
        }
    }
    Ok(Fate::Survived)
}

fn attend_to_pages(name: &str) -> Result<Fate> {
    Device::default()?;
    let mut cases = pages::cases().into_iter().chain(pages::ragged_cases());
    let Some(case) = cases.find(|case| case.name == name) else {
        return Err(Error::invalid("pages", format!("there is no case {name:?}"), "name one of tests/paged/mod.rs"));
    };
    for seed in 0..if simulate::is_installed() { SCHEDULES } else { 1 } {
        simulate::begin(Schedule::of_seed(seed));
        match pages::run(&case) {
            Err(reason) if reason.contains(COMPILER) => return Ok(Fate::DoesNotCompile { reason }),
            Err(reason) => return Ok(killed(PAGES, &reason)),
            // The simulator may see what no number shows.
            Ok(()) if !simulate::findings().is_empty() => return Ok(killed(PAGES, "")),
            Ok(()) => {}
        }
    }
    Ok(Fate::Survived)
}

/// What the simulator found says more than the error that it ended the run with.
fn killed(check: &str, detail: &str) -> Fate {
    match simulate::findings().first() {
        Some(finding) => Fate::Killed { by: finding.kind.clone(), detail: finding.text.clone() },
        None => Fate::Killed { by: check.into(), detail: detail.into() },
    }
}

fn quantize(shape: Shape, centred: bool) -> Fate {
    let dims = shape.key_dims();
    let mut values = Inputs::generate(shape, Family::Outliers, 1).k;
    // A head of zeros has a scale, too.
    let of_head = shape.key_len * shape.head_dim;
    let last_head = values.len() - of_head;
    values[last_head..].fill(0.0);
    near_middles(&mut values[..of_head]);
    let host = Quantizer::new(Fp8Format::E4m3).with_granularity(Granularity::Head);
    let host = if centred { host.centered() } else { host };
    let compared = simulate::explain_failures(|| {
        let device = Device::default()?;
        let stream = device.stream()?;
        let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd)?;
        let make = if centred { DeviceQuantizer::centered } else { DeviceQuantizer::new };
        let quantizer = make(&device, &on_device, Fp8Format::E4m3, Granularity::Head, Layout::Bhsd)?;
        let mut quantized = quantizer.allocate()?;
        quantized.poison(&stream)?;
        quantizer.launch(&stream, &on_device, &mut quantized)?;
        quantized.check(&stream)?;
        Ok(same_bits(&quantized.tensor().download(&stream)?, &host.quantize(&values, dims, Layout::Bhsd)?))
    });
    match compared {
        Ok(true) => Fate::Survived,
        Ok(false) => killed(BITS, "they differ"),
        Err(error) if error.to_string().contains(COMPILER) => Fate::DoesNotCompile { reason: error.to_string() },
        Err(error) => killed(correctness::checks::ERRORS, &error.to_string()),
    }
}

/// Values whose quotients lie in the middle between two codes, or next to it: where the last bit of a quotient decides.
fn near_middles(values: &mut [f32]) {
    const SCALE: f32 = 1.234_567_8;
    for (index, value) in values.iter_mut().enumerate() {
        // Of eight codes between two powers of two.
        let power = 2f32.powi((index / 24 % 8) as i32 - 4);
        let middle = (1.0 + ((index / 3 % 8) as f32 + 0.5) / 8.0) * power;
        *value = f32::from_bits((middle * SCALE).to_bits() + index as u32 % 3 - 1);
    }
    // The largest decides the scale.
    if let Some(first) = values.first_mut() {
        *first = Fp8Format::E4m3.max() * SCALE;
    }
}

fn same_bits(one: &Fp8Tensor, other: &Fp8Tensor) -> bool {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    one.codes() == other.codes()
        && bits(one.scales().values()) == bits(other.scales().values())
        && one.means().map(bits) == other.means().map(bits)
}
