//! K and Q quantised in one launch, where a cluster holds a head of K and lanes hold rows of Q.

use super::argument::{Blocks, Quantize};
use super::fused::{Fused, THREADS};
use super::lent::Lent;
use super::{DeviceQuantizer, Way};
use crate::cuda::driver::{Function, Grid, Stream};
use crate::error::Result;
use crate::tensor::Fp8Format;

/// Loads of 16 bytes that a thread has in flight for Q; `QUERY_LOADS` of the device code.
const QUERY_LOADS: usize = 4;

/// The struct of the same name in the device code, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
struct KeysAndQueries {
    keys: Quantize,
    queries: Quantize,
    key_clusters: u32,
    query_blocks: u32,
}

/// One launch for both. Nothing of either depends on the other, so that the bits are those of two launches.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    function: Function,
    grid: Grid,
    keys: Fused,
    /// Of Q, each of as many rows as its threads load at a time.
    queries: Blocks,
}

impl Pair {
    /// None where K or Q takes other launches, or the device cannot hold such a cluster.
    pub(crate) fn new(q: &Lent, k: &Lent) -> Result<Option<Pair>> {
        let (Way::Rows { .. }, Way::Fused { kernel, fused }) = (&q.quantizer.way, &k.quantizer.way) else {
            return Ok(None);
        };
        let DeviceQuantizer { dims, values, format, .. } = k.quantizer;
        let of_q = &q.quantizer;
        let alike = (of_q.dims.head_dim, of_q.values, of_q.format) == (dims.head_dim, values, format);
        if !alike || format != Fp8Format::Int8 || !k.quantizer.centred {
            return Ok(None);
        }
        let rows = QUERY_LOADS * THREADS / (dims.head_dim / (16 / values.bytes()));
        let queries = Blocks::new(of_q.dims, of_q.dims.len.div_ceil(rows))?;
        // Whole clusters.
        let of_queries = queries.all.checked_next_multiple_of(fused.cluster);
        let Some(blocks) = of_queries.and_then(|blocks| blocks.checked_add(fused.blocks)) else { return Ok(None) };
        let grid = fused.grid_of(blocks);
        // A kernel of the same file.
        let function = kernel.other_function("quantize_keys_and_queries")?;
        function.allow_dynamic_shared(fused.held_bytes())?;
        let clusters = function.allow_large_clusters().and_then(|()| function.clusters_at_a_time(grid));
        let pair = Pair { function, grid, keys: *fused, queries };
        Ok(clusters.is_ok_and(|clusters| clusters > 0).then_some(pair))
    }

    /// Puts the work into the stream.
    ///
    /// # Safety
    /// As for [`Lent::launch`], of both.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        lent: [&Lent; 2],
        values: [u64; 2],
        workspace: u64,
    ) -> Result<()> {
        let [q, k] = [0, 1].map(|index| lent[index].argument(values[index], workspace));
        let Fused { per_head, block_rows, cluster, blocks, .. } = self.keys;
        let argument = KeysAndQueries {
            keys: Quantize { blocks_per_head: per_head, block_rows, ..k },
            queries: Quantize { blocks_per_head: self.queries.per_head, ..q },
            key_clusters: blocks / cluster,
            query_blocks: self.queries.all,
        };
        // SAFETY: the kernel takes this struct (its layout is tested); the rest is the caller's word.
        unsafe { self.function.launch(stream, self.grid, &argument) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Arch;
    use crate::cuda::compile::Compiler;
    use crate::cuda::quantize::ValueFormat;
    use crate::cuda::quantize::kind::Kind;
    use crate::tensor::{Dims, Granularity, Layout};
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<KeysAndQueries>(), offset_of!(KeysAndQueries, key_clusters)), (248, 240));
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
            for (head_dim, len) in [(64, 600), (128, 200), (128, 600), (128, 4096), (256, 2048), (64, 16384)] {
                let dims = Dims { batch: 1, heads: 1, len, head_dim };
                let keys = Granularity::Block { rows: 256 };
                let Some(fused) = Fused::centred(dims, values, keys, Layout::Bhsd) else { continue };
                let kind = Kind::new(dims, values, Fp8Format::Int8, Layout::Bhsd, true);
                let cubin = compiler.compile(&kind.fused_program(fused), Arch::Sm90).unwrap();
                assert!(cubin.is_lean(), "{head_dim} {len}: {}", cubin.log);
            }
        }
    }
}
