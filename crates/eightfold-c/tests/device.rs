//! Calls in device memory, from context to launch: on a device, or for want of one on the simulated device.

mod support;

use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::quantize::DeviceValues;
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::quantize::Quantizer;
use eightfold::{Fp8Format, Layout, Output, OutputFormat, Problem, Shape, Values, reference};
use eightfold_c::constants::*;
use eightfold_c::*;
use half::bf16;
use std::ffi::{CStr, c_void};
use std::ptr;
use support::{device, must};

const SHAPE: Shape = Shape::new(1, 2, 40, 64).with_kv_heads(1).with_key_len(72);

fn problem_args(accuracy: i32) -> ef_problem_args {
    ef_problem_args {
        struct_size: size_of::<ef_problem_args>() as u32,
        batch: 1,
        query_heads: 2,
        kv_heads: 1,
        query_len: 40,
        key_len: 72,
        head_dim: 64,
        mask: EF_MASK_CAUSAL,
        output_format: EF_BF16,
        output_layout: EF_BSHD,
        accuracy,
        lse: 1,
        // SAFETY: zero is a value of every field.
        ..unsafe { std::mem::zeroed() }
    }
}

/// Launches a call twice, with a workspace that is cleared as far as it must be, and frees it.
fn launch(call: *mut ef_call, addresses: &ef_addresses, device: &Device, stream: &Stream) {
    let (mut bytes, mut zeroed) = (0, 0);
    // SAFETY: the call was just made; the addresses are of memory that outlives the stream's work.
    unsafe {
        must(ef_call_workspace(call, &mut bytes, &mut zeroed));
        assert!(zeroed <= bytes);
        let workspace = device.allocate(bytes as usize).unwrap();
        workspace.fill(stream, 0).unwrap();
        let raw: *mut c_void = stream.as_raw();
        for _ in 0..2 {
            must(ef_call_launch(call, addresses, workspace.pointer(), bytes, raw));
        }
        if bytes > 0 {
            assert_eq!(ef_call_launch(call, addresses, workspace.pointer() + 16, bytes, raw), EF_INVALID);
            assert_eq!(ef_call_launch(call, addresses, 0, 0, raw), EF_INVALID);
        }
        assert_eq!(
            ef_call_launch(call, &ef_addresses { k: 0, ..*addresses }, workspace.pointer(), bytes, raw),
            EF_INVALID
        );
        assert_eq!(
            ef_call_launch(call, &ef_addresses { lse: 0, ..*addresses }, workspace.pointer(), bytes, raw),
            EF_INVALID
        );
        let mut name = [0; 16];
        must(ef_call_kernel(call, name.as_mut_ptr(), 16, ptr::null_mut()));
        let name = CStr::from_ptr(name.as_ptr()).to_str().unwrap();
        assert!(name.starts_with("hopper:") || name.starts_with("ladder:"), "{name}");
        stream.synchronize().unwrap();
        ef_call_free(call);
    }
}

/// Whether a look at the values of a call says so, or, with nothing said, that all is well.
fn look(call: *mut ef_call, addresses: &ef_addresses, device: &Device, stream: &Stream, said: &str) {
    // SAFETY: the call is whole; the addresses are of memory that outlives the look, which waits.
    unsafe {
        let mut bytes = 0;
        must(ef_call_workspace(call, &mut bytes, ptr::null_mut()));
        let workspace = device.allocate(bytes as usize).unwrap();
        let status = ef_call_validate(call, addresses, workspace.pointer(), bytes, stream.as_raw());
        if said.is_empty() {
            return must(status);
        }
        assert_eq!(status, EF_INVALID);
        let told = CStr::from_ptr(ef_last_error()).to_string_lossy();
        assert!(told.starts_with(said), "{told}");
    }
}

fn relative_error(got: &[f32], expected: &[f64]) -> f64 {
    let difference: f64 = got.iter().zip(expected).map(|(got, expected)| (f64::from(*got) - expected).powi(2)).sum();
    (difference / expected.iter().map(|value| value * value).sum::<f64>()).sqrt()
}

/// Values near N(0, 1).
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u64 << 31) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

#[test]
fn calls_compute_attention() {
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(SHAPE).unwrap().causal().with_lse(true).with_output_format(OutputFormat::Bf16);
    let problem = problem.with_output_layout(Layout::Bshd).unwrap();
    let dims = [SHAPE.query_dims(), SHAPE.key_dims(), SHAPE.key_dims()];
    let quantizer = Quantizer::new(Fp8Format::E4m3).with_layout(Layout::Bshd);
    let bf16s = [1, 2, 3]
        .map(|seed| values(dims[seed as usize - 1].count(), seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>());
    let [q, k, v] = [0, 1, 2].map(|index| quantizer.quantize(&bf16s[index], dims[index], Layout::Bshd).unwrap());

    let context_args = ef_context_args {
        struct_size: size_of::<ef_context_args>() as u32,
        device: 0,
        nvrtc: ptr::null(),
        cache: ptr::null(),
    };
    let (mut context, mut handle, mut call) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: structs are whole, handles were just made.
    unsafe {
        must(ef_context_open(&context_args, &mut context));
        must(ef_problem_new(&problem_args(EF_PRECISE), &mut handle));
        let args = ef_fp8_call_args {
            struct_size: size_of::<ef_fp8_call_args>() as u32,
            layout: EF_BSHD,
            // SAFETY: zero is a value of every field.
            ..std::mem::zeroed()
        };
        must(ef_call_fp8_new(context, handle, &args, &mut call));
    }
    let tensors = [&q, &k, &v].map(|tensor| DeviceTensor::upload(&device, &stream, tensor, Layout::Bshd).unwrap());
    let output = DeviceOutput::new(&device, &problem).unwrap();
    let mut addresses = ef_addresses {
        struct_size: size_of::<ef_addresses>() as u32,
        reserved: 0,
        q: tensors[0].codes(),
        k: tensors[1].codes(),
        v: tensors[2].codes(),
        output: output.values(),
        lse: output.lse().unwrap(),
        q_scales: tensors[0].scales(),
        k_scales: tensors[1].scales(),
        v_scales: tensors[2].scales(),
    };
    look(call, &addresses, &device, &stream, "call: takes codes");
    launch(call, &addresses, &device, &stream);
    let result = |output: &DeviceOutput| {
        let mut result = Output::zeros(&problem);
        output.download(&stream, &mut result).unwrap();
        let Values::Bf16(values) = &result.values else { panic!("it is bf16") };
        // The reference is in [batch, head, row, channel] order.
        let strides = Layout::Bshd.strides(dims[0]);
        let rows = (0..SHAPE.query_heads).flat_map(|head| (0..SHAPE.query_len).map(move |row| (head, row)));
        let starts = rows.map(|(head, row)| strides.row_offset(0, head, row));
        let ordered: Vec<f32> =
            starts.flat_map(|start| values[start..start + 64].iter().map(|value| value.to_f32())).collect();
        (ordered, result.lse.unwrap())
    };
    let exact = reference::attention(&problem, &q.dequantize(), &k.dequantize(), &v.dequantize()).unwrap();
    let (got, lse) = result(&output);
    let error = relative_error(&got, &exact.values);
    assert!(error < 1e-2, "fp8: {error}");
    assert!(relative_error(&lse, &exact.lse) < 1e-3);

    let on_device = [0, 1, 2]
        .map(|index| DeviceValues::upload(&device, &stream, &bf16s[index], dims[index], Layout::Bshd).unwrap());
    // SAFETY: structs are whole, handles were made above and are freed once.
    unsafe {
        ef_problem_free(handle);
        must(ef_problem_new(&problem_args(EF_FAST), &mut handle));
        let args = ef_value_call_args {
            struct_size: size_of::<ef_value_call_args>() as u32,
            format: EF_BF16,
            layout: EF_BSHD,
            // SAFETY: zero is a value of every field.
            ..std::mem::zeroed()
        };
        must(ef_call_values_new(context, handle, &args, &mut call));
        ef_problem_free(handle);
        ef_context_close(context);
    }
    [addresses.q, addresses.k, addresses.v] = [0, 1, 2].map(|index| on_device[index].pointer());
    look(call, &addresses, &device, &stream, "");
    let mut wrong = bf16s[1].clone();
    wrong[20 * 64 + 3] = bf16::NAN;
    let wrong = DeviceValues::upload(&device, &stream, &wrong, dims[1], Layout::Bshd).unwrap();
    let at = ef_addresses { k: wrong.pointer(), ..addresses };
    look(call, &at, &device, &stream, "k: NaN in batch 0, head 0, row 20; ");
    launch(call, &addresses, &device, &stream);
    let error = relative_error(&result(&output).0, &exact.values);
    assert!(error < 8e-2, "bf16: {error}");
}
