//! Bad pointers, too little memory, and a context that is lost.

use crate::support::{device, on_simulator, tensors};
use eightfold::cuda::quantize::{DeviceValues, ValueFormat, quantize};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor, RawOutput, RawTensor};
use eightfold::{Dims, Error, Fp8Format, Granularity, Layout, Problem, Shape};
use eightfold_lab::choice;
use std::process::Command;

const DIMS: Dims = Dims { batch: 1, heads: 2, len: 32, head_dim: 64 };

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: eightfold::Result<T>, expected: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn a_shape_too_large_for_the_device_is_refused_and_the_device_stays_usable() {
    let Some((device, stream)) = device() else { return };
    let total = device.info().memory_bytes;
    let error = device.allocate(2 * total).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("for {} bytes", 2 * total)) && text.contains("bytes are free"), "{text}");
    let rows = total / (64 * 4) + 1;
    let problem = Problem::new(Shape { query_len: rows, key_len: 1, ..Shape::new(1, 1, 1, 64) }).unwrap();
    assert!(matches!(DeviceOutput::new(&device, &problem), Err(Error::Unavailable { .. })));
    assert_eq!(device.loss(), None);
    assert_eq!(stream.synchronize(), Ok(()));
    assert!(device.allocate(0).is_ok());
}

#[test]
fn bad_pointers_are_refused_by_name() {
    let Some((device, _)) = device() else { return };
    let codes = device.allocate(DIMS.count()).unwrap();
    let scales = device.allocate(8).unwrap();
    let raw = RawTensor {
        dims: DIMS,
        format: Fp8Format::E4m3,
        layout: Layout::Bhsd,
        codes: codes.pointer(),
        strides: Layout::Bhsd.strides(DIMS),
        granularity: Granularity::Head,
        scales: scales.pointer(),
        scale_count: 2,
        means: None,
        largest_code: None,
    };
    // SAFETY: nothing is launched on these tensors.
    let tensor = |raw| unsafe { DeviceTensor::from_raw(&device, raw) };
    assert!(tensor(raw).is_ok());
    assert_refused(tensor(RawTensor { codes: 0, ..raw }), "codes: is a null pointer");
    assert_refused(tensor(RawTensor { codes: raw.codes + 8, ..raw }), "codes: address ");
    assert_refused(tensor(RawTensor { scales: 0, ..raw }), "scales: is a null pointer");
    assert_refused(tensor(RawTensor { means: Some(0), ..raw }), "means: is a null pointer");
    let on_host = vec![0u128; DIMS.count() / 16];
    assert_refused(tensor(RawTensor { codes: on_host.as_ptr() as u64, ..raw }), "codes: 0x");
    let long = Dims { len: 1 << 24, ..DIMS };
    assert_refused(
        tensor(RawTensor { dims: long, strides: Layout::Bhsd.strides(long), ..raw }),
        "codes: 2147483648 bytes are needed",
    );
    // SAFETY: nothing is launched on these values.
    let values = |pointer| unsafe { DeviceValues::from_raw(&device, pointer, DIMS, Layout::Bhsd, ValueFormat::F16) };
    assert_refused(values(0), "values: is a null pointer");
    let problem = Problem::new(Shape::new(1, 2, 32, 64)).unwrap();
    let strides = Layout::Bhsd.strides(DIMS);
    // SAFETY: nothing is launched into this output.
    let output =
        |values| unsafe { DeviceOutput::from_raw(&device, &problem, RawOutput { values, strides, lse: None }) };
    assert_refused(output(0), "output: is a null pointer");
    assert_refused(output(codes.pointer() + 4), "output: address ");
}

/// In a process of its own, because the context is gone afterwards.
#[test]
fn a_lost_context_is_told_and_the_process_ends_cleanly() {
    // The simulated device loses no context: a launch that goes wrong fails alone.
    if on_simulator() || device().is_none() {
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child_that_loses_its_context", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "loses the device's context: run by the test above in a process of its own"]
fn child_that_loses_its_context() {
    let Some((device, stream)) = device() else { return };
    let kept = device.allocate(1 << 20).unwrap();
    let dims = Dims { batch: 1, heads: 1, len: 1 << 20, head_dim: 64 };
    let doomed = device.allocate(4 * dims.count()).unwrap();
    // SAFETY: not sound, and meant so: the memory is freed before the kernel reads it.
    let values =
        unsafe { DeviceValues::from_raw(&device, doomed.pointer(), dims, Layout::Bhsd, ValueFormat::F32) }.unwrap();
    drop(doomed);
    let launched = quantize(&stream, &values, Fp8Format::E4m3, Granularity::Head, Layout::Bhsd);
    let error = launched.and_then(|quantized| quantized.check(&stream)).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");

    let lost = "its context was lost by an earlier error";
    assert!(device.loss().unwrap().to_string().contains(lost));
    assert!(stream.synchronize().unwrap_err().to_string().contains(lost));
    assert!(device.allocate(16).unwrap_err().to_string().contains(lost));
    assert!(device.stream().unwrap_err().to_string().contains(lost));
    drop(kept);
    drop(stream);

    // What is chosen goes on without the device.
    let problem = Problem::new(Shape::new(1, 1, 40, 64)).unwrap();
    assert_eq!(choice::choose(&problem).unwrap().variant.kernel(), "cpu");
    let [q, k, v] = tensors(&problem, 80);
    assert!(eightfold::attention(&problem, &q, &k, &v).is_ok());
}
