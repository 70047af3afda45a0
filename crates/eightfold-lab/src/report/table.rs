//! Tables. On a phone each row becomes a block of named values; where a table is still too wide, it scrolls in its own box.

use maud::{Markup, PreEscaped, html};

/// A column's heading, and whether it holds numbers.
pub struct Column {
    title: String,
    numbers: bool,
}

/// A column of words, to the left.
pub fn words(title: impl Into<String>) -> Column {
    Column { title: title.into(), numbers: false }
}

/// A column of numbers, to the right.
pub fn numbers(title: impl Into<String>) -> Column {
    Column { title: title.into(), numbers: true }
}

/// A table of more columns is set closer.
const DENSE: usize = 12;

/// A table; the first cell of each row is its heading.
pub fn render(caption: &str, columns: &[Column], rows: Vec<Vec<Markup>>) -> Markup {
    let class = |index: usize| columns.get(index).and_then(|column| column.numbers.then_some("number"));
    let title = |index: usize| columns.get(index).map_or("", |column| &column.title);
    html! {
        // The box can be focused, so that it scrolls from the keyboard.
        div .scroll tabindex="0" role="region" aria-label=(caption) {
            table class=[(columns.len() > DENSE).then_some("dense")] {
                caption { (caption) }
                thead { tr { @for (index, column) in columns.iter().enumerate() {
                    th scope="col" class=[class(index)] { (column.title) }
                } } }
                tbody { @for row in rows {
                    tr { @for (index, cell) in row.into_iter().enumerate() {
                        @if index == 0 { th scope="row" { (cell) } }
                        @else { td class=[class(index)] data-label=(title(index)) { (cell) } }
                    } }
                } }
            }
        }
    }
}

/// A cell of plain text, which may hold anything.
pub fn text(text: impl AsRef<str>) -> Markup {
    html! { (text.as_ref()) }
}

/// A cell that may have no value.
pub fn optional<T>(value: Option<T>, show: impl Fn(T) -> String) -> Markup {
    value.map_or(PreEscaped(crate::numbers::NONE.into()), |value| text(show(value)))
}
