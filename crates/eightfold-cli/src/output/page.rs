//! How results are shown: how wide, in which colours, and how much of them.

use std::io::IsTerminal;
use std::sync::OnceLock;

/// Columns where standard output is no terminal.
const USUAL_WIDTH: usize = 100;

/// What a person asked for, and what the terminal can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Columns that a line may take.
    pub width: usize,
    /// Whether outcomes have colours.
    pub colour: bool,
    /// Results alone, without notes and progress.
    pub quiet: bool,
    /// Everything that is known.
    pub verbose: bool,
}

impl Default for Page {
    fn default() -> Self {
        Page { width: USUAL_WIDTH, colour: false, quiet: false, verbose: false }
    }
}

static PAGE: OnceLock<Page> = OnceLock::new();

impl Page {
    /// The page of this process's standard output.
    pub fn here(wide: bool, quiet: bool, verbose: bool) -> Page {
        let terminal = std::io::stdout().is_terminal();
        let columns = terminal_size::terminal_size_of(std::io::stdout()).map(|(columns, _)| usize::from(columns.0));
        let environment = |name: &str| std::env::var(name).ok();
        Page {
            width: if wide { usize::MAX } else { columns.filter(|_| terminal).unwrap_or(USUAL_WIDTH) },
            colour: wants_colour(terminal, environment("NO_COLOR").as_deref(), environment("TERM").as_deref()),
            quiet,
            verbose,
        }
    }
}

/// Settles how this process shows its results; the first call counts.
pub fn settle(page: Page) {
    let _ = PAGE.set(page);
}

/// How this process shows its results.
pub fn page() -> Page {
    *PAGE.get_or_init(Page::default)
}

/// Whether a terminal wants colours: not where NO_COLOR is set to anything, nor where the terminal is dumb.
fn wants_colour(terminal: bool, no_color: Option<&str>, term: Option<&str>) -> bool {
    terminal && no_color.is_none_or(str::is_empty) && term != Some("dumb")
}

/// What is coloured, the longer before what it begins with; by its code.
const COLOURED: [(&str, &str); 8] = [
    ("INVALID RUN", "31"),
    ("VALID NEGATIVE", "33"),
    ("INCONCLUSIVE", "33"),
    ("UNAVAILABLE", "33"),
    ("REGRESSION", "31"),
    ("INVALID", "31"),
    ("PASS", "32"),
    ("FAIL", "31"),
];

/// The text with every outcome in its colour.
pub fn coloured(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let mut before: Option<char> = None;
    while let Some(next) = rest.chars().next() {
        let word = COLOURED.iter().find(|(word, _)| {
            let whole = |neighbour: Option<char>| neighbour.is_none_or(|letter| !letter.is_alphanumeric());
            rest.strip_prefix(word).is_some_and(|after| whole(before) && whole(after.chars().next()))
        });
        let length = match word {
            Some((word, code)) => {
                shown.push_str(&format!("\u{1b}[{code}m{word}\u{1b}[0m"));
                word.len()
            }
            None => {
                shown.push(next);
                next.len_utf8()
            }
        };
        before = rest[..length].chars().next_back();
        rest = &rest[length..];
    }
    shown
}

/// The text with every line that is too long broken at blanks; what follows is indented by four more.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (content, end) = line.strip_suffix('\n').map_or((line, ""), |content| (content, "\n"));
        if content.chars().count() <= width {
            shown.push_str(line);
            continue;
        }
        let indent = content.chars().take_while(|letter| *letter == ' ').count();
        let mut used = 0;
        for (index, word) in content.split(' ').enumerate() {
            let length = word.chars().count();
            if index > 0 && used > indent + 4 && used + 1 + length > width {
                shown.truncate(shown.trim_end_matches(' ').len());
                shown.push('\n');
                shown.push_str(&" ".repeat(indent + 4));
                used = indent + 4;
            } else if index > 0 {
                shown.push(' ');
                used += 1;
            }
            shown.push_str(word);
            used += length;
        }
        shown.push_str(end);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        assert!(wants_colour(true, None, Some("xterm")));
        assert!(wants_colour(true, Some(""), None));
        assert!(!wants_colour(false, None, Some("xterm")));
        assert!(!wants_colour(true, Some("1"), Some("xterm")));
        assert!(!wants_colour(true, None, Some("dumb")));
    }

    #[test]
    fn outcomes_alone_are_coloured_and_each_as_a_whole() {
        assert_eq!(coloured("× PASS, PASSED"), "× \u{1b}[32mPASS\u{1b}[0m, PASSED");
        assert_eq!(coloured("VALID NEGATIVE"), "\u{1b}[33mVALID NEGATIVE\u{1b}[0m");
        assert_eq!(coloured("INVALID RUN for x"), "\u{1b}[31mINVALID RUN\u{1b}[0m for x");
        assert_eq!(coloured("INVALID\n"), "\u{1b}[31mINVALID\u{1b}[0m\n");
        assert_eq!(coloured("1.00× µs"), "1.00× µs");
    }

    #[test]
    fn lines_are_broken_at_blanks_and_words_never() {
        assert_eq!(wrapped("short\n", 8), "short\n");
        assert_eq!(wrapped("  one two three four\n", 12), "  one two\n      three\n      four\n");
        assert_eq!(wrapped("a-very-long-word b\n", 4), "a-very-long-word\n    b\n");
        let text = "  x: the reason is that something or other does not hold, and what to do about it is this\n\nnext";
        for width in 20..100 {
            let lines = wrapped(text, width);
            assert!(lines.lines().all(|line| line.chars().count() <= width), "{lines}");
            let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
            assert_eq!(words(&lines), words(text));
        }
    }
}
