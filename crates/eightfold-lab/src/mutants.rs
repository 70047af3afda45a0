//! Mutants of the device code: small changes, each of which a gate must notice.
//!
//! Nothing on disk changes: a mutant is compiled from a text that stands for the kernel's file in this process.

mod overlay;
mod process;
mod subject;

use crate::gates::Thresholds;
use eightfold::lab::compile;
use eightfold::{Error, Result};
use process::Ended;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// What is mutated and how, as the file `mutants.toml` says it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutants {
    target: BTreeMap<String, Target>,
    mutant: Vec<Mutant>,
}

/// What is run of a mutant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The file that is compiled; a mutated file is this one or one of its headers.
    main: String,
    /// The variant; none for the quantiser and for pages.
    variant: Option<String>,
    #[serde(default)]
    quantizer: bool,
    /// The case of attention to pages, or of prompts of many lengths, by its name.
    pages: Option<String>,
    /// The sizes; a case of pages has its own.
    #[serde(default)]
    shape: String,
    #[serde(default)]
    causal: bool,
    #[serde(default)]
    centred: bool,
}

/// One change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// What a person calls it.
    pub name: String,
    /// The name of its target.
    target: String,
    /// The file below `kernels/`.
    pub file: String,
    /// What stands there, once.
    find: String,
    /// What is to stand there.
    replace: String,
    /// What goes wrong.
    pub breaks: String,
    /// Where alone it can be noticed, if not everywhere.
    on: Option<Place>,
    /// Why it computes the same as the kernel, if it does.
    pub equivalent: Option<String>,
}

/// Where a mutant is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A GPU.
    Device,
    /// The simulated device.
    Simulator,
}

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// A check or a finding noticed it.
    Killed {
        /// The check's name, or the kind of the simulator's finding.
        by: String,
        /// On which inputs, with what value.
        detail: String,
    },
    /// It did not end in time, or took its process with it.
    Ended {
        /// How.
        reason: String,
    },
    /// Nothing noticed it.
    Survived,
    /// It is no program, so that nothing can be said of any gate.
    DoesNotCompile {
        /// The compiler's first words.
        reason: String,
    },
    /// It was not run here, where nothing forces it to go wrong.
    NotRun,
}

/// A mutant and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Its name.
    pub name: String,
    /// The file that was changed.
    pub file: String,
    /// What it breaks.
    pub breaks: String,
    /// The variant, or the quantiser, and the problem.
    pub target: String,
    /// Why it is equivalent, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivalent: Option<String>,
    /// What became of it.
    #[serde(flatten)]
    pub fate: Fate,
}

/// All mutants that were tried in one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Where.
    pub on: Place,
    /// Each of them.
    pub tried: Vec<Tried>,
}

impl Tried {
    /// Whether it is as it should be: noticed, or known to compute the same.
    pub fn is_settled(&self) -> bool {
        match self.fate {
            Fate::Killed { .. } | Fate::Ended { .. } => self.equivalent.is_none(),
            Fate::Survived => self.equivalent.is_some(),
            Fate::NotRun => true,
            Fate::DoesNotCompile { .. } => false,
        }
    }
}

impl Mutants {
    /// The ones that come with this program.
    pub fn embedded() -> Self {
        toml::from_str(include_str!("../mutants.toml")).expect("a test parses the embedded file")
    }

    /// Every mutant, or those of these names; an error where a name is unknown.
    pub fn named(&self, names: &[String]) -> Result<Vec<&Mutant>> {
        let all = || self.mutant.iter();
        let known: Vec<&str> = all().map(|mutant| mutant.name.as_str()).collect();
        if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(eightfold::lab::suggest::unknown("only", unknown, &known));
        }
        Ok(all().filter(|mutant| names.is_empty() || names.contains(&mutant.name)).collect())
    }

    /// What is run of a mutant.
    fn target(&self, mutant: &Mutant) -> Result<&Target> {
        self.target.get(&mutant.target).ok_or_else(|| {
            let known: Vec<&str> = self.target.keys().map(String::as_str).collect();
            eightfold::lab::suggest::unknown("target", &mutant.target, &known)
        })
    }

    /// What became of a mutant that was not tried in this process.
    pub fn report(&self, mutant: &Mutant, fate: Fate) -> Result<Tried> {
        let Mutant { name, file, breaks, equivalent, .. } = mutant.clone();
        Ok(Tried { name, file, breaks, target: self.target(mutant)?.to_string(), equivalent, fate })
    }

    /// Tries a mutant in a process of its own, which `command` starts and which writes its [`Fate`] as JSON on standard output.
    pub fn try_apart(&self, mutant: &Mutant, command: std::process::Command, limit: Duration) -> Result<Tried> {
        let reason = |reason: String| Fate::Ended { reason };
        let fate = match process::output_of(command, limit) {
            Ended::Said(text) => match serde_json::from_str(text.trim()) {
                Ok(fate) => fate,
                Err(_) => reason(format!("it said nothing: {}", text.lines().last().unwrap_or_default())),
            },
            Ended::Silent(how) => reason(how),
            Ended::Mistake(said) => return Err(Error::invalid(&mutant.name, said, "see eightfold doctor")),
            Ended::TimedOut => reason(format!("it had not ended after {} s", limit.as_secs())),
        };
        self.report(mutant, fate)
    }

    /// Tries each apart, so many at a time, and hands them on in their order. A mistake ends it.
    pub fn try_each(
        &self,
        mutants: &[&Mutant],
        jobs: usize,
        command: impl Fn(&Mutant) -> Result<std::process::Command> + Sync,
        limit: Duration,
        mut keep: impl FnMut(Tried) -> Result<()>,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, mutants.len().max(1)) {
                let (sender, next, command) = (sender.clone(), &next, &command);
                scope.spawn(move || {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(mutant) = mutants.get(index) else { break };
                        let tried = command(mutant).and_then(|command| self.try_apart(mutant, command, limit));
                        // Nobody waits for it any more after a mistake.
                        if sender.send((index, tried)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let mut early = BTreeMap::new();
            let mut kept = 0;
            for (index, tried) in receiver {
                early.insert(index, tried?);
                while let Some(tried) = early.remove(&kept) {
                    keep(tried)?;
                    kept += 1;
                }
            }
            Ok(())
        })
    }

    /// Puts a mutant through the correctness gate, in this process, which it may take with it.
    pub fn try_here(&self, mutant: &Mutant, on: Place, thresholds: &Thresholds) -> Result<Fate> {
        if mutant.on.is_some_and(|only| only != on) {
            return Ok(Fate::NotRun);
        }
        let target = self.target(mutant)?;
        overlay::put(target, mutant, on)?;
        let fate = subject::judge(target, thresholds);
        overlay::remove(target, on);
        fate
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(case) = &self.pages {
            return write!(f, "pages, {case}");
        }
        // A list of knobs says less than the kernel's name to whoever reads a table.
        let variant = self.variant.as_deref().unwrap_or("quantizer");
        let short = variant.split_once(',').map_or(variant, |(first, _)| first);
        let mask = if self.causal { ", causal" } else { "" };
        let centred = if self.centred { ", centred" } else { "" };
        write!(f, "{short} {}{mask}{centred}", self.shape)
    }
}

fn text_of(file: &str) -> Result<&'static str> {
    compile::source_text(file).ok_or_else(|| {
        Error::invalid("file", format!("there is no {file} below kernels/"), "name a file of the device code")
    })
}

impl Mutant {
    /// A file's text with the change in it, if it is the file that is changed.
    fn applied(&self, file: &str, text: &str) -> Result<String> {
        if file != self.file {
            return Ok(text.to_owned());
        }
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            count => {
                let rule = format!("{:?} stands {count} times in {file}", self.find);
                Err(Error::invalid(&self.name, rule, "change something that stands there once"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::Mask;
    use eightfold::cuda::Arch;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    #[test]
    fn every_mutant_changes_what_stands_there_once() {
        let mutants = Mutants::embedded();
        let mut names = BTreeSet::new();
        for mutant in mutants.named(&[]).unwrap() {
            assert!(names.insert(&mutant.name), "{} is there twice", mutant.name);
            let text = text_of(&mutant.file).unwrap();
            assert_ne!(mutant.applied(&mutant.file, text).unwrap(), text, "{}", mutant.name);
            assert_eq!(mutant.applied("another.cuh", text).unwrap(), text);
            let target = mutants.target(mutant).unwrap();
            let reached = reached(&target.main, mutant);
            assert!(reached.contains(&mutant.replace), "{}: {} does not reach it", mutant.name, target.main);
        }
        assert!(names.len() >= 30);
    }

    /// All that is compiled of a file with a mutant in it.
    fn reached(main: &str, mutant: &Mutant) -> String {
        let file = overlay::MAINS.into_iter().find(|file| *file == main).unwrap();
        let program = compile::Program { file, entry: "", defines: Vec::new(), dynamic_shared_bytes: 0 };
        let overlay = Arc::new(overlay::of(mutant).unwrap());
        let files = compile::with_overlay(Some(&overlay), || compile::files(&program)).unwrap();
        files.into_iter().map(|(_, text)| text).collect()
    }

    /// A control gives the kernel's own machine code.
    #[test]
    fn controls_compile_to_what_the_kernel_is() {
        let Ok(compiler) = crate::environment::compiler() else {
            assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none());
            return;
        };
        let mutants = Mutants::embedded();
        for name in ["control-streamed", "control-ladder-fp8"] {
            let mutant = mutants.named(&[name.into()]).unwrap()[0];
            let target = mutants.target(mutant).unwrap();
            let variant = crate::kernel::suited(target.variant.as_deref().unwrap(), 64, Mask::None).unwrap();
            let config = variant.on_device().unwrap();
            let program = crate::gates::resource::plain_specialisation(64, Mask::None).program(config);
            assert_eq!(program.file, target.main);
            let arch = config.target(Arch::Sm90).unwrap();
            let own = crate::compile::compile(compiler, &program, arch).unwrap();
            let overlay = Arc::new(overlay::of(mutant).unwrap());
            let control =
                compile::with_overlay(Some(&overlay), || crate::compile::compile(compiler, &program, arch)).unwrap();
            assert_eq!(control.code_hash, own.code_hash, "{name}");
        }
    }

    #[test]
    fn both_kernels_the_quantiser_and_the_merge_have_mutants() {
        let mutants = Mutants::embedded();
        for part in ["hopper/", "ladder/", "quantize/", "hopper/merge.cuh", "paged/"] {
            assert!(mutants.mutant.iter().filter(|mutant| mutant.file.starts_with(part)).count() >= 4, "{part}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn mutants_that_are_tried_together_are_told_in_their_order() {
        let mutants = Mutants::embedded();
        let chosen = &mutants.named(&[]).unwrap()[..4];
        let tried = |mistake: Option<&str>| {
            let command = |mutant: &Mutant| {
                // The first ends last.
                let wait = if mutant.name == chosen[0].name { "sleep 0.5; " } else { "" };
                let code = if mistake == Some(&mutant.name) { 2 } else { 0 };
                let mut command = std::process::Command::new("/bin/sh");
                command.args(["-c", &format!("{wait}echo '{{\"fate\": \"survived\"}}'; exit {code}")]);
                Ok(command)
            };
            let mut kept = Vec::new();
            let ended = mutants.try_each(chosen, 3, command, Duration::from_secs(60), |tried| {
                assert_eq!(tried.fate, Fate::Survived);
                kept.push(tried.name);
                Ok(())
            });
            (ended.is_ok(), kept)
        };
        let names: Vec<String> = chosen.iter().map(|mutant| mutant.name.clone()).collect();
        assert_eq!(tried(None), (true, names.clone()));
        assert_eq!(tried(Some(&names[0])), (false, Vec::new()));
    }

    #[test]
    fn unknown_names_are_answered() {
        let error = Mutants::embedded().named(&["rescale-skiped".into()]).unwrap_err().to_string();
        assert!(error.contains("did you mean `rescale-skipped`?"), "{error}");
    }

    #[test]
    fn an_equivalent_mutant_that_is_noticed_is_not_settled() {
        let tried = |equivalent: Option<&str>, fate| {
            let [name, file, breaks, target] = ["n", "f", "b", "t"].map(String::from);
            Tried { name, file, breaks, target, equivalent: equivalent.map(String::from), fate }.is_settled()
        };
        let killed = || Fate::Killed { by: "race".into(), detail: String::new() };
        assert!(tried(None, killed()) && !tried(Some("it is the same"), killed()));
        assert!(!tried(None, Fate::Survived) && tried(Some("it is the same"), Fate::Survived));
        assert!(!tried(None, Fate::DoesNotCompile { reason: "x".into() }));
    }
}
