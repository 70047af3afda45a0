//! `report`: a page from real records, looked at in a browser where there is one.

use crate::support::{Place, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A record of this project's.
fn record(name: &str) -> PathBuf {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold-lab/fixtures/records");
    let run = |path: &PathBuf| path.file_name().is_some_and(|run| run == name);
    eightfold_lab::store::folders_of_runs(&results).into_iter().find(run).unwrap()
}

const GPU_LADDER: &str = "20261115T090438Z-ladder";
const GPU_RUN: &str = "20261116T070218Z-run";
const GPU_BUILD: &str = "20261115T085441Z-build";
const TRIES: &str = "20261115T124608Z-compare";
const CPU_BENCH: &str = "20261115T064134Z-bench";

/// What a page may weigh at most.
const MOST_BYTES: usize = 2_000_000;

fn report(place: &Place, names: &[&str]) -> (String, String) {
    let paths: Vec<String> = names.iter().map(|name| record(name).display().to_string()).collect();
    let said = place.succeed(&format!("report {} --to page.html", paths.join(" ")));
    (said, std::fs::read_to_string(place.file("page.html")).unwrap())
}

#[test]
fn every_kind_of_record_has_its_page() {
    let place = Place::new();
    let (said, page) = report(&place, &[GPU_LADDER, GPU_RUN, GPU_BUILD, CPU_BENCH]);
    assert!(said.starts_with("No gate failed: ") && said.ends_with("page: page.html\n"), "{said}");
    assert!(page.len() < MOST_BYTES, "{} bytes", page.len());
    for text in [
        "Who is fastest",
        "Timing distributions",
        "as fast as the fastest peer",
        "commit ",
        "Compiled for sm_90, head dim 128, causal",
        "NVIDIA H200",
        "torch-flash",
        "valid negative",
        GPU_RUN,
    ] {
        assert!(page.contains(text), "{text} is missing");
    }
    assert_eq!(place.contents(), ["page.html"]);
}

#[test]
fn verdicts_have_their_table() {
    let place = Place::new();
    let (_, page) = report(&place, &[TRIES]);
    assert!(page.contains("<h3>Comparison</h3>") && !page.contains("holds no results"));
    assert_eq!(page.matches("a regression: ").count(), 10);
}

#[test]
fn the_page_is_called_report_unless_told_otherwise_and_json_says_what_was_written() {
    let place = Place::new();
    let folder = record(CPU_BENCH);
    let said = place.succeed(&format!("report {}/record.json.gz --json", folder.display()));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["page"], &said["records"][0]), (&"report.html".into(), &CPU_BENCH.into()));
    assert_eq!(said["bytes"], std::fs::metadata(place.file("report.html")).unwrap().len());
}

#[test]
fn what_is_no_record_is_refused_and_an_old_page_stays() {
    let place = Place::new();
    std::fs::write(place.file("report.html"), "old").unwrap();
    std::fs::write(place.file("words.json"), "not a record").unwrap();
    std::fs::write(place.file("newer.json"), r#"{"schema": 99}"#).unwrap();
    std::fs::create_dir(place.file("run")).unwrap();
    std::fs::write(place.file("run/record.json"), "a record").unwrap();
    let before = place.contents();
    let mut answers = String::new();
    for arguments in [
        "report",
        "report missing",
        "report .",
        "report words.json",
        "report newer.json",
        "report newer.json --to newer.json",
        "report run --to ./run/record.json",
        "report newer.json --to missing/page.html",
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        answers.push_str(&format!("{arguments}\n  {}", stderr(&output)));
    }
    insta::assert_snapshot!(answers);
    assert_eq!(std::fs::read(place.file("report.html")).unwrap(), b"old");
    assert_eq!(std::fs::read(place.file("run/record.json")).unwrap(), b"a record");
    assert_eq!(place.contents(), before);
}

/// One of all problems; times, distributions and two of errors for every problem that was timed, those of errors alone for the
/// others: the ladder's four problems, the run's two sweeps, the bench's six problems.
const CHARTS: usize = 1 + 4 * 4 + 2 * 2 + 6 * 4;

/// Makes a missing browser a failure.
const REQUIRE_CHROMIUM: &str = "EIGHTFOLD_REQUIRE_CHROMIUM";

/// Opens a page of this width in a frame and writes what it measures into the title of the page around it. A frame,
/// because a headless window has a least width that is wider than a phone.
const MEASURE: &str = r#"<!DOCTYPE html><meta charset="utf-8"><title>unmeasured</title>
<iframe id="frame" style="border:0;width:WIDTHpx;height:900px" srcdoc="PAGE"></iframe>
<script>
window.addEventListener("load", () => {
  const page = document.getElementById("frame").contentDocument;
  page.querySelectorAll("details").forEach(details => details.open = true);
  const pictures = [...page.querySelectorAll("svg")];
  const drawn = pictures.filter(svg => {
    const box = svg.getBoundingClientRect();
    return box.width > 100 && box.height > 40 && svg.getBBox().width > 100;
  });
  const outside = [...page.querySelectorAll("body *")].filter(element =>
    !element.closest("table, svg") && element.getBoundingClientRect().right > WIDTH + 1);
  const spilt = [...page.querySelectorAll("svg text")].filter(text => {
    const box = text.getBoundingClientRect(), around = text.ownerSVGElement.getBoundingClientRect();
    return box.left < around.left - 1 || box.right > around.right + 1 || box.bottom > around.bottom + 1;
  });
  const cut = [...page.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth + 1);
  document.title = "MEASURED " + [pictures.length, drawn.length, page.documentElement.scrollWidth,
    outside.length, spilt.length, cut.length].join(" ");
});
</script>"#;

fn chromium() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

#[test]
fn a_browser_draws_every_chart_and_nothing_leaves_the_page() {
    let Some(chromium) = chromium() else {
        assert!(std::env::var_os(REQUIRE_CHROMIUM).is_none(), "no Chromium on PATH, and {REQUIRE_CHROMIUM} is set");
        eprintln!("skipped: no chromium, chromium-browser or google-chrome on PATH");
        return;
    };
    let place = Place::new();
    let (_, page) = report(&place, &[GPU_LADDER, GPU_RUN, GPU_BUILD, CPU_BENCH]);
    let quoted = page.replace('&', "&amp;").replace('"', "&quot;");
    for width in [390, 1280] {
        let around = MEASURE.replace("WIDTH", &width.to_string()).replace("PAGE", &quoted);
        std::fs::write(place.file("measure.html"), around).unwrap();
        let output = Command::new(&chromium)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
            .args([format!("--user-data-dir={}", place.file("profile").display()), "--window-size=1400,1000".into()])
            .arg(format!("file://{}", place.file("measure.html").display()))
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        let measured = dom.split("<title>MEASURED ").nth(1).and_then(|rest| rest.split('<').next());
        let measured = measured.unwrap_or_else(|| panic!("nothing measured: {}", stderr(&output)));
        let numbers: Vec<usize> = measured.split(' ').map(|number| number.parse().unwrap()).collect();
        let &[pictures, drawn, page_width, outside, spilt, cut] = &numbers[..] else { panic!("{measured}") };
        assert_eq!(pictures, CHARTS, "charts at {width} px");
        assert_eq!(drawn, pictures, "charts drawn at {width} px");
        assert!(page_width <= width, "the page is {page_width} px wide at {width} px");
        let found = "elements outside the page, text outside its chart, tables with columns cut off";
        assert_eq!((outside, spilt, cut), (0, 0, 0), "{found}, at {width} px");
    }
}
