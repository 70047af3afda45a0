//! A search as a picture: every candidate over the course of the search, the best so far as a line, and the elite.

use super::chart;
use super::scale::Scale;
use super::table;
use super::words;
use crate::evolve::{EliteMember, Evolution, Insight, Operator, Trial, failures};
use crate::numbers;
use crate::verdict::SpeedUp;
use maud::{Markup, html};

const HEIGHT: f64 = 300.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 464.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 240.0;
/// Where candidates are drawn that have no time.
const FAILED: f64 = 250.0;

/// The lowest speed-up on the axis.
const LOWEST: f64 = 0.8;

/// Insights that are listed.
const INSIGHTS: usize = 12;

/// The section of one search.
pub fn render(evolution: &Evolution) -> Markup {
    let failed = failures(&evolution.trials);
    let failed: Vec<String> = failed.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let failed = if failed.is_empty() { "none failed".into() } else { failed.join(", ") };
    html! {
        section .group {
            h3 {
                "The search: " (evolution.kernel) " on " (evolution.problem.title(&evolution.shape))
                @for more in &evolution.more { " and " (more.problem.title(&more.shape)) }
            }
            p .aside {
                (numbers::counted(evolution.points, "legal setting", "legal settings")) " of " (numbers::whole(evolution.settings))
                @if !evolution.restriction.is_empty() { ", restricted to " (evolution.restriction) }
                "; policy " (evolution.policy.to_string()) ", seed " (evolution.seed) "; "
                (numbers::counted(evolution.spent.trials, "trial", "trials")) " in " (format!("{:.0}", evolution.spent.wall_s))
                " s on " (evolution.device)
                @if evolution.on_simulator { ", where steps are counted: a ratio is one of steps, not of time" }
                @if evolution.replayed { " (replayed)" } "; " (failed) "; ended because "
                (evolution.ended) "."
            }
            @if let Some(picture) = convergence(evolution) { h4 { "Convergence" } (picture) }
            h4 { "What was learned" }
            (insights(evolution))
        }
    }
}

/// Every candidate with a time, and the best so far; none where nothing was timed.
fn convergence(evolution: &Evolution) -> Option<Markup> {
    let speed_ups = || evolution.trials.iter().filter_map(|trial| trial.fate.speed_up());
    // What matters is near the baseline and above it. How far below the others are does not.
    let best = speed_ups().reduce(f64::max)?;
    let highest = validated(evolution).map_or(best, |found| best.max(found.upper));
    let up = Scale::Linear { from: LOWEST, to: 1.05 * highest.max(1.0) };
    let below = speed_ups().filter(|speed_up| *speed_up < LOWEST).count();
    let across = Scale::Linear { from: 0.0, to: evolution.trials.len().max(2) as f64 - 1.0 };
    let x = |trial: usize| LEFT + (RIGHT - LEFT) * across.position(trial as f64);
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * up.position(value);
    let number = chart::number;
    let content = html! {
        // There is no half of a trial.
        @for value in across.ticks().into_iter().filter(|value| value.fract() == 0.0) {
            @let at = number(x(value as usize));
            line .grid x1=(at) x2=(at) y1=(number(TOP)) y2=(number(BOTTOM)) {}
            text .tick x=(at) y=(number(BOTTOM + 26.0)) { (chart::plain(value)) }
        }
        @for value in up.ticks() {
            line .grid x1=(number(LEFT)) x2=(number(RIGHT)) y1=(number(y(value))) y2=(number(y(value))) {}
            text .value x=(number(LEFT - 6.0)) y=(number(y(value) + 4.5)) { (chart::plain(value)) "×" }
        }
        line .median x1=(number(LEFT)) x2=(number(RIGHT)) y1=(number(y(1.0))) y2=(number(y(1.0))) {}
        @for trial in &evolution.trials {
            @match trial.fate.speed_up() {
                Some(speed_up) if speed_up < LOWEST => line .below x1=(number(x(trial.index))) x2=(number(x(trial.index)))
                    y1=(number(BOTTOM - 5.0)) y2=(number(BOTTOM)) {
                    title { "trial " (trial.index) ": " (trial.fate.to_string()) " " (trial.variant) }
                },
                Some(speed_up) => circle class=(class(trial)) r="3" cx=(number(x(trial.index))) cy=(number(y(speed_up))) {
                    title { "trial " (trial.index) ", " (trial.origin.operator.to_string()) ": " (trial.fate.to_string()) " " (trial.variant) }
                },
                None => line .limit x1=(number(x(trial.index))) x2=(number(x(trial.index))) y1=(number(FAILED - 4.0)) y2=(number(FAILED)) {
                    title { "trial " (trial.index) ": " (trial.fate.to_string()) }
                },
            }
        }
        @if let Some(path) = best_line(evolution, &x, &y) { path .best d=(path) {} }
        @if let Some(found) = validated(evolution) {
            @let at = RIGHT + 6.0;
            line .validated x1=(number(LEFT)) x2=(number(at)) y1=(number(y(found.ratio))) y2=(number(y(found.ratio))) {}
            line .whisker x1=(number(at)) x2=(number(at)) y1=(number(y(found.lower))) y2=(number(y(found.upper))) {}
            text .value.strong x=(number(RIGHT)) y=(number(y(found.ratio) - 5.0)) { "validated: " (numbers::ratio(found.ratio)) }
        }
        line .axis x1=(number(LEFT)) x2=(number(RIGHT)) y1=(number(BOTTOM)) y2=(number(BOTTOM)) {}
        text .axis-title x=(number((LEFT + RIGHT) / 2.0)) y=(number(BOTTOM + 46.0)) {
            "trial; upwards: speed-up over the baseline"
        }
    };
    let label = format!(
        "Speed-up of every candidate over the course of the search. The best of {} looked {} as fast as the baseline{}",
        numbers::counted(evolution.trials.len(), "trial", "trials"),
        numbers::ratio(best),
        validated(evolution)
            .map_or(String::new(), |found| format!(", validation found {}", numbers::ratio(found.ratio)))
    );
    let caption = html! {
        span .key.ours { "mutations and crossovers" } " " span .key.peer { "samples and the baseline" } " "
        span .key.limit { "failed" } ". The thin line is the best so far by the search’s own short times. The thick line is the "
        "gain that validation found, with many runs on fresh inputs, and its 95 % interval: that is what counts. Dashed: the "
        "baseline."
        @if below > 0 { " " (numbers::whole(below)) " slower than " (chart::plain(LOWEST)) "× are marks at the bottom." }
    };
    // The result is not folded away.
    Some(html! {
        figure { (chart::svg(&label, HEIGHT, content)) figcaption { (caption) } }
        (elite(evolution))
    })
}

/// The best gain that validation found; none where nothing but the baseline was validated.
fn validated(evolution: &Evolution) -> Option<SpeedUp> {
    let found = evolution.elite.iter().filter_map(|member| member.validated);
    found.max_by(|a, b| a.ratio.total_cmp(&b.ratio))
}

/// The knobs of a variant that the baseline has not.
fn difference(variant: &str, baseline: &str) -> String {
    let knobs = |text: &str| -> Vec<String> { text.split([':', ',']).map(String::from).collect() };
    let of_baseline = knobs(baseline);
    let other: Vec<String> = knobs(variant).into_iter().filter(|knob| !of_baseline.contains(knob)).collect();
    if other.is_empty() { "the baseline".into() } else { other.join(", ") }
}

fn class(trial: &Trial) -> &'static str {
    match trial.origin.operator {
        Operator::Baseline | Operator::Sample => "point peer",
        Operator::Crossover | Operator::Mutation | Operator::Mutator => "point ours",
    }
}

/// Steps from each best to the next.
fn best_line(evolution: &Evolution, x: &dyn Fn(usize) -> f64, y: &dyn Fn(f64) -> f64) -> Option<String> {
    let number = chart::number;
    let mut path = String::new();
    let mut before = None;
    for (trial, best) in evolution.best_so_far().into_iter().enumerate() {
        let Some(best) = best.filter(|best| before != Some(*best)) else { continue };
        path.push_str(&match before {
            None => format!("M{} {}", number(x(trial)), number(y(best))),
            Some(_) => format!("H{}V{}", number(x(trial)), number(y(best))),
        });
        before = Some(best);
    }
    before.map(|_| format!("{path}H{}", number(x(evolution.trials.len() - 1))))
}

fn elite(evolution: &Evolution) -> Markup {
    let columns = [
        table::words("knobs that differ from the baseline"),
        table::numbers("validated"),
        table::numbers("95 % interval"),
        table::words("verdict"),
        table::numbers("in the search"),
        table::numbers("trial"),
    ];
    let row = |member: &EliteMember| {
        let EliteMember { variant, source, trial, searched, validated, outcome, summary, .. } = member;
        let source = source.as_ref().map(|source| format!(", source {}", &source[..8.min(source.len())]));
        vec![
            table::text(difference(variant, &evolution.baseline) + &source.unwrap_or_default()),
            table::optional(*validated, |found| numbers::ratio(found.ratio)),
            table::optional(*validated, |found| format!("{:.3} to {:.3}", found.lower, found.upper)),
            outcome.map_or_else(|| table::text(summary), words::badge),
            table::text(numbers::ratio(*searched)),
            table::text(trial.to_string()),
        ]
    };
    let rows = evolution.elite.iter().map(row).collect();
    table::render(&format!("The best, against {}", evolution.baseline), &columns, rows)
}

fn insights(evolution: &Evolution) -> Markup {
    if evolution.insights.is_empty() {
        return html! { p .aside { "Nothing was learned." } };
    }
    let columns = [
        table::words("insight"),
        table::numbers("learned from"),
        table::numbers("worth"),
        table::numbers("followed"),
        table::numbers("hits"),
    ];
    let row = |insight: &Insight| {
        let Insight { name, seen, speed_up, followed, hits } = insight;
        vec![
            table::text(name),
            table::optional((*seen > 0).then_some(*seen), |seen| seen.to_string()),
            table::optional(*speed_up, numbers::ratio),
            table::text(followed.to_string()),
            table::text(hits.to_string()),
        ]
    };
    let rows = evolution.insights.iter().take(INSIGHTS).map(row).collect();
    table::render("Insights: what was learned, and how often following it helped", &columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_the_baseline_is_shown() {
        assert_eq!(difference("cpu:exp=poly,tile_keys=512", "cpu:exp=poly,tile_keys=256"), "tile_keys=512");
        assert_eq!(difference("cpu:exp=poly", "cpu:exp=poly"), "the baseline");
    }
}
