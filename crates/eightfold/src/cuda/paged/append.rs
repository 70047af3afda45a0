//! Host side of `kernels/paged/append.cu`.

use super::argument::{CacheScales, Pages};
use super::attention::{PagedKeys, check_address, check_rows, pages, scales};
use super::program::{Extras, Kind, number, shared_settings};
use super::validate::{NewTokens, validate_append};
use crate::cuda::compile::Program;
use crate::cuda::counts::{size, stride};
use crate::cuda::driver::{ALIGNMENT_BYTES, Device, Grid, Stream};
use crate::cuda::loaded::Loaded;
use crate::cuda::specialisation::{flag, settings};
use crate::error::{Error, Result};
use crate::problem::{Mask, OutputFormat};
use crate::serving::PageScales;
use crate::tensor::{Dims, Fp8Format, Strides};
use std::sync::Arc;

/// Threads of a block; `THREADS` of the device code.
const THREADS: usize = 256;

/// Rows of new keys or values; distances in elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    values: u64,
    token_stride: i64,
    head_stride: i64,
}

/// One launch; the struct of the same name in the device code, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Argument {
    k: Rows,
    v: Rows,
    k_pages: Pages,
    v_pages: Pages,
    k_scales: CacheScales,
    v_scales: CacheScales,
    slots: u64,
    tokens: i32,
    heads: i32,
    page_tokens: i32,
    pages: i32,
}

/// Where everything of a launch lies in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendAddresses {
    /// The new keys.
    pub k: u64,
    /// The new values.
    pub v: u64,
    /// The slot of every token, i64: page · page size + token of the page. A negative slot leaves the token out.
    pub slots: u64,
    /// The first code of the cache's keys.
    pub k_cache: u64,
    /// The first code of its values.
    pub v_cache: u64,
    /// The scales of the keys, f32: given, or where those of the tokens are written.
    pub k_scales: u64,
    /// The scales of the values.
    pub v_scales: u64,
}

/// Writes new keys and values into the pages of a cache, quantised on the way, in one launch.
#[derive(Debug)]
pub struct PagedAppend {
    loaded: Arc<Loaded>,
    device: Device,
    early: bool,
    argument: Argument,
    rows_per_block: usize,
    computed: bool,
}

impl PagedAppend {
    /// Checks, compiles or finds, and loads what such launches need. `rows` are the strides of new keys and of new values, in
    /// `[token, head, channel]`: of a token, the stride called `row`. Scales by tensor, head or token; those of tokens are
    /// computed from each row's largest magnitude, and others are given.
    pub fn new(
        device: &Device,
        keys: PagedKeys,
        codes: Fp8Format,
        values: OutputFormat,
        [k, v]: [Strides; 2],
    ) -> Result<Self> {
        codes.check_fp8("a cache in pages")?;
        keys.check()?;
        let layout = keys.k;
        if keys.scales == PageScales::Sequence {
            return Err(Error::invalid(
                "scales",
                "are by sequence, and tokens know their slots alone",
                "give scales by tensor, head or token",
            ));
        }
        size("pages", layout.pages.saturating_mul(layout.page_size))?;
        let elements = ALIGNMENT_BYTES / if values == OutputFormat::F32 { 4 } else { 2 };
        let dims = Dims::new(1, layout.heads, usize::MAX, layout.head_dim);
        check_rows("k", dims, k, elements)?;
        check_rows("v", dims, v, elements)?;
        let arch = device.arch()?;
        let early = Kind::is_dependent(arch);
        let loaded = Loaded::get(device, &program(&keys, codes, values, early), arch)?;
        let rows = |strides: Strides| -> Result<Rows> {
            let [token, head] = [strides.row, strides.head].map(|distance| stride("strides", distance));
            Ok(Rows { values: 0, token_stride: token?, head_stride: head? })
        };
        let argument = Argument {
            k: rows(k)?,
            v: rows(v)?,
            k_pages: pages(&keys.k)?,
            v_pages: pages(&keys.v)?,
            k_scales: scales(&keys)?,
            v_scales: scales(&keys)?,
            slots: 0,
            tokens: 0,
            heads: size("heads", layout.heads)?,
            page_tokens: size("page_size", layout.page_size)?,
            pages: size("pages", layout.pages)?,
        };
        let rows_per_block = THREADS / lanes(layout.head_dim, elements);
        let computed = matches!(keys.scales, PageScales::Token(_));
        Ok(PagedAppend { loaded, device: device.clone(), early, argument, rows_per_block, computed })
    }

    /// Whether the slots of so many tokens, and the scales that they are given, are sound: a slot that is neither −1 nor in the
    /// cache, and a scale that is not finite and positive, is an error that names the token or the head. It looks on the device
    /// and waits for it; a launch looks at nothing, and leaves out tokens whose slot is not in the cache.
    ///
    /// # Safety
    /// There must be as many slots at their address, and scales where they are given.
    pub unsafe fn validate(&self, stream: &Stream, tokens: usize, addresses: &AppendAddresses) -> Result<()> {
        Self::check(addresses)?;
        let Argument { pages, page_tokens, heads, k_scales, v_scales, .. } = self.argument;
        let given = NewTokens {
            slots: addresses.slots,
            tokens,
            capacity: pages as usize * page_tokens as usize,
            heads: if self.computed { 0 } else { heads as usize },
            k_scales: CacheScales { values: addresses.k_scales, ..k_scales },
            v_scales: CacheScales { values: addresses.v_scales, ..v_scales },
        };
        // SAFETY: the caller's word.
        unsafe { validate_append(&self.device, stream, &given) }
    }

    fn check(addresses: &AppendAddresses) -> Result<()> {
        let AppendAddresses { k, v, slots, k_cache, v_cache, k_scales, v_scales } = *addresses;
        for (name, address) in [("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)] {
            check_address(name, address, ALIGNMENT_BYTES)?;
        }
        check_address("slots", slots, 8)?;
        check_address("k_scales", k_scales, 4)?;
        check_address("v_scales", v_scales, 4)
    }

    /// Puts a launch for so many tokens into the stream and returns. Values beyond what the scale reaches saturate. Of two tokens
    /// with the same slot either may stay; those whose slot is not in the cache are left out.
    ///
    /// # Safety
    /// At the addresses there must be what this was made for, alive until the launch is done. No other work may use the cache
    /// meanwhile.
    pub unsafe fn launch(&self, stream: &Stream, tokens: usize, addresses: &AppendAddresses) -> Result<()> {
        Self::check(addresses)?;
        let AppendAddresses { k, v, slots, k_cache, v_cache, k_scales, v_scales } = *addresses;
        let rows = 2 * tokens.saturating_mul(self.argument.heads as usize);
        let threads = size("tokens", rows.div_ceil(self.rows_per_block).saturating_mul(THREADS))?;
        if tokens == 0 {
            return Ok(());
        }
        let mut argument = self.argument;
        argument.k.values = k;
        argument.v.values = v;
        argument.k_pages.codes = k_cache;
        argument.v_pages.codes = v_cache;
        argument.k_scales.values = k_scales;
        argument.v_scales.values = v_scales;
        argument.slots = slots;
        argument.tokens = size("tokens", tokens)?;
        let grid = Grid {
            blocks: threads.unsigned_abs() / THREADS as u32,
            threads: THREADS as u32,
            dynamic_shared_bytes: 0,
            cluster: 1,
        };
        // SAFETY: the argument is laid out as the kernel takes it (tested); the rest is the caller's word.
        unsafe { self.loaded.function().launch_at(stream, grid, (&raw const argument).cast(), self.early) }
    }
}

/// Lanes of a row; `LANES` of the device code.
fn lanes(head_dim: usize, elements: usize) -> usize {
    match head_dim / elements {
        17.. => 32,
        9.. => 16,
        _ => 8,
    }
}

fn program(keys: &PagedKeys, codes: Fp8Format, values: OutputFormat, early: bool) -> Program {
    let mut compiled_in = shared_settings(keys.k.head_dim, Mask::None, Extras::default(), codes, OutputFormat::F32);
    compiled_in.push(("VALUE_FORMAT", number(values).into()));
    compiled_in.push(("COMPUTED", flag(matches!(keys.scales, PageScales::Token(_)))));
    compiled_in.push(("DEPENDENT", flag(early)));
    let defines = settings(&compiled_in);
    Program { file: "paged/append.cu", entry: "paged_append", defines, dynamic_shared_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Arch;
    use crate::cuda::compile::Compiler;
    use crate::serving::{PageLayout, PageStrides};
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Rows>(), size_of::<Argument>(), align_of::<Argument>()), (24, 200, 8));
        let offsets = [offset_of!(Argument, k_pages), offset_of!(Argument, k_scales), offset_of!(Argument, slots)];
        assert_eq!(offsets, [48, 112, 176]);
        assert_eq!((offset_of!(Argument, tokens), offset_of!(Argument, page_tokens)), (184, 192));
    }

    /// Compiled where NVRTC is, and skipped elsewhere unless `EIGHTFOLD_REQUIRE_NVRTC` is set.
    #[test]
    fn it_compiles_without_spills() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
                return;
            }
        };
        let formats = [OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16];
        let token = PageScales::Token(PageStrides::new(16, 1, 1));
        for (index, head_dim) in [64, 96, 256].into_iter().enumerate() {
            let keys = PagedKeys::new(PageLayout::nhd(8, 16, 1, head_dim), [PageScales::Tensor, token][index % 2]);
            let codes = [Fp8Format::E4m3, Fp8Format::E5m2][index % 2];
            let arch = [Arch::Sm89, Arch::Sm90][index % 2];
            let cubin = compiler.compile(&program(&keys, codes, formats[index], arch != Arch::Sm89), arch).unwrap();
            assert!(cubin.is_lean(), "{head_dim}: {}", cubin.log);
        }
    }
}
