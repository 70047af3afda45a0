//! What the kernels of `kernels/quantize/` are compiled for.

use super::fused::Fused;
use super::values::ValueFormat;
use crate::cuda::compile::Program;
use crate::tensor::{Dims, Fp8Format, Layout};

/// What the kernels are compiled for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) head_dim: usize,
    pub(super) values: ValueFormat,
    pub(super) format: Fp8Format,
    pub(super) layout: Layout,
    pub(super) centered: bool,
}

impl Kind {
    pub(super) fn new(dims: Dims, values: ValueFormat, format: Fp8Format, layout: Layout, centered: bool) -> Kind {
        Kind { head_dim: dims.head_dim, values, format, layout, centered }
    }

    /// The launches that each do a step; `rows` are those of a block that does not transpose.
    pub(super) fn program(self, rows: usize) -> Program {
        let defines = self.defines(&[("ROWS", rows)]);
        Program { file: "quantize/quantize.cu", entry: "quantize_codes", defines, dynamic_shared_bytes: 0 }
    }

    /// Whether a launch may find a scale for every row on the way: the lanes of a warp hold whole rows.
    pub(super) fn lanes_hold_rows(self) -> bool {
        let row_vectors = self.head_dim / (16 / self.values.bytes());
        !self.centered && !self.layout.is_transposed() && row_vectors > 0 && 32 % row_vectors == 0
    }

    /// What looks for values that are not finite, whatever they become.
    pub(super) fn validate_program(head_dim: usize, values: ValueFormat, rows: usize) -> Program {
        let kind = Kind { head_dim, values, format: Fp8Format::E4m3, layout: Layout::Bhsd, centered: false };
        Program { file: "quantize/validate.cu", entry: "quantize_validate", ..kind.program(rows) }
    }

    /// The one launch.
    pub(super) fn fused_program(self, fused: Fused) -> Program {
        Program {
            file: "quantize/fused.cu",
            entry: "quantize_fused",
            defines: self.defines(&[("VECTORS", fused.vectors), ("BLOCK_SCALES", fused.block_scales)]),
            dynamic_shared_bytes: fused.held_bytes(),
        }
    }

    fn defines(self, cut: &[(&'static str, usize)]) -> Vec<(&'static str, String)> {
        let flag = |on: bool| u8::from(on).to_string();
        let mut defines = vec![
            ("ELEMENT", (self.values as u8).to_string()),
            ("HEAD_DIM", self.head_dim.to_string()),
            ("FORMAT_E5M2", flag(self.format == Fp8Format::E5m2)),
            ("FORMAT_INT8", flag(self.format == Fp8Format::Int8)),
            ("TRANSPOSED", flag(self.layout.is_transposed())),
            ("PACKED", flag(self.layout == Layout::Packed)),
            ("CENTERED", flag(self.centered)),
        ];
        defines.extend(cut.iter().map(|(name, value)| (*name, value.to_string())));
        defines
    }
}

#[cfg(test)]
mod tests {
    use super::super::argument::Cut;
    use super::*;
    use crate::cuda::Arch;
    use crate::cuda::compile::Compiler;
    use crate::tensor::Granularity;
    use rayon::prelude::*;
    use std::collections::HashSet;

    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 100, head_dim: 64 };

    /// Every kind of heads of this many channels.
    fn kinds(head_dim: usize) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for values in [ValueFormat::F32, ValueFormat::F16, ValueFormat::Bf16] {
            for format in [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8] {
                for layout in [Layout::Bhsd, Layout::Bhds, Layout::Packed] {
                    kinds.extend([false, true].map(|centered| Kind { head_dim, values, format, layout, centered }));
                }
            }
        }
        kinds
    }

    fn program(kind: Kind) -> Program {
        let dims = Dims { head_dim: kind.head_dim, ..DIMS };
        kind.program(Cut::new(dims, kind.values, Granularity::Head, Layout::Bhsd).unwrap().rows)
    }

    fn programs(head_dim: usize) -> Vec<Program> {
        kinds(head_dim).into_iter().map(program).collect()
    }

    /// The programs of one launch, for short heads and for long ones.
    fn fused_programs(head_dim: usize) -> Vec<Program> {
        let lens = |values: ValueFormat| [1, (2 << 20) / (head_dim * values.bytes())];
        let of = |kind: Kind, len| {
            let new = if kind.centered { Fused::centred } else { Fused::new };
            let fused = new(Dims { len, head_dim, ..DIMS }, kind.values, Granularity::Head, kind.layout)?;
            Some(kind.fused_program(fused))
        };
        kinds(head_dim).into_iter().flat_map(|kind| lens(kind.values).map(|len| of(kind, len))).flatten().collect()
    }

    /// Compiled where NVRTC is, and skipped elsewhere unless `EIGHTFOLD_REQUIRE_NVRTC` is set.
    #[test]
    fn every_program_compiles_without_spills() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
                return;
            }
        };
        let some = |head_dim, step| programs(head_dim).into_iter().step_by(step);
        // Heads of odd sizes have loops that the usual ones do not.
        let hopper = programs(128).into_iter().chain([8, 72, 1 << 14].into_iter().flat_map(|dim| some(dim, 11)));
        let fused = [64, 128].into_iter().flat_map(fused_programs);
        let odd_fused = [8, 72, 256, 320].into_iter().flat_map(|dim| fused_programs(dim).into_iter().step_by(5));
        let hopper = hopper.chain(fused).chain(odd_fused);
        let jobs: Vec<_> = hopper.map(|program| (program, Arch::Sm90)).collect();
        let jobs = jobs.into_iter().chain(some(128, 5).map(|program| (program, Arch::Sm89))).collect::<Vec<_>>();
        jobs.into_par_iter().for_each(|(program, arch)| {
            let cubin = compiler.compile(&program, arch).unwrap();
            assert!(cubin.is_lean(), "{program:?}: {}", cubin.log);
        });
    }

    #[test]
    fn every_kind_of_values_and_codes_is_a_program_of_its_own() {
        let all: HashSet<_> = [64, 128].into_iter().flat_map(programs).collect();
        assert_eq!(all.len(), 2 * 3 * 3 * 3 * 2);
        let fused: HashSet<_> = [64, 128].into_iter().flat_map(fused_programs).collect();
        // Centred ones are transposed where a thread's tiles are of the same channels: not of 128 in f32.
        assert_eq!(fused.len(), 2 * 3 * 3 * (3 + 1) * 2 + (3 + 2) * 3 * 2 * 2);
        let kind = kinds(64)[0];
        assert_eq!(kind.layout, Layout::Bhsd);
        assert_eq!(program(kind), program(Kind { layout: Layout::Bshd, ..kind }));
    }
}
