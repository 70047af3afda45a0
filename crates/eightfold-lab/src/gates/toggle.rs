//! The toggle-effect proof: a knob that changes nothing in the machine code is a knob that never reached the compiler.

use super::resource::{Compile, restriction};
use super::{Check, Gate, GateReport, Outcome};
use eightfold::cuda::Arch;
use eightfold::lab::compile::Program;
use eightfold::lab::{Config, Specialisation};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What the proof saw, knob by knob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToggleReport {
    /// The architecture that was compiled for.
    pub arch: String,
    /// Channels per head of the kernels.
    pub head_dim: usize,
    /// Whether they have the causal mask.
    pub causal: bool,
    /// The decision.
    pub gate: GateReport,
    /// Every knob of every stage.
    pub knobs: Vec<KnobProof>,
}

/// One knob of one stage, set to every other value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnobProof {
    /// The stage.
    pub stage: String,
    /// The knob.
    pub knob: String,
    /// Its value in the stage.
    pub value: String,
    /// The other values that no rule forbids here; none where the knob has no legal alternative.
    pub compared: Vec<String>,
    /// Of those, the values that gave the same machine code.
    pub without_effect: Vec<String>,
    /// Why a value could not be compared.
    pub errors: Vec<String>,
}

/// The checks of this gate.
pub mod checks {
    /// Values that were compared with the stage's own.
    pub const COMPARED: &str = "knob values compared (at least)";
    /// Values that gave the same machine code.
    pub const WITHOUT_EFFECT: &str = "knob values without effect";
    /// Values that did not compile.
    pub const ERRORS: &str = "knob values that do not compile";
}

/// A legal setting beside a stage, to be compared with it.
struct Neighbour {
    proof: usize,
    value: String,
    target: Arch,
    stage: Program,
    program: Program,
}

/// Sets each knob of each stage to each other value that is legal and fits, and compares the machine code. Knobs that no
/// stage can turn are turned in the others.
pub fn prove(
    stages: &[(String, Config)],
    others: &[(String, Config)],
    specialisation: &Specialisation,
    arch: Arch,
    compile: Compile,
) -> ToggleReport {
    let (mut proofs, neighbours) = neighbours(stages, others, specialisation, arch);
    let hashes = compile_all(&neighbours, compile);
    for Neighbour { proof, value, stage, program, .. } in neighbours {
        let proof = &mut proofs[proof];
        match (&hashes[&stage], &hashes[&program]) {
            (Ok(own), Ok(other)) => {
                if own == other {
                    proof.without_effect.push(value.clone());
                }
                proof.compared.push(value);
            }
            (Err(error), _) => proof.errors.push(format!("the stage itself does not compile: {error}")),
            (_, Err(error)) => proof.errors.push(format!("{}={value} does not compile: {error}", proof.knob)),
        }
    }
    ToggleReport {
        arch: arch.to_string(),
        head_dim: specialisation.head_dim,
        causal: specialisation.mask == eightfold::Mask::Causal,
        gate: judge(&proofs),
        knobs: proofs,
    }
}

fn neighbours(
    stages: &[(String, Config)],
    others: &[(String, Config)],
    specialisation: &Specialisation,
    arch: Arch,
) -> (Vec<KnobProof>, Vec<Neighbour>) {
    let legal = |config: &Config| restriction(config, specialisation, arch).is_ok();
    let mut proofs: Vec<KnobProof> = Vec::new();
    let mut neighbours: Vec<Neighbour> = Vec::new();
    for (place, (stage, config)) in stages.iter().chain(others).enumerate().filter(|(_, (_, config))| legal(config)) {
        let Ok(target) = config.target(arch) else { continue };
        for knob in config.knobs() {
            let turned = |neighbour: &Neighbour| proofs[neighbour.proof].knob == knob.name;
            if place >= stages.len() && neighbours.iter().any(turned) {
                continue;
            }
            let own = config.knob(knob.name).unwrap_or_default();
            let before = neighbours.len();
            for value in knob.values.iter().filter(|value| **value != own) {
                let Ok(other) = config.with_knob(knob.name, value) else { continue };
                if legal(&other) {
                    neighbours.push(Neighbour {
                        proof: proofs.len(),
                        value: value.to_string(),
                        target,
                        stage: specialisation.program(*config),
                        program: specialisation.program(other),
                    });
                }
            }
            if place >= stages.len() && neighbours.len() == before {
                continue;
            }
            proofs.push(KnobProof {
                stage: stage.clone(),
                knob: knob.name.into(),
                value: own,
                compared: Vec::new(),
                without_effect: Vec::new(),
                errors: Vec::new(),
            });
        }
    }
    (proofs, neighbours)
}

/// The hash of every program's machine code, or the first line of why there is none; each is compiled once.
fn compile_all(neighbours: &[Neighbour], compile: Compile) -> HashMap<Program, Result<u64, String>> {
    let both = neighbours.iter().flat_map(|pair| [(&pair.stage, pair.target), (&pair.program, pair.target)]);
    let mut programs: Vec<(&Program, Arch)> = both.collect();
    let mut seen = std::collections::HashSet::new();
    programs.retain(|(program, _)| seen.insert(*program));
    let hash = |program: &Program, target: Arch| match compile(program, target) {
        Ok(compiled) => Ok(compiled.code_hash),
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_string()),
    };
    programs.into_par_iter().map(|(program, target)| (program.clone(), hash(program, target))).collect()
}

fn judge(proofs: &[KnobProof]) -> GateReport {
    let total = |count: fn(&KnobProof) -> usize| proofs.iter().map(count).sum::<usize>();
    let compared = total(|proof| proof.compared.len());
    let without_effect = total(|proof| proof.without_effect.len());
    let errors = total(|proof| proof.errors.len());
    let checks = vec![
        Check::at_least(checks::COMPARED, compared as f64, 1.0),
        Check::at_most(checks::WITHOUT_EFFECT, without_effect as f64, 0.0),
        Check::at_most(checks::ERRORS, errors as f64, 0.0),
    ];
    let (outcome, summary) = if without_effect + errors > 0 {
        let named = proofs.iter().flat_map(KnobProof::failures).collect::<Vec<_>>();
        (Outcome::Fail, named.join("; "))
    } else if compared == 0 {
        (Outcome::Unavailable, "no knob has a legal alternative here".into())
    } else {
        let alone = proofs.iter().filter(|proof| proof.compared.is_empty()).count();
        let varied = proofs.len() - alone;
        (
            Outcome::Pass,
            format!(
                "{varied} knobs set to {compared} other values, each with other machine code; {alone} have no legal alternative"
            ),
        )
    };
    GateReport { gate: Gate::Toggle, outcome, summary, checks }
}

impl KnobProof {
    /// What is wrong, one line each.
    pub fn failures(&self) -> impl Iterator<Item = String> + '_ {
        let KnobProof { stage, knob, value, without_effect, errors, .. } = self;
        let silent = without_effect
            .iter()
            .map(move |other| format!("{stage}: {knob}={other} gives the same machine code as {knob}={value}"));
        silent.chain(errors.iter().map(move |error| format!("{stage}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Compiled, Resources};
    use crate::gates::resource::plain_specialisation;
    use crate::kernel::Kernel;
    use eightfold::lab::compile::Cubin;
    use eightfold::lab::{hopper, ladder};
    use eightfold::{Error, Mask, Result};
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn stages(names: &[&str]) -> Vec<(String, Config)> {
        names.iter().map(|name| (name.to_string(), ladder::find_stage(name).unwrap().config.into())).collect()
    }

    /// Machine code that depends on every setting but this one.
    fn compiled(program: &Program, deaf_to: &str) -> Result<Compiled> {
        let mut hash = DefaultHasher::new();
        let settings = program.defines.iter().flat_map(|(_, value)| value.split(';'));
        settings
            .filter(|setting| !setting.contains(&format!(" {deaf_to} = ")))
            .for_each(|setting| setting.hash(&mut hash));
        let cubin = Cubin {
            image: Vec::new().into(),
            entry: program.entry.into(),
            arch: Arch::Sm90,
            log: String::new(),
            compiler: "a stand-in".into(),
            cached: false,
        };
        Ok(Compiled { cubin, resources: Resources::default(), code_hash: hash.finish() })
    }

    fn prove_with(names: &[&str], compile: Compile) -> ToggleReport {
        prove(&stages(names), &[], &plain_specialisation(64, Mask::None), Arch::Sm90, compile)
    }

    #[test]
    fn knobs_that_reach_the_compiler_pass() {
        let report = prove_with(&["baseline", "unpack"], &|program, _| compiled(program, ""));
        assert_eq!(report.gate.outcome, Outcome::Pass, "{}", report.gate.summary);
        assert_eq!(report.knobs.len(), 2 * ladder::KNOBS.len());
        let copy = &report.knobs[0];
        assert_eq!((copy.knob.as_str(), copy.value.as_str()), ("copy", "sync"));
        assert_eq!(copy.compared, ["async2", "async3"]);
    }

    #[test]
    fn a_knob_that_the_code_is_deaf_to_is_named_with_value_and_stage() {
        let report = prove_with(&["baseline", "unpack"], &|program, _| compiled(program, "EXP_POLYNOMIAL"));
        assert_eq!(report.gate.outcome, Outcome::Fail);
        for expected in [
            "baseline: exp=poly gives the same machine code as exp=hardware",
            "unpack: exp=poly gives the same machine code as exp=hardware",
        ] {
            assert!(report.gate.summary.contains(expected), "{}", report.gate.summary);
        }
        let silent = report.gate.failed().map(|check| check.name.as_str()).collect::<Vec<_>>();
        assert_eq!(silent, [checks::WITHOUT_EFFECT]);
    }

    #[test]
    fn a_knob_that_no_rule_lets_move_has_no_legal_alternative_and_is_no_failure() {
        let report = prove_with(&["baseline"], &|program, _| compiled(program, ""));
        // Scalar sums read weights from shared memory, and a copy that everyone waits for needs no one to make it.
        let producers = report.knobs.iter().find(|proof| proof.knob == "producers").unwrap();
        assert_eq!((producers.compared.len(), producers.failures().count()), (0, 0));
        assert!(report.gate.summary.ends_with("have no legal alternative"), "{}", report.gate.summary);
    }

    #[test]
    fn a_value_that_does_not_compile_fails_the_proof() {
        let report = prove_with(&["baseline"], &|program, _| {
            if program.defines.iter().any(|(_, value)| value.contains(" EXP_POLYNOMIAL = 1;")) {
                return Err(Error::invalid("source", "no such thing\nat all", "mend it"));
            }
            compiled(program, "")
        });
        assert_eq!(report.gate.outcome, Outcome::Fail);
        let expected = "baseline: exp=poly does not compile: source: no such thing";
        assert_eq!(report.gate.summary, expected);
    }

    #[test]
    fn every_knob_of_the_hopper_kernel_is_turned_for_its_own_architecture() {
        let stages = [("fast".to_string(), hopper::find_stage("fast").unwrap().config.into())];
        let others: Vec<_> = crate::build::configs(&Kernel::HOPPER.others(64, Mask::None)).unwrap();
        let compile = |program: &Program, arch| {
            assert_eq!(arch, Arch::Sm90a);
            compiled(program, "ORDER")
        };
        let report = prove(&stages, &others, &plain_specialisation(64, Mask::None), Arch::Sm90, &compile);
        assert_eq!(report.gate.outcome, Outcome::Pass, "{}", report.gate.summary);
        for knob in hopper::KNOBS {
            let turned = |proof: &&KnobProof| proof.knob == knob.name && !proof.compared.is_empty();
            assert!(report.knobs.iter().any(|proof| turned(&proof)), "{}", knob.name);
        }
        let of_stage = report.knobs.iter().filter(|proof| proof.stage == "fast").count();
        assert_eq!(of_stage, hopper::KNOBS.len());
    }

    #[test]
    fn every_program_is_compiled_once() {
        let (count, seen) = (AtomicUsize::new(0), Mutex::new(std::collections::HashSet::new()));
        let all: Vec<_> = ladder::STAGES.iter().map(|stage| stage.name).collect();
        prove_with(&all, &|program, _| {
            count.fetch_add(1, Ordering::Relaxed);
            seen.lock().unwrap().insert(program.clone());
            compiled(program, "")
        });
        assert_eq!(count.into_inner(), seen.into_inner().unwrap().len());
    }
}
