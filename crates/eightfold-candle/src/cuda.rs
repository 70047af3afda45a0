//! The operation on tensors in device memory: put into candle's stream, with memory of candle's allocator.

use crate::lie;
use crate::op::{Attention, granularity};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop, sys,
};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice};
use candle_core::{CudaDevice, CudaStorage, Error, Layout, Result, Shape, Storage, Tensor, bail};
use eightfold::cuda::Workspace;
use eightfold::cuda::call::{Addresses, CodeAttention, Codes, CodesOf, ValueAttention, ValuesOf};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::quantize::ValueFormat;
use eightfold::{OutputFormat, Problem, Strides};
use half::{bf16, f16};
use std::sync::{Arc, Mutex, PoisonError};

/// What kernels copy at a time.
const ALIGNMENT_BYTES: usize = 16;
/// Calls that are kept: each is what depends on sizes and strides, small beside the kernels.
const MOST_CALLS: usize = 256;

type Operand<'a> = (&'a CudaStorage, &'a Layout);

/// What a call is made for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Values(ValuesOf),
    Codes(CodesOf),
}

#[derive(Debug)]
enum Call {
    Values(Box<ValueAttention>),
    Codes(Box<CodeAttention>),
}

impl Call {
    /// The call for these tensors, made unless it was made lately.
    fn get(device: &Device, problem: &Problem, kind: Kind) -> Result<Arc<Call>> {
        type Made = (usize, Problem, Kind, Arc<Call>);
        static LATELY: Mutex<Vec<Made>> = Mutex::new(Vec::new());
        let lately = || LATELY.lock().unwrap_or_else(PoisonError::into_inner);
        let ordinal = device.info().ordinal;
        {
            let mut lately = lately();
            let is_it = |made: &Made| made.0 == ordinal && made.2 == kind && made.1 == *problem;
            if let Some(index) = lately.iter().position(is_it) {
                // The one that was used last comes first.
                lately[..=index].rotate_right(1);
                return Ok(lately[0].3.clone());
            }
        }
        // Compiling takes a second: meanwhile others may look.
        let call = match kind {
            Kind::Values(values) => {
                Call::Values(ValueAttention::new(device, problem, values).map_err(Error::wrap)?.into())
            }
            Kind::Codes(codes) => Call::Codes(CodeAttention::new(device, problem, codes).map_err(Error::wrap)?.into()),
        };
        let call = Arc::new(call);
        let mut lately = lately();
        lately.insert(0, (ordinal, *problem, kind, call.clone()));
        let kept = MOST_CALLS.min(lately.len());
        let old = lately.split_off(kept);
        drop(lately);
        // Freeing waits for launches that still use it, so it is done without the lock.
        drop(old);
        Ok(call)
    }

    fn workspace_bytes(&self) -> usize {
        match self {
            Call::Values(call) => call.workspace_bytes(),
            Call::Codes(call) => call.workspace_bytes(),
        }
    }

    fn zeroed_bytes(&self) -> usize {
        match self {
            Call::Values(call) => call.zeroed_bytes(),
            Call::Codes(call) => call.zeroed_bytes(),
        }
    }
}

/// The tensor itself where kernels can read it as it lies, else a copy without gaps.
pub(crate) fn readable(tensor: &Tensor) -> Result<Tensor> {
    let layout = tensor.layout();
    let bytes = tensor.dtype().size_in_bytes();
    let is_aligned = |elements: usize| (elements * bytes).is_multiple_of(ALIGNMENT_BYTES);
    let Some((dims, strides)) = lie::of(layout) else { return Ok(tensor.clone()) };
    let steps = [(dims.batch, strides.batch), (dims.heads, strides.head), (dims.len, strides.row)];
    let is_readable = (strides.channel == 1 || dims.head_dim == 1)
        && is_aligned(layout.start_offset())
        && steps.iter().all(|(size, stride)| *size == 1 || is_aligned(*stride));
    if is_readable { Ok(tensor.clone()) } else { tensor.force_contiguous() }
}

pub(crate) fn forward(op: &Attention, tensors: [Operand; 3]) -> Result<(CudaStorage, Shape)> {
    match &tensors[0].0.slice {
        CudaStorageSlice::F8E4M3(_) => codes(op, tensors),
        CudaStorageSlice::F32(_) => values::<f32>(op, tensors, ValueFormat::F32),
        CudaStorageSlice::F16(_) => values::<f16>(op, tensors, ValueFormat::F16),
        CudaStorageSlice::BF16(_) => values::<bf16>(op, tensors, ValueFormat::Bf16),
        _ => bail!("q: is of a type that attention does not take"),
    }
}

fn values<T: CudaDType + 'static>(
    op: &Attention,
    tensors: [Operand; 3],
    format: ValueFormat,
) -> Result<(CudaStorage, Shape)> {
    let [q, k, v] = strides(tensors)?;
    let kind = Kind::Values(ValuesOf { format, q, k, v, output: output_strides(&op.problem), centre_keys: true });
    let stream = tensors[0].0.device.cuda_stream();
    let [(q, _of_q), (k, _of_k), (v, _of_v)] = addresses::<T>(tensors, &stream)?;
    attend(op, &tensors[0].0.device, &stream, kind, [q, k, v], [0; 3])
}

fn codes(op: &Attention, tensors: [Operand; 3]) -> Result<(CudaStorage, Shape)> {
    let Some(scales) = &op.scales else { bail!("q: F8E4M3 means nothing without scales; call attention_scaled") };
    let [q, k, v] = strides(tensors)?;
    let [of_q, of_k, of_v] = scales.each_ref().map(granularity);
    let codes = |strides, granularity| Codes { strides, granularity };
    let output = output_strides(&op.problem);
    let kind = Kind::Codes(CodesOf { q: codes(q, of_q), k: codes(k, of_k), v: codes(v, of_v), output });
    let stream = tensors[0].0.device.cuda_stream();
    let [(q, _of_q), (k, _of_k), (v, _of_v)] = addresses::<float8::F8E4M3>(tensors, &stream)?;
    let lent = scales.each_ref().map(Tensor::storage_and_layout);
    let [of_q, of_k, of_v] = [0, 1, 2].map(|index| match &*lent[index].0 {
        Storage::Cuda(storage) => address::<f32>((storage, lent[index].1), &stream),
        _ => Err(Error::msg("scales: are not on the device of Q, K and V; move them there")),
    });
    let [(of_q, _guard_q), (of_k, _guard_k), (of_v, _guard_v)] = [of_q?, of_k?, of_v?];
    attend(op, &tensors[0].0.device, &stream, kind, [q, k, v], [of_q, of_k, of_v])
}

fn strides(tensors: [Operand; 3]) -> Result<[Strides; 3]> {
    let strides = tensors.map(|(_, layout)| lie::of(layout).map(|(_, strides)| strides));
    let [Some(q), Some(k), Some(v)] = strides else { bail!("q, k and v: pass [batch, rows, heads, channels]") };
    Ok([q, k, v])
}

fn output_strides(problem: &Problem) -> Strides {
    problem.output_layout().strides(problem.shape().query_dims())
}

/// Where a tensor begins. While the guard lives the stream's reads of it are not recorded yet: it is to be dropped after the
/// launch.
fn address<'a, T: CudaDType + 'static>(
    (storage, layout): Operand<'a>,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    let (first, guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
    Ok((first + (layout.start_offset() * size_of::<T>()) as u64, guard))
}

fn addresses<'a, T: CudaDType + 'static>(
    tensors: [Operand<'a>; 3],
    stream: &'a CudaStream,
) -> Result<[(u64, SyncOnDrop<'a>); 3]> {
    let [q, k, v] = tensors.map(|tensor| address::<T>(tensor, stream));
    Ok([q?, k?, v?])
}

fn attend(
    op: &Attention,
    device: &CudaDevice,
    stream: &Arc<CudaStream>,
    kind: Kind,
    tensors: [u64; 3],
    scales: [u64; 3],
) -> Result<(CudaStorage, Shape)> {
    let run = Run { op, device, stream, kind, tensors, scales };
    let storage = match op.problem.output_format() {
        OutputFormat::F32 => CudaStorage::wrap_cuda_slice(run.launch::<f32>()?, device.clone()),
        OutputFormat::F16 => CudaStorage::wrap_cuda_slice(run.launch::<f16>()?, device.clone()),
        OutputFormat::Bf16 => CudaStorage::wrap_cuda_slice(run.launch::<bf16>()?, device.clone()),
        _ => bail!("output: is of a type that candle does not have"),
    };
    Ok((storage, op.shape()))
}

/// One launch, but for its output.
struct Run<'a> {
    op: &'a Attention,
    device: &'a CudaDevice,
    stream: &'a Arc<CudaStream>,
    kind: Kind,
    tensors: [u64; 3],
    scales: [u64; 3],
}

impl Run<'_> {
    /// Allocates the output, and puts the launch into the stream.
    fn launch<T: DeviceRepr>(&self) -> Result<CudaSlice<T>> {
        let Run { op, device, stream, .. } = *self;
        let problem = &op.problem;
        let ours = Device::open(stream.context().ordinal()).map_err(Error::wrap)?;
        let call = Call::get(&ours, problem, self.kind)?;
        let dims = problem.shape().query_dims();
        // SAFETY: every element is written by the launch below.
        let mut output = unsafe { device.alloc::<T>(dims.count()) }?;
        // SAFETY: every element is written by the launch below.
        let allocate_lse = || unsafe { device.alloc::<f32>(dims.count() / dims.head_dim) };
        let mut lse = problem.lse().then(allocate_lse).transpose()?;
        let bytes = call.workspace_bytes();
        // SAFETY: kernels read of it what they wrote, and the front, which is cleared here.
        let mut workspace = unsafe { device.alloc::<u8>(bytes.max(1)) }?;
        if call.zeroed_bytes() > 0 {
            stream.memset_zeros(&mut workspace.slice_mut(..call.zeroed_bytes())).map_err(Error::wrap)?;
        }
        {
            let (output, _output) = output.device_ptr_mut(stream);
            let lse = lse.as_mut().map(|lse| lse.device_ptr_mut(stream));
            let (workspace, _workspace) = workspace.device_ptr_mut(stream);
            let [q, k, v] = self.tensors;
            let addresses = Addresses { q, k, v, output, lse: lse.as_ref().map(|(lse, _)| *lse) };
            let raw: sys::CUstream = stream.cu_stream();
            // SAFETY: the stream is candle's, of the device's primary context, and outlives the launch. All addresses are of
            // candle's allocations on that device, as large as the layouts say; candle frees them in the stream's order, and
            // guards that outlive the launch keep other streams away. The call lives on: it is dropped when the device has
            // done with it.
            unsafe {
                let stream = Stream::from_raw(&ours, raw.cast());
                let mut workspace = Workspace::from_trusted(&ours, workspace, bytes);
                match &*call {
                    Call::Values(call) => call.launch(&stream, &addresses, &mut workspace),
                    Call::Codes(call) => call.launch(&stream, &addresses, self.scales, &mut workspace),
                }
            }
            .map_err(Error::wrap)?;
        }
        let keep = |lse| Storage::Cuda(CudaStorage::wrap_cuda_slice(lse, device.clone()));
        op.keep_lse(lse.map(keep));
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;

    #[test]
    fn strides_that_kernels_cannot_read_are_found() {
        // Only the layout is looked at, so tensors of the host do.
        let tensor = Tensor::zeros((2, 6, 2, 64), DType::F16, &candle_core::Device::Cpu).unwrap();
        let same = |tensor: &Tensor| readable(tensor).unwrap().layout().stride() == tensor.layout().stride();
        assert!(same(&tensor));
        assert!(same(&tensor.narrow(1, 1, 3).unwrap()));
        assert!(same(&tensor.transpose(1, 2).unwrap()));
        let odd = tensor.narrow(3, 4, 56).unwrap();
        assert_eq!(readable(&odd).unwrap().layout().start_offset(), 0);
        assert!(!same(&tensor.transpose(2, 3).unwrap()));
    }
}
