//! Numbers in a width and a unit that a person reads at a glance.

pub use eightfold_lab::numbers::NONE;
use eightfold_lab::numbers::three_digits;

/// A time with three significant digits.
pub fn time(us: Option<f64>) -> String {
    let Some(us) = us else { return NONE.into() };
    let (value, unit) = match us {
        us if us < 1e3 => (us, "µs"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// How many times faster, with three significant digits.
pub fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or(NONE.into(), |ratio| format!("{}×", three_digits(ratio)))
}

/// An error, with two significant digits.
pub fn error(error: Option<f64>) -> String {
    error.map_or(NONE.into(), |error| format!("{error:.1e}"))
}

/// A share in percent, whole.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_whatever_the_size() {
        let shown = [0.5, 9.996, 99.96, 999.0, 1234.0, 7.2e6].map(|us| time(Some(us)));
        assert_eq!(shown, ["0.500 µs", "10.0 µs", "100 µs", "999 µs", "1.23 ms", "7.20 s"]);
        assert_eq!([Some(12.34), Some(0.01234), None].map(ratio), ["12.3×", "0.0123×", "–"]);
        assert_eq!(time(Some(0.0)), "0 µs");
        assert_eq!(error(Some(2.34e-4)), "2.3e-4");
        assert_eq!(percent(0.126), "13 %");
    }
}
