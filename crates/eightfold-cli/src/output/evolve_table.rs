//! A search on the terminal: what was tried, what was learned, the elite, and the verdict last.

use super::ladder_table::problem_title;
use super::numbers::{NONE, ratio};
use super::{table, text};
use eightfold_lab::evolve::{EliteMember, Evolution, Insight, failures};
use eightfold_lab::numbers::counted;
use eightfold_lab::record::Record;

/// Insights that are shown.
const INSIGHTS: usize = 8;

/// The tables, where more is written, and the verdict.
pub fn render(record: &Record, written: &str) -> String {
    let Some(evolution) = &record.evolution else { return format!("{written}\n") };
    let insights = insights(evolution);
    format!("{}\n{}\n{insights}{written}\n\n{}\n", course(evolution), elite(evolution), verdict(evolution))
}

fn course(evolution: &Evolution) -> String {
    let Evolution { kernel, device, shape, problem, baseline, policy, seed, points, settings, spent, ended, .. } =
        evolution;
    let failed = failures(&evolution.trials);
    let failed: Vec<_> = failed.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let failed = if failed.is_empty() { "none failed".into() } else { failed.join(", ") };
    let mut lines = vec![
        problem_title(shape, problem),
        format!("  kernel    {kernel} on {device}{}", if evolution.replayed { ", replayed" } else { "" }),
        format!("  space     {points} of {settings} settings are legal{}", restricted(&evolution.restriction)),
        format!(
            "  search    {policy}, seed {seed}: {} in {:.0} s; {ended}",
            counted(spent.trials, "trial", "trials"),
            spent.wall_s
        ),
        format!("  failures  {failed}"),
        format!("  baseline  {baseline}"),
    ];
    for more in &evolution.more {
        lines.push(format!("  and       {}, baseline {}", problem_title(&more.shape, &more.problem), more.baseline));
    }
    if let Some(accuracy) = &evolution.accuracy {
        lines.push(format!("  accuracy  {accuracy}"));
    }
    if evolution.on_simulator {
        lines.push("  counted   steps on the simulated device: a ratio is one of steps, not of time".into());
    }
    if let Some(mutator) = &evolution.mutator {
        lines.push(format!(
            "  mutator   {} in {:.1} s, {} without an answer, cost {}",
            counted(mutator.calls, "call", "calls"),
            mutator.seconds,
            mutator.failed,
            (mutator.cost * 1e6).round() / 1e6
        ));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn restricted(restriction: &str) -> String {
    if restriction.is_empty() { String::new() } else { format!(", restricted to {restriction}") }
}

/// The best, what they gained, and what they are.
pub fn elite(evolution: &Evolution) -> String {
    let mut table = table(&["elite", "trial", "searched", "validated", "95 % interval", "verdict"], true);
    for (rank, member) in evolution.elite.iter().enumerate() {
        let EliteMember { trial, searched, validated, outcome, summary, .. } = member;
        table.add_row([
            (rank + 1).to_string(),
            trial.to_string(),
            ratio(Some(*searched)),
            ratio(validated.map(|found| found.ratio)),
            validated.map_or(NONE.into(), |found| format!("{:.3} to {:.3}", found.lower, found.upper)),
            outcome.map_or_else(|| summary.clone(), |outcome| outcome.to_string()),
        ]);
    }
    let mut shown = text(&table);
    for (rank, member) in evolution.elite.iter().enumerate() {
        let source = member.source.as_ref().map(|source| format!(" from source {source}")).unwrap_or_default();
        shown.push_str(&format!("  {}  {}{source}\n", rank + 1, member.variant));
    }
    shown
}

fn insights(evolution: &Evolution) -> String {
    if evolution.insights.is_empty() {
        return String::new();
    }
    let mut table = table(&["insight", "learned from", "worth", "followed", "hits"], false);
    for Insight { name, seen, speed_up, followed, hits } in evolution.insights.iter().take(INSIGHTS) {
        let seen = if *seen > 0 { seen.to_string() } else { NONE.into() };
        table.add_row([name.clone(), seen, ratio(*speed_up), followed.to_string(), hits.to_string()]);
    }
    format!("{}\n", text(&table))
}

/// What came of it, in one line.
fn verdict(evolution: &Evolution) -> String {
    let validated = evolution.elite.iter().any(|member| member.outcome.is_some());
    match (evolution.winner(), &evolution.installed) {
        (Some(winner), installed) => {
            let what = if installed.is_some() { "installed: " } else { "" };
            let source = winner.source.as_ref().map(|source| format!(" from source {source}")).unwrap_or_default();
            let better = if evolution.on_simulator { "takes fewer steps" } else { "is faster" };
            format!("{what}{}{source} {better} than the baseline: {}", winner.variant, winner.summary)
        }
        (None, _) if validated => "none: nothing was found that is surely faster than the baseline".into(),
        (None, _) if evolution.elite.is_empty() => "none: nothing that was tried passed its gates".into(),
        (None, _) if evolution.elite.iter().all(|member| member.searched <= 1.0) => {
            "none: the baseline is the best that was found".into()
        }
        (None, _) => "the elite was not validated: its speed-ups are the search's own".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::evolve_data;
    use eightfold_lab::gates::Outcome;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&evolve_data::record(), "written: runs/x/record.json"));
    }

    #[test]
    fn every_verdict_in_words() {
        let record = evolve_data::record();
        let mut evolution = record.evolution.unwrap();
        assert!(verdict(&evolution).contains("is faster than the baseline: 1.080×"));
        evolution.installed = Some(evolution.elite[0].variant.clone());
        assert!(verdict(&evolution).starts_with("installed: cpu:"));
        evolution.elite[0].outcome = Some(Outcome::Negative);
        assert!(verdict(&evolution).starts_with("none: nothing was found"));
        evolution.elite.iter_mut().for_each(|member| member.outcome = None);
        assert!(verdict(&evolution).starts_with("the elite was not validated"));
        evolution.elite.iter_mut().for_each(|member| member.searched = 0.99);
        assert!(verdict(&evolution).starts_with("none: the baseline"));
        evolution.elite.clear();
        assert!(verdict(&evolution).starts_with("none: nothing that was tried"));
    }
}
