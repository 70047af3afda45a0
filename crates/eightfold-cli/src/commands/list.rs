//! `eightfold list`: everything that can be named on the command line, with what it is.

use crate::output::list_table::{self, Item, Knob, Listing, Stage};
use crate::{Verdict, output};
use clap::{Args, ValueEnum};
use eightfold::lab::FAMILIES;
use eightfold::{Mask, Result};
use eightfold_lab::inputs::Family;
use eightfold_lab::kernel::{self, Kernel};
use eightfold_lab::peers::{Backend, HostDtype};
use eightfold_lab::shapes;

/// What to list.
#[derive(Args, Debug)]
pub struct Arguments {
    /// What to list [default: everything]
    #[arg(value_enum)]
    what: Option<What>,
    /// The kernel whose stages and knobs are listed: cpu, ladder, hopper, or gpu for this machine's best [default: all]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
}

/// What can be listed.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Kernels: what --kernel takes
    Kernels,
    /// Stages of each kernel: what --variant KERNEL:STAGE takes
    Stages,
    /// Knobs of each kernel, with their values: what --variant KERNEL:KNOB=VALUE takes
    Knobs,
    /// Shapes with a name: what --shape takes
    Shapes,
    /// Kinds of generated inputs: what --families takes
    Families,
    /// What --peer measures
    Peers,
}

/// Prints what was asked for.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let asked: Option<Kernel> = arguments.kernel.as_deref().map(kernel::find).transpose()?;
    let wanted = |what| arguments.what.is_none_or(|asked| asked == what);
    let of = |name: &str| asked.is_none_or(|asked| asked.to_string() == name);
    let listing = Listing {
        kernels: wanted(What::Kernels).then(kernels),
        stages: wanted(What::Stages).then(|| stages().into_iter().filter(|stage| of(stage.kernel)).collect()),
        knobs: wanted(What::Knobs).then(|| knobs().into_iter().filter(|knob| of(knob.kernel)).collect()),
        shapes: wanted(What::Shapes).then(named_shapes),
        families: wanted(What::Families).then(families),
        peers: wanted(What::Peers).then(peers),
    };
    match json {
        true => output::print_json(&listing)?,
        false => output::print(&list_table::render(&listing))?,
    }
    Ok(Verdict::Passed)
}

fn item(name: impl Into<String>, what: impl Into<String>) -> Item {
    Item { name: name.into(), what: what.into() }
}

fn kernels() -> Vec<Item> {
    let what = |kernel: Kernel| match kernel {
        Kernel::CPU => "the CPU kernel, in f32 or 16-bit fixed point",
        Kernel::HOPPER => "the CUDA kernel for Hopper GPUs; its stages are accuracy modes",
        _ => "the staged CUDA kernel, for Ada and Hopper GPUs",
    };
    let words = kernel::GPU_WORDS.iter().map(|word| item(*word, "the best of these for this machine's GPU"));
    Kernel::all().map(|kernel| item(kernel.to_string(), what(kernel))).chain(words).collect()
}

fn stages() -> Vec<Stage> {
    // Names and what they stand for are the same for every head dim and mask.
    let of = |family: &'static eightfold::lab::Family| {
        let named = family.stages(64, Mask::None).into_iter();
        named.map(|stage| Stage { kernel: family.name, name: stage.name.into(), what: stage.what.into() })
    };
    FAMILIES.iter().flat_map(of).collect()
}

fn knobs() -> Vec<Knob> {
    let knobs = FAMILIES.iter().flat_map(|family| family.knobs.iter().map(|knob| (family.name, knob)));
    let knobs = knobs.map(|(kernel, knob)| Knob {
        kernel,
        name: knob.name.into(),
        values: knob.values.iter().map(|value| value.to_string()).collect(),
        what: knob.what.into(),
    });
    knobs.collect()
}

fn named_shapes() -> Vec<Item> {
    shapes::registry().iter().map(|shape| item(shape.name, format!("{}: {}", shape.shape, shape.what))).collect()
}

fn families() -> Vec<Item> {
    let what = |family: &Family| match family {
        Family::Gaussian => "N(0,1) everywhere",
        Family::Outliers => "N(0,1) with one value in a thousand ten times as large",
        Family::BiasedValues => "V has mean 1, so that a biased sum shows",
        Family::KeyChannelOutliers => "one channel of K is 100 times as large and another 20 times",
        Family::AttentionSink => "the first key takes most of the weight of every row",
        Family::Constant => "every value is the same",
        Family::Tiny => "N(0,1) scaled by a millionth",
        Family::Huge => "N(0,1) scaled by 100 in Q and K and by 1000 in V",
    };
    Family::ALL.iter().map(|family| item(family.name(), what(family))).collect()
}

fn peers() -> Vec<Item> {
    let cpu = HostDtype::ALL.iter().map(|dtype| {
        item(dtype.name(), format!("with --peer torch, on the CPU; computes and writes {}", dtype.output_format()))
    });
    let gpu = Backend::ALL.iter().map(|backend| {
        item(backend.name(), format!("with --peer torch, on a GPU; outputs in {}", backend.output_format()))
    });
    cpu.chain(gpu).collect()
}
