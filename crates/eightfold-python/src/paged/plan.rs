//! On a CUDA device: planned once for a kind of call, launched with addresses.

use super::cache::Cache;
use crate::failure::raise;
use crate::words::{self, FourStrides, Scoring, Sizes, Wishes};
use eightfold::cuda::Workspace;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::paged::{
    AppendAddresses, MergeOutputs, PagedAddresses, PagedAppend, PagedAttention, PagedKeys, PagedQueries, PartAddresses,
    QueryFormat,
};
use eightfold::{OutputFormat, Result, Strides};
use pyo3::prelude::*;
use std::ffi::c_void;

/// Attention to a cache in pages, ready to be launched any number of times.
#[pyclass(frozen, module = "eightfold._eightfold")]
pub(crate) struct PagedPlan {
    device: Device,
    call: PagedAttention,
}

/// The addresses of a launch, as a dictionary; 0 where there is nothing.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PagedAt {
    q: u64,
    q_scales: u64,
    k: u64,
    k_scales: u64,
    v: u64,
    v_scales: u64,
    block_table: u64,
    max_pages: usize,
    lengths: u64,
    query_starts: u64,
    output: u64,
    lse: u64,
}

/// Plans attention to a cache in pages. Compiles what is not compiled yet. `dtype` is that of Q; `packed` says that sequences differ
/// in their number of queries. `sinks` is the address of those
/// that the scoring has, f32, which every launch reads; else 0.
#[pyfunction]
#[pyo3(signature = (device, sizes, dtype, strides, cache, *, scoring, sinks, packed, batch_invariant, output, lse))]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn plan_paged(
    py: Python<'_>,
    device: usize,
    sizes: Sizes,
    dtype: &str,
    strides: (FourStrides, FourStrides),
    cache: Cache,
    scoring: Scoring,
    sinks: u64,
    packed: bool,
    batch_invariant: bool,
    output: &str,
    lse: bool,
) -> PyResult<PagedPlan> {
    let plan = || {
        let problem = Wishes { sizes, scoring: &scoring, accuracy: "fast", output, lse }.problem()?;
        let problem = problem.with_input_format(cache.format()?);
        let problem = if batch_invariant { problem.batch_invariant() } else { problem };
        let format = match dtype {
            "e4m3" | "e5m2" => QueryFormat::Codes,
            values => QueryFormat::Values(values.parse::<OutputFormat>()?),
        };
        let queries =
            if packed { PagedQueries::packed(&problem, format) } else { PagedQueries::dense(&problem, format) };
        let queries = queries.with_strides(words::strides(strides.0), words::strides(strides.1));
        let device = Device::open(device)?;
        let call = PagedAttention::new(&device, &problem, queries, keys(&cache)?)?;
        Ok(PagedPlan { call: if sinks == 0 { call } else { call.with_sinks(sinks) }, device })
    };
    py.detach(plan).map_err(raise)
}

fn keys(cache: &Cache) -> Result<PagedKeys> {
    let [k, v] = cache.layouts();
    Ok(PagedKeys::new(k, cache.scales_alike()?).with_values(v))
}

#[pymethods]
impl PagedPlan {
    /// Bytes of the workspace.
    #[getter]
    fn workspace_bytes(&self) -> usize {
        self.call.workspace_bytes()
    }

    /// How many of them must be zero before the first launch; every launch leaves them so.
    #[getter]
    fn zeroed_bytes(&self) -> usize {
        self.call.zeroed_bytes()
    }

    /// Puts the work into the stream and returns. With `validate` it looks at lengths, block table, starts and scales first, and waits.
    ///
    /// The addresses must be those of tensors as the plan was made for, on its device, and the workspace as large as the plan
    /// says: this is the Python package's part.
    #[pyo3(signature = (sequences, at, workspace, workspace_bytes, stream, *, validate))]
    #[expect(clippy::too_many_arguments, reason = "a tuple would be one more object for each call")]
    fn launch(
        &self,
        py: Python<'_>,
        sequences: usize,
        at: PagedAt,
        workspace: u64,
        workspace_bytes: usize,
        stream: usize,
        validate: bool,
    ) -> PyResult<()> {
        let PagedAt {
            q,
            q_scales,
            k,
            k_scales,
            v,
            v_scales,
            block_table,
            max_pages,
            lengths,
            query_starts,
            output,
            lse,
        } = at;
        let addresses = PagedAddresses {
            q,
            q_scales,
            k,
            k_scales,
            v,
            v_scales,
            block_table,
            max_pages,
            lengths,
            query_starts,
            output,
            lse,
        };
        let launch = || -> Result<()> {
            // SAFETY: the Python package takes the stream from torch, as the current one of the tensors' device.
            let stream = unsafe { Stream::from_raw(&self.device, stream as *mut c_void) };
            // SAFETY: the Python package allocates it with as many bytes, clears its front, and uses it in one stream.
            let mut workspace = unsafe { Workspace::from_trusted(&self.device, workspace, workspace_bytes) };
            // SAFETY: the Python package checked shapes, strides, formats and devices; torch's allocator keeps the memory for
            // this stream until the work is done. Plans are never dropped while a graph launches them. That block table
            // and lengths are sound is the user's word, or checked here.
            unsafe {
                if validate {
                    self.call.validate(&stream, sequences, &addresses, &mut workspace)?;
                }
                self.call.launch(&stream, sequences, &addresses, &mut workspace)
            }
        };
        py.detach(launch).map_err(raise)
    }
}

/// New tokens into the pages of a cache, ready to be launched any number of times.
#[pyclass(frozen, module = "eightfold._eightfold")]
pub(crate) struct AppendPlan {
    device: Device,
    call: PagedAppend,
}

/// Plans the append of keys and values of a dtype with these strides, of tokens and of heads.
#[pyfunction]
pub(crate) fn plan_append(
    py: Python<'_>,
    device: usize,
    cache: Cache,
    dtype: &str,
    strides: ((usize, usize), (usize, usize)),
) -> PyResult<AppendPlan> {
    let plan = || {
        let device = Device::open(device)?;
        let rows = [strides.0, strides.1].map(|(token, head)| Strides::new(0, head, token, 1));
        let call = PagedAppend::new(&device, keys(&cache)?, cache.format()?, dtype.parse::<OutputFormat>()?, rows)?;
        Ok(AppendPlan { call, device })
    };
    py.detach(plan).map_err(raise)
}

#[pymethods]
impl AppendPlan {
    /// Puts the work into the stream and returns, after a look at slots and given scales if that is asked for.
    #[pyo3(signature = (tokens, new, slots, cache, scales, stream, validate = false))]
    #[expect(clippy::too_many_arguments, reason = "a tuple would be one more object for each call")]
    fn launch(
        &self,
        py: Python<'_>,
        tokens: usize,
        new: (u64, u64),
        slots: u64,
        cache: (u64, u64),
        scales: (u64, u64),
        stream: usize,
        validate: bool,
    ) -> PyResult<()> {
        let addresses = AppendAddresses {
            k: new.0,
            v: new.1,
            slots,
            k_cache: cache.0,
            v_cache: cache.1,
            k_scales: scales.0,
            v_scales: scales.1,
        };
        let launch = || {
            // SAFETY: the Python package takes the stream from torch, as the current one of the tensors' device.
            let stream = unsafe { Stream::from_raw(&self.device, stream as *mut c_void) };
            // SAFETY: the Python package checked shapes, strides, formats and devices.
            unsafe {
                if validate {
                    self.call.validate(&stream, tokens, &addresses)?;
                }
                self.call.launch(&stream, tokens, &addresses)
            }
        };
        py.detach(launch).map_err(raise)
    }
}

/// Parts of the keys merged, ready to be launched any number of times.
#[pyclass(frozen, module = "eightfold._eightfold")]
pub(crate) struct MergePlan {
    device: Device,
    call: MergeOutputs,
}

/// Plans the merging of rows of so many channels.
#[pyfunction]
pub(crate) fn plan_merge(py: Python<'_>, device: usize, head_dim: usize, dtype: &str) -> PyResult<MergePlan> {
    let plan = || {
        let device = Device::open(device)?;
        Ok(MergePlan { call: MergeOutputs::new(&device, head_dim, dtype.parse::<OutputFormat>()?)?, device })
    };
    py.detach(plan).map_err(raise)
}

#[pymethods]
impl MergePlan {
    /// Puts the merging of so many rows into the stream and returns; a part is the addresses of its output and log-sum-exp.
    fn launch(
        &self,
        py: Python<'_>,
        rows: usize,
        parts: Vec<(u64, u64)>,
        merged: (u64, u64),
        stream: usize,
    ) -> PyResult<()> {
        let part = |(output, lse): (u64, u64)| PartAddresses { output, lse };
        let launch = || {
            let parts: Vec<PartAddresses> = parts.into_iter().map(part).collect();
            // SAFETY: the Python package takes the stream from torch, as the current one of the tensors' device.
            let stream = unsafe { Stream::from_raw(&self.device, stream as *mut c_void) };
            // SAFETY: the Python package checked shapes, formats and devices; torch's allocator keeps the memory for this stream.
            unsafe { self.call.launch(&stream, rows, &parts, part(merged)) }
        };
        py.detach(launch).map_err(raise)
    }
}
