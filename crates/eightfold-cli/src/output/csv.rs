//! Rows with commas between, for programs: numbers without units, and names in quotes where they need them.

/// Rows under a header.
pub fn csv(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let header: Vec<String> = header.iter().map(|name| name.to_string()).collect();
    std::iter::once(header)
        .chain(rows)
        .map(|row| format!("{}\n", row.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",")))
        .collect()
}

/// A number, or nothing.
pub fn number(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_hold_commas_and_quotes_are_quoted() {
        let rows = [vec!["cpu:a=1,b=2".to_string(), "say \"no\"".into(), number(Some(1.5)), number(None)]];
        assert_eq!(csv(&["a", "b", "c", "d"], rows), "a,b,c,d\n\"cpu:a=1,b=2\",\"say \"\"no\"\"\",1.5,\n");
    }
}
