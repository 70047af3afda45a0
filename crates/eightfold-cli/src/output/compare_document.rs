//! `COMPARE.md`: the verdict for people who were not there.

use super::compare_table::{against_itself, conditions, detectable, interval, outcome_word, planted_words, verdict};
use super::ladder_table::problem_title;
use super::numbers::{NONE, ratio, time};
use eightfold_lab::compare::Comparison;
use eightfold_lab::record::{Kind, Record};
use eightfold_lab::verdict::SpeedUp;

/// The whole document.
pub fn render(record: &Record) -> String {
    debug_assert_eq!(record.kind, Kind::Compare);
    let mut document = String::from("# Comparison\n");
    for comparison in &record.comparisons {
        document.push('\n');
        document.push_str(&section(comparison));
    }
    document.push_str(&format!("\n{}\n", origin(record)));
    document
}

fn section(comparison: &Comparison) -> String {
    let Comparison { shape, problem, baseline, candidate, speed_up, itself, required_gain, planted, .. } = comparison;
    let planted = planted.map(|planted| format!("**{}.**\n\n", planted_words(planted))).unwrap_or_default();
    let row = |name: &str, p50_us, found: &Option<SpeedUp>| {
        let ratio = ratio(found.map(|found| found.ratio));
        let (ends, rounds) =
            found.map_or((NONE.into(), NONE.into()), |found| (interval(&found), found.rounds.to_string()));
        format!("| {} | {} | {ratio} | {ends} | {rounds} |\n", cell(name), time(p50_us))
    };
    let rows = [
        row(&baseline.name, baseline.p50_us, &None),
        row(against_itself(comparison).trim(), None, itself),
        row(&candidate.name, candidate.p50_us, speed_up),
    ];
    let mut facts = vec![format!("Required speed-up: {:.3}×.", 1.0 + required_gain)];
    facts.extend(speed_up.as_ref().map(detectable).map(sentence));
    facts.extend(conditions(comparison).map(sentence));
    facts.extend(comparison.seed.map(|seed| format!("Order of turns: seed {seed}.")));
    facts.push(format!("Baseline: `{}`. Candidate: `{}`.", baseline.implementation, candidate.implementation));
    let facts: String = facts.iter().map(|fact| format!("- {fact}\n")).collect();
    format!(
        "## {}: {}\n\n{planted}| contestant | p50 | speed-up | 95 % interval | rounds |\n| --- | ---: | ---: | ---: | ---: |\n{}\n{facts}\n**{}**\n",
        problem_title(shape, problem),
        outcome_word(comparison.outcome),
        rows.concat(),
        verdict(comparison),
    )
}

/// A vertical bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn sentence(words: String) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// Who wrote this, when; the machine where the times were taken here and now.
fn origin(record: &Record) -> String {
    let provenance = &record.provenance;
    let live = record.comparisons.iter().any(|comparison| comparison.seed.is_some());
    let device = provenance.gpu.as_ref().map_or(&provenance.machine.cpu, |gpu| &gpu.name);
    let place = if live { format!(" on {device}, {} threads", provenance.threads) } else { String::new() };
    let build = if provenance.release { "" } else { " (not a release build: times say little)" };
    format!("Written by eightfold {}{build}{place}, {}.", provenance.eightfold, provenance.time_utc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::compare_data;

    #[test]
    fn layout() {
        let document = render(&compare_data::record());
        let (body, origin) = document.trim_end().rsplit_once('\n').unwrap();
        assert!(origin.starts_with("Written by eightfold "), "{origin}");
        insta::assert_snapshot!(body);
    }
}
