//! A device to test on, and values to test with.

use eightfold::cuda::driver::{Device, Stream};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Error, Fp8Format, Fp8Tensor, Layout, Problem};
use eightfold_lab::environment;
use eightfold_lab::simulate::{self, Schedule};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Set where a missing device is a failure.
const REQUIRED: &str = "EIGHTFOLD_REQUIRE_DEVICE";

const SIMULATOR_REQUIRED: &str = "EIGHTFOLD_REQUIRE_SIMULATOR";

/// As many as an H200 has: what is chosen, and how keys are split, depends on it.
const MULTIPROCESSORS: u32 = 132;

/// Whether these tests run on the simulated device, for want of a real one.
pub fn on_simulator() -> bool {
    std::env::var_os(REQUIRED).is_none() && !Path::new("/dev/nvidiactl").exists()
}

/// All of them on a real device; on the simulated one, which is slow, the first of every so many.
pub fn some<T: Clone>(all: &[T], of: usize) -> Vec<T> {
    all.iter().step_by(if on_simulator() { of } else { 1 }).cloned().collect()
}

/// Device 0 with a stream, if there is one and kernels can be compiled for it.
pub fn device() -> Option<(Device, Stream)> {
    let opened = || {
        if on_simulator() {
            simulate::install_with(Some(MULTIPROCESSORS))?;
            simulate::begin(Schedule { races: false, ..Schedule::of_seed(0) });
        }
        let device = Device::default()?;
        let stream = device.stream()?;
        environment::compiler()?;
        Ok::<_, Error>((device, stream))
    };
    let required = if on_simulator() { SIMULATOR_REQUIRED } else { REQUIRED };
    match opened() {
        Ok(opened) => Some(opened),
        Err(error) if std::env::var_os(required).is_some() => panic!("{required} is set, but {error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// What work on the device may take, compiling included, before it counts as never ending.
const PATIENCE: Duration = Duration::from_secs(90);

/// Work on the device that has begun and not ended, the oldest first.
static UNDER_WAY: Mutex<Vec<(Instant, String)>> = Mutex::new(Vec::new());

fn under_way() -> MutexGuard<'static, Vec<(Instant, String)>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when it is dropped, also where work panics.
struct Begun((Instant, String));

impl Drop for Begun {
    fn drop(&mut self) {
        under_way().retain(|other| *other != self.0);
    }
}

/// Does some work on the device. If it never ends, the process does, and says what was under way: launches that wait in the
/// same stream never end either.
pub fn watched<T>(what: &str, work: impl FnOnce() -> T) -> T {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        thread::spawn(end_if_work_does_not);
    });
    let entry = (Instant::now(), what.to_string());
    under_way().push(entry.clone());
    let _begun = Begun(entry);
    work()
}

fn end_if_work_does_not() {
    loop {
        thread::sleep(Duration::from_secs(1));
        let under_way = under_way();
        if under_way.first().is_some_and(|(start, _)| start.elapsed() > PATIENCE) {
            eprintln!("work on the device does not end; under way are");
            for (start, what) in under_way.iter() {
                eprintln!("  for {:.1} s: {what}", start.elapsed().as_secs_f32());
            }
            std::process::exit(101);
        }
    }
}

/// Values of N(0, 1), near enough: the sum of twelve uniform numbers.
pub fn gaussian(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// Q, K and V with one scale per head.
pub fn tensors(problem: &Problem, seed: u64) -> [Fp8Tensor<'static>; 3] {
    let shape = problem.shape();
    [(shape.query_dims(), seed), (shape.key_dims(), seed + 1), (shape.key_dims(), seed + 2)]
        .map(|(dims, seed)| eightfold::quantize(&gaussian(dims.count(), seed), dims).unwrap())
}

/// The same with codes of Q and K so small that scores fit f16.
pub fn small_tensors(problem: &Problem, seed: u64) -> [Fp8Tensor<'static>; 3] {
    let shape = problem.shape();
    let plain = Quantizer::new(Fp8Format::E4m3);
    let small = plain.with_largest_code(SMALL_CODES);
    [(small, shape.query_dims(), seed), (small, shape.key_dims(), seed + 1), (plain, shape.key_dims(), seed + 2)]
        .map(|(quantizer, dims, seed)| quantizer.quantize(&gaussian(dims.count(), seed), dims, Layout::Bhsd).unwrap())
}

pub fn relative_l2(values: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(values.len(), expected.len());
    let error: f64 = values.iter().zip(expected).map(|(value, expected)| (f64::from(*value) - expected).powi(2)).sum();
    let size: f64 = expected.iter().map(|expected| expected * expected).sum();
    if error == 0.0 { 0.0 } else { (error / size).sqrt() }
}
