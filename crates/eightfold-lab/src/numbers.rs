//! Numbers in a unit that a person reads at a glance.

/// Where there is no number.
pub const NONE: &str = "–";

/// A time with three significant digits.
pub fn time(us: f64) -> String {
    scaled(us, &[(1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns")])
}

/// A rate of arithmetic with three significant digits.
pub fn rate(gflop_per_second: f64) -> String {
    scaled(gflop_per_second, &[(1e3, "TFLOP/s"), (1.0, "GFLOP/s"), (1e-3, "MFLOP/s")])
}

/// Bytes that are moved, in decimal units as rates are, with three significant digits.
pub fn moved(bytes: usize) -> String {
    scaled(bytes as f64, &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")])
}

/// A rate of moving with three significant digits.
pub fn bandwidth(bytes_per_second: f64) -> String {
    scaled(bytes_per_second, &[(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")])
}

/// How many times faster.
pub fn ratio(ratio: f64) -> String {
    format!("{}×", three_digits(ratio))
}

/// An error with two significant digits.
pub fn error(error: f64) -> String {
    if error == 0.0 { "0".into() } else { format!("{error:.1e}").replace('-', "−") }
}

/// A share in percent, with a sign where it is a difference.
pub fn signed_percent(share: f64) -> String {
    let percent = (share * 1e4).round() / 100.0;
    let sign = if percent > 0.0 { "+" } else { "" };
    format!("{sign}{percent} %").replace('-', "−")
}

/// A whole number with its thousands apart.
pub fn whole(value: usize) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest binary unit that they fill.
pub fn memory(bytes: usize) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")];
    let (size, unit) = units.into_iter().find(|(size, _)| bytes as u64 >= *size).unwrap_or((1, "bytes"));
    format!("{} {unit}", three_digits(bytes as f64 / size as f64))
}

/// A count with its noun.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", whole(count), if count == 1 { one } else { many })
}

/// Three significant digits.
pub fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        value if value < 0.0995 => 4,
        value if value < 0.9995 => 3,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// The value in the first unit, from the largest, that it reaches after rounding; else in the last.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = |(size, _): &&(f64, &str)| value == 0.0 && *size == 1.0 || value / size >= 0.9995;
    let (size, unit) = units.iter().find(fits).unwrap_or(&units[units.len() - 1]);
    format!("{} {unit}", three_digits(value / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_whatever_the_size() {
        let shown = [0.0, 0.5, 9.996, 99.96, 999.0, 999.96, 1234.0, 7.2e6].map(time);
        assert_eq!(shown, ["0 µs", "500 ns", "10.0 µs", "100 µs", "999 µs", "1.00 ms", "1.23 ms", "7.20 s"]);
        assert_eq!([123_456.0, 12.3, 0.5].map(rate), ["123 TFLOP/s", "12.3 GFLOP/s", "500 MFLOP/s"]);
        assert_eq!([100_663_296, 512].map(moved), ["101 MB", "512 bytes"]);
        assert_eq!([3.95e12, 12.3e9].map(bandwidth), ["3.95 TB/s", "12.3 GB/s"]);
        assert_eq!([12.34, 0.01234].map(ratio), ["12.3×", "0.0123×"]);
    }

    #[test]
    fn the_rest_reads_well() {
        assert_eq!([2.34e-4, 0.0, 12.0].map(error), ["2.3e−4", "0", "1.2e1"]);
        assert_eq!([0.05, -0.0025, 0.0].map(signed_percent), ["+5 %", "−0.25 %", "0 %"]);
        assert_eq!([7, 1234, 1_234_567].map(whole), ["7", "1\u{202f}234", "1\u{202f}234\u{202f}567"]);
        assert_eq!([0, 512, 62_914_560, 150_109_880_320].map(memory), ["0 bytes", "512 bytes", "60.0 MiB", "140 GiB"]);
        assert_eq!([counted(1, "gate", "gates"), counted(0, "gate", "gates")], ["1 gate", "0 gates"]);
    }
}
