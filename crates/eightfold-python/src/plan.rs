//! Calls on a CUDA device: planned once for a kind of call, launched with addresses.

use crate::failure::raise;
use crate::words::{self, FourStrides, InputFormat, Scoring, Sizes, Wishes};
use eightfold::cuda::Workspace;
use eightfold::cuda::call::{Addresses, CodeAttention, Codes, CodesOf, ValueAttention, ValuesOf};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::{Fp8Format, Result};
use pyo3::prelude::*;
use std::ffi::c_void;

/// A call, ready to be launched any number of times.
#[pyclass(frozen, module = "eightfold._eightfold")]
pub(crate) struct Plan {
    device: Device,
    call: Call,
    input_format: Fp8Format,
}

enum Call {
    Values(Box<ValueAttention>),
    Codes(Box<CodeAttention>),
}

/// Plans attention on f32, f16 or bf16. Compiles what is not compiled yet.
#[pyfunction]
#[pyo3(signature = (device, sizes, dtype, strides, *, scoring, accuracy, output, lse, centre_keys, input_format))]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn plan_values(
    py: Python<'_>,
    device: usize,
    sizes: Sizes,
    dtype: &str,
    strides: (FourStrides, FourStrides, FourStrides, FourStrides),
    scoring: Scoring,
    accuracy: &str,
    output: &str,
    lse: bool,
    centre_keys: bool,
    input_format: &str,
) -> PyResult<Plan> {
    let plan = || {
        let problem = Wishes { sizes, scoring: &scoring, accuracy, output, lse }.problem()?;
        let wanted = InputFormat::of(input_format)?;
        let device = Device::open(device)?;
        let (input_format, _) = wanted.choose(Some(&device), &problem)?;
        let problem = problem.with_input_format(input_format);
        let [q, k, v, output] = [strides.0, strides.1, strides.2, strides.3].map(words::strides);
        let values = ValuesOf { format: words::value_format(dtype)?, q, k, v, output, centre_keys };
        let call = Call::Values(Box::new(ValueAttention::new(&device, &problem, values)?));
        Ok(Plan { call, device, input_format })
    };
    py.detach(plan).map_err(raise)
}

/// Plans attention on FP8; `per_head` says of each of Q, K and V whether every head has a scale.
#[pyfunction]
#[pyo3(signature = (device, sizes, dtype, strides, per_head, *, scoring, accuracy, output, lse))]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn plan_codes(
    py: Python<'_>,
    device: usize,
    sizes: Sizes,
    dtype: &str,
    strides: (FourStrides, FourStrides, FourStrides, FourStrides),
    per_head: (bool, bool, bool),
    scoring: Scoring,
    accuracy: &str,
    output: &str,
    lse: bool,
) -> PyResult<Plan> {
    let plan = || {
        let format = words::fp8_format(dtype)?;
        let problem = Wishes { sizes, scoring: &scoring, accuracy, output, lse }.problem()?.with_input_format(format);
        let device = Device::open(device)?;
        let codes =
            |strides, per_head| Codes { strides: words::strides(strides), granularity: words::granularity(per_head) };
        let codes = CodesOf {
            q: codes(strides.0, per_head.0),
            k: codes(strides.1, per_head.1),
            v: codes(strides.2, per_head.2),
            output: words::strides(strides.3),
        };
        let call = Call::Codes(Box::new(CodeAttention::new(&device, &problem, codes)?));
        Ok(Plan { call, device, input_format: format })
    };
    py.detach(plan).map_err(raise)
}

#[pymethods]
impl Plan {
    /// Bytes of the workspace.
    #[getter]
    fn workspace_bytes(&self) -> usize {
        match &self.call {
            Call::Values(call) => call.workspace_bytes(),
            Call::Codes(call) => call.workspace_bytes(),
        }
    }

    /// How many of them must be zero before the first launch; every launch leaves them so.
    #[getter]
    fn zeroed_bytes(&self) -> usize {
        match &self.call {
            Call::Values(call) => call.zeroed_bytes(),
            Call::Codes(call) => call.zeroed_bytes(),
        }
    }

    /// The kernel that attends, with its knobs.
    #[getter]
    fn variant(&self) -> String {
        match &self.call {
            Call::Values(call) => call.variant().to_string(),
            Call::Codes(call) => call.variant().to_string(),
        }
    }

    /// The format of Q and K, after quantising.
    #[getter]
    fn input_format(&self) -> String {
        self.input_format.to_string()
    }

    /// How many kernels a launch puts into the stream.
    #[getter]
    fn kernels(&self) -> usize {
        match &self.call {
            Call::Values(call) => call.kernels(),
            Call::Codes(call) => call.kernels(),
        }
    }

    /// Looks for values that are not finite, waits, and names the first; for plans of values. The arguments are those of `launch`.
    #[expect(clippy::too_many_arguments, reason = "they are those of the launch")]
    fn validate(
        &self,
        py: Python<'_>,
        q: u64,
        k: u64,
        v: u64,
        output: u64,
        lse: u64,
        workspace: u64,
        workspace_bytes: usize,
        stream: usize,
    ) -> PyResult<()> {
        let addresses = Addresses { q, k, v, output, lse: (lse != 0).then_some(lse) };
        let validate = || {
            // SAFETY: as for `launch_at`.
            let stream = unsafe { Stream::from_raw(&self.device, stream as *mut c_void) };
            // SAFETY: as for `launch_at`.
            let mut workspace = unsafe { Workspace::from_trusted(&self.device, workspace, workspace_bytes) };
            match &self.call {
                // SAFETY: as for `launch_at`.
                Call::Values(call) => unsafe { call.validate(&stream, &addresses, &mut workspace) },
                Call::Codes(_) => Ok(()),
            }
        };
        py.detach(validate).map_err(raise)
    }

    /// Puts the work into the stream and returns. `lse` is 0 where there is none; `scales` are for FP8.
    ///
    /// The addresses must be those of tensors as the plan was made for, on its device, and the workspace as large as the plan
    /// says: this is the Python package's part.
    #[pyo3(signature = (q, k, v, output, lse, workspace, workspace_bytes, stream, scales = None))]
    #[expect(clippy::too_many_arguments, reason = "a tuple would be one more object for each call")]
    fn launch(
        &self,
        py: Python<'_>,
        q: u64,
        k: u64,
        v: u64,
        output: u64,
        lse: u64,
        workspace: u64,
        workspace_bytes: usize,
        stream: usize,
        scales: Option<(u64, u64, u64)>,
    ) -> PyResult<()> {
        let addresses = Addresses { q, k, v, output, lse: (lse != 0).then_some(lse) };
        let launch = || self.launch_at(&addresses, scales, (workspace, workspace_bytes), stream);
        py.detach(launch).map_err(raise)
    }
}

impl Plan {
    fn launch_at(
        &self,
        addresses: &Addresses,
        scales: Option<(u64, u64, u64)>,
        (workspace, bytes): (u64, usize),
        stream: usize,
    ) -> Result<()> {
        // SAFETY: the Python package takes the stream from torch, as the current one of the tensors' device.
        let stream = unsafe { Stream::from_raw(&self.device, stream as *mut c_void) };
        // SAFETY: the Python package allocates it on the device with as many bytes, clears its front, and uses it in one stream.
        let mut workspace = unsafe { Workspace::from_trusted(&self.device, workspace, bytes) };
        // SAFETY: the Python package checked shapes, strides, formats and devices of the tensors that the addresses are of;
        // torch's allocator keeps their memory for this stream until the work is done. Plans are never dropped.
        unsafe {
            match &self.call {
                Call::Values(call) => call.launch(&stream, addresses, &mut workspace),
                Call::Codes(call) => {
                    let (q, k, v) = scales.unwrap_or_default();
                    call.launch(&stream, addresses, [q, k, v], &mut workspace)
                }
            }
        }
    }
}
