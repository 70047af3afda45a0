//! The number formats of codes.

use crate::error::{Error, Result};
use std::fmt;

/// The number format of 8-bit codes: two floats of the Open Compute Project, and integers for Q and K.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fp8Format {
    /// 4 exponent bits, 3 mantissa bits, largest value 448, no infinities.
    E4m3,
    /// 5 exponent bits, 2 mantissa bits, largest value 57344, with infinities.
    E5m2,
    /// Integers from −127 to 127, for Q and K: finer than E4M3 where all values that share a scale are of one size. The code
    /// 0x80 stands for NaN.
    Int8,
}

impl Fp8Format {
    /// The largest finite value.
    pub fn max(self) -> f32 {
        match self {
            Fp8Format::E4m3 => 448.0,
            Fp8Format::E5m2 => 57344.0,
            Fp8Format::Int8 => 127.0,
        }
    }

    /// An error unless it is FP8; `what` holds nothing else.
    pub(crate) fn check_fp8(self, what: &str) -> Result<()> {
        match self {
            Fp8Format::E4m3 | Fp8Format::E5m2 => Ok(()),
            Fp8Format::Int8 => Err(Error::invalid(
                "format",
                format!("{what} in int8 is not there"),
                "use E4M3, or attend to sequences of one length by eightfold::attention",
            )),
        }
    }

    /// Whether the code stands for NaN or an infinity.
    pub fn is_non_finite(self, code: u8) -> bool {
        match self {
            Fp8Format::E4m3 => code & 0x7f == 0x7f,
            Fp8Format::E5m2 => code & 0x7f >= 0x7c,
            Fp8Format::Int8 => code == 0x80,
        }
    }
}

impl fmt::Display for Fp8Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fp8Format::E4m3 => "e4m3",
            Fp8Format::E5m2 => "e5m2",
            Fp8Format::Int8 => "int8",
        })
    }
}
