//! The README and the book's generated pages are what the records say, and links in them lead somewhere.

use super::book;
use eightfold_lab::archive;
use eightfold_lab::record::{Kind, Record};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn all_records() -> Vec<(String, Record)> {
    let filed = archive::read(&root().join("results")).unwrap();
    // Those of the simulated device have a page and tests of their own.
    filed.into_iter().filter(|filed| filed.topic != "simulator").map(|filed| (filed.name, filed.record)).collect()
}

#[test]
fn generated_pages_are_those_that_are_committed() {
    for page in book::pages(&root()).unwrap() {
        let committed = std::fs::read_to_string(root().join(page.path)).unwrap_or_default();
        assert!(page.text == committed, "{} is out of date: run `cargo run -- book`", page.path);
    }
}

#[test]
fn the_readme_is_short_and_links_lead_somewhere() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 150, "{} lines", readme.lines().count());
    for page in pages_of_the_book().into_iter().chain([root().join("README.md"), root().join("CONTRIBUTING.md")]) {
        let text = std::fs::read_to_string(&page).unwrap();
        for (at, _) in text.match_indices("](") {
            let link = text[at + 2..].split([')', '#']).next().unwrap();
            let is_local = !link.is_empty() && !link.contains(':');
            assert!(!is_local || page.parent().unwrap().join(link).exists(), "{}: {link}", page.display());
        }
    }
}

fn pages_of_the_book() -> Vec<PathBuf> {
    let folders = ["docs/src", "docs/src/performance"].map(|folder| std::fs::read_dir(root().join(folder)).unwrap());
    let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

#[test]
fn the_book_lists_every_page_once_and_links_stay_inside() {
    let folder = root().join("docs/src");
    let summary = std::fs::read_to_string(folder.join("SUMMARY.md")).unwrap();
    let listed: Vec<&str> = summary.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    for page in pages_of_the_book() {
        let name = page.strip_prefix(&folder).unwrap().to_string_lossy().replace('\\', "/");
        let times = listed.iter().filter(|listed| **listed == name).count();
        assert_eq!(times, usize::from(name != "SUMMARY.md"), "{name} in SUMMARY.md");
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(!text.contains("](../../"), "{name} links to what is not in the book");
    }
    assert!(listed.iter().all(|page| folder.join(page).is_file()));
}

/// The table counts tries that went wrong, whatever the reason; of each kind there is a record where none did.
#[test]
fn every_kind_of_planted_difference_was_told_in_ten_of_ten_tries() {
    let tries: Vec<_> = all_records().into_iter().filter(|(_, record)| record.comparisons.len() > 1).collect();
    let sign = |record: &Record| record.comparisons[0].planted.map(|planted| planted > 0.0);
    for kind in [None, Some(false), Some(true)] {
        let all_right =
            |record: &Record| record.comparisons.len() >= 10 && record.comparisons.iter().all(book::is_right);
        assert!(tries.iter().any(|(_, record)| sign(record) == kind && all_right(record)), "{kind:?}");
    }
}

#[test]
fn committed_records_come_from_release_builds_of_a_commit() {
    for (folder, record) in all_records() {
        assert!(record.provenance.release, "{folder}");
        assert!(record.provenance.is_of_its_commit(), "{folder}");
        // That candidates of a search fail is part of the search.
        assert!(record.kind == Kind::Evolve || !record.failed(), "{folder}: a gate failed");
    }
}
