//! The steps between tile operations in plain Rust. It rounds as AVX-512 does: fused where that is, sums in the same order.

use super::{BLOCK, BLOCK_SCORES, Chunk, DEGREE_3, DEGREE_5, Rows, STRIP, TILE, Table, Vectors, Weights, weight_place};

/// For every CPU.
pub(in super::super) struct Portable;

impl Vectors for Portable {
    unsafe fn pack_queries(rows: Rows, steps: usize, packed: &mut [u16], norms: &mut [f32]) {
        let table = Table::of(rows.codes.format);
        packed[..rows.codes.rows.next_multiple_of(STRIP) * steps * BLOCK].fill(0);
        for (row, norm) in norms[..rows.codes.rows].iter_mut().enumerate() {
            *norm = 0.0;
            for (channel, code) in rows.row(row).iter().enumerate() {
                let place = (row / 16 * steps + channel / BLOCK) * TILE + row % 16 * BLOCK + channel % BLOCK;
                packed[place] = table.bf16(*code);
                *norm += square(packed[place]);
            }
        }
    }

    unsafe fn pack_keys(rows: Rows, steps: usize, scales: &[f32], packed: &mut [u16]) -> f32 {
        let table = Table::of(rows.codes.format);
        packed[..steps * TILE].fill(0);
        let mut largest = 0f32;
        for row in 0..rows.codes.rows {
            let mut norm = 0.0;
            for (channel, code) in rows.row(row).iter().enumerate() {
                let place = channel / 2 * BLOCK + 2 * row + channel % 2;
                packed[place] = table.bf16(*code);
                norm += square(packed[place]);
            }
            let scale = scales.get(row).copied().unwrap_or(1.0);
            largest = largest.max(norm * scale * scale);
        }
        largest
    }

    unsafe fn pack_values(rows: Rows, tiles: usize, stride: usize, packed: &mut [u16]) {
        let table = Table::of(rows.codes.format);
        for tile in 0..tiles {
            packed[tile * stride..][..TILE].fill(0);
        }
        for row in 0..rows.codes.rows {
            for (channel, code) in rows.row(row).iter().enumerate() {
                let place = channel / 16 * stride + row % 16 * BLOCK + channel % 16 * 2 + row / 16;
                packed[place] = table.bf16(*code);
            }
        }
    }

    unsafe fn scale(chunk: &mut Chunk) {
        chunk.check(STRIP);
        for row in 0..chunk.visible.len() {
            for block in 0..chunk.blocks {
                for key in 0..BLOCK {
                    let scaled = chunk.score(row, block, key) * chunk.scales[row];
                    chunk.scores[block * BLOCK_SCORES + row * BLOCK + key] = scaled;
                }
            }
        }
    }

    unsafe fn raise_maxima(chunk: &Chunk, maxima: &mut [f32]) {
        chunk.check(maxima.len());
        for (row, max) in maxima[..chunk.visible.len()].iter_mut().enumerate() {
            for block in 0..chunk.blocks {
                for key in (0..BLOCK).filter(|key| chunk.seen(row, block) >> key & 1 == 1) {
                    *max = max.max(chunk.score(row, block, key) * chunk.scales[row]);
                }
            }
        }
    }

    unsafe fn weigh(chunk: &Chunk, weights: &mut Weights) {
        weights.check(chunk);
        let (precise, is_scaled) = (!weights.remainders.is_empty(), !chunk.value_scales.is_empty());
        let coefficients: &[f32] = if precise { &DEGREE_5 } else { &DEGREE_3 };
        for row in 0..chunk.visible.len() {
            let reference = weights.references[row];
            let mut sums = [0.0; 16];
            for block in 0..chunk.blocks {
                let weigh = |key: usize| {
                    let exponent = chunk.score(row, block, key).mul_add(chunk.scales[row], -reference);
                    if chunk.seen(row, block) >> key & 1 == 1 { power_of_two(exponent, coefficients) } else { 0.0 }
                };
                for (lane, sum) in sums.iter_mut().enumerate() {
                    let pair = [weigh(lane), weigh(lane + 16)];
                    let of_values = match chunk.value_scales {
                        [] => pair,
                        scales => [0, 1].map(|half| pair[half] * scales[block * BLOCK + lane + 16 * half]),
                    };
                    let summed = if precise || is_scaled { pair } else { pair.map(truncated) };
                    *sum += summed[0] + summed[1];
                    let place = weight_place(row) + block * TILE + 2 * lane;
                    for (place, weight) in (place..).zip(of_values) {
                        let rounds = !precise && is_scaled;
                        weights.weights[place] = if rounds { rounded(weight) } else { (weight.to_bits() >> 16) as u16 };
                        if precise {
                            weights.remainders[place] = rounded(weight - truncated(weight));
                        }
                    }
                }
            }
            weights.sums[row] += total(sums);
        }
    }

    unsafe fn rescale(output: &mut [f32], width: usize, factors: &[f32]) {
        for (row, factor) in output.chunks_exact_mut(width).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

impl Table {
    fn bf16(&self, code: u8) -> u16 {
        let magnitude = if self.twos_complement { code.cast_signed().unsigned_abs() } else { code & 0x7f };
        self.whole[usize::from(magnitude & 0x7f)] | u16::from(code & 0x80) << 8
    }
}

impl Chunk<'_> {
    /// A score with its key's scale.
    fn score(&self, row: usize, block: usize, key: usize) -> f32 {
        let score = self.scores[block * BLOCK_SCORES + row * BLOCK + key];
        if self.key_scales.is_empty() { score } else { score * self.key_scales[block * BLOCK + key] }
    }
}

fn square(bf16: u16) -> f32 {
    f32::from_bits(u32::from(bf16) << 16).powi(2)
}

/// The bf16 above which a number lies, as a float.
fn truncated(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & 0xffff_0000)
}

/// The nearest bf16, and of two the larger one.
fn rounded(value: f32) -> u16 {
    (value.to_bits().wrapping_add(0x8000) >> 16) as u16
}

/// 2^exponent by a polynomial on the fraction.
fn power_of_two(exponent: f32, coefficients: &[f32]) -> f32 {
    let whole = exponent.floor();
    let fraction = exponent - whole;
    let value =
        coefficients[1..].iter().fold(coefficients[0], |value, coefficient| value.mul_add(fraction, *coefficient));
    // Below −200 all is zero, in f32 and before that in bf16; the product in f64 rounds once where f32 is denormal.
    (f64::from(value) * 2f64.powi(whole.max(-200.0) as i32)) as f32
}

/// The sum of all lanes, halves to halves.
fn total(mut lanes: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}
