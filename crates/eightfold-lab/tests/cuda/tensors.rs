//! Copies to the device and back, streams, events and graphs.

use crate::support::{device, gaussian, tensors};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::quantize::Quantizer;
use eightfold::{Dims, Fp8Format, Granularity, Layout, Output, OutputFormat, Problem, Shape};
use eightfold_lab::driver::Record as _;

const LAYOUTS: [Layout; 3] = [Layout::Bhsd, Layout::Bshd, Layout::Bhds];

#[test]
fn a_tensor_comes_back_as_it_went() {
    let Some((device, stream)) = device() else { return };
    for dims in [Dims::new(2, 3, 37, 24), Dims::new(1, 1, 1, 8)] {
        for from in LAYOUTS {
            let tensor = Quantizer::new(Fp8Format::E5m2)
                .with_granularity(Granularity::Block { rows: 16 })
                .with_layout(from)
                .centered()
                .quantize(&gaussian(dims.count(), 3), dims, Layout::Bhsd)
                .unwrap();
            for to in LAYOUTS {
                let on_device = DeviceTensor::upload(&device, &stream, &tensor, to).unwrap();
                let back = on_device.download(&stream).unwrap();
                assert_eq!(back.layout(), to);
                assert_eq!(back.dequantize(), tensor.dequantize(), "{from} to {to}");
                assert!(from != to || back == tensor, "{from}");
            }
            let packed = DeviceTensor::upload(&device, &stream, &tensor, Layout::Packed).unwrap();
            let back = packed.download(&stream).unwrap();
            assert_eq!((back.layout(), back.dequantize()), (Layout::Bhds, tensor.dequantize()), "{from} packed");
            assert_eq!(packed.largest_code(), tensor.largest_code());
        }
    }
}

#[test]
fn a_poisoned_output_comes_back_as_nan() {
    let Some((device, stream)) = device() else { return };
    for format in [OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16] {
        let problem = Problem::new(Shape::new(1, 2, 5, 64)).unwrap().with_output_format(format).with_lse(true);
        let mut on_device = DeviceOutput::new(&device, &problem).unwrap();
        on_device.poison(&stream).unwrap();
        let mut output = Output::zeros(&problem);
        on_device.download(&stream, &mut output).unwrap();
        assert!(output.values.to_f32().iter().all(|value| value.is_nan()), "{format:?}");
        assert!(output.lse.unwrap().iter().all(|lse| lse.is_nan()));
        let other = Problem::new(Shape::new(1, 2, 6, 64)).unwrap().with_output_format(format).with_lse(true);
        assert!(on_device.download(&stream, &mut Output::zeros(&other)).is_err());
    }
}

#[test]
fn events_measure_and_graphs_replay() {
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(1, 8, 4096, 64)).unwrap();
    let mut on_device = DeviceOutput::new(&device, &problem).unwrap();
    let mut graph = stream.capture(&mut || on_device.poison(&stream)).unwrap();
    let start = stream.record().unwrap();
    for _ in 0..3 {
        // SAFETY: all that the graph uses lives until the stream is done.
        unsafe { graph.launch(&stream) }.unwrap();
    }
    let end = stream.record().unwrap();
    end.synchronize().unwrap();
    assert!(end.elapsed_ns(&start).unwrap() > 0.0);
    let mut output = Output::zeros(&problem);
    on_device.download(&stream, &mut output).unwrap();
    assert!(output.values.to_f32().iter().all(|value| value.is_nan()));
}

#[test]
fn a_capture_that_fails_leaves_the_stream_usable() {
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(1, 1, 16, 64)).unwrap();
    let [q, ..] = tensors(&problem, 4);
    let error = stream
        .capture(&mut || DeviceTensor::upload(&device, &stream, &q, Layout::Bhsd).map(drop))
        .unwrap_err()
        .to_string();
    assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE"), "{error}");
    assert_eq!(stream.synchronize(), Ok(()));
    let back = DeviceTensor::upload(&device, &stream, &q, Layout::Bhsd).unwrap().download(&stream).unwrap();
    assert_eq!(back, q);
}
