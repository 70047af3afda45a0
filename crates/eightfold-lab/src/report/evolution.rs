//! A search as a picture: every candidate over the course of the search, the best so far as a line, and the elite.

use super::chart;
use super::scale::Scale;
use super::table;
use super::words;
use crate::evolve::{EliteMember, Evolution, Insight, Operator, Trial, failures};
use crate::numbers;
use maud::{Markup, html};

const HEIGHT: f64 = 300.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 464.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 240.0;
/// Where candidates are drawn that have no time.
const FAILED: f64 = 250.0;

/// Insights that are listed.
const INSIGHTS: usize = 12;

/// The section of one search.
pub fn render(evolution: &Evolution) -> Markup {
    let failed = failures(&evolution.trials);
    let failed: Vec<String> = failed.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let failed = if failed.is_empty() { "none failed".into() } else { failed.join(", ") };
    html! {
        section .group {
            h3 { "The search: " (evolution.kernel) " on " (evolution.problem.title(&evolution.shape)) }
            p .aside {
                (numbers::counted(evolution.points, "legal setting", "legal settings")) " of " (numbers::whole(evolution.settings))
                @if !evolution.restriction.is_empty() { ", restricted to " (evolution.restriction) }
                "; policy " (evolution.policy.to_string()) ", seed " (evolution.seed) "; "
                (numbers::counted(evolution.spent.trials, "trial", "trials")) " in " (format!("{:.0}", evolution.spent.wall_s))
                " s on " (evolution.device) @if evolution.replayed { " (replayed)" } "; " (failed) "; ended because "
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
    // From zero: what matters is near the top, and how far below it the others are.
    let best = speed_ups().reduce(f64::max)?;
    let up = Scale::Linear { from: 0.0, to: 1.05 * best.max(1.0) };
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
                Some(speed_up) => circle class=(class(trial)) r="3" cx=(number(x(trial.index))) cy=(number(y(speed_up))) {
                    title { "trial " (trial.index) ", " (trial.origin.operator.to_string()) ": " (trial.fate.to_string()) " " (trial.variant) }
                },
                None => line .limit x1=(number(x(trial.index))) x2=(number(x(trial.index))) y1=(number(FAILED - 4.0)) y2=(number(FAILED)) {
                    title { "trial " (trial.index) ": " (trial.fate.to_string()) }
                },
            }
        }
        @if let Some(path) = best_line(evolution, &x, &y) { path .best d=(path) {} }
        line .axis x1=(number(LEFT)) x2=(number(RIGHT)) y1=(number(BOTTOM)) y2=(number(BOTTOM)) {}
        text .axis-title x=(number((LEFT + RIGHT) / 2.0)) y=(number(BOTTOM + 46.0)) {
            "trial; upwards: speed-up over the baseline"
        }
    };
    let label = format!(
        "Speed-up of every candidate over the course of the search, and the best so far, which ends at {} after {}",
        numbers::ratio(best),
        numbers::counted(evolution.trials.len(), "trial", "trials")
    );
    let caption = html! {
        span .key.ours { "mutations and crossovers" } " " span .key.peer { "samples and the baseline" } " "
        span .key.limit { "failed" } ". The line is the best so far; dashed, the baseline itself. The search's own times are "
        "short: what counts is the validation beside it, with many runs on fresh inputs."
    };
    Some(chart::figure(caption, chart::svg(&label, HEIGHT, content), elite(evolution)))
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
        table::words("trial"),
        table::numbers("searched"),
        table::numbers("validated"),
        table::numbers("95 % interval"),
        table::words("verdict"),
        table::words("variant"),
    ];
    let row = |member: &EliteMember| {
        let EliteMember { variant, trial, searched, validated, outcome, summary } = member;
        vec![
            table::text(trial.to_string()),
            table::text(numbers::ratio(*searched)),
            table::optional(*validated, |found| numbers::ratio(found.ratio)),
            table::optional(*validated, |found| format!("{:.3} to {:.3}", found.lower, found.upper)),
            outcome.map_or_else(|| table::text(summary), words::badge),
            table::text(variant),
        ]
    };
    let rows = evolution.elite.iter().map(row).collect();
    table::render(&format!("The elite against {}", evolution.baseline), &columns, rows)
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
