//! The worst of every check over all cases, and what to say about it.

use super::correctness::checks;
use super::{AT_LEAST, Check};

/// The worst value of every check so far, and where it was seen.
#[derive(Default)]
pub(super) struct Tally {
    worst: Vec<(Check, String)>,
    errors: Vec<String>,
}

impl Tally {
    /// Takes in the checks of a case.
    pub fn add(&mut self, origin: &str, checks: &[Check]) {
        for check in checks {
            match self.worst.iter_mut().find(|(known, _)| known.name == check.name) {
                None => self.worst.push((check.clone(), origin.into())),
                Some(entry) if strain(check) > strain(&entry.0) => {
                    *entry = (check.clone(), origin.into())
                }
                Some(_) => {}
            }
        }
        // A check that only some cases have keeps its place in the list.
        self.worst
            .sort_by_key(|(check, _)| checks::ALL.iter().position(|name| *name == check.name));
    }

    /// Takes in a case whose run ended in an error.
    pub fn add_error(&mut self, origin: &str, reason: &str) {
        self.add(origin, &[Check::at_most(checks::ERRORS, 1.0, 0.0)]);
        self.errors.push(format!("{origin}: {reason}"));
    }

    /// Whether every check of every case holds.
    pub fn passes(&self) -> bool {
        self.worst.iter().all(|(check, _)| check.pass)
    }

    /// One line for a person: the first failure, or how close the kernel came to its declared tolerance.
    pub fn summary(&self, cases: usize) -> String {
        if let [first, others @ ..] = &self.errors[..] {
            let more = if others.is_empty() {
                String::new()
            } else {
                format!(" (and {} more)", others.len())
            };
            return format!("{first}{more}");
        }
        let failed: Vec<_> = self.worst.iter().filter(|(check, _)| !check.pass).collect();
        if let [(check, origin), others @ ..] = &failed[..] {
            let more = match others.len() {
                0 => String::new(),
                1 => " (and 1 other check fails)".into(),
                count => format!(" (and {count} other checks fail)"),
            };
            let (value, limit) = (readable(check.value), readable(check.limit));
            return format!("{origin}: {} is {value}, limit {limit}{more}", check.name);
        }
        match self.worst.iter().find(|(check, _)| check.name == checks::RELATIVE_L2) {
            Some((check, origin)) => format!(
                "{cases} cases; closest to its declared tolerance on {origin}: relative L2 {:.1e} of {:.1e}",
                check.value, check.limit
            ),
            None => format!("{cases} cases"),
        }
    }

    /// The worst value of each check.
    pub fn into_checks(self) -> Vec<Check> {
        self.worst.into_iter().map(|(check, _)| check).collect()
    }
}

/// Counts as they are, measurements with four digits.
fn readable(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.3e}") }
}

/// How close a check is to its limit, a failed one being beyond every one that holds.
fn strain(check: &Check) -> f64 {
    let at_least = check.name.ends_with(AT_LEAST);
    let excess = if at_least { check.limit - check.value } else { check.value - check.limit };
    let relative = if check.limit == 0.0 { excess } else { excess / check.limit.abs() };
    if check.pass { relative.min(0.0) } else { relative.max(f64::MIN_POSITIVE) }
}
