//! A mutant in the place of a kernel's file, for what this thread compiles.

use super::{Mutant, Place, Target, text_of};
use crate::simulate::{self, Edit};
use eightfold::lab::compile::{self, Overlay};
use eightfold::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The files that programs are compiled from.
pub(super) const MAINS: [&str; 8] = [
    "hopper/attention.cu",
    "hopper/short.cu",
    "ladder/attention.cu",
    "quantize/fused.cu",
    "quantize/quantize.cu",
    "paged/attention.cu",
    "ragged/gather.cu",
    "ragged/plan.cu",
];

fn main_of(target: &Target) -> Result<&'static str> {
    MAINS.into_iter().find(|main| *main == target.main).ok_or_else(|| {
        Error::invalid("main", format!("no program is compiled from {}", target.main), format!("name one of {MAINS:?}"))
    })
}

/// The changed file.
pub(super) fn of(mutant: &Mutant) -> Result<Overlay> {
    let text = mutant.applied(&mutant.file, text_of(&mutant.file)?)?;
    Overlay::new(BTreeMap::from([(mutant.file.clone(), text)]))
}

/// From now on the mutant is compiled where the kernel would be.
pub(super) fn put(target: &Target, mutant: &Mutant, on: Place) -> Result<()> {
    let main = main_of(target)?;
    let overlay = of(mutant)?;
    match on {
        // Findings are told by the lines of the kernel's own files.
        Place::Simulator => {
            let edit = Edit { file: mutant.file.clone(), before: mutant.find.clone(), after: mutant.replace.clone() };
            simulate::plant(main, vec![edit]);
        }
        Place::Device => compile::set_overlay(Some(Arc::new(overlay))),
    }
    Ok(())
}

/// The kernel is itself again.
pub(super) fn remove(target: &Target, on: Place) {
    if let Ok(main) = main_of(target) {
        match on {
            Place::Simulator => simulate::plant(main, Vec::new()),
            Place::Device => compile::set_overlay(None),
        }
    }
}
