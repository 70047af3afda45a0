//! What a reader asks first: who is fastest on which problem, and by how much over the best peer.

use super::chart::{self, Row};
use super::scale::Scale;
use super::{Source, table, words};
use crate::numbers;
use crate::record::{Entry, Group};
use crate::verdict::SpeedUp;
use maud::{Markup, html};

/// The best of ours on one problem beside the best of the others.
struct Standing<'a> {
    title: String,
    /// The title without the sizes, for the chart.
    short: String,
    ours: &'a Entry,
    /// The fastest peer, or without peers the first of ours.
    other: &'a Entry,
    gain: SpeedUp,
}

impl<'a> Standing<'a> {
    fn of(group: &'a Group) -> Option<Standing<'a>> {
        let fastest = |peer: bool| {
            let timed = group.entries.iter().filter(move |entry| entry.peer == peer);
            let timed = timed.filter_map(|entry| Some((entry, entry.p50_us().filter(|us| *us > 0.0)?)));
            timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(entry, _)| entry)
        };
        let ours = fastest(false)?;
        let first = group.entries.iter().find(|entry| !entry.peer && entry.timing.is_some() && entry.name != ours.name);
        let other = fastest(true).or(first)?;
        let samples = |entry: &'a Entry| entry.timing.as_ref().map(|timing| &timing.samples);
        let short = format!("{}{}", group.shape, if group.problem.causal { ", causal" } else { "" });
        let gain = SpeedUp::between(samples(other)?, samples(ours)?)?;
        (gain.ratio.is_finite() && gain.ratio > 0.0).then(|| Standing {
            title: words::title(group),
            short,
            ours,
            other,
            gain,
        })
    }

    fn interval(&self) -> String {
        format!("{:.2} to {:.2}", self.gain.lower, self.gain.upper)
    }
}

/// The section; nothing where nobody was timed beside somebody else.
pub fn render(sources: &[Source]) -> Option<Markup> {
    let groups = sources.iter().flat_map(|source| &source.record.groups);
    let standings: Vec<Standing> = groups.filter_map(Standing::of).collect();
    let least = standings.iter().map(|one| one.gain.ratio).reduce(f64::min)?;
    let most = standings.iter().map(|one| one.gain.ratio).fold(least, f64::max);
    let any_peer = standings.iter().any(|one| one.other.peer);
    let over = if any_peer { "the fastest peer" } else { "the first contestant" };
    let (range, on) = match standings.as_slice() {
        [one] => (format!("{} as fast as {over}", numbers::ratio(least)), format!("on {}", one.title)),
        _ => (
            format!("{} to {} as fast as {over}", numbers::ratio(least), numbers::ratio(most)),
            "depending on the problem".into(),
        ),
    };
    Some(html! {
        section aria-labelledby="fastest" {
            h2 #fastest { "Who is fastest" }
            p .answer { "The best of Eightfold is " strong { (range) } ", " (on) "." }
            figure .wide {
                (draw(&standings, over))
                figcaption {
                    "Bar: " (over) "’s median time divided by ours. Line: its 95 % interval. At 1× both are as fast."
                }
            }
            (rows(&standings, over))
        }
    })
}

fn draw(standings: &[Standing], over: &str) -> Markup {
    let most = standings.iter().map(|one| one.gain.upper.max(one.gain.ratio)).fold(1.0, f64::max);
    // One problem of many that is won by far must not hide the others.
    let scale = Scale::Linear { from: 0.0, to: most.min(4.0 * median(standings)).max(1.2) };
    let x = |value: f64| chart::number(chart::along(&scale, value));
    let said: Vec<String> =
        standings.iter().map(|one| format!("{}: {}", one.title, numbers::ratio(one.gain.ratio))).collect();
    let label = format!("How many times faster than {over} the best of Eightfold is. {}", said.join("; "));
    let body = html! {
        @for (index, one) in standings.iter().enumerate() {
            @let middle = chart::middle(index);
            (Row { name: &one.short, peer: false }.label(index))
            rect .bar.ours x=(chart::number(chart::LEFT)) y=(chart::number(middle - 6.5)) height="13"
                width=(chart::number((chart::along(&scale, one.gain.ratio) - chart::LEFT).max(0.5))) {}
            line .whisker x1=(x(one.gain.lower)) x2=(x(one.gain.upper)) y1=(chart::number(middle)) y2=(chart::number(middle)) {}
            text .value x=(chart::number(chart::WIDTH)) y=(chart::number(middle + 4.5)) { (numbers::ratio(one.gain.ratio)) }
        }
        @let bottom = chart::number(chart::TOP + chart::ROW * standings.len() as f64);
        line .median x1=(x(1.0)) x2=(x(1.0)) y1=(chart::number(chart::TOP)) y2=(bottom) {}
    };
    let tick = |value: f64| format!("{}×", chart::plain(value));
    chart::rows(&label, standings.len(), &scale, tick, "times as fast", body)
}

fn median(standings: &[Standing]) -> f64 {
    let mut ratios: Vec<f64> = standings.iter().map(|one| one.gain.ratio).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
}

fn rows(standings: &[Standing], over: &str) -> Markup {
    let singly = standings.iter().any(|one| one.ours.launch_timing.is_some());
    let mut columns = vec![table::words("problem"), table::words("best of Eightfold"), table::numbers("time")];
    columns.extend([table::words(over.trim_start_matches("the ")), table::numbers("its time")]);
    columns.push(table::numbers("95 % interval"));
    columns.extend(singly.then(|| table::numbers("single launch, ours and its")));
    columns.push(table::numbers("error, ours and its"));
    let row = |one: &Standing| {
        let time = |us: Option<f64>| us.map_or(numbers::NONE.into(), numbers::time);
        let wrong = |entry: &Entry| entry.worst_relative_l2().map_or(numbers::NONE.into(), numbers::error);
        let mut row = vec![
            table::text(&one.title),
            table::text(&one.ours.name),
            table::text(time(one.ours.p50_us())),
            table::text(&one.other.name),
            table::text(time(one.other.p50_us())),
            table::text(one.interval()),
        ];
        let single = || format!("{} / {}", time(one.ours.launch_p50_us()), time(one.other.launch_p50_us()));
        row.extend(singly.then(|| table::text(single())));
        row.push(table::text(format!("{} / {}", wrong(one.ours), wrong(one.other))));
        row
    };
    table::render("Medians; errors are relative L2", &columns, standings.iter().map(row).collect())
}
