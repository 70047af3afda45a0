//! The page as a whole: what it says, that it is whole, and that nothing in a record can break it.

use super::fixed_data::{builds, entry, evolution, group, ladder, source};
use super::{Source, render};
use crate::measure::{Conditions, Samples, Timer};
use crate::profile::fixed_data::{profiled, timed};
use crate::quantizer::{QuantizerEntry, QuantizerGroup};
use crate::record::{Entry, Kind, Timing};

/// The text of the page, a line for each piece of it, with what pictures say of themselves.
fn skeleton(html: &str) -> String {
    let body = html.split_once("</style>").unwrap().1;
    let mut lines = Vec::new();
    for piece in body.split('<') {
        let (tag, text) = piece.split_once('>').unwrap_or(("", piece));
        if tag.starts_with("svg") {
            let label = tag.split("aria-label=\"").nth(1).unwrap().split('"').next().unwrap();
            lines.push(format!("[picture: {label}]"));
        }
        let heading = tag.starts_with('h') && tag[1..].starts_with(|letter: char| letter.is_ascii_digit());
        let heading = if heading { "#".repeat(tag[1..2].parse().unwrap()) + " " } else { String::new() };
        if !text.trim().is_empty() {
            lines.push(format!("{heading}{}", text.trim()));
        }
    }
    lines.join("\n")
}

#[test]
fn what_the_page_says() {
    insta::assert_snapshot!(skeleton(&render(&[ladder(), builds()])));
}

#[test]
fn a_search_is_shown_with_its_course_its_elite_and_its_insights() {
    let page = render(&[evolution()]);
    let text = skeleton(&page);
    let from = text.find("### The search").unwrap();
    let to = text.find("### Environment").unwrap();
    insta::assert_snapshot!(&text[from..to]);
    // The line begins at the first that was timed and rises at each that was better.
    let path = page.split("class=\"best\" d=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!((path.matches('M').count(), path.matches('V').count()), (1, 1), "{path}");
    let mut nothing = evolution();
    let search = nothing.record.evolution.as_mut().unwrap();
    (search.trials, search.elite, search.insights) = (Vec::new(), Vec::new(), Vec::new());
    let page = render(&[nothing]);
    assert!(page.contains("Nothing was learned") && !page.contains("NaN"));
}

#[test]
fn a_time_and_a_profile_of_the_same_kernel_say_what_bounds_it() {
    let shape = "4,16,4096,128";
    let named = |name: &str, record| Source { name: name.into(), record };
    let timed = named("bench", timed("hopper:fast", shape, 400, 1881.0, &["software power cap"]));
    let profiled = |percent| named("profile", profiled("hopper:fast", shape, percent));
    let page = render(&[profiled(72.5), timed.clone()]);
    let text = skeleton(&page);
    let from = text.find("### What bounds each problem").unwrap();
    let to = from + text[from..].find("## profile").unwrap();
    insta::assert_snapshot!(&text[from..to]);
    // One without the other says nothing.
    for alone in [timed, profiled(72.5)] {
        assert!(!render(&[alone]).contains("What bounds each problem"));
    }
}

#[test]
fn nothing_in_a_record_can_break_the_page() {
    let nasty = "<script>alert('&\"1\"')</script>";
    let mut source = ladder();
    source.name = nasty.into();
    source.record.ended_early = Some(nasty.into());
    source.record.provenance.command.push(nasty.into());
    source.record.provenance.machine.cpu = nasty.into();
    source.record.groups[0].shape = nasty.into();
    for entry in &mut source.record.groups[0].entries {
        entry.name = nasty.into();
        entry.note = Some(nasty.into());
        entry.gates.iter_mut().for_each(|gate| gate.summary = nasty.into());
        entry.cases.iter_mut().for_each(|case| case.origin = nasty.into());
    }
    let page = render(&[source]);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    // Quotes are written out wherever they could end an attribute.
    assert!(!page.contains("'&\"1") && !page.contains("&amp;\"1"));
}

#[test]
fn the_page_needs_nothing_beside_it() {
    let page = render(&[ladder(), builds()]);
    assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"));
    for outside in ["http:", "https:", "src=", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn groups_and_records_without_results_are_said_to_be_empty() {
    let page = render(&[source(Kind::Ladder, vec![group(Vec::new())]), source(Kind::Run, Vec::new())]);
    assert!(page.contains("No contestant is recorded") && page.contains("This record holds no results"));
    assert!(!page.contains("<svg") && page.contains("No gate was met"));
    assert!(render(&[]).contains("Eightfold report: 0 records"));
}

#[test]
fn the_quantiser_is_shown_beside_the_copy_that_moves_as_many_bytes() {
    let mut source = source(Kind::Quantizer, Vec::new());
    let job = |name: &str, copy, p50_us: u64| {
        let samples = Samples { ns: vec![1000 * p50_us], rounds: Vec::new() };
        let timing = Timing::new(Timer::GraphReplay, samples);
        QuantizerEntry { name: name.into(), copy, least_bytes: 100_000_000, gate: None, timing }
    };
    source.record.quantizers = vec![QuantizerGroup {
        shape: "4,16,4096,128".into(),
        batch: 4,
        heads: 16,
        len: 4096,
        head_dim: 128,
        entries: vec![job("copy", true, 25), job("K", false, 40)],
        conditions: Conditions::default(),
    }];
    let page = render(&[source]);
    assert!(page.contains("4.00 TB/s") && page.contains("2.50 TB/s") && page.contains("62 %"), "{page}");
    assert!(!page.contains("This record holds no results"));
}

#[test]
fn what_was_not_timed_has_tables_and_no_chart_of_times() {
    let untimed = Entry { timing: None, ..entry("baseline", 1) };
    let page = render(&[source(Kind::Run, vec![group(vec![untimed])])]);
    assert!(page.contains("Errors</h4>") && !page.contains("Timing distributions"));
    assert!(!page.contains("Roofline") && !page.contains("NaN"));
}

#[test]
fn numbers_that_are_none_break_no_chart() {
    let mut odd = entry("odd", 5);
    let timing = odd.timing.as_mut().unwrap();
    timing.summary.p50_us = f64::NAN;
    timing.summary.p99_us = f64::INFINITY;
    odd.cases[0].kernel.relative_l2 = f64::NAN;
    odd.cases[1].quantizer.relative_l2 = 0.0;
    let mut zero = entry("zero", 5);
    zero.timing.as_mut().unwrap().summary.p50_us = 0.0;
    zero.timing.as_mut().unwrap().samples.ns = vec![0; 3];
    let page = render(&[source(Kind::Bench, vec![group(vec![odd, zero, entry("sound", 5)])])]);
    let drawn: Vec<&str> = page.split("<svg").skip(1).map(|svg| svg.split("</svg>").next().unwrap()).collect();
    assert!(!drawn.is_empty());
    for svg in drawn {
        for attribute in ["x", "x1", "x2", "cx", "cy", "width"] {
            for bad in ["NaN", "inf"] {
                assert!(!svg.contains(&format!(" {attribute}=\"{bad}")), "{svg}");
            }
        }
    }
}

#[test]
fn a_record_is_read_from_its_file_or_its_folder() {
    let place = tempfile::tempdir().unwrap();
    let written = ladder();
    let folder = place.path().join(&written.name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("record.json"), written.record.to_json()).unwrap();
    assert_eq!(Source::read(&folder).unwrap(), written);
    assert_eq!(Source::read(&folder.join("record.json")).unwrap(), written);
    std::fs::write(place.path().join("mine.json"), written.record.to_json()).unwrap();
    assert_eq!(Source::read(&place.path().join("mine.json")).unwrap().name, "mine.json");
    let error = Source::read(place.path()).unwrap_err().to_string();
    assert!(error.contains("does not exist") && error.contains("the folder that holds one"), "{error}");
}
