//! The errors that each declared tolerance allows for, modelled: what a fault has to stand out from.

use super::plain::Plain;
use half::{bf16, f16};

/// What one number path does to scores, weights and outputs.
#[derive(Clone, Copy)]
pub struct Noise {
    /// The tolerance in the gate file.
    pub tolerance: &'static str,
    score: fn(f64) -> f64,
    weight: fn(f64, usize) -> f64,
    /// What the output is rounded to.
    output: fn(f32) -> f32,
    /// Whether weights are summed after they are rounded.
    sums_rounded: bool,
}

/// Every tolerance of the gate file.
pub const NOISES: [Noise; 16] = {
    const EXACT: Noise =
        Noise { tolerance: "f32", score: same, weight: exact, output: |value| value, sums_rounded: true };
    const HOPPER: Noise = Noise { score: in_f16, ..EXACT };
    [
        EXACT,
        Noise { tolerance: "i16", weight: |weight, _| (weight * 32767.0).round() / 32767.0, ..EXACT },
        Noise { tolerance: "bf16-weights", weight: |weight, _| cut_to_bf16(weight), ..EXACT },
        Noise { tolerance: "bf16x2-weights", weight: |weight, _| in_two_bf16(weight), ..EXACT },
        Noise { tolerance: "f16", weight: |weight, _| f16::from_f64(weight).to_f64(), sums_rounded: false, ..EXACT },
        Noise { tolerance: "fp8", weight: |weight, _| e4m3(weight), sums_rounded: false, ..EXACT },
        Noise { tolerance: "bf16", output: |value| bf16::from_f32(value).to_f32(), ..EXACT },
        Noise { tolerance: "fp8-peer", weight: |weight, _| e4m3(weight), ..EXACT },
        Noise { tolerance: "fast", weight: |weight, _| e4m3(linear(weight)), ..HOPPER },
        Noise {
            tolerance: "balanced",
            weight: |weight, key| e4m3(if key % 8 < 5 { weight } else { linear(weight) }),
            ..HOPPER
        },
        Noise { tolerance: "exact-exp", weight: |weight, _| e4m3(weight), ..HOPPER },
        Noise { tolerance: "precise", weight: |weight, _| in_two_e4m3(weight), ..HOPPER },
        // Sums of products of integers are exact.
        Noise { tolerance: "int8-fast", weight: |weight, _| e4m3(linear(weight)), ..EXACT },
        Noise {
            tolerance: "int8-balanced",
            weight: |weight, key| e4m3(if key % 8 < 5 { in_two_lines(weight) } else { linear(weight) }),
            ..EXACT
        },
        Noise { tolerance: "int8-exact-exp", weight: |weight, _| e4m3(in_two_lines(weight)), ..EXACT },
        Noise { tolerance: "int8-precise", weight: |weight, _| in_two_e4m3(weight), ..EXACT },
    ]
};

impl Noise {
    /// Attention with these errors.
    pub fn plain(&self) -> Plain {
        let Noise { score, weight, output, sums_rounded, .. } = *self;
        Plain { score, weight, output, sums_rounded, ..Plain::default() }
    }
}

fn same(score: f64) -> f64 {
    score
}

fn exact(weight: f64, _key: usize) -> f64 {
    weight
}

/// The kernel sums products of codes; what that is of the score in nats is a factor that rounding does not see.
fn in_f16(score: f64) -> f64 {
    f16::from_f64(score).to_f64()
}

/// A weight in f32, without what bf16 has no bits for.
fn cut_to_bf16(weight: f64) -> f64 {
    f32::from_bits((weight as f32).to_bits() & 0xffff_0000) as f64
}

/// The sum of that and of what was cut off, rounded.
fn in_two_bf16(weight: f64) -> f64 {
    let first = cut_to_bf16(weight);
    first + bf16::from_f64(weight - first).to_f64()
}

/// E4M3 with the largest weight, 1, at 2⁸: three bits behind the leading one, down to the step of subnormal codes.
fn e4m3(weight: f64) -> f64 {
    const TOP: f64 = 256.0;
    let code = weight.abs() * TOP;
    if code == 0.0 {
        return 0.0;
    }
    let step = 2f64.powi((code.log2().floor() as i32).max(-6) - 3);
    weight.signum() * (code / step).round_ties_even() * step / TOP
}

/// The sum of an E4M3 number and of what it lacks, in E4M3.
fn in_two_e4m3(weight: f64) -> f64 {
    e4m3(weight) + e4m3(weight - e4m3(weight))
}

/// What straight lines between powers of two overshoot in the mean, in powers of two.
const OVERSHOOT: f64 = 0.0573;

/// The straight line between powers of two, lowered by what it overshoots in the mean.
fn linear(weight: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { line(weight.log2() - OVERSHOOT) }
}

/// The mean of that and of the one between the powers half way: two lines to a power of two, which overshoot as much.
fn in_two_lines(weight: f64) -> f64 {
    if weight == 0.0 {
        return 0.0;
    }
    let log2 = weight.log2() - OVERSHOOT;
    (line(log2) + line(log2 + 0.5) * 0.5f64.sqrt()) / 2.0
}

fn line(log2: f64) -> f64 {
    let whole = log2.floor();
    (1.0 + log2 - whole) * whole.exp2()
}
