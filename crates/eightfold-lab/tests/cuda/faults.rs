//! Bad pointers, too little memory, and a context that is lost.

use crate::support::{device, on_simulator, tensors};
use eightfold::cuda::quantize::{DeviceValues, ValueFormat, quantize};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor, RawOutput, RawTensor};
use eightfold::{Dims, Error, Fp8Format, Granularity, Layout, Problem, Shape};
use eightfold_lab::choice;
use std::process::Command;

const DIMS: Dims = Dims::new(1, 2, 32, 64);

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
    let problem = Problem::new(Shape::new(1, 1, rows, 64).with_key_len(1)).unwrap();
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
    let head = Granularity::Head;
    let raw = RawTensor::new(DIMS, Fp8Format::E4m3, Layout::Bhsd, codes.pointer(), head, scales.pointer());
    // SAFETY: nothing is launched on these tensors.
    let tensor = |raw| unsafe { DeviceTensor::from_raw(&device, raw) };
    let changed = |change: &dyn Fn(&mut RawTensor)| {
        let mut raw = raw;
        change(&mut raw);
        tensor(raw)
    };
    assert!(tensor(raw).is_ok());
    assert_refused(changed(&|raw| raw.codes = 0), "codes: is a null pointer");
    assert_refused(changed(&|raw| raw.codes += 8), "codes: address ");
    assert_refused(changed(&|raw| raw.scales = 0), "scales: is a null pointer");
    assert_refused(changed(&|raw| raw.means = Some(0)), "means: is a null pointer");
    let on_host = vec![0u128; DIMS.count() / 16];
    assert_refused(changed(&|raw| raw.codes = on_host.as_ptr() as u64), "codes: 0x");
    let long = Dims::new(DIMS.batch, DIMS.heads, 1 << 24, DIMS.head_dim);
    assert_refused(
        changed(&|raw| (raw.dims, raw.strides) = (long, Layout::Bhsd.strides(long))),
        "codes: 2147483648 bytes are needed",
    );
    // SAFETY: nothing is launched on these values.
    let values = |pointer| unsafe { DeviceValues::from_raw(&device, pointer, DIMS, Layout::Bhsd, ValueFormat::F16) };
    assert_refused(values(0), "values: is a null pointer");
    let problem = Problem::new(Shape::new(1, 2, 32, 64)).unwrap();
    let strides = Layout::Bhsd.strides(DIMS);
    // SAFETY: nothing is launched into this output.
    let output = |values| unsafe { DeviceOutput::from_raw(&device, &problem, RawOutput::new(values, strides)) };
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
    let dims = Dims::new(1, 1, 1 << 20, 64);
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
