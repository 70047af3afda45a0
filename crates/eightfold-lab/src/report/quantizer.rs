//! The device's quantiser beside copies that move as many bytes.

use super::table;
use super::words;
use crate::numbers;
use crate::quantizer::{BYTES_MEANT, QuantizerGroup};
use maud::{Markup, html};

/// The section of one shape.
pub fn render(group: &QuantizerGroup) -> Markup {
    let columns = [
        table::words("contestant"),
        table::words("bits"),
        table::numbers("p50"),
        table::numbers("±"),
        table::numbers("bytes"),
        table::numbers("rate"),
        table::numbers("of copy"),
    ];
    let rows = group.entries.iter().map(|entry| {
        vec![
            table::text(&entry.name),
            entry.gate.as_ref().map_or(table::text(numbers::NONE), |gate| words::badge(gate.outcome)),
            table::optional(entry.p50_us(), numbers::time),
            table::optional(entry.timing.as_ref(), |timing| numbers::time(timing.summary.std_us)),
            table::text(numbers::moved(entry.least_bytes)),
            table::optional(entry.bytes_per_second(), numbers::bandwidth),
            table::optional(group.share_of_copy(entry), |share| format!("{:.0} %", 100.0 * share)),
        ]
    });
    html! {
        section .group {
            h3 { (group.title()) }
            p .aside { (BYTES_MEANT) }
            (table::render("Times of the quantiser", &columns, rows.collect()))
        }
    }
}
