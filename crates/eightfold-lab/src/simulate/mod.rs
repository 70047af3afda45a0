//! The simulated device: the kernels' own source, run on this machine's CPU by fibers, one for each CUDA thread.
//!
//! [`install`] puts a driver of our own in the place of NVIDIA's, and the machine's C++ compiler in the place of NVRTC,
//! for the rest of the process. From then on everything that runs on a device runs on the simulated one: with the same
//! programs, the same settings and the same argument bytes. [`begin`] says by which schedule; when a launch fails,
//! [`findings`] says why.
//!
//! The C++ side is in `simulator/`: `device/` is what a kernel sees in place of `kernels/ptx/` and of CUDA's built-ins,
//! `runtime/` is the device.

mod compiler;
mod findings;
mod runtime;
mod schedules;
mod sources;
mod toolchain;
mod work;

pub use compiler::CxxCompiler;
pub use findings::Finding;
pub use schedules::{Schedules, SimulatedVariant, schedules, set_schedules};
pub use toolchain::{Edit, plant};
pub use work::{Work, count};

use eightfold::lab::compile;
use eightfold::{Error, Result};
use runtime::Runtime;
use std::sync::OnceLock;

/// The environment variable that says how many multiprocessors the simulated device has.
pub const MULTIPROCESSORS_VARIABLE: &str = "EIGHTFOLD_SIMULATED_MULTIPROCESSORS";

static INSTALLED: OnceLock<Result<Runtime>> = OnceLock::new();

/// How a launch is simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Decides who runs when: lanes, warps, blocks and launches, copies and products.
    pub seed: u64,
    /// Whether races and memory that nobody wrote are looked for, which takes two to three times as long.
    pub races: bool,
    /// How long a launch may take; none for as long as it likes.
    pub limit_seconds: Option<f64>,
}

impl Schedule {
    /// Of this seed, with races looked for and a minute to end in.
    pub fn of_seed(seed: u64) -> Self {
        Schedule { seed, races: true, limit_seconds: Some(60.0) }
    }
}

/// Makes the simulated device the device of this process. Must come before anything asks for a device or compiles.
///
/// It has four multiprocessors, or as many as the environment variable `EIGHTFOLD_SIMULATED_MULTIPROCESSORS` says.
pub fn install() -> Result<()> {
    install_with(None)
}

/// The same with this many multiprocessors, whatever the environment says.
pub fn install_with(multiprocessors: Option<u32>) -> Result<()> {
    let installed = INSTALLED.get_or_init(|| {
        let compiler = CxxCompiler::find()?;
        let runtime = Runtime::load(&compiler, multiprocessors)?;
        compile::set_toolchain(Box::new(toolchain::SimulatedToolchain::new(compiler, runtime.path().to_owned())))?;
        Ok(runtime)
    });
    installed.as_ref().map(|_| ()).map_err(Clone::clone)
}

/// Whether this process runs on the simulated device.
pub fn is_installed() -> bool {
    installed().is_some()
}

fn installed() -> Option<&'static Runtime> {
    INSTALLED.get().and_then(|runtime| runtime.as_ref().ok())
}

/// Lets what this thread launches from now on be simulated under a schedule, and forgets what was found before.
pub fn begin(schedule: Schedule) {
    if let Some(runtime) = installed() {
        runtime.begin(schedule);
    }
}

/// What was found to be wrong in this thread's launches since [`begin`].
pub fn findings() -> Vec<Finding> {
    installed().map(|runtime| findings::parse(&runtime.findings())).unwrap_or_default()
}

/// Runs something once, under the first of the process's schedules, with what was found in place of the driver's error.
pub fn explain_failures<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    if !is_installed() {
        return run();
    }
    let Schedules { seeds, races, limit_seconds } = schedules();
    let seed = seeds.first().copied().unwrap_or(0);
    begin(Schedule { seed, races, limit_seconds });
    run().map_err(|error| explained(error, seed))
}

/// A failure with what the simulator found in place of the driver's number.
pub(crate) fn explained(error: Error, seed: u64) -> Error {
    let found = findings();
    if found.is_empty() {
        return error;
    }
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    Error::invalid(format!("schedule {seed}"), told.join("\n"), format!("mend the kernel; --seeds {seed} repeats it"))
}
