//! What a launch costs the host: no heap allocation, and how long.

use crate::support::device;
use eightfold::cuda::call::{Addresses, ValueAttention, ValuesOf};
use eightfold::cuda::driver::Stream;
use eightfold::cuda::quantize::{DeviceValues, ValueFormat};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Kernel, Operands, Workspace};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Fp8Format, Layout, Problem, Result, Shape, Variant};
use eightfold_lab::measure::measure_host;
use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread asks of it.
struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's word.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, memory: Memory) {
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, memory) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// After a first launch, which may load what is needed, so many others; asserts that they allocate nothing, and returns what one
/// takes of the host.
fn without_allocations(stream: &Stream, launches: u32, mut launch: impl FnMut() -> Result<()>) -> Duration {
    launch().unwrap();
    stream.synchronize().unwrap();
    let before = ALLOCATIONS.get();
    let start = Instant::now();
    for _ in 0..launches {
        launch().unwrap();
    }
    let each = start.elapsed() / launches;
    let allocations = ALLOCATIONS.get() - before;
    stream.synchronize().unwrap();
    assert_eq!(allocations, 0);
    each
}

/// V in rows and split keys: two launches, a tensor map and two pointers that are filled in.
#[test]
fn a_launch_allocates_nothing() {
    const LAUNCHES: u32 = 20;
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(1, 2, 600, 64).with_query_len(1)).unwrap();
    let quantize = |dims: eightfold::Dims, seed: usize| {
        let values: Vec<f32> = (0..dims.count()).map(|index| ((index * 31 + seed) as f32).sin()).collect();
        let quantizer = Quantizer::new(Fp8Format::E4m3).with_largest_code(SMALL_CODES);
        let tensor = quantizer.quantize(&values, dims, Layout::Bhsd).unwrap();
        DeviceTensor::upload(&device, &stream, &tensor, Layout::Bhsd).unwrap()
    };
    let shape = problem.shape();
    let (q, k, v) = (quantize(shape.query_dims(), 1), quantize(shape.key_dims(), 2), quantize(shape.key_dims(), 3));
    let output = DeviceOutput::new(&device, &problem).unwrap();
    let variant: Variant = "hopper:fast,warpgroups=1,split_keys=on,launch=dependent".parse().unwrap();
    let config = variant.on_device().unwrap();
    let kernel = Kernel::of(&device, &problem, &config, &Operands::of(&q, &k, &v)).unwrap();
    let arguments = kernel.arguments(&problem, [&q, &k, &v], &output).unwrap();
    let mut workspace = Workspace::new(&stream, arguments.workspace_bytes()).unwrap();
    // SAFETY: all of it lives until the stream is done, and all launches are in one stream.
    let each = without_allocations(&stream, LAUNCHES, || unsafe { kernel.launch(&stream, &arguments, &mut workspace) });
    println!("{each:?} of the host for each launch on {}", device.info().name);
}

/// On the simulated device the numbers mean nothing; they come from the same code.
#[test]
fn launches_are_timed_beside_the_driver() {
    if device().is_none() {
        return;
    }
    let problem = Problem::new(Shape::new(1, 2, 100, 64).with_query_len(1)).unwrap();
    let variants = ["hopper:fast", "ladder:unpack"].map(|text| (text.to_string(), text.parse::<Variant>().unwrap()));
    let group = measure_host("tiny", &problem, &variants, 6).unwrap();
    let kinds: Vec<_> =
        group.entries.iter().map(|entry| (&*entry.name, &*entry.value_layout, &entry.argument_bytes[..])).collect();
    assert_eq!(
        kinds,
        [("hopper:fast", "packed", &[704][..]), ("hopper:fast", "bhsd", &[80, 704]), ("ladder:unpack", "bhds", &[248]),]
    );
    for entry in &group.entries {
        assert_eq!(entry.launches, 6);
        assert!(entry.launch_p50_ns > 0.0 && entry.driver_p50_ns > 0.0, "{entry:?}");
        assert!(entry.launch_p95_ns >= entry.launch_p50_ns && entry.driver_p95_ns >= entry.driver_p50_ns, "{entry:?}");
    }
    let cpu = [("cpu".to_string(), "cpu".parse().unwrap())];
    assert!(measure_host("tiny", &problem, &cpu, 6).unwrap_err().to_string().starts_with("variant: none of them"));
}

/// Three quantisers and a kernel, with addresses that come with the launch.
#[test]
fn a_call_from_values_allocates_nothing() {
    const LAUNCHES: u32 = 10;
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(1, 2, 70, 64)).unwrap();
    let dims = problem.shape().query_dims();
    let values: Vec<f32> = (0..dims.count()).map(|index| (index as f32).sin()).collect();
    let values = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
    let output = DeviceOutput::new(&device, &problem).unwrap();
    let rows = Layout::Bhsd.strides(dims);
    let lie = ValuesOf { format: ValueFormat::F32, q: rows, k: rows, v: rows, output: rows, centre_keys: true };
    let call = ValueAttention::new(&device, &problem, lie).unwrap();
    let mut workspace = Workspace::new(&stream, call.workspace_bytes()).unwrap();
    let (at, output) = (values.pointer(), output.values());
    let addresses = Addresses { q: at, k: at, v: at, output, lse: None };
    // SAFETY: all of it lives until the stream is done, and all launches are in one stream.
    let each = without_allocations(&stream, LAUNCHES, || unsafe { call.launch(&stream, &addresses, &mut workspace) });
    println!("{each:?} of the host for each call of {} kernels on {}", call.kernels(), device.info().name);
}
