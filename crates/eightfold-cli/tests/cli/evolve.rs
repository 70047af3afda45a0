//! The search: it ends as it should whatever happens to it, to its workers, or to its mutator.

use crate::support::{Place, stderr};
use assert_cmd::cargo::cargo_bin;
use eightfold_lab::evolve::journal::{self, JOURNAL_FILE};
use eightfold_lab::evolve::{Evolution, Fate, Header, Operator, Trial};
use eightfold_lab::record::Record;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A recording of the whole CPU space at the shape `mission`.
fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold-lab/fixtures/evolve/cpu-mission.survey.log")
}

/// A search that nobody's installed plans disturb, and that disturbs nobody's.
fn evolve(place: &Place) -> Command {
    let mut command = Command::new(cargo_bin("eightfold"));
    command.current_dir(place.path()).arg("evolve").env("EIGHTFOLD_PLANS", place.file("plans.tsv"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn live(place: &Place, arguments: &str) -> Command {
    let mut command = evolve(place);
    // Small, so that a candidate takes a moment; restricted to what is fast.
    command.args(["--kernel", "cpu", "--shape", "1,2,64,16", "--restrict", "simd=portable,exp=poly"]);
    command.args(["--no-validation"]).args(arguments.split_whitespace());
    command
}

fn replay(place: &Place, arguments: &str) -> Command {
    let mut command = evolve(place);
    command.arg("--replay").arg(recording()).args(arguments.split_whitespace());
    command
}

fn ended(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    output
}

/// The folder of the only search below this one.
fn folder(runs: &Path) -> PathBuf {
    let mut found: Vec<_> = std::fs::read_dir(runs).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn evolution(folder: &Path) -> Evolution {
    Record::read(&folder.join("record.json")).unwrap().evolution.unwrap()
}

#[test]
fn what_a_search_says() {
    let place = Place::new();
    let output = ended(&mut replay(&place, "--budget 60trials --seed 3 --out runs"));
    let said = String::from_utf8(output.stdout).unwrap();
    let run = folder(&place.file("runs"));
    insta::assert_snapshot!(said.replace(run.file_name().unwrap().to_str().unwrap(), "RUN"));
    insta::assert_snapshot!("elite", std::fs::read_to_string(run.join("elite.json")).unwrap());
    let page = place.succeed(&format!("report {} --out page.html", run.display()));
    assert!(page.contains("page.html"));
    let html = std::fs::read_to_string(place.file("page.html")).unwrap();
    assert!(
        html.contains("Speed-up of every candidate over the course of the search") && html.contains("class=\"best\"")
    );
}

#[test]
fn what_cannot_be_searched() {
    let place = Place::new();
    let mut all = String::new();
    for arguments in [
        "--kernel cpx",
        "--shape misson",
        "--policy elit",
        "--budget 0m",
        "--budget 0trials",
        "--budget soon",
        "--elite 0",
        "--ahead 0",
        "--timeout 0",
        "--kernel cpu --restrict tile=64",
        "--kernel cpu --restrict exp=pol",
        "--kernel cpu --restrict exp",
        "--kernel hopper --restrict warps=4",
        "--kernel cpu --shape 1,1,16,8 --restrict simd=scalar,exp=poly",
        "--kernel cpu --shape 1,1,16,8 --worker false",
        "--resume nowhere",
        "--resume nowhere --seed 3",
        "--replay nowhere",
        "--mutator-replay nowhere --kernel cpu --shape 1,1,16,8",
    ] {
        let output = evolve(&place).args(arguments.split_whitespace()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.starts_with("error: ") && said.lines().count() == 1, "{arguments}: {said}");
        assert!(place.contents().iter().all(|name| !name.contains("journal")), "{arguments}");
        all.push_str(&format!("{arguments}\n  {said}"));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn a_search_times_what_was_asked_for_and_goes_on_with_that() {
    let place = Place::new();
    ended(&mut live(&place, "--budget 3trials --output bf16 --out runs"));
    let run = folder(&place.file("runs"));
    assert_eq!(evolution(&run).problem.output_format, "bf16");
    ended(evolve(&place).arg("--resume").arg(&run).args(["--budget", "5trials", "--no-validation"]));
    let Evolution { problem, trials, .. } = evolution(&run);
    assert_eq!((problem.output_format.as_str(), trials.len()), ("bf16", 5));
    assert!(trials.iter().any(|trial| matches!(trial.fate, Fate::Measured { .. })));
}

/// Starts, waits a while, kills without warning. Whether there was still something to kill; else it must have ended well.
fn killed_after(command: &mut Command, wait: Duration) -> bool {
    let mut child: Child = command.spawn().unwrap();
    std::thread::sleep(wait);
    let ended = child.try_wait().unwrap().is_some();
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    assert!(!ended || output.status.code() == Some(0), "{}", stderr(&output));
    !ended
}

#[test]
#[cfg(unix)]
fn a_search_that_is_killed_fifty_times_ends_as_if_it_had_never_been() {
    let place = Place::new();
    let whole = "--budget 150trials --seed 5 --policy islands --ahead 3";
    ended(&mut replay(&place, &format!("{whole} --out whole")));
    let expected = evolution(&folder(&place.file("whole")));
    assert_eq!(expected.trials.len(), 150);

    // The same instants every time would be the same place every time: the clock's last digits are not.
    let mut state =
        u64::from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos()) | 1;
    let mut kills = 0;
    let mut torn = 0;
    for search in 0.. {
        let runs = place.file(&format!("killed-{search}"));
        let mut run: Option<PathBuf> = None;
        loop {
            let mut command = match &run {
                Some(run) => replay(&place, &format!("--resume {}", run.display())),
                None => replay(&place, &format!("{whole} --out {}", runs.display())),
            };
            if kills == 50 {
                let output = ended(&mut command);
                torn += usize::from(stderr(&output).contains("was torn"));
                break;
            }
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if !killed_after(&mut command, Duration::from_micros((state >> 33) % 120_000)) {
                break;
            }
            kills += 1;
            // Killed before it had begun, there is nothing to resume.
            let begun = |run: &PathBuf| std::fs::metadata(run.join(JOURNAL_FILE)).is_ok_and(|file| file.len() > 0);
            let made = || std::fs::read_dir(&runs).ok()?.next()?.ok().map(|entry| entry.path());
            run = run.or_else(|| made().filter(begun));
            if run.is_none() {
                let _ = std::fs::remove_dir_all(&runs);
            }
        }
        let found = evolution(&folder(&runs));
        assert_eq!(found, expected, "after {kills} kills");
        let elite = |run: PathBuf| std::fs::read(run.join("elite.json")).unwrap();
        assert_eq!(elite(folder(&runs)), elite(folder(&place.file("whole"))));
        if kills == 50 {
            break;
        }
    }
    println!("{torn} torn lines were dropped");
}

fn fates(run: &Path) -> Vec<Trial> {
    evolution(run).trials
}

#[test]
#[cfg(unix)]
fn whatever_a_candidate_does_costs_that_candidate_alone() {
    let place = Place::new();
    let faults = "crash@2,hang@3,illegal@4,lost@5,memory@6,garbage@7,exit@8,flood@9";
    let mut command = live(&place, "--budget 12trials --timeout 8 --out runs");
    ended(command.env("EIGHTFOLD_EVOLVE_FAULT", faults));
    let trials = fates(&folder(&place.file("runs")));
    let kinds: Vec<_> = trials.iter().map(|trial| trial.fate.failure().unwrap_or("measured")).collect();
    let expected =
        ["crashed", "hung", "device fault", "device fault", "out of memory", "crashed", "crashed", "crashed"];
    assert_eq!(kinds[2..10], expected);
    assert_eq!([0, 1, 10, 11].map(|trial: usize| kinds[trial]), ["measured"; 4]);
    let said = |trial: usize| trials[trial].fate.to_string();
    assert!(said(2).contains("signal 6 (aborted)"), "{}", said(2));
    assert!(said(3).contains("no answer within 8 s"), "{}", said(3));
    assert!(said(4).contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", said(4));
    assert!(said(7).contains("`this is not JSON`, which is no answer"), "{}", said(7));
    assert!(said(8).contains("exit code 3"), "{}", said(8));
    assert!(said(9).contains("without end"), "{}", said(9));
}

#[test]
#[cfg(unix)]
fn two_workers_serve_one_search() {
    let place = Place::new();
    let worker = format!("echo started >> workers; exec '{}' worker --threads 1", cargo_bin("eightfold").display());
    let mut command = live(&place, "--budget 14trials --timeout 20 --out runs --seed 2");
    command.args(["--worker", &worker, "--worker", &worker]).env("EIGHTFOLD_EVOLVE_FAULT", "exit@4");
    ended(&mut command);
    // Two, and one more for the one that died.
    assert_eq!(std::fs::read_to_string(place.file("workers")).unwrap().lines().count(), 3);
    let trials = fates(&folder(&place.file("runs")));
    assert_eq!(trials.iter().map(|trial| trial.index).collect::<Vec<_>>(), (0..14).collect::<Vec<_>>());
    let variants: std::collections::HashSet<_> = trials.iter().map(|trial| &trial.variant).collect();
    assert_eq!(variants.len(), 14);
    assert!(matches!(trials[4].fate, Fate::Crashed { .. }), "{}", trials[4].fate);
    assert_eq!(trials.iter().filter(|trial| trial.fate.failure().is_some()).count(), 1);
}

#[test]
#[cfg(unix)]
fn an_interrupt_finishes_the_candidate_in_hand_and_says_how_to_go_on() {
    let place = Place::new();
    let child = live(&place, "--budget 60s --out runs").spawn().unwrap();
    let journal = |run: &Path| journal::read(run).map_or(0, |contents| contents.trials.len());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !place.file("runs").exists() || journal(&folder(&place.file("runs"))) < 3 {
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let run = folder(&place.file("runs"));
    let name = run.file_name().unwrap().to_str().unwrap();
    assert!(
        stderr(&output).contains(&format!("go on with `eightfold evolve --resume runs/{name}`")),
        "{}",
        stderr(&output)
    );
    let before = evolution(&run).trials;
    assert!(before.len() >= 3 && before.len() == journal(&run));

    let more = before.len() + 3;
    let budget = format!("{more} trials");
    let mut command = evolve(&place);
    command.args(["--no-validation", "--budget", &budget, "--resume"]).arg(&run);
    ended(&mut command);
    let after = evolution(&run).trials;
    assert_eq!((after.len(), &after[..before.len()]), (more, &before[..]));
}

#[test]
fn a_journal_of_other_sources_or_another_machine_is_refused_with_the_reason() {
    let place = Place::new();
    ended(&mut live(&place, "--budget 2trials --out runs"));
    let run = folder(&place.file("runs"));
    let contents = journal::read(&run).unwrap();
    let refused = |header: Header| {
        std::fs::write(run.join(JOURNAL_FILE), journal::to_text(&header, &contents.trials)).unwrap();
        let output = evolve(&place).arg("--resume").arg(&run).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    let sources = refused(Header { source_hash: "feedfeedfeedfeed".into(), ..contents.header.clone() });
    assert!(sources.contains("other sources of the cpu kernel (feedfeedfeedfeed, and these are "), "{sources}");
    let machine = refused(Header { device: "A better CPU, 96 threads".into(), ..contents.header.clone() });
    assert!(machine.contains("another machine (A better CPU, 96 threads, and this is "), "{machine}");
}

#[test]
#[cfg(unix)]
fn the_example_mutator_makes_candidates_and_its_answers_can_be_replayed() {
    let place = Place::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mutator.sh");
    let mut command = replay(&place, "--budget 30trials --out asked");
    ended(command.arg("--mutator").arg(&script));
    let asked = folder(&place.file("asked"));
    let first = evolution(&asked);
    let made: Vec<_> = first.trials.iter().filter(|trial| trial.origin.operator == Operator::Mutator).collect();
    assert_eq!(made.iter().map(|trial| trial.index).collect::<Vec<_>>(), [8, 12, 16, 20, 24, 28]);
    assert!(made.iter().any(|trial| trial.fate.speed_up().is_some()), "{made:?}");
    let ledger = first.mutator.unwrap();
    assert_eq!((ledger.calls, ledger.failed), (6, 0));
    assert!((ledger.cost - 0.006).abs() < 1e-9);

    let mut command = replay(&place, "--budget 30trials --out replayed");
    ended(command.arg("--mutator-replay").arg(&asked));
    assert_eq!(evolution(&folder(&place.file("replayed"))).trials, first.trials);
}

#[test]
#[cfg(unix)]
fn a_mutator_that_babbles_hangs_or_floods_is_an_outcome() {
    let place = Place::new();
    for (index, (script, said)) in [
        ("echo hello", "`hello`, which is no answer"),
        ("sleep 60", "no answer within 0.3 s"),
        ("yes", "more than 1048576 bytes"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = replay(&place, &format!("--budget 10trials --mutator-timeout 0.3 --out {index}"));
        ended(command.args(["--mutator", script]));
        let trials = fates(&folder(&place.file(&index.to_string())));
        assert_eq!(trials.len(), 10);
        // A flood may also be cut off by the clock.
        let told = trials[8].fate.to_string();
        assert!(told.contains(said) || told.contains("no answer within"), "{told}");
    }
}

#[test]
fn what_is_installed_is_explained_and_can_be_turned_off() {
    let place = Place::new();
    let explain = |plans: &str| {
        let mut command = place.command("explain --shape mission");
        command.env("EIGHTFOLD_PLANS", plans).env("EIGHTFOLD_DEVICE", "cpu");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let plain = explain("off");
    let choice = eightfold_lab::installed::Installed {
        device: eightfold_lab::installed::cpu_device(),
        problem: "1,8,512,64".into(),
        variant: "cpu:baseline".parse().unwrap(),
        note: "1.200× the shipped default, found by a search".into(),
    };
    eightfold_lab::installed::install(&place.file("plans.tsv"), &choice).unwrap();
    let installed = explain("plans.tsv");
    assert!(installed.contains("runs     cpu:numbers=f32,simd=scalar,exp=exact,schedule=serial"), "{installed}");
    assert!(installed.contains("installed for this problem on this device: 1.200×"), "{installed}");
    assert!(installed.contains("what would run if nothing were installed"), "{installed}");
    assert_eq!(explain("off"), plain);
    let mut doctor = Command::new(cargo_bin("eightfold"));
    doctor.args(["doctor", "--python", "/no/such/python"]).env("EIGHTFOLD_PLANS", "plans.tsv");
    let said = String::from_utf8(doctor.current_dir(place.path()).output().unwrap().stdout).unwrap();
    assert!(said.contains("+ installed plans: 1 choice in plans.tsv"), "{said}");
}
