//! Profiles: with a profiler that answers what the real one answered on an H200, since there may be no GPU here.
#![cfg(unix)]

use crate::support::{Place, stderr};
use eightfold::cuda::driver::Device;
use eightfold_lab::gates::{Gate, GateReport, Outcome};
use eightfold_lab::profile::Metric;
use eightfold_lab::provenance::{Gpu, Provenance};
use eightfold_lab::record::{Entry, Group, Kind, Record};
use std::os::unix::fs::PermissionsExt;

const RAW: &str = include_str!("../../../eightfold-lab/src/profile/h200_raw.txt");
const UNKNOWN: &str = include_str!("../../../eightfold-lab/src/profile/h200_unknown_metrics.txt");
const QUERY: &str = include_str!("../../../eightfold-lab/src/profile/h200_query.txt");

/// Answers as ncu does, and leaves the record that the profiled program would have left.
const FAKE: &str = r#"#!/bin/sh
here=$(dirname "$0")
printf '%s\n' "$LC_ALL $*" >>"$here/calls"
case "$1" in
--version) echo "Version 2025.3.1.0 (build 36398880)" ;;
--query-metrics) cat "$here/query" ;;
*)
    while [ $# -gt 0 ]; do
        if [ "$1" = --records ]; then
            mkdir -p "$2/x-run"
            cp "$here/record.json" "$2/x-run/record.json"
        fi
        shift
    done
    cat "$here/answer"
    ;;
esac
"#;

/// A folder with such a profiler.
fn with_profiler(answer: &str, query: &str, outcome: Outcome) -> Place {
    let place = Place::new();
    std::fs::write(place.file("ncu"), FAKE).unwrap();
    std::fs::set_permissions(place.file("ncu"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(place.file("query"), query).unwrap();
    std::fs::write(place.file("answer"), answer).unwrap();
    let gate = GateReport { gate: Gate::Correctness, outcome, summary: "as scripted".into(), checks: Vec::new() };
    let problem = eightfold::Problem::new("1,8,512,64".parse().unwrap()).unwrap();
    let entries = vec![Entry { gates: vec![gate], ..Entry::new("x", "x") }];
    let mut record = Record::new(Kind::Run, Provenance::capture(1));
    record.provenance.gpu = Some(Gpu {
        name: "NVIDIA H200".into(),
        arch: "sm_90".into(),
        multiprocessors: 132,
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        memory_bus_bits: 6016,
        ..Gpu::default()
    });
    record.groups.push(Group { entries, ..Group::new("mission", &problem) });
    std::fs::write(place.file("record.json"), record.to_json()).unwrap();
    place
}

/// The recorded answer, with columns for the metrics that were not asked for when it was recorded.
fn complete() -> String {
    let mut lines: Vec<String> = RAW.lines().map(str::to_string).collect();
    let count = lines.len();
    for metric in Metric::ALL {
        if !lines[count - 3].contains(&format!("\"{}\"", metric.name())) {
            let value = if metric == Metric::LongestAtWork { "95.0" } else { "33.3" };
            for (line, cell) in lines[count - 3..].iter_mut().zip([metric.name(), "%", value]) {
                line.push_str(&format!(",\"{cell}\""));
            }
        }
    }
    lines.join("\n") + "\n"
}

const PROFILE: &str = "profile --ncu ./ncu --variant ladder:baseline --shape mission";

#[test]
fn a_profile_says_what_bounds_the_kernel_and_the_gate_is_a_finding_without_a_claim() {
    let place = with_profiler(&complete(), QUERY, Outcome::Pass);
    let text = place.succeed(PROFILE);
    assert!(text.contains("NVIDIA H200") && text.contains("ladder:baseline"), "{text}");
    assert!(text.contains("is bound by too few blocks: 64 for 132 multiprocessors"), "{text}");
    assert!(text.contains("VALID NEGATIVE"), "{text}");
    let path = place.contents().into_iter().find(|path| path.ends_with("-profile/record.json")).unwrap();
    let record = Record::read(&place.file(&path)).unwrap();
    let entry = &record.groups[0].entries[0];
    let profiled = entry.profile.as_ref().unwrap();
    assert_eq!((record.kind, entry.name.as_str()), (Kind::Profile, "ladder:baseline"));
    assert_eq!(profiled.profile.get(Metric::TensorPipe), Ok(0.96));
    assert!(profiled.profiler.starts_with("Nsight Compute 2025.3.1.0 (build 36398880), clocks as they were"));
    assert!((profiled.position.unwrap().flop_per_byte - 0.536_870_912e9 / 828_928.0).abs() < 0.1);
    let calls = std::fs::read_to_string(place.file("calls")).unwrap();
    let last = calls.lines().last().unwrap();
    assert!(last.starts_with("C --csv --page raw") && last.contains("--clock-control none"), "{last}");
    assert!(last.contains(" run --variant ladder:") && last.contains("--shape mission"), "{last}");
    // As it is timed, and no other kernel of ours.
    assert!(last.contains("--dtype bf16 --no-lse") && last.contains(" -k ladder_attention "), "{last}");
    // The same twice is no difference, and a page has it.
    let folder = path.strip_suffix("/record.json").unwrap();
    let same = place.succeed(&format!("profile --diff {folder} {folder}#ladder:baseline"));
    assert!(same.contains("tensor cores") && same.contains("+0.0"), "{same}");
    place.succeed(&format!("report {folder}"));
    let page = std::fs::read_to_string(place.file("report.html")).unwrap();
    assert!(page.contains("too few blocks: 64 for 132 multiprocessors"));
}

#[test]
fn caches_are_emptied_or_left_alone_and_the_record_says_which() {
    for (cache, told, said) in [("", "all", "caches emptied"), ("--cache hot", "none", "caches as the pass before")] {
        let place = with_profiler(&complete(), QUERY, Outcome::Pass);
        let text = place.succeed(&format!("{PROFILE} {cache} --json"));
        assert!(text.contains(said), "{text}");
        let calls = std::fs::read_to_string(place.file("calls")).unwrap();
        assert!(calls.lines().last().unwrap().contains(&format!("--cache-control {told} ")), "{calls}");
    }
}

fn refused(place: &Place, arguments: &str) -> String {
    let output = place.run(arguments);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(place.contents().iter().all(|path| !path.contains("-profile")), "{:?}", place.contents());
    stderr(&output)
}

#[test]
fn metrics_that_were_not_counted_are_errors_and_never_zeros() {
    let line = refused(&with_profiler(UNKNOWN, QUERY, Outcome::Pass), PROFILE);
    assert!(line.contains("gpu__time_duration.sum of ladder_attention was not collected"), "{line}");
    let line = refused(&with_profiler(&complete().replace("\"17.05\"", "\"n/a\""), QUERY, Outcome::Pass), PROFILE);
    assert!(line.contains("sm__throughput") && line.contains("as n/a"), "{line}");
    let query = QUERY.replace("dram__throughput\n", "\n");
    let place = with_profiler(&complete(), &query, Outcome::Pass);
    let line = refused(&place, PROFILE);
    assert!(line.contains("does not know the metric `dram__throughput`"), "{line}");
    assert!(!std::fs::read_to_string(place.file("calls")).unwrap().contains("--csv"), "found before anything ran");
}

#[test]
fn a_missing_permission_is_not_available_with_the_way_to_get_it() {
    let answer = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access the counters\n";
    let line = refused(&with_profiler(answer, QUERY, Outcome::Pass), PROFILE);
    assert!(line.contains("is not available") && line.contains("NVreg_RestrictProfilingToAdminUsers=0"), "{line}");
}

#[test]
fn a_kernel_that_is_wrong_is_not_profiled() {
    let place = with_profiler(&complete(), QUERY, Outcome::Fail);
    let output = place.run(PROFILE);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("not profiled: ") && !text.contains("is bound by"), "{text}");
}

#[test]
fn what_cannot_be_profiled_is_refused_with_the_reason() {
    let place = with_profiler(&complete(), QUERY, Outcome::Pass);
    let line = refused(&place, "profile --ncu ./ncu --variant cpu:avx2");
    assert!(line.contains("cpu:avx2 does not run on a GPU"), "{line}");
    assert!(refused(&place, "profile --ncu ./none --kernel ladder").contains("`./none` is not a file"));
    assert!(refused(&place, "profile --diff record.json record.json").contains("no profile of the same problem"));
    assert!(refused(&place, "profile --diff record.json").contains("2 values required"));
    std::fs::write(place.file("ncu"), "#!/bin/sh\nexit 1\n").unwrap();
    assert!(refused(&place, PROFILE).contains("lists no metric"));
}

#[test]
fn without_a_gpu_the_program_says_why_it_was_not_profiled() {
    if Device::default().is_ok() {
        return;
    }
    // A profiler that only runs the program.
    let place = with_profiler("", QUERY, Outcome::Pass);
    let pass = FAKE
        .replace("mkdir -p", "true")
        .replace("cp \"$here", "true \"$here")
        .replace("*)\n", "*)\n    while [ \"$1\" != --metrics ]; do shift; done; shift 2; exec \"$@\"\n");
    std::fs::write(place.file("ncu"), pass).unwrap();
    let line = refused(&place, PROFILE);
    assert!(line.contains("profiling is not available") && line.contains("it said: "), "{line}");
}
