//! Host side of `kernels/quantize/validate.cu`: values that are looked at before they are quantised.

use super::argument::{Cut, Quantize, THREADS};
use super::kind::Kind;
use super::values::ValueFormat;
use crate::cuda::driver::{Device, Grid, Stream};
use crate::cuda::loaded::Loaded;
use crate::error::{Error, Result};
use crate::tensor::{Dims, Granularity, Layout};

/// Of the answer for a tensor: the first row with a NaN, and the first with an infinity.
pub(crate) const REPORT_BYTES: usize = 8;

/// A look at values at fixed strides. Nothing is compiled before it is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    dims: Dims,
    values: ValueFormat,
    argument: Quantize,
}

impl Look {
    /// `argument` says how the values lie.
    pub(super) fn new(dims: Dims, values: ValueFormat, argument: Quantize) -> Look {
        Look { dims, values, argument }
    }

    /// Puts the work into the stream, after compiling it where that was not done before.
    ///
    /// # Safety
    /// The values must be on the device, as large as they were said to be, and at `report` there must be [`REPORT_BYTES`],
    /// which are zero; both must live until the work is done.
    pub(crate) unsafe fn launch(&self, device: &Device, stream: &Stream, values: u64, report: u64) -> Result<()> {
        let Dims { batch, heads, len, head_dim } = self.dims;
        // Rows are counted in 32 bits.
        if batch.saturating_mul(heads).saturating_mul(len) > u32::MAX as usize {
            return Err(Error::invalid(
                "validate",
                format!("{} has more rows than it can count", self.dims),
                "look at fewer heads at a time",
            ));
        }
        let cut = Cut::new(self.dims, self.values, Granularity::Head, Layout::Bhsd)?;
        let program = Kind::validate_program(head_dim, self.values, cut.rows);
        let loaded = Loaded::get(device, &program, device.arch()?)?;
        let blocks = cut.magnitudes;
        let argument = Quantize { values, magnitudes: report, blocks_per_head: blocks.per_head, ..self.argument };
        let grid = Grid { blocks: blocks.all, threads: THREADS, dynamic_shared_bytes: 0, cluster: 1 };
        // SAFETY: the kernel takes this struct (its layout is tested); the rest is the caller's word.
        unsafe { loaded.function().launch(stream, grid, &argument) }
    }

    /// An error with the place of the first value that was not finite, if the report names one.
    pub(crate) fn check(&self, name: &str, report: [u32; 2]) -> Result<()> {
        let Dims { heads, len, .. } = self.dims;
        let found = ["NaN", "an infinity"].into_iter().zip(report).filter(|(_, place)| *place != 0);
        let Some((what, place)) = found.max_by_key(|(_, place)| *place) else { return Ok(()) };
        let row = (u32::MAX - place) as usize;
        let (head, row) = (row / len, row % len);
        Err(Error::invalid(
            name,
            format!("{what} in batch {}, head {}, row {row}", head / heads, head % heads),
            "look for where it comes from, and pass finite values only",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Arch;
    use crate::cuda::compile::Compiler;

    #[test]
    fn the_first_row_is_named_whatever_is_in_it() {
        let dims = Dims { batch: 2, heads: 3, len: 100, head_dim: 64 };
        let look = Look::new(dims, ValueFormat::Bf16, Quantize::default());
        let at = |row: u32| u32::MAX - row;
        let error = |report| look.check("k", report).unwrap_err().to_string();
        assert_eq!(look.check("k", [0, 0]), Ok(()));
        let fix = "look for where it comes from, and pass finite values only";
        assert_eq!(error([at(407), 0]), format!("k: NaN in batch 1, head 1, row 7; {fix}"));
        assert_eq!(error([at(407), at(99)]), format!("k: an infinity in batch 0, head 0, row 99; {fix}"));
        assert_eq!(error([at(0), at(0)]), format!("k: an infinity in batch 0, head 0, row 0; {fix}"));
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
        for values in [ValueFormat::F32, ValueFormat::F16, ValueFormat::Bf16] {
            for (head_dim, arch) in [(64, Arch::Sm90), (128, Arch::Sm90), (72, Arch::Sm89), (1 << 14, Arch::Sm90)] {
                let dims = Dims { batch: 1, heads: 1, len: 100, head_dim };
                let cut = Cut::new(dims, values, Granularity::Head, Layout::Bhsd).unwrap();
                let cubin = compiler.compile(&Kind::validate_program(head_dim, values, cut.rows), arch).unwrap();
                assert!(cubin.is_lean(), "{head_dim}: {}", cubin.log);
            }
        }
    }
}
