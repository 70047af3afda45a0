//! A job that is killed loses the round in progress and nothing else, and the next one starts as if nothing had been.

use crate::support::Place;
use eightfold_lab::record::Record;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts `eightfold` here, kills it as soon as it has kept something of a problem that it is still timing, and returns
/// what it left.
fn cut_short(place: &Place, arguments: &str) -> Record {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("eightfold"))
        .current_dir(place.path())
        .args(arguments.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let record = first_rounds(place, &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    record.unwrap_or_else(|| panic!("`{arguments}` ended, or kept nothing"));
    Record::read(&records(place)[0]).unwrap()
}

/// The record as soon as it has rounds of an unfinished problem; none if the job ends before.
fn first_rounds(place: &Place, child: &mut Child) -> Option<Record> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none() {
        // Files are written whole: whenever there is one, it can be read. At first it holds gates alone.
        let record = records(place).first().map(|path| Record::read(path).unwrap());
        // On a slow machine a contestant has no run in the first rounds.
        let timed = |record: &Record| {
            record.groups.iter().any(|group| group.entries.iter().take(2).all(|one| one.timing.is_some()))
        };
        if let Some(record) = record.filter(timed) {
            return Some(record);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// The records that are whole: one that is being written lies in a hidden folder until it is.
fn records(place: &Place) -> Vec<PathBuf> {
    let whole = |path: &String| path.ends_with("/record.json") && !path.contains("/.");
    let names = place.contents().into_iter().filter(whole);
    names.map(|path| place.file(&path)).collect()
}

/// Long enough to be killed: the baseline takes some hundredths of a second for one run, and makes dozens.
const SLOW: &str = "--shape 1,4,256,64 --threads 1";

#[test]
fn a_killed_bench_leaves_its_rounds_and_the_next_one_starts_cleanly() {
    let place = Place::new();
    let record = cut_short(&place, &format!("bench --variant cpu:baseline cpu:lanes {SLOW}"));
    let reason = record.ended_early.clone().unwrap();
    assert!(reason.contains("while 1,4,256,64 was timed"), "{reason}");
    let entries = &record.groups[0].entries;
    let rounds = |place: usize| entries[place].timing.as_ref().unwrap().samples.rounds.len();
    assert_eq!(entries.len(), 2);
    assert!((1..10).contains(&rounds(0)) && rounds(0) == rounds(1), "{} {}", rounds(0), rounds(1));
    let page = place.succeed(&format!("report {}", records(&place)[0].display()));
    assert!(page.contains("No gate failed"), "{page}");
    assert!(std::fs::read_to_string(place.file("report.html")).unwrap().contains("It ended early: "));
    // The next one goes into a folder of its own and leaves what is there alone.
    let before = std::fs::read(&records(&place)[0]).unwrap();
    place.succeed("bench --variant cpu:lanes --shape 1,1,16,8 --threads 1 --iterations 10");
    let after = records(&place);
    assert_eq!(after.len(), 2);
    let whole: Vec<bool> = after.iter().map(|path| Record::read(path).unwrap().ended_early.is_none()).collect();
    assert_eq!(whole.iter().filter(|whole| **whole).count(), 1);
    assert!(after.iter().any(|path| std::fs::read(path).unwrap() == before));
}

#[test]
fn a_killed_ladder_and_a_killed_comparison_leave_theirs() {
    for arguments in [SLOW.to_string(), format!("compare cpu:baseline cpu:baseline {SLOW}")] {
        let place = Place::new();
        let record = cut_short(&place, &arguments);
        assert!(record.ended_early.is_some(), "{arguments}");
        let timing = record.groups[0].entries[0].timing.as_ref().unwrap();
        assert!(!timing.samples.rounds.is_empty(), "{arguments}");
        assert!(record.comparisons.is_empty(), "no verdict without all rounds");
    }
}
