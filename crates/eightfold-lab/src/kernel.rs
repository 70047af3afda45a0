//! The kernel families, each with its ladder of stages.

use crate::choice;
use crate::examine::Candidate;
use eightfold::cuda::driver::Device;
use eightfold::cuda::{Arch, Operands};
use eightfold::lab::{FAMILIES, Family, hopper};
use eightfold::quantize::SMALL_CODES;
use eightfold::{Accuracy, Error, Mask, Problem, Result, Shape, Target, Variant};
use std::fmt;
use std::iter;
use std::str::FromStr;

/// A kernel family, by its place among [`FAMILIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel(usize);

impl Kernel {
    /// The CPU kernel.
    pub const CPU: Kernel = Kernel(0);
    /// The staged CUDA kernel.
    pub const LADDER: Kernel = Kernel(1);
    /// The CUDA kernel for Hopper, whose stages are accuracies.
    pub const HOPPER: Kernel = Kernel(2);

    /// All of them.
    pub fn all() -> impl Iterator<Item = Kernel> {
        (0..FAMILIES.len()).map(Kernel)
    }

    /// The family.
    pub fn family(self) -> &'static Family {
        &FAMILIES[self.0]
    }

    /// The kernel of this machine's best backend: CUDA where there is a device that kernels are written for.
    pub fn best() -> Kernel {
        if Device::default().is_ok() { Kernel::LADDER } else { Kernel::CPU }
    }

    /// The kernel that this machine's GPU runs fastest; an error where there is none.
    pub fn best_on_gpu() -> Result<Kernel> {
        let arch = Device::default()?.arch()?;
        Ok(if hopper::target(arch).is_ok() { Kernel::HOPPER } else { Kernel::LADDER })
    }

    /// Whether it runs on a GPU.
    pub fn on_gpu(self) -> bool {
        self.family().on_gpu()
    }

    /// Whether each stage is a step past the one before, and must have gained by it; else stages are accuracies.
    pub fn climbs(self) -> bool {
        self.family().stages(64, Mask::None).iter().all(|stage| stage.variant.accuracy().is_none())
    }

    /// Every stage, from the baseline to the best, as it is for heads of this many channels under this mask.
    pub fn stages(self, head_dim: usize, mask: Mask) -> Vec<Candidate> {
        let stages = self.family().stages(head_dim, mask).into_iter();
        stages.map(|stage| Candidate::new(stage.name, stage.variant)).collect()
    }

    /// What is selected on an H200 where no stage fits, by when it is: few keys, also in whole rounds and for two warpgroups,
    /// large causal problems, and few heads, for every accuracy; few queries; many keys; codes of wide range.
    pub fn others(self, head_dim: usize, mask: Mask) -> Vec<Candidate> {
        let large = Shape::new(4, 16, 4096, head_dim);
        // Under the mask, the second half of a prompt: each of its queries sees many keys.
        let later = |batch, heads, len| {
            let key_len = if mask == Mask::Causal { 2 * len } else { len };
            Shape::new(batch, heads, len, head_dim).with_key_len(key_len)
        };
        let many = later(2, 16, 16384);
        let decode = Shape::new(1, 32, 1, head_dim).with_kv_heads(4).with_key_len(8192);
        // As many keys as two blocks on a multiprocessor have room for.
        let paired = 512 * 64 / head_dim;
        let mut for_all = vec![
            ("few keys", Shape::new(1, 8, 512, head_dim)),
            ("few keys in rounds", Shape::new(1, 8192 / paired, paired, head_dim)), // 128 blocks
        ];
        if head_dim > 64 {
            for_all.push(("few keys for two", Shape::new(1, 32, 512, head_dim)));
        }
        if mask == Mask::Causal {
            for_all.push(("starting early", large));
        }
        for_all.extend([("few heads", later(1, 2, 8192)), ("one head", later(1, 1, 8192))]);
        let for_one = [
            (Accuracy::Fast, "one key", Shape::new(1, 8, 1, head_dim), SMALL_CODES),
            (Accuracy::Fast, "few queries", decode, SMALL_CODES),
            (Accuracy::Fast, "many keys", many, SMALL_CODES),
            (Accuracy::ExactExp, "many keys", many, SMALL_CODES),
            (Accuracy::Fast, "wide codes", large, 448.0),
            (Accuracy::Fast, "wide codes, few keys", Shape::new(1, 8, 256, head_dim), 448.0),
        ];
        let of_every_accuracy =
            |(when, shape)| Accuracy::ALL.iter().map(move |accuracy| (*accuracy, when, shape, SMALL_CODES));
        let selected = |(accuracy, when, shape, largest_code): (Accuracy, &str, Shape, f32)| {
            let problem = Problem::new(shape).ok()?.with_mask(mask).with_accuracy(accuracy);
            let mut operands = Operands::assumed(&problem);
            operands.k.largest_code = largest_code;
            let variant = eightfold::select(&problem, &operands, Target::cuda(Arch::Sm90, MULTIPROCESSORS)).ok()?;
            (variant.kernel() == self.family().name).then(|| Candidate::new(format!("{accuracy}, {when}"), variant))
        };
        for_all.into_iter().flat_map(of_every_accuracy).chain(for_one).filter_map(selected).collect()
    }

    /// Legal variants without end, every listed value of every knob as likely as the rules allow; a seed always gives the same.
    pub fn draws(self, seed: u64) -> impl Iterator<Item = Variant> {
        let mut state = seed;
        let mut below = move |count: usize| {
            // Knuth's generator; its high bits look random enough to pick values by.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % count
        };
        let draw = move || {
            let knobs = self.family().knobs.iter();
            let knobs = knobs.map(|knob| format!("{}={}", knob.name, knob.values[below(knob.values.len())]));
            format!("{self}:{}", knobs.collect::<Vec<_>>().join(","))
        };
        iter::repeat_with(draw).filter_map(|text| text.parse().ok())
    }
}

/// Multiprocessors of an H200.
const MULTIPROCESSORS: usize = 132;

/// Words for the best kernel of this machine's GPU, where a kernel or a variant is asked for.
pub const GPU_WORDS: &[&str] = &["gpu", "cuda"];

/// The kernel of this name, or the best one for this machine's GPU by one of [`GPU_WORDS`].
pub fn find(text: &str) -> Result<Kernel> {
    if GPU_WORDS.contains(&text) { Kernel::best_on_gpu() } else { text.parse() }
}

/// What runs a problem on this machine's GPU; an error, with what is in the way, where nothing does.
pub fn planned_on_gpu(problem: &Problem) -> Result<Variant> {
    Device::default()?;
    let choice = choice::choose(problem)?;
    let refused = || {
        let on_gpu = choice.considered.iter().find(|considered| considered.variant.on_device().is_some());
        let reason = on_gpu.map_or("no kernel is written for it", |considered| considered.reason.as_str());
        Error::unavailable(
            "the GPU for this problem",
            reason,
            "name a variant, or leave it out for what explain says runs",
        )
    };
    choice.variant.on_device().map(|_| choice.variant).ok_or_else(refused)
}

/// The shortest name of a variant for heads of this many channels under this mask: its kernel, the stage that is nearest,
/// and the knobs that differ from it.
pub fn short_name(variant: &Variant, head_dim: usize, mask: Mask) -> String {
    let full = variant.to_string();
    let Ok(kernel) = variant.kernel().parse::<Kernel>() else { return full };
    let differing = |stage: &Candidate| -> Vec<String> {
        let theirs = stage.variant.to_string();
        let theirs: Vec<&str> = theirs.split([':', ',']).collect();
        full.split([':', ',']).filter(|knob| !theirs.contains(knob)).map(String::from).collect()
    };
    let stages = kernel.stages(head_dim, mask).into_iter().map(|stage| (differing(&stage), stage.name));
    match stages.min_by_key(|(knobs, _)| knobs.len()) {
        Some((knobs, stage)) => {
            let knobs: String = knobs.iter().map(|knob| format!(",{knob}")).collect();
            format!("{kernel}:{stage}{knobs}")
        }
        None => full,
    }
}

/// The variant of this text. A stage by its name alone is as it is for heads of this many channels under this mask, because that
/// for others might not fit.
pub fn suited(text: &str, head_dim: usize, mask: Mask) -> Result<Variant> {
    let stage = text.split_once(':').and_then(|(kernel, name)| {
        let kernel: Kernel = kernel.parse().ok().filter(|kernel: &Kernel| !kernel.climbs())?;
        kernel.family().stages(head_dim, mask).into_iter().find(|stage| stage.name == name)
    });
    stage.map_or_else(|| text.parse(), |stage| Ok(stage.variant))
}

/// Knobs that kernels have no more, with the value that is now the only one.
const RETIRED: &[&str] = &["row_sum=tensor", "rescale=lazy", "order=free", "store=alone"];

/// The variant that a record names, though it may name knobs that are gone. An error where one was set to what is gone.
pub fn recorded(text: &str) -> Result<Variant> {
    let (kernel, knobs) = text.split_once(':').unwrap_or((text, ""));
    let known = knobs.split(',').filter(|knob| kernel != "hopper" || !RETIRED.contains(knob));
    format!("{kernel}:{}", known.collect::<Vec<_>>().join(",")).parse()
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.family().name)
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = Family::find(text)?.name;
        Kernel::all()
            .find(|kernel| kernel.family().name == name)
            .ok_or_else(|| Error::invalid("kernel", name, "name another"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_record_may_name_knobs_that_are_gone() {
        let fast: Variant = "hopper:fast".parse().unwrap();
        assert_eq!(recorded("hopper:fast,row_sum=tensor,rescale=lazy,order=free,store=alone"), Ok(fast));
        assert_eq!(recorded("cpu"), "cpu".parse());
        for gone in ["row_sum=adds", "rescale=always", "order=pingpong", "store=beside"] {
            let error = recorded(&format!("hopper:fast,{gone}")).unwrap_err().to_string();
            assert!(error.starts_with("knob: "), "{error}");
        }
    }

    #[test]
    fn a_short_name_reads_back_as_its_variant() {
        let mut kernels = Kernel::all();
        assert!(kernels.all(|kernel| {
            kernel.stages(64, Mask::None).iter().all(|stage| {
                let short = short_name(&stage.variant, 64, Mask::None);
                suited(&short, 64, Mask::None) == Ok(stage.variant)
            })
        }));
        for (text, short) in [
            ("cpu:int16-avx512", "cpu:int16-avx512"),
            ("cpu:avx2,tile_keys=512", "cpu:avx2,tile_keys=512"),
            ("ladder:unpack,banks=padded", "ladder:unpack,banks=padded"),
        ] {
            assert_eq!(short_name(&text.parse().unwrap(), 64, Mask::None), short);
        }
    }

    #[test]
    fn a_gpu_is_asked_for_by_any_of_its_words() {
        for word in GPU_WORDS {
            let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap();
            let (kernel, variant) = (find(word), planned_on_gpu(&problem));
            assert_eq!((kernel.is_ok(), variant.is_ok()), (Device::default().is_ok(), Device::default().is_ok()));
        }
        assert_eq!(find("hopper"), Ok(Kernel::HOPPER));
    }

    #[test]
    fn a_kernel_reads_back_what_it_prints_and_its_stages_are_its_own() {
        for kernel in Kernel::all() {
            assert_eq!(kernel.to_string().parse(), Ok(kernel));
            assert!(kernel.stages(64, Mask::None).iter().all(|stage| stage.variant.kernel() == kernel.to_string()));
        }
    }

    #[test]
    fn constants_are_the_kernels_of_their_names() {
        let named = [(Kernel::CPU, "cpu"), (Kernel::LADDER, "ladder"), (Kernel::HOPPER, "hopper")];
        for (kernel, name) in named {
            assert_eq!((kernel.to_string().as_str(), kernel.climbs()), (name, name != "hopper"));
        }
        assert_eq!(Kernel::all().count(), named.len());
        assert!(Kernel::LADDER.others(64, Mask::None).is_empty() && Kernel::CPU.others(64, Mask::None).is_empty());
    }

    #[test]
    fn every_listed_value_of_every_knob_is_part_of_some_legal_config() {
        for (kernel, draws) in [(Kernel::LADDER, 3000), (Kernel::HOPPER, 8000)] {
            let variants: Vec<Variant> = kernel.draws(1).take(draws).collect();
            for knob in kernel.family().knobs {
                let drawn: BTreeSet<_> = variants.iter().filter_map(|variant| variant.knob(knob.name)).collect();
                assert_eq!(drawn, knob.values.iter().map(|value| value.to_string()).collect(), "{}", knob.name);
            }
        }
    }
}
