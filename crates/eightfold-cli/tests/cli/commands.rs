//! Commands by name, flags with one meaning, and what fits the page.

use crate::support::{Place, stderr};
use eightfold_lab::record::Record;

/// The longest line, in letters.
fn width(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn the_ladder_says_what_will_run_shows_each_shape_and_ends_with_the_best() {
    let place = Place::new();
    let text = place.succeed("ladder --kernel cpu --shape 1,1,16,8 1,2,24,8 --threads 1");
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words} is missing from\n{text}"));
    let order = ["eightfold 0.1.0", "  found  ", "10 stages of the cpu kernel on 1,1,16,8, 1,2,24,8", "  peers  none"];
    let tables = ["1,1,16,8, 0.0", "1,2,24,8, 0.0", "the best on each shape", "record: runs/", "report: runs/"];
    let places: Vec<usize> = order.iter().chain(&tables).map(|words| at(words)).collect();
    assert!(places.is_sorted(), "{places:?}\n{text}");
    assert!(width(&text) <= 100, "{text}");
    let page = text.lines().last().unwrap().strip_prefix("report: ").unwrap();
    assert!(std::fs::read_to_string(place.file(page)).unwrap().starts_with("<!DOCTYPE html>"));
    let quiet = place.succeed("--quiet --kernel cpu --shape 1,1,16,8 --threads 1");
    assert!(!quiet.contains("eightfold 0.1.0") && quiet.starts_with("1,1,16,8, 0.0"), "{quiet}");
}

#[test]
fn what_will_run_is_said_before_the_work() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let place = Place::new();
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("eightfold"))
        .current_dir(place.path())
        .args(["ladder", "--kernel", "cpu", "--shape", "1,4,256,64", "--threads", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first: Vec<String> = lines.take(3).collect();
    // The job is still running: it has not kept its record, which it does before it shows the first table.
    let running = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first[0].starts_with("eightfold 0.1.0") && first[2].contains("10 stages of the cpu kernel"), "{first:?}");
    assert!(running);
}

#[test]
fn bench_and_run_are_exported() {
    let place = Place::new();
    let bench = "bench --shape 1,1,16,8 --iterations 5 --variant cpu:baseline cpu:lanes";
    let csv = place.succeed(&format!("{bench} --format csv"));
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows.len(), 3, "{csv}");
    assert!(
        rows[0].starts_with("shape,problem,contestant,implementation,peer,output_format,timer,runs,p50_us,"),
        "{csv}"
    );
    assert!(rows[1].contains(",cpu:baseline,") && rows[1].contains(",host_clock,5,"), "{csv}");
    assert!(place.succeed(&format!("{bench} --format markdown")).contains("\n| cpu:lanes | 5 | "));
    let json = place.succeed(&format!("{bench} --format json"));
    assert_eq!(serde_json::from_str::<Record>(&json).unwrap().groups.len(), 1);
    let run = "run --shape 1,1,16,8 --variant cpu:baseline --families gaussian,huge --seeds 1,2";
    let csv = place.succeed(&format!("{run} --format csv"));
    let inputs = ["gaussian seed 1", "gaussian seed 2", "huge seed 1", "huge seed 2"];
    assert_eq!(csv.lines().count(), 5, "{csv}");
    assert!(csv.lines().skip(1).zip(inputs).all(|(row, inputs)| row.contains(&format!(",{inputs},"))), "{csv}");
    assert!(place.succeed(&format!("{run} --format markdown")).contains("| variant | cases | rel. L2 |"));
    let output = place.run(&format!("{bench} --format csv --json"));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "error: format: cannot go with --json; choose one of them\n");
}

#[test]
fn a_flag_by_its_old_name_is_answered_with_the_new_one() {
    let place = Place::new();
    for (arguments, new) in [
        ("--out x", "`--records DIR`"),
        ("ladder --out x", "`--records DIR`"),
        ("bench --out=x", "`--records DIR`"),
        ("doctor --out x", "`--records DIR`"),
        ("attend --inputs in --out x", "`--to FILE`"),
        ("report x --out y", "`--to FILE`"),
        ("bench --output bf16", "`--dtype`"),
        ("attend --out-dtype bf16", "`--dtype`"),
        ("run --arch sm_89", "`eightfold build --arch ARCH`"),
        ("run --nvcc", "`eightfold build --nvcc`"),
        ("run --dump-tiles x", "`eightfold dump --variant VARIANT --to FILE`"),
        ("bench --quantizer", "`eightfold bench quantizer`"),
        ("explain --kernel cpu", "`--variant VARIANT`"),
    ] {
        let output = place.run(arguments);
        let line = stderr(&output);
        assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{arguments}: {line}");
        assert!(line.contains("did you mean ") && line.contains(new), "{arguments}: {line}");
    }
    assert!(place.contents().is_empty());
}

#[test]
fn everything_that_is_listed_can_be_asked_for() {
    let place = Place::new();
    let text = place.succeed("list");
    for words in ["kernels\n", "ladder:unpack ", "hopper:linear ", "mission_b2 ", "biased-v ", "torch-flash ", "gpu "] {
        assert!(text.contains(words), "{words:?} is missing from\n{text}");
    }
    assert!(width(&text) <= 100, "{text}");
    let listing: serde_json::Value = serde_json::from_str(&place.succeed("list stages --kernel cpu --json")).unwrap();
    assert_eq!(listing.as_object().unwrap().len(), 1);
    let stages = listing["stages"].as_array().unwrap();
    assert_eq!(stages.len(), eightfold::lab::cpu::STAGES.len());
    for stage in stages {
        let variant = format!("{}:{}", stage["kernel"].as_str().unwrap(), stage["name"].as_str().unwrap());
        variant.parse::<eightfold::Variant>().unwrap();
    }
    let only = place.succeed("list knobs --kernel hopper");
    assert!(only.lines().skip(2).all(|line| line.starts_with("  hopper:") || line.starts_with("     ")), "{only}");
}

#[test]
fn shells_complete_and_every_command_has_a_manual_page() {
    let place = Place::new();
    for (shell, words) in [("bash", "complete -F"), ("zsh", "#compdef eightfold"), ("fish", "complete -c eightfold")] {
        let script = place.succeed(&format!("completions {shell}"));
        assert!(script.contains(words) && script.contains("ladder") && script.contains("records"), "{shell}");
    }
    assert!(place.succeed("man").starts_with(".ie"));
    assert!(place.succeed("man").contains("eightfold\\-bench"));
    for command in ["ladder", "bench", "compare", "list", "man"] {
        let page = place.succeed(&format!("man {command}"));
        assert!(page.contains(&format!(".TH eightfold-{command} 1")), "{page}");
    }
    let output = place.run("man benhc");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("error: command: `benhc` is unknown; did you mean `bench`?"));
}

#[test]
fn tables_fit_a_hundred_columns_and_wide_shows_the_rest() {
    let place = Place::new();
    let run = "run --shape 1,1,16,8 --variant cpu:numbers=f32,simd=portable,exp=poly,schedule=queue,tile_queries=64 --families gaussian";
    let (usual, wide) = (place.succeed(run), place.succeed(&format!("{run} --wide")));
    assert!(width(&usual) <= 100 && usual.contains("--wide also shows: "), "{usual}");
    assert!(width(&wide) > 100 && wide.contains("end-to-end L2") && !wide.contains("--wide"), "{wide}");
    for arguments in ["doctor --verbose", "explain --verbose", "ledger --long", "--help", "evolve --help"] {
        let text = place.succeed(arguments);
        let broken = |line: &&str| line.chars().count() > 100 && line.trim().contains(' ');
        assert!(!text.lines().any(|line| broken(&line)), "{arguments}\n{text}");
    }
}

#[test]
fn doctor_and_explain_are_short_unless_more_is_asked_for() {
    let place = Place::new();
    let short = place.succeed("doctor --python /no/such/python");
    let long = place.succeed("doctor --python /no/such/python --verbose");
    assert!(short.lines().filter(|line| line.starts_with(['+', '-'])).count() <= 9, "{short}");
    assert!(short.contains("GPU: ") && !short.contains("nvcc: ") && long.contains("nvcc: "), "{short}\n{long}");
    let short = place.command("explain").env("EIGHTFOLD_DEVICE", "cpu").output().unwrap();
    let short = String::from_utf8(short.stdout).unwrap();
    assert!(!short.contains("tile_queries") && short.contains("cpu:int16-avx2"), "{short}");
    assert!(place.succeed("explain --verbose --wide --variant cpu:avx2").contains("tile_queries=64"));
    let output = place.run("doctor --quiet --verbose");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn results_in_a_pipe_have_no_colour_and_no_notes_where_quiet() {
    let place = Place::new();
    let output = place.run("run --shape 1,1,16,8 --families gaussian --variant cpu:baseline");
    assert!(!String::from_utf8(output.stdout).unwrap().contains('\u{1b}'));
    let json = "run --shape 1,1,16,8 --families gaussian --variant cpu:baseline --json";
    assert!(stderr(&place.run(json)).starts_with("note: record: runs/"));
    assert_eq!(stderr(&place.run(&format!("{json} --quiet"))), "");
}
