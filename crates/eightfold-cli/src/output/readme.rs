//! The numbers in the README are those of the records under `results/`, and nothing else.

use super::ladder_table;
use super::numbers::{ratio, time};
use eightfold::{Problem, Shape, cpu};
use eightfold_lab::record::{Group, Kind, Record};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every committed record of this kind, with its folder's name.
fn records(kind: Kind) -> Vec<(String, Record)> {
    let folders = std::fs::read_dir(root().join("results")).unwrap().map(|entry| entry.unwrap());
    let mut records: Vec<_> = folders
        .filter(|entry| entry.path().is_dir())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), Record::read(&entry.path().join("record.json")).unwrap())
        })
        .filter(|(_, record)| record.kind == kind)
        .collect();
    records.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(!records.is_empty(), "there is no {kind} record");
    records
}

/// A row of the README's table: the peer's time, and time and gain of our two number paths.
fn row(group: &Group) -> String {
    let p50 = |name: &str| group.entries.iter().find(|entry| entry.name == name).and_then(|entry| entry.p50_us());
    let torch = p50("torch");
    let ours = |name: &str| {
        let p50 = p50(name);
        format!("{} ({})", time(p50), ratio(torch.zip(p50).map(|(torch, p50)| torch / p50)))
    };
    let title = ladder_table::title(group);
    let (shape, _) = title.rsplit_once(", ").unwrap();
    format!("| {shape} | {} | {} | {} |", time(torch), ours("cpu:avx512"), ours("cpu:int16-avx512"))
}

#[test]
fn the_readme_shows_what_the_records_hold() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let mut missing = Vec::new();
    for (folder, record) in records(Kind::Bench) {
        missing.extend(record.groups.iter().map(row).filter(|row| !readme.contains(row)));
        missing.extend((!readme.contains(&folder)).then_some(format!("the name of {folder}")));
    }
    for (folder, record) in records(Kind::Ladder) {
        let mission = record.groups.iter().find(|group| group.shape == "mission").unwrap();
        missing.extend(Some(ladder_table::render(mission)).filter(|table| !readme.contains(table)));
        missing.extend((!readme.contains(&folder)).then_some(format!("the name of {folder}")));
    }
    let mission = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
    let memory = format!("{} KiB", cpu::working_bytes(&cpu::Config::default(), &mission).div_ceil(1024));
    missing.extend(Some(memory).filter(|memory| !readme.contains(memory)));
    assert!(missing.is_empty(), "the README lacks\n{}", missing.join("\n"));
}

#[test]
fn committed_records_come_from_release_builds_of_a_commit() {
    for kind in [Kind::Ladder, Kind::Bench] {
        for (folder, record) in records(kind) {
            assert!(record.provenance.release, "{folder}");
            assert!(record.provenance.checkout.as_ref().is_some_and(|checkout| !checkout.dirty), "{folder}");
            assert!(!record.failed(), "{folder}: a gate failed");
        }
    }
}
