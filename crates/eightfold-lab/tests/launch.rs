//! What a launch costs the host: no heap allocation, and how long, on a real device or on the simulated one.

use eightfold::cuda::driver::Device;
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Kernel, Operands, Workspace};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Fp8Format, Layout, Problem, Shape};
use eightfold_lab::simulate;
use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::path::Path;
use std::time::Instant;

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

/// The first device, real or simulated; none where there is neither, unless one is required.
fn device() -> Option<Device> {
    let simulated = std::env::var_os("EIGHTFOLD_REQUIRE_DEVICE").is_none() && !Path::new("/dev/nvidiactl").exists();
    if simulated && let Err(error) = simulate::install() {
        assert!(std::env::var_os("EIGHTFOLD_REQUIRE_SIMULATOR").is_none(), "{error}");
        eprintln!("skipped: {error}");
        return None;
    }
    Some(Device::default().unwrap())
}

/// V in rows and split keys: two launches, a tensor map and two pointers that are filled in.
#[test]
fn a_launch_allocates_nothing() {
    const LAUNCHES: usize = 20;
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    let problem = Problem::new(Shape { query_len: 1, ..Shape::new(1, 2, 600, 64) }).unwrap();
    let quantize = |dims: eightfold::Dims, seed: usize| {
        let values: Vec<f32> = (0..dims.count()).map(|index| ((index * 31 + seed) as f32).sin()).collect();
        let quantizer = Quantizer::new(Fp8Format::E4m3).with_largest_code(SMALL_CODES);
        let tensor = quantizer.quantize(&values, dims, Layout::Bhsd).unwrap();
        DeviceTensor::upload(&device, &stream, &tensor, Layout::Bhsd).unwrap()
    };
    let shape = problem.shape();
    let (q, k, v) = (quantize(shape.query_dims(), 1), quantize(shape.key_dims(), 2), quantize(shape.key_dims(), 3));
    let output = DeviceOutput::new(&device, &problem).unwrap();
    let variant: eightfold::Variant = "hopper:fast,warpgroups=1,split_keys=on,launch=dependent".parse().unwrap();
    let config = variant.on_device().unwrap();
    let kernel = Kernel::of(&device, &problem, &config, &Operands::of(&q, &k, &v)).unwrap();
    let arguments = kernel.arguments(&problem, [&q, &k, &v], &output).unwrap();
    let mut workspace = Workspace::new(&stream, arguments.workspace_bytes()).unwrap();
    // SAFETY: all of it lives until the stream is done, and all launches are in one stream.
    let mut launch = || unsafe { kernel.launch(&stream, &arguments, &mut workspace) };
    launch().unwrap();
    stream.synchronize().unwrap();
    let before = ALLOCATIONS.get();
    let start = Instant::now();
    for _ in 0..LAUNCHES {
        launch().unwrap();
    }
    let each = start.elapsed() / LAUNCHES as u32;
    let allocations = ALLOCATIONS.get() - before;
    stream.synchronize().unwrap();
    println!("{each:?} of the host for each launch on {}", device.info().name);
    assert_eq!(allocations, 0);
}
