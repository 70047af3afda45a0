//! What the correctness gate says where there is no plain right or wrong.

use eightfold::quantize::Quantizer;
use eightfold::{Error, Fp8Format, Fp8Tensor, Layout, Output, OutputFormat, Problem, Result, RunReport, Shape, Values};
use eightfold_lab::gates::{
    Case, CorrectnessReport, Outcome, PlannedVariant, ReferencePolicy, Subject, Thresholds, check, checks,
};
use eightfold_lab::inputs::{Family, Inputs};
use half::{bf16, f16};

fn variant() -> PlannedVariant {
    PlannedVariant("cpu:queue".parse().unwrap())
}

fn case_of(problem: &Problem, family: Family) -> Case {
    let inputs = Inputs::generate(problem.shape(), family, 1);
    let quantizer = Quantizer::new(problem.input_format());
    Case::prepare(problem, &inputs, &quantizer, &Thresholds::embedded().correctness.reference).unwrap()
}

fn gate(subject: &mut dyn Subject, cases: &[Case]) -> CorrectnessReport {
    let thresholds = Thresholds::embedded();
    check(subject, cases, thresholds.tolerance(&variant().0), &thresholds)
}

fn small() -> Problem {
    Problem::new(Shape::new(1, 2, 48, 64)).unwrap().with_lse(true)
}

struct Needs(&'static str);

impl Subject for Needs {
    fn name(&self) -> String {
        self.0.into()
    }

    fn run(&mut self, _: &Problem, _: &Fp8Tensor, _: &Fp8Tensor, _: &Fp8Tensor, _: &mut Output) -> Result<RunReport> {
        Err(Error::unavailable(self.0, "there is none here", "use another machine"))
    }
}

#[test]
fn what_the_machine_lacks_is_unavailable_and_not_failed() {
    let report = gate(&mut Needs("a GPU"), &[case_of(&small(), Family::Gaussian)]);
    assert_eq!(report.gate.outcome, Outcome::Unavailable);
    assert!(report.gate.summary.contains("a GPU is not available"), "{}", report.gate.summary);
}

#[test]
fn a_check_of_nothing_is_invalid() {
    assert_eq!(gate(&mut variant(), &[]).gate.outcome, Outcome::Invalid);
}

#[test]
fn a_reference_that_no_kernel_could_write_is_invalid() {
    let shape = small().shape();
    let inputs = Inputs::generate(shape, Family::Gaussian, 1);
    let case = |problem: &Problem, size: f32| {
        let v = inputs.v.iter().map(|value| value * size).collect();
        let inputs = Inputs::of_user(shape, "large values", inputs.q.clone(), inputs.k.clone(), v).unwrap();
        let policy = Thresholds::embedded().correctness.reference;
        Case::prepare(problem, &inputs, &Quantizer::new(Fp8Format::E4m3), &policy).unwrap()
    };
    let f16 = small().with_output_format(OutputFormat::F16);
    let report = gate(&mut variant(), &[case(&f16, 1e6)]);
    assert_eq!(report.gate.outcome, Outcome::Invalid, "{}", report.gate.summary);
    assert!(report.gate.summary.starts_with("large values: "), "{}", report.gate.summary);
    assert_eq!(gate(&mut variant(), &[case(&small(), 1e6)]).gate.outcome, Outcome::Pass);
}

#[test]
fn half_precision_outputs_pass_with_their_rounding_and_no_more() {
    for (format, family) in [
        (OutputFormat::F16, Family::Gaussian),
        (OutputFormat::F16, Family::BiasedValues),
        (OutputFormat::Bf16, Family::Gaussian),
        (OutputFormat::Bf16, Family::Tiny),
        (OutputFormat::Bf16, Family::Huge),
    ] {
        let report = gate(&mut variant(), &[case_of(&small().with_output_format(format), family)]);
        assert_eq!(report.gate.outcome, Outcome::Pass, "{format:?} {family}: {}", report.gate.summary);
        let l2 = report.gate.checks.iter().find(|check| check.name == checks::RELATIVE_L2).unwrap();
        assert!(l2.value > l2.limit / 10.0, "{format:?} {family}: {} is far below {}", l2.value, l2.limit);
    }
}

/// A right kernel in f32, whose results are then disturbed and written in the problem's format.
struct Disturbed {
    /// The relative L2 norm of the disturbance.
    error: f64,
    /// Whether results are cut off to the format rather than rounded.
    cut: bool,
}

impl Subject for Disturbed {
    fn name(&self) -> String {
        "disturbed".into()
    }

    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport> {
        let in_f32 = problem.with_output_format(OutputFormat::F32);
        let mut right = Output::zeros(&in_f32);
        let report = variant().run(&in_f32, q, k, v, &mut right)?;
        let values = right.values.to_f32();
        let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        let size = self.error * (norm / values.len() as f64).sqrt();
        // As often up as down, by the same.
        let disturbed = values.iter().enumerate().map(|(index, value)| {
            let up = (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 2 == 0;
            value + if up { size as f32 } else { -size as f32 }
        });
        let keep_bits = |value: f32, bits: u32| f32::from_bits(value.to_bits() & (u32::MAX << (23 - bits)));
        let cut = |value: f32, bits: u32| if self.cut { keep_bits(value, bits) } else { value };
        output.values = match problem.output_format() {
            OutputFormat::F16 => Values::F16(disturbed.map(|value| f16::from_f32(cut(value, 10))).collect()),
            OutputFormat::Bf16 => Values::Bf16(disturbed.map(|value| bf16::from_f32(cut(value, 7))).collect()),
            _ => Values::F32(disturbed.collect()),
        };
        output.lse = right.lse;
        Ok(report)
    }
}

#[test]
fn a_kernel_may_be_as_wrong_in_every_output_format_as_in_f32() {
    let thresholds = Thresholds::embedded();
    let tolerance = &thresholds.correctness.tolerance.f16;
    let allowed = tolerance.of(Some(Family::Gaussian), 64).relative_l2;
    let problem = Problem::new(Shape::new(1, 16, 64, 64)).unwrap().with_lse(true);
    for &format in OutputFormat::ALL {
        let case = [case_of(&problem.with_output_format(format), Family::Gaussian)];
        let failed = |error: f64, cut: bool| -> Vec<String> {
            let report = check(&mut Disturbed { error, cut }, &case, tolerance, &thresholds);
            report.gate.failed().map(|check| check.name.clone()).collect()
        };
        assert_eq!(failed(0.85 * allowed, false), [""; 0], "{format}");
        assert_eq!(failed(1.15 * allowed, false), [checks::RELATIVE_L2], "{format}");
        if format == OutputFormat::Bf16 {
            assert!(failed(0.0, true).contains(&checks::RELATIVE_L2.to_string()), "cut off to {format}");
        }
    }
}

#[test]
fn other_formats_and_layouts_of_the_inputs_pass() {
    let policy = Thresholds::embedded().correctness.reference;
    let e5m2 = small().with_input_format(Fp8Format::E5m2).causal();
    let report = gate(&mut variant(), &[case_of(&e5m2, Family::Gaussian)]);
    assert_eq!(report.gate.outcome, Outcome::Pass, "{}", report.gate.summary);

    let inputs = Inputs::generate(small().shape(), Family::Gaussian, 1);
    let quantizer = Quantizer::new(Fp8Format::E4m3).with_layout(Layout::Bshd);
    let case = Case::prepare(&small(), &inputs, &quantizer, &policy).unwrap();
    let report = gate(&mut variant(), &[case]);
    assert_eq!(report.gate.outcome, Outcome::Pass, "{}", report.gate.summary);
}

#[test]
fn a_users_tensors_have_no_quantiser_error() {
    let Case { problem, q, k, v, .. } = case_of(&small(), Family::Outliers);
    let policy = Thresholds::embedded().correctness.reference;
    let case = Case::of_tensors(&problem, "mine.safetensors", q, k, v, &policy).unwrap();
    let report = gate(&mut variant(), &[case]);
    assert_eq!(report.gate.outcome, Outcome::Pass, "{}", report.gate.summary);
    assert_eq!(report.cases[0].quantizer.relative_l2, 0.0);
    assert_eq!(report.cases[0].origin, "mine.safetensors");
}

#[test]
fn mismatched_inputs_are_an_error_that_names_them() {
    let policy = Thresholds::embedded().correctness.reference;
    let other = Inputs::generate(Shape::new(1, 2, 40, 64), Family::Gaussian, 1);
    let error = Case::prepare(&small(), &other, &Quantizer::new(Fp8Format::E4m3), &policy).unwrap_err();
    assert!(error.to_string().starts_with("inputs: "), "{error}");
    let Case { q, k, v, .. } = case_of(&small(), Family::Gaussian);
    let longer = Problem::new(Shape::new(1, 2, 56, 64)).unwrap();
    let error = Case::of_tensors(&longer, "mine", q, k, v, &policy).unwrap_err();
    assert!(error.to_string().starts_with("q: "), "{error}");
}

/// A sampled case must judge as the whole one does: same rows, same references.
#[test]
fn a_sample_of_rows_sees_what_all_rows_see() {
    let grouped = Shape::new(2, 4, 200, 32).with_kv_heads(2).with_key_len(150);
    let sampling = ReferencePolicy { max_gflop: 1e-3, block_rows: 16 };
    for problem in [Problem::new(grouped).unwrap(), Problem::new(grouped).unwrap().causal()] {
        let problem = problem.with_lse(true);
        let inputs = Inputs::generate(grouped, Family::BiasedValues, 1);
        let quantizer = Quantizer::new(Fp8Format::E4m3);
        let sampled = Case::prepare(&problem, &inputs, &quantizer, &sampling).unwrap();
        assert!(sampled.rows_compared() < 2 * 4 * 200 && sampled.rows_compared() >= 2 * 4 * 2 * 16);
        let report = gate(&mut variant(), &[sampled]);
        assert_eq!(report.gate.outcome, Outcome::Pass, "{problem}: {}", report.gate.summary);
    }
}

#[test]
fn a_report_survives_json() {
    let report = gate(&mut variant(), &[case_of(&small(), Family::Gaussian), case_of(&small(), Family::Huge)]);
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<CorrectnessReport>(&text).unwrap(), report);
}
