//! What each stage of a ladder brings for itself: alone on the baseline, and on top of all the others. A ladder alone says only what
//! a stage brought on top of those before it, lost ones among them.

use crate::examine::Candidate;
use crate::kernel::Kernel;
use crate::record::Group;
use crate::verdict::SpeedUp;
use eightfold::{Error, Mask, Result, Variant};

/// For each ladder the stage that has everything switched on that the stages before it are about. Later ones are held against the
/// stage before, or against what is named here: they go another way.
const ALL: &[(&str, &str)] = &[("ladder", "swizzle"), ("cpu", "avx2")];

/// What later stages extend, where it is not the stage before.
const EXTENDS: &[(&str, &str)] = &[
    ("tall-tiles", "unpack"),
    ("avx512", "queue"),
    ("int16-avx2", "avx2"),
    ("int16-avx512", "avx512"),
    ("amx", "avx512"),
];

/// A stage, and the variants that show what it brings.
#[derive(Debug, Clone, PartialEq)]
pub struct Ablation {
    /// The stage.
    pub stage: String,
    /// What changes in it: `knob=value`.
    pub change: Vec<String>,
    /// The baseline with this change alone; or the rule that keeps it from standing alone.
    pub only: std::result::Result<Variant, String>,
    /// Everything but this change; or the rule by which the others need it.
    pub without: std::result::Result<Variant, String>,
    /// Everything.
    pub all: Variant,
}

/// What a variant of a ladder with no stages before it is called.
pub const BASELINE: &str = "baseline";

/// The ablations of a kernel's stages, in order.
pub fn of(kernel: Kernel, head_dim: usize, mask: Mask) -> Result<Vec<Ablation>> {
    let stages = kernel.stages(head_dim, mask);
    let name = kernel.to_string();
    let last = ALL.iter().find(|(of, _)| *of == name).map(|(_, stage)| *stage);
    let all = last.and_then(|last| stages.iter().position(|stage| stage.name == last));
    let Some(all) = all else {
        let rule = format!("the stages of {name} are accuracies, and no steps");
        return Err(Error::invalid("kernel", rule, "name ladder or cpu"));
    };
    let each = stages.iter().enumerate().skip(1).map(|(index, stage)| {
        let extended = EXTENDS.iter().find(|(one, _)| *one == stage.name).map(|(_, before)| *before);
        let before = extended.and_then(|name| stages.iter().find(|one| one.name == name));
        let before = before.unwrap_or(&stages[index - 1]);
        let (old, new) = (knobs(&before.variant), knobs(&stage.variant));
        let differing = || old.iter().zip(&new).filter(|(old, new)| old != new);
        let change: Vec<String> = differing().map(|(_, new)| new.clone()).collect();
        let undone: Vec<String> = differing().map(|(old, _)| old.clone()).collect();
        let all = if index <= all { stages[all].variant } else { stage.variant };
        Ablation {
            stage: stage.name.clone(),
            only: with(&stages[0].variant, &change),
            without: with(&all, &undone),
            change,
            all,
        }
    });
    Ok(each.collect())
}

/// Every variant that is timed, each once: the baseline, everything, and what stands between.
pub fn candidates(kernel: Kernel, ablations: &[Ablation], head_dim: usize, mask: Mask) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = kernel.stages(head_dim, mask).into_iter().take(1).collect();
    let mut add = |name: String, variant: Variant| {
        if candidates.iter().all(|one| one.variant != variant) {
            candidates.push(Candidate::new(name, variant));
        }
    };
    for Ablation { stage, only, without, all, .. } in ablations {
        only.iter().for_each(|variant| add(format!("only {stage}"), *variant));
        without.iter().for_each(|variant| add(format!("all but {stage}"), *variant));
        add(
            if ablations.iter().filter(|one| one.all == *all).count() > 1 { "all".into() } else { stage.clone() },
            *all,
        );
    }
    candidates
}

/// What a stage was found to bring.
#[derive(Debug, Clone, PartialEq)]
pub struct Brought {
    /// The stage.
    pub stage: String,
    /// What changes in it.
    pub change: String,
    /// The baseline's time over that with this change alone; or why that is not known.
    pub alone: std::result::Result<SpeedUp, String>,
    /// The time of everything but this change over that of everything; or why that is not known.
    pub on_top: std::result::Result<SpeedUp, String>,
}

/// What the times of a group, in which all candidates took turns, say of each stage.
pub fn brought(ablations: &[Ablation], baseline: &Variant, group: &Group) -> Vec<Brought> {
    let samples = |variant: &Variant| {
        let text = variant.to_string();
        let entry = group.entries.iter().find(|entry| !entry.peer && entry.implementation == text);
        let entry = entry.ok_or("it was not there")?;
        let failed = entry.gates.iter().find(|gate| gate.outcome != crate::gates::Outcome::Pass);
        let reason =
            || failed.map_or("it has no time".to_string(), |gate| format!("{}: {}", gate.outcome, gate.summary));
        entry.timing.as_ref().map(|timing| &timing.samples).ok_or_else(reason)
    };
    let gain = |before: &Variant, after: &Variant| {
        SpeedUp::between(samples(before)?, samples(after)?).ok_or_else(|| "too few rounds".to_string())
    };
    let each = ablations.iter().map(|ablation| Brought {
        stage: ablation.stage.clone(),
        change: ablation.change.join(","),
        alone: ablation.only.clone().and_then(|only| gain(baseline, &only)),
        on_top: ablation.without.clone().and_then(|without| gain(&without, &ablation.all)),
    });
    each.collect()
}

/// `knob=value`, in the kernel's order.
fn knobs(variant: &Variant) -> Vec<String> {
    let text = variant.to_string();
    let (_, knobs) = text.split_once(':').unwrap_or_default();
    knobs.split(',').map(String::from).collect()
}

/// The variant with these knobs set; or the rule that they break.
fn with(variant: &Variant, settings: &[String]) -> std::result::Result<Variant, String> {
    let kernel = variant.kernel();
    let text = [knobs(variant), settings.to_vec()].concat();
    // Of two values of a knob the last counts.
    let mut kept: Vec<String> = Vec::new();
    for setting in text {
        let name = |text: &str| text.split('=').next().map(String::from);
        kept.retain(|one| name(one) != name(&setting));
        kept.push(setting);
    }
    format!("{kernel}:{}", kept.join(",")).parse().map_err(|error: Error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Samples, Timer};
    use crate::record::{Entry, Timing};
    use eightfold::Problem;

    fn ladder() -> Vec<Ablation> {
        of(Kernel::LADDER, 64, Mask::None).unwrap()
    }

    fn named<'a>(ablations: &'a [Ablation], stage: &str) -> &'a Ablation {
        ablations.iter().find(|one| one.stage == stage).unwrap()
    }

    #[test]
    fn a_stage_is_its_change_alone_and_everything_but_its_change() {
        let all = ladder();
        assert_eq!(all.len(), 14);
        let swizzle = named(&all, "swizzle");
        assert_eq!(swizzle.change, ["banks=swizzled"]);
        assert_eq!(swizzle.only, Ok("ladder:baseline,banks=swizzled".parse().unwrap()));
        assert_eq!(swizzle.without, Ok("ladder:fast-exp".parse().unwrap()));
        // What others rest on cannot be taken away, and what rests on others cannot stand alone: both are said.
        assert!(named(&all, "mma-pv").without.as_ref().unwrap_err().contains("softmax"));
        assert!(named(&all, "warp-specialised").only.as_ref().unwrap_err().contains("producers"));
        // It extends unpack, whatever stands between.
        assert_eq!(named(&all, "tall-tiles").without, Ok("ladder:unpack".parse().unwrap()));
    }

    #[test]
    fn every_ladder_of_steps_can_be_ablated_and_each_variant_is_timed_once() {
        for kernel in [Kernel::CPU, Kernel::LADDER] {
            for head_dim in [64, 128] {
                let ablations = of(kernel, head_dim, Mask::None).unwrap();
                let candidates = candidates(kernel, &ablations, head_dim, Mask::None);
                for (index, one) in candidates.iter().enumerate() {
                    let twice = |other: &Candidate| other.variant == one.variant || other.name == one.name;
                    assert!(!candidates[..index].iter().any(twice), "{kernel} {head_dim}: {}", one.name);
                }
                let known = |variant: &Variant| candidates.iter().any(|one| one.variant == *variant);
                let needed = |one: &Ablation| [one.only.clone().ok(), one.without.clone().ok(), Some(one.all)];
                assert!(ablations.iter().flat_map(needed).flatten().all(|variant| known(&variant)));
                // Nearly all of them can be told one way or the other.
                let told = ablations.iter().filter(|one| one.only.is_ok() || one.without.is_ok()).count();
                assert_eq!(told, ablations.len(), "{kernel} {head_dim}");
            }
        }
        assert!(of(Kernel::HOPPER, 64, Mask::None).unwrap_err().to_string().contains("are accuracies"));
    }

    #[test]
    fn gains_are_of_pairs_and_what_has_no_time_says_why() {
        let ablations = ladder();
        let timed = |text: &str, us: u64| {
            let samples = Samples { ns: vec![us * 1000; 100], rounds: vec![10; 10] };
            let variant: Variant = text.parse().unwrap();
            Entry { timing: Timing::new(Timer::GraphReplay, samples), ..Entry::new(text, variant.to_string()) }
        };
        let entries = vec![
            timed("ladder:baseline", 100),
            timed("ladder:baseline,banks=swizzled", 80),
            timed("ladder:fast-exp", 22),
            timed("ladder:swizzle", 20),
        ];
        let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap();
        let group = Group { entries, ..Group::new("mission", &problem) };
        let rows = brought(&ablations, &"ladder:baseline".parse().unwrap(), &group);
        let row = |stage: &str| rows.iter().find(|row| row.stage == stage).unwrap();
        assert_eq!(row("swizzle").alone.as_ref().unwrap().ratio, 1.25);
        assert!((row("swizzle").on_top.as_ref().unwrap().ratio - 1.1).abs() < 1e-9);
        assert_eq!(row("persistent").alone, Err("it was not there".into()));
        assert!(row("warp-specialised").alone.as_ref().unwrap_err().contains("copy=async"));
    }
}
