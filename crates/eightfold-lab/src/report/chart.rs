//! What the charts have in common: their size, their axis, their names, the table beside them.

use super::scale::Scale;
use maud::{Markup, html};

/// Width in the chart's own units. Narrow, so that its text is still read when a phone shrinks it.
pub const WIDTH: f64 = 480.0;
/// Where the plot begins; the names of the rows are before it.
pub const LEFT: f64 = 144.0;
/// Where the plot ends; values are written after it.
pub const RIGHT: f64 = 408.0;
/// Height of a row.
pub const ROW: f64 = 22.0;
/// Where the first row begins.
pub const TOP: f64 = 6.0;
/// Room for the axis below the last row.
const AXIS: f64 = 40.0;
/// Letters of a name that fit before the plot.
const NAME_LETTERS: usize = 18;

/// A row's name, and whether it is somebody else's implementation.
pub struct Row<'a> {
    pub name: &'a str,
    pub peer: bool,
}

impl Row<'_> {
    /// The class that gives it its colour.
    pub fn class(&self) -> &'static str {
        if self.peer { "peer" } else { "ours" }
    }

    /// The name before the plot, cut to the room it has.
    pub fn label(&self, index: usize) -> Markup {
        html! {
            text class={ "name " (self.class()) } x=(number(LEFT - 8.0)) y=(number(middle(index) + 4.5)) {
                (shorten(self.name))
            }
        }
    }
}

/// A chart of rows over one axis. `label` says in words what is drawn.
pub fn rows(
    label: &str,
    count: usize,
    scale: &Scale,
    tick: impl Fn(f64) -> String,
    axis: &str,
    body: Markup,
) -> Markup {
    let bottom = TOP + ROW * count as f64;
    let content = html! {
        @for value in scale.ticks() {
            @let x = number(along(scale, value));
            line .grid x1=(x) x2=(x) y1=(number(TOP)) y2=(number(bottom)) {}
            text .tick x=(x) y=(number(bottom + 15.0)) { (tick(value)) }
        }
        (body)
        line .axis x1=(number(LEFT)) x2=(number(RIGHT)) y1=(number(bottom)) y2=(number(bottom)) {}
        text .axis-title x=(number((LEFT + RIGHT) / 2.0)) y=(number(bottom + 33.0)) { (axis) }
    };
    svg(label, bottom + AXIS, content)
}

/// A picture that says in words what it shows, and grows with the page.
pub fn svg(label: &str, height: f64, content: Markup) -> Markup {
    let view = format!("0 0 {} {}", number(WIDTH), number(height));
    html! { svg role="img" aria-label=(label) viewBox=(view) { (content) } }
}

/// A chart, what it shows, and its numbers as a table that is folded away.
pub fn figure(caption: Markup, chart: Markup, table: Markup) -> Markup {
    html! {
        figure { (chart) figcaption { (caption) } }
        details .numbers { summary { "Numbers" } (table) }
    }
}

/// What the colours mean, where there are two.
pub fn legend(any_peer: bool) -> Markup {
    html! { @if any_peer { span .key.ours { "Eightfold" } " " span .key.peer { "peers" } ". " } }
}

/// Where a value lies in the plot.
pub fn along(scale: &Scale, value: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * scale.position(value)
}

/// The middle of a row.
pub fn middle(index: usize) -> f64 {
    TOP + ROW * (index as f64 + 0.5)
}

/// A coordinate to a tenth of a unit: more is not seen, and makes the file larger.
pub fn number(value: f64) -> String {
    format!("{}", (value * 10.0).round() / 10.0)
}

/// The name, or its beginning where it is too long; the table has all of it.
pub fn shorten(name: &str) -> String {
    if name.chars().count() <= NAME_LETTERS {
        return name.into();
    }
    name.chars().take(NAME_LETTERS - 1).chain(['…']).collect()
}

/// A tick's number without the zeros that say nothing.
pub fn plain(value: f64) -> String {
    let exponent = value.abs().log10();
    if value != 0.0 && !(-3.0..6.0).contains(&exponent) {
        format!("{value:.0e}").replace('-', "−")
    } else {
        format!("{}", (value * 1e6).round() / 1e6).replace('-', "−")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_letters() {
        assert_eq!(shorten("warp-specialised"), "warp-specialised");
        assert_eq!(shorten(&"ä".repeat(30)), format!("{}…", "ä".repeat(17)));
    }

    #[test]
    fn ticks_have_no_idle_zeros() {
        assert_eq!([0.0, 0.5, 20.0, 1e-7, 2e6, -0.02].map(plain), ["0", "0.5", "20", "1e−7", "2e6", "−0.02"]);
    }
}
