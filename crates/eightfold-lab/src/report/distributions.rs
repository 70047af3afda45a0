//! How the runs of each contestant spread around their median.

use super::chart::{self, Row};
use super::scale::Scale;
use super::table;
use super::words;
use crate::numbers;
use crate::record::{Entry, Group};
use maud::{Markup, html};

/// Bins along the axis: what a phone can still show, and what keeps a large record's page small.
const BINS: usize = 56;
/// A histogram's height within its row.
const HEIGHT: f64 = 17.0;
/// The share of runs at each end that may lie beyond the axis, so that one outlier does not flatten everybody.
const BEYOND: f64 = 0.02;
/// What the axis shows at least and at most around the median.
const LEAST_AROUND: f64 = 0.005;
const MOST_BELOW: f64 = 0.25;
const MOST_ABOVE: f64 = 0.5;

/// Runs relative to their own median: contestants a hundred times apart share an axis.
struct Spread<'a> {
    entry: &'a Entry,
    /// Differences from the median as shares of it, sorted.
    differences: Vec<f64>,
}

impl<'a> Spread<'a> {
    fn of(entry: &'a Entry) -> Option<Spread<'a>> {
        let timing = entry.timing.as_ref()?;
        let median_ns = timing.summary.p50_us * 1e3;
        if median_ns.is_nan() || median_ns <= 0.0 {
            return None;
        }
        let mut differences: Vec<f64> = timing.samples.ns.iter().map(|&ns| ns as f64 / median_ns - 1.0).collect();
        differences.sort_unstable_by(f64::total_cmp);
        (!differences.is_empty()).then_some(Spread { entry, differences })
    }

    fn at(&self, share: f64) -> f64 {
        self.differences[((self.differences.len() - 1) as f64 * share).round() as usize]
    }

    /// Runs per bin of this axis, and how many lie before and after it.
    fn bins(&self, from: f64, to: f64) -> ([usize; BINS], usize) {
        let mut bins = [0; BINS];
        let mut beyond = 0;
        for difference in &self.differences {
            let share = (difference - from) / (to - from);
            if (0.0..=1.0).contains(&share) {
                bins[((share * BINS as f64) as usize).min(BINS - 1)] += 1;
            } else {
                beyond += 1;
            }
        }
        (bins, beyond)
    }
}

/// The histograms and the table of a group's runs; nothing where nobody was timed.
pub fn render(group: &Group) -> Option<Markup> {
    let spreads: Vec<Spread> = group.entries.iter().filter_map(Spread::of).collect();
    if spreads.is_empty() {
        return None;
    }
    let (from, to) = axis(&spreads);
    let scale = Scale::Linear { from, to };
    let label = format!("Histograms of the runs on {}, each around its own median", words::title(group));
    let body = html! {
        @let zero = chart::number(chart::along(&scale, 0.0));
        @let bottom = chart::TOP + chart::ROW * spreads.len() as f64;
        line .median x1=(zero) x2=(zero) y1=(chart::number(chart::TOP)) y2=(chart::number(bottom)) {}
        @for (index, spread) in spreads.iter().enumerate() {
            @let row = Row { name: &spread.entry.name, peer: spread.entry.peer };
            @let (bins, beyond) = spread.bins(from, to);
            (row.label(index))
            path class={ "area " (row.class()) } d=(outline(&bins, chart::middle(index) + chart::ROW / 2.0 - 1.0)) {}
            @if beyond > 0 {
                text .value x=(chart::number(chart::WIDTH)) y=(chart::number(chart::middle(index) + 4.5)) {
                    (numbers::whole(beyond)) " outside"
                }
            }
        }
    };
    let caption = html! {
        "How often a run took this long, relative to the contestant's own median. Heights are relative to each row's "
        "highest bin. “outside” counts the runs that the axis does not reach."
    };
    let drawing =
        chart::rows(&label, spreads.len(), &scale, numbers::signed_percent, "difference from the median", body);
    Some(chart::figure(caption, drawing, runs(&spreads)))
}

/// An axis that holds nearly all runs of everybody, within reason.
fn axis(spreads: &[Spread]) -> (f64, f64) {
    let least = spreads.iter().map(|spread| spread.at(BEYOND)).fold(0.0, f64::min);
    let most = spreads.iter().map(|spread| spread.at(1.0 - BEYOND)).fold(0.0, f64::max);
    (-(-least).clamp(LEAST_AROUND, MOST_BELOW), most.clamp(LEAST_AROUND, MOST_ABOVE))
}

/// The histogram as one closed line of steps.
fn outline(bins: &[usize; BINS], bottom: f64) -> String {
    let highest = bins.iter().copied().max().unwrap_or(0).max(1) as f64;
    let step = (chart::RIGHT - chart::LEFT) / BINS as f64;
    let mut path = format!("M{} {}", chart::number(chart::LEFT), chart::number(bottom));
    let mut at = bottom;
    for (index, count) in bins.iter().enumerate() {
        let top = bottom - HEIGHT * *count as f64 / highest;
        // Only where the height changes: most bins of a steady kernel are empty.
        if top != at {
            path.push_str(&format!("H{}V{}", chart::number(chart::LEFT + step * index as f64), chart::number(top)));
            at = top;
        }
    }
    path.push_str(&format!("H{}V{}Z", chart::number(chart::RIGHT), chart::number(bottom)));
    path
}

fn runs(spreads: &[Spread]) -> Markup {
    let mut columns = vec![table::words("contestant"), table::numbers("runs"), table::numbers("rounds")];
    columns.extend(["min", "mean", "p90", "std / mean"].map(table::numbers));
    let launched = spreads.iter().any(|spread| spread.entry.launch_timing.is_some());
    columns.extend(launched.then(|| table::numbers("single launch")));
    let rows = spreads.iter().filter_map(|spread| {
        let timing = spread.entry.timing.as_ref()?;
        let summary = timing.summary;
        let rounds = Some(timing.samples.rounds.len()).filter(|rounds| *rounds > 0);
        let share = summary.std_us / summary.mean_us;
        let mut row = vec![
            html! { span class=[spread.entry.peer.then_some("peer")] { (spread.entry.name) } },
            table::text(numbers::whole(summary.iterations)),
            table::optional(rounds, numbers::whole),
            table::text(numbers::time(summary.min_us)),
            table::text(numbers::time(summary.mean_us)),
            table::text(numbers::time(summary.p90_us)),
            table::optional(Some(share).filter(|share| share.is_finite()), |share| format!("{:.2} %", 100.0 * share)),
        ];
        let launch = spread.entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us);
        row.extend(launched.then(|| table::optional(launch, numbers::time)));
        Some(row)
    });
    table::render("Runs", &columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Samples, Timer};
    use crate::record::Timing;

    fn entry(ns: Vec<u64>) -> Entry {
        Entry { timing: Timing::new(Timer::HostClock, Samples { ns, rounds: Vec::new() }), ..Entry::new("x", "x") }
    }

    #[test]
    fn every_run_is_in_a_bin_or_counted_as_beyond() {
        let entry = entry((0..1000).map(|run| 100_000 + 37 * run).chain([9_000_000]).collect());
        let spread = Spread::of(&entry).unwrap();
        let (from, to) = axis(std::slice::from_ref(&spread));
        let (bins, beyond) = spread.bins(from, to);
        assert!(beyond > 0 && beyond <= 42, "{beyond}");
        assert_eq!(bins.iter().sum::<usize>() + beyond, 1001);
    }

    #[test]
    fn runs_without_spread_still_have_an_axis() {
        let entry = entry(vec![5000; 10]);
        let spread = Spread::of(&entry).unwrap();
        assert_eq!(axis(std::slice::from_ref(&spread)), (-LEAST_AROUND, LEAST_AROUND));
        assert!(Spread::of(&Entry::new("x", "x")).is_none());
    }

    #[test]
    fn a_page_does_not_grow_with_its_runs() {
        let many = entry((0..200_000).map(|run| 1_000_000 + (run * 7919) % 100_003).collect());
        let spread = Spread::of(&many).unwrap();
        let (bins, _) = spread.bins(-0.1, 0.1);
        assert!(outline(&bins, 20.0).len() < 1200);
    }
}
