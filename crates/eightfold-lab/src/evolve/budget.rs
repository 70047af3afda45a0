//! When a search ends: `5m`, `200 trials`, `90s device`, `50 stale`, or several of these, whichever comes first.

use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Limits of a search; what is not limited is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Candidates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<usize>,
    /// Time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
    /// Time that workers spent on gates and clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_s: Option<f64>,
    /// Candidates since the best so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<usize>,
}

/// What has been spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Candidates.
    pub trials: usize,
    /// Time.
    pub wall_s: f64,
    /// Time that workers spent on gates and clocks.
    pub device_s: f64,
    /// Candidates since the best so far.
    pub stale: usize,
}

const FIX: &str = "write for example `5m`, `200 trials`, `90s device`, `50 stale`, or several with commas between";

impl Budget {
    /// Reads what a person wrote.
    pub fn parse(text: &str) -> Result<Budget> {
        let invalid = |rule: String| Error::invalid("budget", rule, FIX);
        let mut budget = Budget::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let end = part.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(part.len());
            let (number, unit) = part.split_at(end);
            let number: f64 = number.parse().map_err(|_| invalid(format!("`{part}` does not begin with a number")))?;
            if number <= 0.0 {
                return Err(invalid(format!("`{part}` is no budget: nothing could be tried")));
            }
            let unit = unit.trim();
            let (time, device) = match unit.strip_suffix("device") {
                Some(time) => (time.trim(), true),
                None => (unit, false),
            };
            let seconds = match time {
                "s" => Some(number),
                "m" => Some(60.0 * number),
                "h" => Some(3600.0 * number),
                _ => None,
            };
            let whole = |number: f64| {
                if number.fract() == 0.0 { Ok(number as usize) } else { Err(invalid(format!("`{part}` is not whole"))) }
            };
            match (seconds, time) {
                (Some(seconds), _) if device => budget.device_s = Some(seconds),
                (Some(seconds), _) => budget.wall_s = Some(seconds),
                (None, "trial" | "trials") if !device => budget.trials = Some(whole(number)?),
                (None, "stale") if !device => budget.stale = Some(whole(number)?),
                _ => return Err(invalid(format!("`{part}` has no unit that is known here"))),
            }
        }
        if budget == Budget::default() {
            return Err(invalid("is empty".into()));
        }
        Ok(budget)
    }

    /// Which limit has been reached, in words.
    pub fn reached(&self, spent: &Spent) -> Option<String> {
        if self.trials.is_some_and(|limit| spent.trials >= limit) {
            return Some(format!("{} trials were made", spent.trials));
        }
        if let Some(limit) = self.wall_s.filter(|limit| spent.wall_s >= *limit) {
            return Some(format!("{} were spent", time(limit)));
        }
        if let Some(limit) = self.device_s.filter(|limit| spent.device_s >= *limit) {
            return Some(format!("{} of device time were spent", time(limit)));
        }
        let stale = self.stale.filter(|limit| spent.stale >= *limit);
        stale.map(|_| format!("{} trials brought nothing better", spent.stale))
    }

    /// How much of it is spent, from 0 to 1.
    pub fn share(&self, spent: &Spent) -> f64 {
        let shares = [
            self.trials.map(|limit| spent.trials as f64 / limit as f64),
            self.wall_s.map(|limit| spent.wall_s / limit),
            self.device_s.map(|limit| spent.device_s / limit),
            self.stale.map(|limit| spent.stale as f64 / limit as f64),
        ];
        shares.into_iter().flatten().fold(0.0, f64::max).min(1.0)
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 3600.0 && s % 3600.0 == 0.0 => format!("{}h", s / 3600.0),
        s if s >= 60.0 && s % 60.0 == 0.0 => format!("{}m", s / 60.0),
        s => format!("{s}s"),
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.wall_s.map(time),
            self.device_s.map(|limit| format!("{} device", time(limit))),
            self.trials.map(|limit| format!("{limit} trials")),
            self.stale.map(|limit| format!("{limit} stale")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_as_people_write_them() {
        for (text, shown) in [
            ("5m", "5m"),
            ("90 s", "90s"),
            ("200 trials", "200 trials"),
            ("1.5h,1trial, 30s device,50 stale", "1.5h, 30s device, 1 trials, 50 stale"),
        ] {
            let shown = shown.replace("1.5h", "90m");
            assert_eq!(Budget::parse(text).unwrap().to_string(), shown);
        }
        for text in ["", "0m", "0 trials", "-5m", "five", "5", "5 days", "2.5 trials", "3 trials device", ","] {
            let error = Budget::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("budget: ") && error.contains("200 trials"), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_limit_ends_it() {
        let budget = Budget::parse("10s, 5s device, 8 trials, 4 stale").unwrap();
        let spent = Spent { trials: 7, wall_s: 9.0, device_s: 4.0, stale: 3 };
        assert_eq!((budget.reached(&spent), budget.share(&spent)), (None, 0.9));
        for (spent, word) in [
            (Spent { trials: 8, ..spent }, "8 trials were made"),
            (Spent { wall_s: 10.0, ..spent }, "10s were spent"),
            (Spent { device_s: 5.5, ..spent }, "5s of device time"),
            (Spent { stale: 4, ..spent }, "4 trials brought nothing better"),
        ] {
            assert!(budget.reached(&spent).unwrap().contains(word));
        }
    }
}
