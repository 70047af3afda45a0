//! `eightfold gate`, as far as it goes without a GPU.

use crate::support::{Place, stderr};

#[test]
fn each_gate_is_hard_and_the_exit_code_says_whether_all_were_passed() {
    let place = Place::new();
    let shown = place.succeed("gate cpu:lanes --shape 1,1,16,16 --until correctness");
    assert!(shown.contains("correctness") && shown.contains("PASS") && shown.contains("record: "), "{shown}");
    // Nothing is a hundred times as fast as the stage before.
    let output = place.run("gate cpu:lanes --shape 1,1,16,16 --gain +9900% --json");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(record["kind"], "gate");
    let entries = record["groups"][0]["entries"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cpu:baseline", "cpu:lanes"]);
    let gates = entries[1]["gates"].as_array().unwrap();
    let gates: Vec<_> = gates.iter().map(|gate| gate["gate"].as_str().unwrap()).collect();
    assert_eq!(gates, ["correctness", "performance"]);
    assert_ne!(entries[1]["gates"][1]["outcome"], "pass");
}

#[test]
fn a_gate_of_ones_own_is_met() {
    let place = Place::new();
    let own = include_str!("../../../eightfold-lab/gates.toml").replacen("mean_abs = 0.02", "mean_abs = 1e-12", 1);
    std::fs::write(place.file("own.toml"), own).unwrap();
    let output = place.run("gate cpu:lanes --shape 1,1,16,16 --gates own.toml");
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(shown.contains("FAIL") && shown.contains("was not reached"), "{shown}");
}

#[test]
fn what_cannot_be_asked_is_said_in_one_line() {
    let place = Place::new();
    for (line, part) in [
        ("gate cpu:baseline", "nothing says how fast cpu:baseline must be; give --over VARIANT"),
        ("gate cpu:lanes --over cpu:lanes", "over: cpu:lanes is the variant itself"),
        ("gate cpu:baseline --gain +10%", "gain: is over nothing"),
        ("gate cpu:lanes --require 15x torch-moth", "`torch-moth` is unknown"),
        ("gate cpu:lanes --require fast torch-f32", "\"fast\" is no factor"),
        ("gate cpu:lanes --require 15x", "2 values required"),
        ("gate cpu:lanes --over cpu:no-such", "no-such"),
        ("gate", "required arguments were not provided"),
    ] {
        let output = place.run(line);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{line}: {said}");
    }
}

#[test]
fn each_stage_is_timed_alone_and_left_out() {
    let place = Place::new();
    let shown = place.succeed("ablation --kernel cpu --shape 1,1,16,16");
    for part in ["only this", "all but this", "lanes", "threads", "queue"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let output = place.run("ablation --kernel hopper");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the stages of hopper are accuracies"), "{}", stderr(&output));
}

#[test]
fn a_survey_says_what_is_near_the_plan_and_changes_nothing() {
    let place = Place::new();
    let shown = place.succeed("survey --shape 1,1,16,16 1,2,16,16 --causal");
    assert!(shown.contains("1,1,16,16, causal") && shown.contains("searched: on "), "{shown}");
    for (line, part) in [
        ("survey --causal", "causal: goes with shapes"),
        ("survey --budget 0", "budget: 0 is no time"),
        ("survey --aside --shape small", "cannot be used with"),
    ] {
        let output = place.run(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
    }
}
