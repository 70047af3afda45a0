//! The nearest valid name, for errors about unknown ones.

use crate::error::Error;

/// An error about an unknown name that offers the nearest valid one, or all of them.
pub fn unknown(argument: &str, name: &str, valid: &[&str]) -> Error {
    let nearest = valid
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len().div_ceil(2));
    let list = valid.join(", ");
    let fix = match nearest {
        Some((_, candidate)) => format!("did you mean `{candidate}`? (valid: {list})"),
        None => format!("valid: {list}"),
    };
    Error::invalid(argument, format!("`{name}` is unknown"), fix)
}

/// Levenshtein distance: the fewest single-character edits from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut previous: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut current = vec![i + 1];
        for (j, &b) in to.iter().enumerate() {
            let substitute = previous[j] + usize::from(a != b);
            current.push(substitute.min(previous[j + 1] + 1).min(current[j] + 1));
        }
        previous = current;
    }
    previous[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(distance("mission", "mission"), 0);
        assert_eq!(distance("misson", "mission"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn a_near_miss_is_answered_with_the_name_meant() {
        let error = unknown("shape", "misson", &["small", "mission", "long"]).to_string();
        assert_eq!(error, "shape: `misson` is unknown; did you mean `mission`? (valid: small, mission, long)");
    }

    #[test]
    fn a_far_miss_lists_what_there_is() {
        let error = unknown("kernel", "zzzzzz", &["cpu"]).to_string();
        assert_eq!(error, "kernel: `zzzzzz` is unknown; valid: cpu");
    }
}
