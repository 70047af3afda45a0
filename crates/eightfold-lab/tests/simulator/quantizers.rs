//! The GPU's quantisers on the simulated device: the same bits as on the host.

use crate::support::{in_parallel, simulator};
use eightfold::cuda::driver::Device;
use eightfold::cuda::quantize::{DeviceQuantizer, DeviceValues};
use eightfold::quantize::Quantizer;
use eightfold::{Dims, Fp8Format, Granularity, Layout, Shape};
use eightfold_lab::inputs::{Family, Inputs};
use eightfold_lab::simulate::{self, Schedule};
use half::bf16;

struct Job {
    format: Fp8Format,
    granularity: Granularity,
    to: Layout,
    centered: bool,
    seed: u64,
}

#[test]
fn quantising_gives_the_bits_of_the_host() {
    if !simulator() {
        return;
    }
    let granularities = [Granularity::Head, Granularity::Tensor, Granularity::Block { rows: 17 }];
    let mut jobs = Vec::new();
    for (index, to) in [Layout::Bhsd, Layout::Bshd, Layout::Bhds, Layout::Packed].into_iter().enumerate() {
        for (turn, granularity) in granularities.into_iter().enumerate() {
            let format = [Fp8Format::E4m3, Fp8Format::E5m2][(index + turn) % 2];
            let centered = (index + turn) % 3 == 2;
            jobs.push(Job { format, granularity, to, centered, seed: (4 * index + turn) as u64 });
        }
    }
    // As Q and K are quantised to INT8: rows that lanes hold, and blocks of a head that is centred.
    let (row, block) = (Granularity::Block { rows: 1 }, Granularity::Block { rows: 256 });
    for (seed, (granularity, centered)) in
        [(row, false), (block, true), (row, false), (row, true)].into_iter().enumerate()
    {
        let seed = seed as u64;
        jobs.push(Job { format: Fp8Format::Int8, granularity, to: Layout::Bhsd, centered, seed });
        jobs.push(Job { format: Fp8Format::Int8, granularity, to: Layout::Bshd, centered, seed: seed + 1 });
    }
    let failed: Vec<String> = in_parallel(jobs, |job| quantise(&job).err()).into_iter().flatten().collect();
    assert_eq!(failed, Vec::<String>::new());
}

fn quantise(job: &Job) -> Result<(), String> {
    let Job { format, granularity, to, centered, seed } = *job;
    // Long enough for clusters of several blocks, or short and odd.
    let shape: Shape = if seed % 2 == 0 { "1,2,2,8,150,64" } else { "1,1,1,8,700,128" }.parse().unwrap();
    let dims: Dims = shape.key_dims();
    let values = Inputs::generate(shape, Family::Outliers, seed).k;
    let name =
        format!("{format} {granularity} to {to}{} under schedule {seed}", if centered { ", centred" } else { "" });
    simulate::begin(Schedule::of_seed(seed));
    let run = || {
        let device = Device::default()?;
        let stream = device.stream()?;
        let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd)?;
        let quantizer = if centered {
            DeviceQuantizer::centered(&device, &on_device, format, granularity, to)?
        } else {
            DeviceQuantizer::new(&device, &on_device, format, granularity, to)?
        };
        let mut quantized = quantizer.allocate()?;
        quantized.poison(&stream)?;
        quantizer.launch(&stream, &on_device, &mut quantized)?;
        quantized.check(&stream)?;
        quantized.tensor().download(&stream)
    };
    let got = run().map_err(|error| format!("{name}: {error} {:?}", simulate::findings()))?;
    let host = Quantizer::new(format).with_granularity(granularity).with_layout(if to == Layout::Packed {
        Layout::Bhds
    } else {
        to
    });
    let host = if centered { host.centered() } else { host };
    let expected = host.quantize(&values, dims, Layout::Bhsd).map_err(|error| error.to_string())?;
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let same = got.codes() == expected.codes()
        && bits(got.scales().values()) == bits(expected.scales().values())
        && got.means().map(bits) == expected.means().map(bits);
    if same { Ok(()) } else { Err(format!("{name}: other bits than the host's")) }
}

/// The blocks of a cluster tell each other sums, and then magnitudes: under every schedule nobody reads what is not there yet.
#[test]
fn centring_in_one_launch_waits_for_every_block() {
    if !simulator() {
        return;
    }
    let (e4m3, head) = (Fp8Format::E4m3, Granularity::Head);
    let of = [
        (e4m3, head, Layout::Bhsd),
        (e4m3, head, Layout::Packed),
        (Fp8Format::Int8, Granularity::Block { rows: 256 }, Layout::Bhsd),
    ];
    let jobs = (0..8).flat_map(|seed| of.map(|of| (seed, of))).collect();
    let failed: Vec<String> = in_parallel(jobs, |(seed, of)| centre(seed, of).err()).into_iter().flatten().collect();
    assert_eq!(failed, Vec::<String>::new());
}

fn centre(seed: u64, (format, granularity, to): (Fp8Format, Granularity, Layout)) -> Result<(), String> {
    let shape: Shape = if seed.is_multiple_of(2) { "1,2,2,8,150,64" } else { "1,1,1,8,700,128" }.parse().unwrap();
    let dims: Dims = shape.key_dims();
    let values = Inputs::generate(shape, Family::Outliers, seed).k;
    let values: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
    simulate::begin(Schedule::of_seed(seed));
    let run = || {
        let device = Device::default()?;
        let stream = device.stream()?;
        let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd)?;
        let quantizer = DeviceQuantizer::centered_once(&device, &on_device, format, granularity, to)?;
        let mut quantized = quantizer.allocate()?;
        quantizer.launch(&stream, &on_device, &mut quantized)?;
        quantized.check(&stream)?;
        Ok::<_, eightfold::Error>((quantizer.kernels(), quantized.tensor().download(&stream)?))
    };
    let (kernels, got) = run().map_err(|error| format!("schedule {seed}: {error} {:?}", simulate::findings()))?;
    let host = Quantizer::new(format).with_granularity(granularity).centered();
    let host = host.with_layout(if to == Layout::Packed { Layout::Bhds } else { to });
    let host = host.quantize(&values, dims, Layout::Bhsd).unwrap();
    // Means that differ in their last bits put a value on the other side of a boundary now and then.
    let alike = got.codes().iter().zip(host.codes()).filter(|(got, host)| got == host).count();
    let alike = alike as f64 >= 0.99 * host.codes().len() as f64;
    let near = |got: &[f32], host: &[f32]| got.iter().zip(host).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()));
    let means = near(got.means().unwrap_or(&[f32::NAN]), host.means().unwrap_or(&[]));
    let same = kernels == 1 && means && alike && near(got.scales().values(), host.scales().values());
    let found = simulate::findings();
    if same && found.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{format} {granularity} to {to}, schedule {seed}: {kernels} kernels, means {means}, codes {alike}, {found:?}"
        ))
    }
}
