//! What became of mutants of the device code.

use super::csv::csv as rows;
use super::table::Table;
use super::{table, text};
use eightfold_lab::mutants::{Fate, Place, Tried};
use eightfold_lab::record::Record;

/// The table, and how many were noticed.
pub fn render(record: &Record) -> String {
    format!("{}\n{}\n", text(&each(record)), summary(record))
}

/// The same for documents.
pub fn markdown(record: &Record) -> String {
    format!("{}\n\n{}", summary(record), each(record).markdown())
}

fn each(record: &Record) -> Table {
    let mut table = table(&["mutant", "target", "breaks", "noticed by"], true);
    for tried in record.mutants.iter().flat_map(|trial| &trial.tried) {
        table.add_row([tried.name.clone(), tried.target.clone(), tried.breaks.clone(), noticed_by(tried)]);
    }
    table
}

/// One sentence.
pub fn summary(record: &Record) -> String {
    let Some(trial) = &record.mutants else { return String::new() };
    let count = |which: fn(&Tried) -> bool| trial.tried.iter().filter(|tried| which(tried)).count();
    let run = count(|tried| tried.fate != Fate::NotRun && tried.equivalent.is_none());
    let noticed =
        count(|tried| matches!(tried.fate, Fate::Killed { .. } | Fate::Ended { .. }) && tried.equivalent.is_none());
    let equivalent = count(|tried| tried.fate == Fate::Survived && tried.equivalent.is_some());
    let place = match trial.on {
        Place::Device => "the device",
        Place::Simulator => "the simulated device",
    };
    format!(
        "{noticed} of {run} mutants that ran on {place} were noticed; {equivalent} more are equivalent, controls among them."
    )
}

/// What noticed it, or that nothing did.
pub fn noticed_by(tried: &Tried) -> String {
    match (&tried.fate, &tried.equivalent) {
        (Fate::Killed { by, .. }, None) => by.clone(),
        (Fate::Killed { by, .. }, Some(_)) => format!("FAIL: said to be equivalent, and noticed by {by}"),
        (Fate::Ended { reason }, _) => reason.clone(),
        (Fate::Survived, Some(reason)) => format!("equivalent: {reason}"),
        (Fate::Survived, None) => "FAIL: nothing".into(),
        (Fate::DoesNotCompile { .. }, _) => "FAIL: does not compile".into(),
        (Fate::NotRun, _) => "not run here: the simulated device tells".into(),
    }
}

/// A row for each.
pub fn csv(record: &Record) -> String {
    let tried = record.mutants.iter().flat_map(|trial| &trial.tried);
    let each = tried.map(|one| {
        let detail = match &one.fate {
            Fate::Killed { detail, .. } => detail.clone(),
            Fate::Ended { reason } | Fate::DoesNotCompile { reason } => reason.clone(),
            Fate::Survived | Fate::NotRun => String::new(),
        };
        vec![one.name.clone(), one.file.clone(), one.target.clone(), one.breaks.clone(), noticed_by(one), detail]
    });
    rows(&["mutant", "file", "target", "breaks", "noticed_by", "detail"], each)
}
