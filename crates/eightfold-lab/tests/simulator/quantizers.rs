//! The GPU's quantisers on the simulated device: the same bits as on the host.

use crate::support::{in_parallel, simulator};
use eightfold::cuda::driver::Device;
use eightfold::cuda::quantize::{DeviceQuantizer, DeviceValues};
use eightfold::quantize::Quantizer;
use eightfold::{Dims, Fp8Format, Granularity, Layout, Shape};
use eightfold_lab::inputs::{Family, Inputs};
use eightfold_lab::simulate::{self, Schedule};

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
    for (index, to) in [Layout::Bhsd, Layout::Bshd, Layout::Bhds, Layout::BhdsExchanged].into_iter().enumerate() {
        for (turn, granularity) in granularities.into_iter().enumerate() {
            let format = [Fp8Format::E4m3, Fp8Format::E5m2][(index + turn) % 2];
            let centered = (index + turn) % 3 == 2;
            jobs.push(Job { format, granularity, to, centered, seed: (4 * index + turn) as u64 });
        }
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
    let host = Quantizer::new(format).with_granularity(granularity).with_layout(if to == Layout::BhdsExchanged {
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
