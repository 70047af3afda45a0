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
    let output = ended(&mut replay(&place, "--budget 60trials --seed 3 --records runs"));
    let said = String::from_utf8(output.stdout).unwrap();
    let run = folder(&place.file("runs"));
    insta::assert_snapshot!(said.replace(run.file_name().unwrap().to_str().unwrap(), "RUN"));
    insta::assert_snapshot!("elite", std::fs::read_to_string(run.join("elite.json")).unwrap());
    let page = place.succeed(&format!("report {} --to page.html", run.display()));
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
    ended(&mut live(&place, "--budget 3trials --dtype bf16 --records runs"));
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

/// Decides at which instants processes are killed: new each time, because the same instants would be the same place every time.
/// It is printed, and `EIGHTFOLD_SEED` repeats it.
#[cfg(unix)]
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("EIGHTFOLD_SEED").map_or(now, |text| text.parse().expect("EIGHTFOLD_SEED is a number"));
    println!("EIGHTFOLD_SEED={seed}");
    seed
}

#[test]
#[cfg(unix)]
fn a_search_that_is_killed_fifty_times_ends_as_if_it_had_never_been() {
    let place = Place::new();
    let whole = "--budget 150trials --seed 5 --policy islands --ahead 3";
    ended(&mut replay(&place, &format!("{whole} --records whole")));
    let expected = evolution(&folder(&place.file("whole")));
    assert_eq!(expected.trials.len(), 150);

    let mut state = seed() | 1;
    let mut kills = 0;
    let mut torn = 0;
    for search in 0.. {
        let runs = place.file(&format!("killed-{search}"));
        let mut run: Option<PathBuf> = None;
        loop {
            let mut command = match &run {
                Some(run) => replay(&place, &format!("--resume {}", run.display())),
                None => replay(&place, &format!("{whole} --records {}", runs.display())),
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
    let mut command = live(&place, "--budget 12trials --timeout 8 --records runs");
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
    let mut command = live(&place, "--budget 14trials --timeout 20 --records runs --seed 2");
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
    let child = live(&place, "--budget 60s --records runs").spawn().unwrap();
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
    ended(&mut live(&place, "--budget 2trials --records runs"));
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
    let mut command = replay(&place, "--budget 30trials --records asked");
    ended(command.arg("--mutator").arg(&script));
    let asked = folder(&place.file("asked"));
    let first = evolution(&asked);
    let made: Vec<_> = first.trials.iter().filter(|trial| trial.origin.operator == Operator::Mutator).collect();
    assert_eq!(made.iter().map(|trial| trial.index).collect::<Vec<_>>(), [8, 12, 16, 20, 24, 28]);
    assert!(made.iter().any(|trial| trial.fate.speed_up().is_some()), "{made:?}");
    let ledger = first.mutator.unwrap();
    assert_eq!((ledger.calls, ledger.failed), (6, 0));
    assert!((ledger.cost - 0.006).abs() < 1e-9);

    let mut command = replay(&place, "--budget 30trials --records replayed");
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
        let mut command = replay(&place, &format!("--budget 10trials --mutator-timeout 0.3 --records {index}"));
        ended(command.args(["--mutator", script]));
        let trials = fates(&folder(&place.file(&index.to_string())));
        assert_eq!(trials.len(), 10);
        // A flood may also be cut off by the clock.
        let told = trials[8].fate.to_string();
        assert!(told.contains(said) || told.contains("no answer within"), "{told}");
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// Examples are in Python, which CI must not be without.
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|said| said.status.success());
    assert!(found || std::env::var_os("EIGHTFOLD_REQUIRE_SIMULATOR").is_none(), "there is no python3");
    found
}

/// What a mutator would be given next in a recorded search, as of `name` among the fixtures.
fn bundle(place: &Place, name: &str) -> String {
    let folder = place.file("search");
    std::fs::create_dir_all(&folder).unwrap();
    let journal = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold-lab/fixtures/evolve").join(name);
    std::fs::copy(journal, folder.join(JOURNAL_FILE)).unwrap();
    let output = ended(evolve(place).args(["--print-bundle", "--resume"]).arg(&folder));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_bundle_tells_all_that_an_old_journal_knows_and_leaves_no_trace() {
    let place = Place::new();
    let bundle: serde_json::Value = serde_json::from_str(&bundle(&place, "ladder-mission.search.log")).unwrap();
    assert_eq!(
        (&bundle["version"], &bundle["asked"], &bundle["kernel"]),
        (&2.into(), &"initial".into(), &"ladder".into())
    );
    let sources = bundle["sources"].as_object().unwrap();
    for name in ["ladder/attention.cu", "ladder/softmax.cuh", "attention/lanes.cuh", "ptx/wgmma.cuh"] {
        assert_eq!(sources.contains_key(name), name != "ptx/wgmma.cuh", "{name}");
    }
    assert!(bundle["elite"].as_array().unwrap().iter().all(|one| one["fate"]["kind"] == "measured"));
    assert!(bundle["insights"].as_array().unwrap().len() > 3 && bundle["targets"][0]["shape"] == "mission");
    let prompt = bundle["prompt"].as_str().unwrap();
    assert!(prompt.contains("Make the shipped kernel faster") && prompt.contains("--- ladder/softmax.cuh"), "{prompt}");
    assert_eq!(place.contents(), ["search", "search/journal.log"]);
}

/// A server on the loopback interface that answers requests by a script, and what it was asked.
struct Server {
    address: String,
    asked: std::thread::JoinHandle<Vec<String>>,
}

impl Server {
    /// Each answer is an HTTP status with its reason and further headers, and a body; an empty status never comes.
    fn start(answers: Vec<(&'static str, String)>) -> Server {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1/", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let mut requests = Vec::new();
            let mut silent = Vec::new();
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 65536];
                loop {
                    let count = stream.read(&mut buffer).unwrap();
                    request.extend_from_slice(&buffer[..count]);
                    let text = String::from_utf8_lossy(&request);
                    let length =
                        text.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
                    let head = text.find("\r\n\r\n").map(|at| at + 4);
                    if count == 0
                        || matches!((head, length), (Some(head), Some(length)) if request.len() >= head + length)
                    {
                        break;
                    }
                }
                requests.push(String::from_utf8(request).unwrap());
                if status.is_empty() {
                    silent.push(stream);
                    continue;
                }
                let answer =
                    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes());
            }
            requests
        });
        Server { address, asked }
    }
}

/// A model's answer as endpoints give it.
fn said(text: &str) -> (&'static str, String) {
    let usage = serde_json::json!({"prompt_tokens": 30_000, "completion_tokens": 1_000});
    let answer = serde_json::json!({"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage});
    ("200 OK", answer.to_string())
}

fn model(place: &Place, server: &Server, bundle: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.arg(example("mutate_with_llm.py")).args(arguments).current_dir(place.path());
    command.env("LLM_BASE_URL", &server.address).env("LLM_MODEL", "a-model").env("LLM_API_KEY", "a-secret");
    command.env("LLM_PRICE", "2,10").env("LLM_FIRST_WAIT", "0.01").env("LLM_TIMEOUT", "1");
    // No proxy stands between this machine and itself.
    command.env("no_proxy", "*").env_remove("http_proxy").env_remove("HTTP_PROXY");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), bundle.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
#[cfg(unix)]
fn a_language_model_is_asked_with_patience_and_its_answer_is_found() {
    if !has_python() {
        return;
    }
    let place = Place::new();
    let mut bundle: serde_json::Value = serde_json::from_str(&bundle(&place, "ladder-mission.search.log")).unwrap();
    bundle["folder"] = place.path().display().to_string().into();
    let text = bundle.to_string();
    let good = "Here it is:\n```json\n{\"note\": \"an idea\nin two lines\", \"config\": \"tile_keys=64\", \"confidence\": 0.9}\n```\nGood luck!";
    let server = Server::start(vec![
        ("500 Internal Server Error", "oops".into()),
        ("429 Too Many Requests\r\nRetry-After: 0", "slower".into()),
        ("", String::new()),
        ("200 OK", "<html>this is a login page</html>".into()),
        ("200 OK", r#"{"choices": []}"#.into()),
        said("I would rather not."),
        said(good),
    ]);
    let mut output = model(&place, &server, &text, &[]);
    // The fifth of the five requests had an answer of no form; a second run begins anew.
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let complaints = stderr(&output);
    for part in [
        "HTTP 500: oops; again",
        "HTTP 429: slower; again in 0.0 s",
        "timed out",
        "JSONDecodeError",
        "after 5 requests",
    ] {
        assert!(complaints.contains(part), "{part}: {complaints}");
    }
    output = model(&place, &server, &text, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let paid = 2.0 * (30_000.0 * 2.0 + 1_000.0 * 10.0) / 1e6;
    assert_eq!(reply, serde_json::json!({"note": "an idea\nin two lines", "config": "tile_keys=64", "cost": paid}));
    let transcript = std::fs::read_to_string(place.file("transcript.jsonl")).unwrap();
    assert_eq!(transcript.lines().count(), 2);
    assert!(transcript.contains("I would rather not.") && !transcript.contains("a-secret"));
    let asked = server.asked.join().unwrap();
    assert!(asked.iter().all(|one| one.starts_with("POST /v1/chat/completions ") && one.contains("Bearer a-secret")));
    assert!(asked[0].contains(r#""model": "a-model""#) && asked[0].contains("Make the shipped kernel faster"));
    assert!(asked[6].contains("That holds no JSON object"), "{}", asked[6]);
}

#[test]
#[cfg(unix)]
fn a_refusal_ends_a_models_turn_and_a_dry_run_asks_nobody() {
    if !has_python() {
        return;
    }
    let place = Place::new();
    let text = bundle(&place, "hopper-mission.search.log");
    let server = Server::start(vec![("401 Unauthorized", "no such key".into())]);
    let dry = model(&place, &server, &text, &["--dry-run"]);
    let printed = String::from_utf8(dry.stdout).unwrap();
    assert!(dry.status.success() && printed.contains("--- hopper/weights.cuh"), "{printed}");
    let refused = model(&place, &server, &text, &[]);
    assert_eq!((refused.status.code(), stderr(&refused).trim()), (Some(1), "HTTP 401: no such key"));
    assert_eq!(server.asked.join().unwrap().len(), 1);
    assert!(!place.file("transcript.jsonl").exists());
}

#[test]
#[cfg(unix)]
fn a_search_asks_the_model_and_goes_on_with_what_it_says() {
    if !has_python() {
        return;
    }
    let place = Place::new();
    let server = Server::start(vec![said(r#"{"note": "larger tiles", "config": "tile_queries=64,tile_keys=128"}"#)]);
    let mut command = replay(&place, "--budget 10trials --seed 3 --records runs");
    command.env("LLM_BASE_URL", &server.address).env("LLM_MODEL", "m").env("no_proxy", "*").env("LLM_RETRIES", "0");
    ended(command.arg("--mutator").arg(example("mutate_with_llm.py")));
    let run = folder(&place.file("runs"));
    let Evolution { trials, insights, mutator, .. } = evolution(&run);
    assert!(trials[8].variant.contains("tile_queries=64,tile_keys=128"), "{}", trials[8].variant);
    assert!(insights.iter().any(|insight| insight.name == "larger tiles" && insight.followed == 1));
    assert_eq!(mutator.unwrap().calls, 1);
    assert!(std::fs::read_to_string(run.join("transcript.jsonl")).unwrap().contains("larger tiles"));
    server.asked.join().unwrap();
}

#[test]
fn several_shapes_are_searched_together_and_validated_each() {
    let place = Place::new();
    let mut command = evolve(&place);
    command.args([
        "--kernel",
        "cpu",
        "--restrict",
        "simd=portable,exp=poly,numbers=f32,schedule=queue",
        "--records",
        "runs",
    ]);
    ended(command.args([
        "--shape",
        "1,2,64,16",
        "1,1,80,16",
        "--budget",
        "4trials",
        "--accuracy",
        "precise",
        "--elite",
        "1",
    ]));
    let run = folder(&place.file("runs"));
    let found = evolution(&run);
    assert_eq!(
        (found.more.len(), found.more[0].shape.as_str(), found.accuracy.as_deref()),
        (1, "1,1,80,16", Some("precise"))
    );
    let mut timed = 0;
    for trial in &found.trials {
        let Some(speed_up) = trial.fate.speed_up() else { continue };
        let [one, other] = trial.evidence.speed_ups[..] else { panic!("{trial:?}") };
        assert!((speed_up - (one * other).sqrt()).abs() < 1e-9 * speed_up, "{trial:?}");
        timed += 1;
    }
    assert!(timed >= 3);
    let record = Record::read(&run.join("record.json")).unwrap();
    assert_eq!((record.groups.len(), record.comparisons.len()), (2, 2 * found.elite.len()));
    assert!(found.elite.iter().all(|member| member.outcome.is_some() && member.variant != found.baseline));
}

#[test]
#[cfg(unix)]
fn sources_evolve_on_the_simulator_and_can_be_run_from_where_they_are_kept() {
    if !has_python() || !super::simulator::has_compiler() {
        return;
    }
    let place = Place::new();
    let shape = "1,1,40,64";
    let mut command = evolve(&place);
    command.args(["--on", "simulator", "--kernel", "ladder", "--baseline", "ladder:baseline", "--shape", shape]);
    command.args([
        "--dtype",
        "f32",
        "--ahead",
        "1",
        "--mutator-every",
        "1",
        "--budget",
        "6 trials",
        "--records",
        "runs",
    ]);
    let baseline: eightfold::Variant = "ladder:baseline".parse().unwrap();
    // All knobs as they are: what remains to be searched is the source.
    let knobs = baseline.to_string().split_once(':').unwrap().1.to_string();
    let changes = "values are read two at a time|a comma is lost|the mask is off by one|a path outside|a patch that stands nowhere";
    let mutator = format!("{} --only '{changes}'", example("mutator_scripted.py").display());
    ended(command.args(["--restrict", &knobs, "--mutator", &mutator]));
    let run = folder(&place.file("runs"));
    let found = evolution(&run);
    let kinds: std::collections::BTreeSet<_> = found.trials.iter().filter_map(|trial| trial.fate.failure()).collect();
    assert_eq!(kinds, ["not compiled", "patch does not apply", "path outside", "wrong"].into(), "{:#?}", found.trials);
    assert!(found.on_simulator && found.device == "simulated Hopper");
    let winner = found.winner().unwrap();
    assert!(
        winner.validated.unwrap().lower > 1.02 && winner.summary.contains("which is no time"),
        "{}",
        winner.summary
    );
    let source = winner.source.as_ref().unwrap();
    let kept = run.join("sources").join(source);
    assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 1);
    let wrong = found.trials.iter().find(|trial| trial.fate.failure() == Some("wrong")).unwrap();
    assert!(!wrong.evidence.failed.is_empty() || wrong.fate.to_string().contains("NaN"), "{wrong:?}");
    let said = place.succeed(&format!(
        "run --on simulator --variant ladder:baseline --source {} --shape {shape} --families gaussian --seeds 0 --records kept",
        kept.display()
    ));
    assert!(said.contains("correctness PASS"), "{said}");
    let record = Record::read(&folder(&place.file("kept")).join("record.json")).unwrap();
    assert!(record.groups[0].entries[0].implementation.ends_with(&format!(" from source {source}")));
}

#[test]
fn sources_that_are_none_are_refused_with_the_reason() {
    let place = Place::new();
    std::fs::create_dir_all(place.file("kernels/ladder")).unwrap();
    std::fs::write(place.file("kernels/ladder/none.cuh"), "// nobody includes it\n").unwrap();
    std::fs::create_dir_all(place.file("same/ladder")).unwrap();
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold/kernels/ladder/store.cuh");
    std::fs::copy(store, place.file("same/ladder/store.cuh")).unwrap();
    for (arguments, part) in [
        ("build --variant ladder:baseline --arch sm_90 --source nowhere", "nowhere cannot be read"),
        ("build --variant ladder:baseline --arch sm_90 --source same", "nothing differs from the kernel's own"),
        ("build --variant ladder:baseline --arch sm_90 --source kernels", "is not compiled from ladder/none.cuh"),
        ("run --variant cpu --shape 1,1,16,8 --source kernels", "the cpu kernel is not compiled at run time"),
        ("compare cpu cpu --shape 1,1,16,8 --source kernels", "the cpu kernel is not compiled at run time"),
        ("evolve --kernel cpu --on simulator", "the simulator is for kernels of GPUs"),
        ("evolve --kernel cpu --baseline ladder:baseline", "ladder:baseline is of the ladder kernel"),
        ("evolve --kernel cpu --mutator-every 0", "must be at least 1"),
        ("evolve --kernel cpu --accuracy exact", "exact"),
    ] {
        let output = place.run(arguments);
        let said = stderr(&output);
        assert!(output.status.code() == Some(2) && said.contains(part), "{arguments}: {said}");
    }
}

#[test]
fn what_is_installed_is_explained_and_can_be_turned_off() {
    let place = Place::new();
    let explain = |plans: &str| {
        let mut command = place.command("explain --shape mission --verbose");
        command.env("EIGHTFOLD_PLANS", plans).env("EIGHTFOLD_DEVICE", "cpu");
        // In whichever place lines are broken.
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        said.split_whitespace().collect::<Vec<_>>().join(" ")
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
    assert!(installed.contains("runs cpu:numbers=f32,simd=scalar,exp=exact,"), "{installed}");
    assert!(installed.contains("installed for this problem on this device:"), "{installed}");
    assert!(installed.contains("1.200× the shipped default"), "{installed}");
    assert!(installed.contains("what would run if nothing were installed"), "{installed}");
    assert_eq!(explain("off"), plain);
    let mut doctor = Command::new(cargo_bin("eightfold"));
    doctor.args(["doctor", "--verbose", "--python", "/no/such/python"]).env("EIGHTFOLD_PLANS", "plans.tsv");
    let said = String::from_utf8(doctor.current_dir(place.path()).output().unwrap().stdout).unwrap();
    assert!(said.contains("+ installed plans: 1 choice in plans.tsv"), "{said}");
}
