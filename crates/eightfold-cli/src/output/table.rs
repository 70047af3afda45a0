//! A table without lines that fits its page: what is worth least is left out first, then words are broken.

use super::page::page;

/// A column.
#[derive(Debug, Clone)]
struct Column {
    name: String,
    /// Whether its cells are aligned to the left, and may be broken.
    words: bool,
    /// Columns of the highest rank are the first to be left out; those of rank 0 are never.
    rank: u8,
}

/// Rows under a header.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// Between two columns, and before the first.
const GAP: usize = 2;

/// No column of words becomes narrower than this.
const LEAST_WORDS: usize = 14;

impl Table {
    /// A table of these columns: the first is of words, the last if told so, and the others of numbers.
    pub fn new(header: &[&str], last_is_words: bool) -> Self {
        let last = header.len().saturating_sub(1);
        let column = |(index, name): (usize, &&str)| Column {
            name: name.to_string(),
            words: index == 0 || (index == last && last_is_words),
            rank: 0,
        };
        Table { columns: header.iter().enumerate().map(column).collect(), rows: Vec::new() }
    }

    /// The same with a column of words at this place.
    pub fn with_words(mut self, index: usize) -> Self {
        self.columns[index].words = true;
        self
    }

    /// The same where these columns may be left out, the last named first.
    pub fn with_extras(mut self, names: &[&str]) -> Self {
        for (rank, name) in (1..).zip(names) {
            for column in self.columns.iter_mut().filter(|column| column.name == *name) {
                column.rank = rank;
            }
        }
        self
    }

    /// Adds a row.
    pub fn add_row<I>(&mut self, cells: I)
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// The table on the page of this process.
    pub fn text(&self) -> String {
        self.fitted(page().width)
    }

    /// The table in so many columns of letters, and what was left out below it.
    pub fn fitted(&self, width: usize) -> String {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let mut left_out: Vec<usize> = Vec::new();
        let total = |shown: &[usize]| shown.iter().map(|index| GAP + self.natural(*index)).sum::<usize>();
        while total(&shown) > width {
            let Some(least) = (0..shown.len())
                .filter(|place| self.columns[shown[*place]].rank > 0)
                .max_by_key(|place| self.columns[shown[*place]].rank)
            else {
                break;
            };
            left_out.push(shown.remove(least));
        }
        let mut widths: Vec<usize> = shown.iter().map(|index| self.natural(*index)).collect();
        while widths.iter().map(|width| GAP + width).sum::<usize>() > width {
            let breakable = (0..shown.len()).filter(|place| self.columns[shown[*place]].words);
            match breakable.max_by_key(|place| widths[*place]).filter(|place| widths[*place] > LEAST_WORDS) {
                Some(widest) => widths[widest] -= 1,
                None => break,
            }
        }
        let header: Vec<String> = self.columns.iter().map(|column| column.name.clone()).collect();
        let mut text: String =
            std::iter::once(&header).chain(&self.rows).map(|row| self.lines(row, &shown, &widths)).collect();
        if !left_out.is_empty() {
            left_out.sort_unstable();
            let names: Vec<&str> = left_out.iter().map(|index| self.columns[*index].name.as_str()).collect();
            text.push_str(&format!("  --wide also shows: {}\n", names.join(", ")));
        }
        text
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let rule = |column: &Column| if column.words { "---" } else { "---:" }.to_string();
        let mut text = line(self.columns.iter().map(|column| column.name.clone()).collect());
        text.push_str(&line(self.columns.iter().map(rule).collect()));
        for row in &self.rows {
            text.push_str(&line(row.iter().map(|cell| cell.trim().replace('|', "\\|")).collect()));
        }
        text
    }

    fn natural(&self, index: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[index].chars().count());
        cells.fold(self.columns[index].name.chars().count(), usize::max)
    }

    /// One row, on as many lines as its words need.
    fn lines(&self, row: &[String], shown: &[usize], widths: &[usize]) -> String {
        let broken: Vec<Vec<String>> =
            shown.iter().zip(widths).map(|(index, width)| broken(&row[*index], *width)).collect();
        let mut text = String::new();
        for number in 0..broken.iter().map(Vec::len).max().unwrap_or(0) {
            let mut line = String::new();
            for ((index, width), parts) in shown.iter().zip(widths).zip(&broken) {
                let cell = parts.get(number).map_or("", String::as_str);
                match self.columns[*index].words {
                    true => line.push_str(&format!("  {cell:<width$}")),
                    false => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A cell in lines of at most so many letters, broken after blanks and commas, and anywhere where there are none.
fn broken(cell: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut letters: Vec<char> = cell.chars().collect();
    while letters.len() > width {
        let least = width / 2;
        let place =
            (least..width).rev().find(|place| [' ', ','].contains(&letters[*place])).map_or(width, |place| place + 1);
        let rest = letters.split_off(place);
        lines.push(letters.into_iter().collect::<String>().trim_end().to_string());
        letters = rest;
    }
    lines.push(letters.into_iter().collect());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["name", "runs", "time", "bytes", "gates"], true).with_extras(&["bytes", "runs"]);
        table.add_row(["cpu:numbers=i16,simd=avx512", "100", "1.23 ms", "4096", "PASS"]);
        table.add_row(["torch", "3", "12.3 ms", "–", "performance VALID NEGATIVE"]);
        table
    }

    #[test]
    fn a_table_that_fits_is_shown_whole() {
        let text = table().fitted(usize::MAX);
        assert_eq!(text, table().fitted(200));
        assert_eq!(text.lines().count(), 3);
        assert!(text.starts_with("  name                         runs     time  bytes  gates\n"), "{text}");
    }

    #[test]
    fn what_is_worth_least_goes_first_and_is_named() {
        let text = table().fitted(75);
        assert!(text.ends_with("  --wide also shows: runs\n") && text.contains("bytes"), "{text}");
        let text = table().fitted(70);
        assert!(text.ends_with("  --wide also shows: runs, bytes\n"), "{text}");
        assert_eq!(text.lines().next(), Some("  name                            time  gates"));
    }

    #[test]
    fn whatever_the_width_no_line_is_longer_and_no_word_is_lost() {
        for width in 45..120 {
            let text = table().fitted(width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
            let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
            for word in ["12.3ms", "VALID", "NEGATIVE", "simd="] {
                assert!(letters(&text).contains(word), "{word} is missing at {width}\n{text}");
            }
        }
    }

    #[test]
    fn as_markdown() {
        let mut table = Table::new(&["a", "b"], true);
        table.add_row(["x | y", "1"]);
        assert_eq!(table.markdown(), "| a | b |\n| --- | --- |\n| x \\| y | 1 |\n");
    }
}
