//! Kind of problem × knobs → the program that the compiler gets.

use crate::cuda::Arch;
use crate::cuda::compile::Program;
use crate::cuda::specialisation::{flag, settings};
use crate::problem::{Mask, OutputFormat};
use crate::tensor::Fp8Format;

/// Keys that a warp takes at a time.
const STEP_KEYS: usize = 32;

/// Keys that are dealt out together: few, so that a short sequence keeps many blocks busy.
const UNIT_KEYS: usize = 2 * STEP_KEYS;

/// The same where every unit is a part of its own, whose place in memory and merging cost time.
const FIXED_UNIT_KEYS: usize = 1024;

/// Warps of a block, where their rings fit; else half as many.
const WARPS: usize = 4;

/// What only some problems have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(in crate::cuda) struct Extras {
    pub(in crate::cuda) window: bool,
    pub(in crate::cuda) softcap: bool,
    pub(in crate::cuda) sinks: bool,
}

/// What is compiled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) head_dim: usize,
    pub(super) mask: Mask,
    pub(super) extras: Extras,
    pub(super) cache: Fp8Format,
    /// None where queries are codes, as the cache is.
    pub(super) queries: Option<OutputFormat>,
    pub(super) output: OutputFormat,
    /// Whether every token has scales of its own.
    pub(super) token_scales: bool,
    /// Whether pages are not of 16·n tokens.
    pub(super) gather: bool,
    /// Whether every unit of keys is a part of its own.
    pub(super) fixed_cuts: bool,
    /// Rows that a block computes at a time: 8, 16 or 32.
    pub(super) tile_rows: usize,
}

impl Kind {
    /// Keys that are dealt out together.
    pub(super) fn unit_keys(&self) -> usize {
        if self.fixed_cuts { FIXED_UNIT_KEYS } else { UNIT_KEYS }
    }

    /// Whether launches begin before the one before has ended, which architectures before Hopper cannot.
    pub(super) fn is_dependent(arch: Arch) -> bool {
        matches!(arch, Arch::Sm90 | Arch::Sm90a)
    }

    /// Numbers of a row of a part.
    pub(super) fn part_row(&self) -> usize {
        self.head_dim + 4
    }

    /// The program for an architecture.
    pub(super) fn program(&self, arch: Arch) -> Program {
        let Ring { warps, stages, blocks } = self.ring(arch);
        let shared = self.shared_bytes(warps, stages);
        let mut compiled_in = shared_settings(self.head_dim, self.mask, self.extras, self.cache, self.output);
        compiled_in.extend([
            ("QUERY_FORMAT", self.queries.map_or("3", number).into()),
            ("TOKEN_SCALES", flag(self.token_scales)),
            ("GATHER", flag(self.gather)),
            ("WARPS", warps.to_string()),
            ("STAGES", stages.to_string()),
            ("TILE_ROWS", self.tile_rows.to_string()),
            ("UNIT_KEYS", self.unit_keys().to_string()),
            ("FIXED_CUTS", flag(self.fixed_cuts)),
            ("DEPENDENT", flag(Self::is_dependent(arch))),
            ("BLOCKS", blocks.to_string()),
            ("SHARED_BYTES", shared.to_string()),
        ]);
        Program {
            file: "paged/attention.cu",
            entry: "paged_attention",
            defines: settings(&compiled_in),
            dynamic_shared_bytes: shared,
        }
    }

    /// Bytes from one row of codes in shared memory to the next.
    fn row_bytes(&self) -> usize {
        self.head_dim.next_power_of_two().max(64)
    }

    /// Dynamic shared memory of a block; the kernel asserts that it comes to the same (`kernels/paged/shared.cuh`).
    fn shared_bytes(&self, warps: usize, stages: usize) -> usize {
        let ring = stages * 2 * STEP_KEYS * self.row_bytes();
        let results = self.tile_rows * (4 * (self.head_dim + 16) + 8);
        let queries = self.tile_rows.div_ceil(16) * 512 * self.head_dim / 16 + 4 * self.tile_rows;
        warps * ring.max(results) + queries
    }

    /// Beside the rings there are the sums of all sequences' units.
    const STATIC_BYTES: usize = 9 << 10;

    /// Blocks hide each other's ends of runs, where their rings fit a multiprocessor; of short rows three leave registers enough,
    /// and a step's instructions are many beside its bytes. More stages than four keep no more memory busy.
    pub(super) fn ring(&self, arch: Arch) -> Ring {
        let fits = |warps, stages, blocks| {
            blocks * (self.shared_bytes(warps, stages) + Self::STATIC_BYTES) <= arch.max_shared_bytes()
        };
        let most = if self.head_dim <= 64 && self.tile_rows <= 16 { 3 } else { 2 };
        let mut rings = [(WARPS, most), (WARPS, 2), (WARPS, 1), (WARPS / 2, 1)]
            .into_iter()
            .flat_map(|(warps, blocks)| (2..=4).rev().map(move |stages| Ring { warps, stages, blocks }));
        let smallest = Ring { warps: 1, stages: 2, blocks: 1 };
        rings.find(|ring| fits(ring.warps, ring.stages, ring.blocks)).unwrap_or(smallest)
    }
}

/// What every kernel that includes `attention/settings.cuh` is compiled with.
pub(in crate::cuda) fn shared_settings(
    head_dim: usize,
    mask: Mask,
    extras: Extras,
    codes: Fp8Format,
    output: OutputFormat,
) -> Vec<(&'static str, String)> {
    vec![
        ("HEAD_DIM", head_dim.to_string()),
        ("VALUE_DIM", head_dim.to_string()),
        ("CAUSAL", flag(mask == Mask::Causal)),
        ("WINDOW", flag(extras.window)),
        ("SOFTCAP", flag(extras.softcap)),
        ("SINKS", flag(extras.sinks)),
        ("INPUT_E5M2", flag(codes == Fp8Format::E5m2)),
        ("INPUT_INT8", flag(false)),
        ("OUTPUT_FORMAT", number(output).into()),
        ("QUERY_BLOCK_SCALES", flag(false)),
        ("KEY_BLOCK_SCALES", flag(false)),
        ("VALUE_BLOCK_SCALES", flag(false)),
    ]
}

/// A format of values, as the device code numbers it.
pub(in crate::cuda) fn number(format: OutputFormat) -> &'static str {
    match format {
        OutputFormat::F32 => "0",
        OutputFormat::F16 => "1",
        OutputFormat::Bf16 => "2",
    }
}

/// How a multiprocessor's shared memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    /// Warps of a block.
    pub(super) warps: usize,
    /// Steps of a warp's ring.
    pub(super) stages: usize,
    /// Blocks of a multiprocessor.
    pub(super) blocks: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::compile::Compiler;

    fn kinds() -> Vec<Kind> {
        let mut kinds = Vec::new();
        let base = Kind {
            head_dim: 128,
            mask: Mask::Causal,
            extras: Extras::default(),
            cache: Fp8Format::E4m3,
            queries: Some(OutputFormat::Bf16),
            output: OutputFormat::Bf16,
            token_scales: false,
            gather: false,
            fixed_cuts: false,
            tile_rows: 8,
        };
        for head_dim in [256, 192, 128, 96, 64] {
            kinds.push(Kind { head_dim, ..base });
            kinds.push(Kind { head_dim, token_scales: true, gather: true, queries: None, tile_rows: 16, ..base });
        }
        let extras = Extras { window: true, softcap: true, sinks: true };
        kinds.push(Kind { extras, mask: Mask::None, ..base });
        kinds.push(Kind { extras, head_dim: 256, token_scales: true, fixed_cuts: true, tile_rows: 16, ..base });
        for head_dim in [64, 128] {
            kinds.push(Kind { head_dim, tile_rows: 32, cache: Fp8Format::E5m2, output: OutputFormat::F32, ..base });
        }
        kinds
    }

    #[test]
    fn every_kind_fits_a_multiprocessor() {
        for kind in kinds() {
            for arch in [Arch::Sm89, Arch::Sm90] {
                let Ring { warps, stages, blocks } = kind.ring(arch);
                assert!(warps >= 2 && stages >= 2, "{kind:?} {arch}");
                let bytes = blocks * (kind.shared_bytes(warps, stages) + Kind::STATIC_BYTES);
                assert!(bytes <= arch.max_shared_bytes(), "{kind:?} {arch}");
            }
        }
        let of = |index: usize, arch| kinds()[index].ring(arch);
        assert_eq!(of(4, Arch::Sm90), Ring { warps: 4, stages: 3, blocks: 2 });
        assert_eq!(of(4, Arch::Sm89), Ring { warps: 4, stages: 2, blocks: 1 });
        assert_eq!(of(8, Arch::Sm90), Ring { warps: 4, stages: 4, blocks: 3 });
    }

    /// Compiled where NVRTC is, and skipped elsewhere unless `EIGHTFOLD_REQUIRE_NVRTC` is set.
    #[test]
    fn every_kind_compiles_without_spills() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
                return;
            }
        };
        // What few registers are left to is compiled for both architectures, and of the rest every other one for each.
        for (index, kind) in kinds().into_iter().enumerate() {
            let both = kind.head_dim == 256 || kind.tile_rows > 16;
            for arch in
                [Arch::Sm89, Arch::Sm90].into_iter().filter(|arch| both || (index % 2 == 0) == (*arch == Arch::Sm90))
            {
                let cubin = compiler.compile(&kind.program(arch), arch).unwrap();
                assert!(cubin.is_lean(), "{kind:?} {arch}: {}", cubin.log);
            }
        }
    }
}
