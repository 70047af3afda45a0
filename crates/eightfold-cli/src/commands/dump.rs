//! `eightfold run --dump-tiles`: what one block of a kernel computed on the way.

use super::run::Job;
use crate::{Verdict, output};
use eightfold::{Error, Result, Variant};
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::Thresholds;
use eightfold_lab::{dump, store};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The unit of work whose tiles are written: the first tile of queries of the first head.
const UNIT: usize = 0;

#[derive(Serialize)]
struct Dumped {
    out: PathBuf,
    variant: String,
    problem: String,
    inputs: String,
    tiles: usize,
}

/// Runs the one variant on the first inputs of the one shape, in debug mode, and writes its tiles.
pub fn execute(file: &Path, jobs: &[(Job, Vec<Candidate>)], json: bool) -> Result<Verdict> {
    let one = |rule: &str| Error::invalid("dump-tiles", rule, "name one with --variant ladder:STAGE and one --shape");
    let [(job, candidates)] = jobs else { return Err(one("needs one shape")) };
    let [Candidate { variant: variant @ Variant::Ladder(config), .. }] = &candidates[..] else {
        return Err(one("needs one variant of the ladder kernel: no other can show its tiles"));
    };
    store::check_file(file)?;
    let cases = job.cases(candidates, &Thresholds::embedded().correctness.reference)?;
    let case = cases.first().ok_or_else(|| one("needs inputs"))?;
    let dumped = dump::tiles(config, case, UNIT)?;
    let report = Dumped {
        out: file.into(),
        variant: variant.to_string(),
        problem: case.problem.to_string(),
        inputs: case.origin.clone(),
        tiles: dumped.tiles.len(),
    };
    dump::write(file, &dumped, &report.variant, case)?;
    if json {
        output::print_json(&report)?;
    } else {
        let Dumped { problem, variant, tiles, .. } = &report;
        output::print(&format!("{tiles} tiles of {problem} with {variant}, written to {}\n", file.display()))?;
    }
    Ok(Verdict::Passed)
}
