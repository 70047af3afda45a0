//! What people read: help, explanations, diagnoses.

use crate::support::Place;

#[test]
fn help() {
    let place = Place::new();
    let mut all = String::new();
    let commands = [
        "-h",
        "ladder -h",
        "run -h",
        "build -h",
        "dump -h",
        "bench -h",
        "bench quantizer -h",
        "compare --help",
        "profile --help",
        "evolve --help",
        "ledger -h",
        "report -h",
        "attend --help",
        "explain -h",
        "list -h",
        "doctor -h",
        "completions -h",
        "man -h",
    ];
    for command in commands {
        all.push_str(&format!("$ eightfold {command}\n{}\n", place.succeed(command)));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn explain_names_the_problem_the_variant_and_the_reason() {
    let place = Place::new();
    // The serial baseline reads the same on every machine.
    insta::assert_snapshot!(place.succeed("explain --shape 1,8,2,17,33,64 --causal --variant cpu:baseline"));
    let on_cpu = place.command("explain --shape mission").env("EIGHTFOLD_DEVICE", "cpu").output().unwrap();
    let default = String::from_utf8(on_cpu.stdout).unwrap();
    assert!(
        default.starts_with("problem: 1,8,512,64\n")
            && ["\n  runs  cpu:", "\n  not   cpu:"].iter().all(|line| default.contains(line)),
        "{default}"
    );
}

#[test]
fn explain_as_json_says_the_same() {
    let place = Place::new();
    let text = place.succeed("explain --shape small --json");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["problem"]["query_len"], 32);
    let considered = answer["considered"].as_array().unwrap();
    let chosen: Vec<_> = considered.iter().filter(|one| one["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1);
    assert_eq!(chosen[0]["variant"], answer["variant"]);
}

#[test]
fn doctor_reports_what_is_missing_and_how_to_get_it() {
    let place = Place::new();
    std::fs::write(place.file("file"), "x").unwrap();
    let text = place.succeed("doctor --verbose --python /no/such/python --records file");
    for line in [
        "- PyTorch: `/no/such/python` cannot be started",
        "--python",
        "- git checkout: not in a checkout",
        "- records: ",
        "+ threads: ",
    ] {
        assert!(text.contains(line), "{line} is missing from\n{text}");
    }
    let json = place.succeed("doctor --python /no/such/python --json");
    let findings: serde_json::Value = serde_json::from_str(&json).unwrap();
    let torch = findings.as_array().unwrap().iter().find(|finding| finding["what"] == "PyTorch").unwrap();
    assert_eq!(torch["found"], false);
    assert!(torch["fix"].as_str().unwrap().contains("pip install torch"));
}
