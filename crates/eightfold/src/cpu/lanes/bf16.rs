//! Every code as bf16, in which all of them are exact.

use crate::tensor::Fp8Format;

/// The bf16 of every code without its sign, whole and by bytes.
#[repr(C, align(64))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(in crate::cpu) struct Table {
    pub low: [u8; 128],
    pub high: [u8; 128],
    pub whole: [u16; 128],
    /// Whether negative codes are to be negated first, so that they are a sign and a magnitude.
    pub twos_complement: bool,
}

static E4M3: Table = Table::new(3, 7);
pub(super) static E5M2: Table = Table::new(2, 15);
static INT8: Table = Table::integers();
/// Times 2^-8, as lanes decode them.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) static E4M3_BY_256: Table = Table::new(3, 7 + 8);

impl Table {
    /// Of a format with so many bits of mantissa and this bias of the exponent.
    const fn new(mantissa_bits: u32, bias: u32) -> Self {
        let mut bits = [0; 128];
        let mut code = 0;
        while code < 128 {
            let (exponent, mantissa) = (code >> mantissa_bits, code & ((1 << mantissa_bits) - 1));
            let step = f32::from_bits((127 + 1 - bias - mantissa_bits) << 23);
            bits[code as usize] = match exponent {
                0 => (mantissa as f32 * step).to_bits(),
                _ => (exponent + 127 - bias) << 23 | mantissa << (23 - mantissa_bits),
            };
            code += 1;
        }
        Table::of_bits(bits, false)
    }

    /// Of the magnitudes of integers.
    const fn integers() -> Self {
        let mut bits = [0; 128];
        let mut code = 0;
        while code < 128 {
            bits[code] = (code as f32).to_bits();
            code += 1;
        }
        Table::of_bits(bits, true)
    }

    const fn of_bits(bits: [u32; 128], twos_complement: bool) -> Self {
        let mut table = Table { low: [0; 128], high: [0; 128], whole: [0; 128], twos_complement };
        let mut code = 0;
        while code < 128 {
            let bf16 = (bits[code] >> 16) as u16;
            table.whole[code] = bf16;
            [table.low[code], table.high[code]] = bf16.to_le_bytes();
            code += 1;
        }
        table
    }

    /// That of a format.
    pub(in crate::cpu) fn of(format: Fp8Format) -> &'static Table {
        match format {
            Fp8Format::E4m3 => &E4M3,
            Fp8Format::E5m2 => &E5M2,
            Fp8Format::Int8 => &INT8,
        }
    }
}
