//! The knobs of the CPU kernel: what each may be, what rules bind them, how they read as text.

use super::choose;
use super::isa;
use super::stages;
use crate::error::{Error, Result};
use crate::knobs::{Knob, config_text, knob_values};

/// One setting of the CPU kernel's knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// The numbers in which the two matrix products are computed.
    pub numbers: Numbers,
    /// The instruction set of the micro-kernels.
    pub simd: Simd,
    /// How exponentials are computed.
    pub exp: Exp,
    /// How the work reaches the threads.
    pub schedule: Schedule,
    /// Query rows per tile: a multiple of 8, 8 to 512.
    pub tile_queries: usize,
    /// Keys per tile: a multiple of 16, 16 to 1024 (512 with [`Numbers::Int16`]).
    pub tile_keys: usize,
}

knob_values! {
    /// The numbers in which the two matrix products are computed.
    Numbers("numbers") {
        /// f32 multiply-adds on decoded values.
        F32 = "f32",
        /// 16-bit fixed point with power-of-two units and 32-bit sums; falls back to f32, tile by tile,
        /// where rounding would show.
        Int16 = "i16",
        /// bf16, in which FP8 codes are exact and weights are truncated; f32 sums.
        Bf16 = "bf16",
        /// The same with each weight the sum of two bf16.
        Bf16x2 = "bf16x2",
    }
}

knob_values! {
    /// The instruction set of the micro-kernels.
    Simd("simd") {
        /// Plain loops, one element at a time.
        Scalar = "scalar",
        /// Loops over 16 lanes that any compiler turns into the target's own vectors.
        Portable = "portable",
        /// NEON, which every 64-bit Arm has.
        Neon = "neon",
        /// AVX2 with FMA and F16C.
        Avx2 = "avx2",
        /// AVX-512 F, BW, DQ, VL, with VNNI where the CPU has it.
        Avx512 = "avx512",
        /// AMX tiles of bf16, and AVX-512 beside them.
        Amx = "amx",
        /// What AMX tiles compute, on any CPU and many times as slow: for tests.
        AmxTwin = "amx-twin",
    }
}

impl Simd {
    /// Whether products are computed in tiles.
    pub(crate) fn has_tiles(self) -> bool {
        matches!(self, Simd::Amx | Simd::AmxTwin)
    }
}

impl Numbers {
    /// Whether products are of bf16, which is what tiles are for.
    fn are_bf16(self) -> bool {
        matches!(self, Numbers::Bf16 | Numbers::Bf16x2)
    }
}

knob_values! {
    /// How exponentials are computed.
    Exp("exp") {
        /// The standard library's `exp2`, value by value.
        Exact = "exact",
        /// A minimax polynomial, a vector at a time; below 3e-7 relative error in f32.
        Polynomial = "poly",
    }
}

knob_values! {
    /// How the work reaches the threads.
    Schedule("schedule") {
        /// All of it on the calling thread.
        Serial = "serial",
        /// An equal, contiguous share for every thread.
        Static = "static",
        /// Threads take the next task from an atomic counter, the largest tasks first.
        Queue = "queue",
    }
}

/// The SIMD levels that CPUs of this architecture may have: no other is worth trying.
const SIMD_HERE: &[&str] = match cfg!(target_arch = "aarch64") {
    true => &["scalar", "portable", "neon"],
    // The twin of AMX is not worth trying.
    false => &["scalar", "portable", "avx2", "avx512", "amx"],
};

/// Every knob of the CPU kernel, in the order in which a config prints them.
pub const KNOBS: &[Knob] = &[
    Knob { name: "numbers", values: Numbers::NAMES, what: "numbers of the two matrix products" },
    Knob { name: "simd", values: SIMD_HERE, what: "instruction set of the micro-kernels" },
    Knob { name: "exp", values: Exp::NAMES, what: "how exponentials are computed" },
    Knob { name: "schedule", values: Schedule::NAMES, what: "how the work reaches the threads" },
    Knob { name: "tile_queries", values: &["16", "32", "64", "128"], what: "query rows per tile" },
    Knob { name: "tile_keys", values: &["64", "128", "256", "512"], what: "keys per tile" },
];

impl Default for Config {
    /// What is selected on this machine for problems of many queries, if not in tiles: those go with few of the other knobs.
    fn default() -> Self {
        choose::best_without_tiles(usize::MAX, 2 * 128)
    }
}

/// Integer sums over more keys take so many bits from the weights that Gaussian inputs err by more than the 3e-4 that
/// the path declares (measured: 2.0e-4 at 512 keys a tile, 3.6e-4 at 1024).
const MAX_INT_TILE_KEYS: usize = 512;

/// Query rows that tiles take together.
const TILE_STRIP: usize = 32;

impl Config {
    /// The rules between knobs, whatever the machine.
    pub fn check(&self) -> Result<()> {
        let tile_rules = [("tile_queries", self.tile_queries, 8, 512), ("tile_keys", self.tile_keys, 16, 1024)];
        for (name, size, step, max) in tile_rules {
            if size == 0 || size > max || size % step != 0 {
                return Err(Error::invalid(
                    name,
                    format!("{size} is not a multiple of {step} from {step} to {max}"),
                    format!("try {name}={}", size.clamp(step, max).next_multiple_of(step)),
                ));
            }
        }
        if self.numbers == Numbers::Int16 && self.tile_keys > MAX_INT_TILE_KEYS {
            return Err(Error::invalid(
                "tile_keys",
                format!(
                    "{} is more than the {MAX_INT_TILE_KEYS} keys whose weights fit 16 bits precisely",
                    self.tile_keys
                ),
                format!("set tile_keys={MAX_INT_TILE_KEYS} or less, or numbers=f32"),
            ));
        }
        if self.simd == Simd::Scalar && (self.numbers != Numbers::F32 || self.exp != Exp::Exact) {
            return Err(Error::invalid(
                "simd",
                "scalar is the plain baseline: it has neither the integer path nor the polynomial",
                "set numbers=f32,exp=exact, or simd=portable",
            ));
        }
        if self.numbers.are_bf16() && !self.simd.has_tiles() {
            return Err(Error::invalid(
                "simd",
                format!("{} has no products of bf16", self.simd),
                "set simd=amx, or numbers=i16 or f32",
            ));
        }
        if !self.simd.has_tiles() {
            return Ok(());
        }
        if !self.numbers.are_bf16() {
            let rule = format!("tiles have products of bf16, not of {}", self.numbers);
            return Err(Error::invalid("numbers", rule, "set numbers=bf16 or bf16x2, or simd=avx512"));
        }
        if self.exp != Exp::Polynomial {
            return Err(Error::invalid("exp", "tiles have no other than the polynomial", "set exp=poly"));
        }
        if !self.tile_queries.is_multiple_of(TILE_STRIP) {
            return Err(Error::invalid(
                "tile_queries",
                format!("{} is not a multiple of the {TILE_STRIP} rows that tiles take together", self.tile_queries),
                format!("try tile_queries={}", self.tile_queries.next_multiple_of(TILE_STRIP)),
            ));
        }
        Ok(())
    }

    /// Whether this machine can run it.
    pub fn check_machine(&self) -> Result<()> {
        isa::check(self.simd)
    }
}

config_text! {
    numbers: "write a whole number of rows or keys";
    numbers, simd, exp, schedule, tile_queries, tile_keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_reads_back_what_it_prints() {
        for stage in stages::STAGES {
            assert_eq!(stage.config.to_string().parse::<Config>().unwrap(), stage.config, "{}", stage.name);
            assert_eq!(stage.name.parse::<Config>().unwrap(), stage.config);
        }
    }

    #[test]
    fn every_broken_rule_names_its_knob() {
        for (text, knob) in [
            ("tile_queries=0", "tile_queries"),
            ("tile_queries=12", "tile_queries"),
            ("tile_keys=24", "tile_keys"),
            ("tile_keys=2048", "tile_keys"),
            ("tile_keys=many", "tile_keys"),
            ("numbers=i16,tile_keys=1024", "tile_keys"),
            ("simd=scalar,numbers=i16", "simd"),
            ("numbers=bf16,simd=avx512", "simd"),
            ("numbers=i16,simd=amx", "numbers"),
            ("numbers=bf16,simd=amx-twin,exp=exact", "exp"),
            ("amx,tile_queries=40", "tile_queries"),
            ("simd=scalar,numbers=f32,exp=poly", "simd"),
            ("numbers=f64", "numbers"),
            ("tile=64", "knob"),
            ("fastest", "stage"),
        ] {
            let error = text.parse::<Config>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{knob}: ")), "{text}: {error}");
        }
    }
}
