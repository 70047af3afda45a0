//! What other programs found out about the kernels: compute-sanitizer's tools, and the test runner on a device.

use crate::record::Kind;
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};

/// All that one program was asked to look at, in one go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// The program and its version.
    pub by: String,
    /// What it was run on, in words: shapes, or the device that was required.
    pub on: String,
    /// Each look.
    pub checks: Vec<Check>,
}

/// One look of one tool at one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// A variant and its output format, or the name of a test.
    pub subject: String,
    /// A tool of compute-sanitizer, or `test`.
    pub tool: String,
    /// Errors or hazards, or 1 for a test that failed.
    pub findings: usize,
}

impl Verification {
    /// What was found in all, which should be nothing.
    pub fn findings(&self) -> usize {
        self.checks.iter().map(|check| check.findings).sum()
    }

    /// The names of the tools, each once, in their order.
    pub fn tools(&self) -> Vec<&str> {
        let mut tools: Vec<&str> = Vec::new();
        for check in &self.checks {
            if !tools.contains(&check.tool.as_str()) {
                tools.push(&check.tool);
            }
        }
        tools
    }

    /// Reads what a program wrote: the output of `cargo test` or of a test's binary, or the lines that `scripts/h200.sh`
    /// writes of compute-sanitizer.
    pub fn read(text: &str) -> Result<(Kind, Verification)> {
        match text.lines().next() {
            Some(first) if first.starts_with(SANITIZER) => Ok((Kind::Sanitizer, Self::of_sanitizer(first, text)?)),
            _ => Ok((Kind::Tests, Self::of_tests(text)?)),
        }
    }

    /// First `compute-sanitizer`, version and shapes; then a line for each check: subject, tool and findings. Tabs separate.
    fn of_sanitizer(first: &str, text: &str) -> Result<Verification> {
        let mut head = first.split('\t').skip(1).map(str::to_string);
        let (version, on) = (head.next().unwrap_or_default(), head.next().unwrap_or_default());
        let check = |line: &str| {
            let mut cells = line.split('\t');
            match (cells.next(), cells.next(), cells.next().map(str::parse), cells.next()) {
                (Some(subject), Some(tool), Some(Ok(findings)), None) => {
                    Ok(Check { subject: subject.into(), tool: tool.into(), findings })
                }
                _ => Err(invalid(format!("has the line `{line}`, which is not subject, tool and number"))),
            }
        };
        let checks = text.lines().skip(1).map(check).collect::<Result<Vec<_>>>()?;
        if checks.is_empty() {
            return Err(invalid("holds no check".into()));
        }
        Ok(Verification { by: format!("{SANITIZER} {version}"), on, checks })
    }

    /// Lines `test NAME ... ok`, which must be as many as the summary says.
    fn of_tests(text: &str) -> Result<Verification> {
        let mut checks = Vec::new();
        let mut summed = [0; 2];
        for line in text.lines().map(str::trim) {
            if let Some(summary) = line.strip_prefix("test result: ") {
                for (sum, what) in summed.iter_mut().zip(["passed", "failed"]) {
                    *sum += count(summary, what).ok_or_else(|| invalid(format!("has a summary without `{what}`")))?;
                }
            } else if let Some((name, how)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... ")) {
                let findings = match how {
                    "ok" => 0,
                    "FAILED" => 1,
                    _ => continue,
                };
                checks.push(Check { subject: name.into(), tool: "test".into(), findings });
            }
        }
        let failed = checks.iter().filter(|check| check.findings > 0).count();
        if checks.is_empty() || [checks.len() - failed, failed] != summed {
            let rule = format!("names {} tests, and its summary counts {}", checks.len(), summed.iter().sum::<usize>());
            return Err(invalid(rule));
        }
        Ok(Verification { by: "cargo test".into(), on: "a device, which was required".into(), checks })
    }
}

const SANITIZER: &str = "compute-sanitizer";

/// The number before a word: 3 for `3 passed`.
fn count(summary: &str, what: &str) -> Option<usize> {
    let words: Vec<&str> = summary.split([' ', ';', '.']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|word| *word == what)?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

fn invalid(rule: String) -> Error {
    let fix = "give the output of `cargo test -p eightfold-lab --test cuda`, or the sanitizer.tsv of scripts/h200.sh";
    Error::invalid("import", rule, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_as_the_runner_counts_them() {
        let text = "\nrunning 3 tests\ntest a::one ... ok\ntest two ... FAILED\ntest three ... ignored\n\nfailures:\n\n\
                    test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        let (kind, found) = Verification::read(text).unwrap();
        assert_eq!((kind, found.findings(), found.checks.len()), (Kind::Tests, 1, 2));
        assert_eq!(found.checks[0].subject, "a::one");
    }

    #[test]
    fn a_log_that_was_cut_off_is_refused() {
        for text in ["", "test one ... ok\n", "test one ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored\n"] {
            let error = Verification::read(text).unwrap_err().to_string();
            assert!(error.starts_with("import: "), "{error}");
        }
    }

    #[test]
    fn what_the_sanitizer_found_is_read_line_by_line() {
        let text = "compute-sanitizer\t2025.3.1\tsmall 1,2,77,64\nhopper:fast, f32\tmemcheck\t0\nhopper:fast, f32\tracecheck\t2\n";
        let (kind, found) = Verification::read(text).unwrap();
        assert_eq!((kind, found.findings(), found.tools()), (Kind::Sanitizer, 2, vec!["memcheck", "racecheck"]));
        assert_eq!((found.by.as_str(), found.on.as_str()), ("compute-sanitizer 2025.3.1", "small 1,2,77,64"));
        for bad in ["compute-sanitizer\t1\tx\n", "compute-sanitizer\t1\tx\nhopper:fast\tmemcheck\tnone\n"] {
            assert!(Verification::read(bad).is_err(), "{bad}");
        }
    }
}
