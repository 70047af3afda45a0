//! A kernel for a kind of problem, and launches of it.

use super::driver::{Context, Device, Grid, Stream, TensorMap};
use super::family::Config;
use super::loaded::Loaded;
use super::tensor::{DeviceOutput, DeviceTensor, check_device};
use super::workspace::Workspace;
use super::{Operands, Specialisation, select};
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::report::RunReport;
use crate::variant::Variant;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// A kernel, compiled and loaded for a kind of problem: head dim, mask, formats, granularities of scales, and whether tiles
/// cut the keys evenly. Batch, heads, lengths, strides and addresses are arguments of a launch.
///
/// It never changes, is cheap to clone, and may be used by any number of threads and streams at a time.
#[derive(Debug, Clone)]
pub struct Kernel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fitted: Fitted,
    config: Config,
    kind: Specialisation,
}

/// A program on its device.
#[derive(Debug)]
pub(crate) struct Fitted {
    pub(crate) device: Device,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) blocks_per_multiprocessor: usize,
}

/// One problem with its tensors and its output, checked and laid out for a kernel.
#[derive(Debug, Clone)]
pub struct Arguments {
    kernel: Kernel,
    calls: Calls,
    tiles: u64,
}

impl Kernel {
    /// The best kernel for a problem with tensors like these, compiled unless that was done before.
    pub fn select(device: &Device, problem: &Problem, operands: &Operands) -> Result<Kernel> {
        operands.check(problem)?;
        let config = select(problem, operands, device.arch()?, device.info().multiprocessors)?;
        Kernel::of(device, problem, &config, operands)
    }

    /// Compiles (or finds) and loads this config for tensors like these.
    pub fn of(device: &Device, problem: &Problem, config: &Config, operands: &Operands) -> Result<Kernel> {
        operands.check(problem)?;
        let arch = device.arch()?;
        config.check_problem(problem, operands, arch)?;
        let kind = operands.specialisation(problem);
        let mut program = kind.program(*config);
        if cfg!(debug_assertions) && matches!(config, Config::Hopper(_)) {
            // What waits for ever becomes an error of the launch. Gates judge the kernel without.
            program.defines.push(("BOUNDED_WAITS", "1".into()));
        }
        let (loaded, blocks_per_multiprocessor) =
            Loaded::get_fitting(device, &program, config.target(arch)?, config.threads(), || {
                Variant::from(*config).to_string()
            })?;
        let fitted = Fitted { device: device.clone(), loaded, blocks_per_multiprocessor };
        Ok(Kernel(Arc::new(Inner { fitted, config: *config, kind })))
    }

    /// The kernel and its knobs.
    pub fn variant(&self) -> Variant {
        self.0.config.into()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.fitted.device
    }

    /// Blocks that a multiprocessor can hold at a time.
    pub fn blocks_per_multiprocessor(&self) -> usize {
        self.0.fitted.blocks_per_multiprocessor
    }

    /// What a launch needs for any problem of this kind that is in no size larger than this one, wherever V lies.
    pub fn workspace_bytes(&self, limits: &Problem) -> Result<usize> {
        self.0.config.workspace_bytes(limits, self.device().info().multiprocessors)
    }

    /// Everything that a launch is passed, checked: the tensors and the output must be those of the problem, of this kernel's
    /// kind, and on its device.
    pub fn arguments(
        &self,
        problem: &Problem,
        [q, k, v]: [&DeviceTensor; 3],
        output: &DeviceOutput,
    ) -> Result<Arguments> {
        let Inner { fitted, config, kind } = &*self.0;
        let operands = Operands::of(q, k, v);
        operands.check(problem)?;
        config.check_problem(problem, &operands, fitted.device.arch()?)?;
        config.check_kind(kind, &operands.specialisation(problem))?;
        output.check(problem)?;
        check_device(&fitted.device, q, k, v, output)?;
        let calls = config.calls(fitted, problem, [q, k, v], output)?;
        Ok(Arguments { kernel: self.clone(), calls, tiles: config.tiles(problem) })
    }

    /// Puts a launch (two where V is put in order first) into the stream and returns at once. Nothing is allocated, and nothing
    /// waits, so it may be captured into a graph.
    ///
    /// # Safety
    /// Tensors, output and workspace must be alive until the launch is done. No other work may write to the tensors meanwhile,
    /// or use the output or the workspace.
    pub unsafe fn launch(&self, stream: &Stream, arguments: &Arguments, workspace: &mut Workspace) -> Result<()> {
        if !Arc::ptr_eq(&self.0, &arguments.kernel.0) {
            return Err(Error::invalid(
                "arguments",
                "were made for another kernel",
                "launch them with the kernel that made them",
            ));
        }
        let context = self.device().context();
        let Calls { first, main, bytes } = &arguments.calls;
        workspace.check(context, *bytes)?;
        let base = workspace.pointer();
        // SAFETY: arguments are laid out as the kernels take them (tested), and were checked; the rest is the caller's word.
        unsafe {
            if let Some(first) = first {
                first.put(context, stream, base)?;
            }
            main.put(context, stream, base)
        }
    }
}

impl Arguments {
    /// What this very problem needs.
    pub fn workspace_bytes(&self) -> usize {
        self.calls.bytes
    }

    /// What a launch does: how many tiles it computes.
    pub fn report(&self) -> RunReport {
        RunReport { tiles: self.tiles, ..RunReport::default() }.of(self.kernel.variant())
    }

    /// The same with units dealt out by a list, which must be of the same problem.
    pub(crate) fn with_main(mut self, change: impl FnOnce(&mut Call)) -> Arguments {
        change(&mut self.calls.main);
        self
    }
}

/// The launches of one problem.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    /// What puts V in order, where it is not.
    pub(crate) first: Option<Call>,
    pub(crate) main: Call,
    /// Of the workspace.
    pub(crate) bytes: usize,
}

/// One launch, but for where the workspace lies.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) grid: Grid,
    /// Whether blocks may start before the launch before is done.
    pub(crate) early: bool,
    pub(crate) argument: Argument,
    pub(crate) addresses: [Option<Address>; 3],
}

/// An address in the workspace that goes into the argument, each by its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    /// As a pointer.
    Pointer { at: usize, place: usize },
    /// As that of a tensor map.
    Map { at: usize, place: usize },
}

impl Call {
    /// # Safety
    /// The argument must be what the program takes, and what it points at alive until the launch is done.
    unsafe fn put(&self, context: &Context, stream: &Stream, workspace: u64) -> Result<()> {
        let mut argument = self.argument;
        for address in self.addresses.iter().flatten() {
            match *address {
                Address::Pointer { at, place } => argument.set(at, workspace + place as u64),
                Address::Map { at, place } => argument.set_map(context, at, workspace + place as u64)?,
            }
        }
        // SAFETY: the caller's word.
        unsafe { self.loaded.function().launch_at(stream, self.grid, argument.address(), self.early) }
    }
}

/// The most bytes that a kernel is passed by value.
const ARGUMENT_BYTES: usize = 768;

/// A struct that a kernel takes by value, as bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Argument(MaybeUninit<[u8; ARGUMENT_BYTES]>);

impl Argument {
    pub(crate) fn of<T: Copy>(value: &T) -> Argument {
        const { assert!(size_of::<T>() <= ARGUMENT_BYTES && align_of::<T>() <= 64, "it must fit an argument") };
        let mut argument = Argument(MaybeUninit::uninit());
        // SAFETY: the value is no larger, and the two do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), argument.0.as_mut_ptr().cast::<u8>(), size_of::<T>())
        };
        argument
    }

    /// Writes a number of 8 bytes.
    pub(crate) fn set<T: Copy>(&mut self, at: usize, value: T) {
        assert!(at + size_of::<T>() <= ARGUMENT_BYTES, "it must lie inside");
        // SAFETY: it lies inside, by the line above, and bytes need no alignment.
        unsafe { self.0.as_mut_ptr().cast::<u8>().add(at).cast::<T>().write_unaligned(value) };
    }

    /// Lets the tensor map there walk through memory at another address.
    fn set_map(&mut self, context: &Context, at: usize, address: u64) -> Result<()> {
        assert!(at.is_multiple_of(align_of::<TensorMap>()) && at + size_of::<TensorMap>() <= ARGUMENT_BYTES);
        // SAFETY: whoever made the call says that a map lies there; it is aligned, and inside, by the line above.
        let map = unsafe { &mut *self.0.as_mut_ptr().cast::<u8>().add(at).cast::<TensorMap>() };
        map.set_address(context, address)
    }

    fn address(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

impl std::fmt::Debug for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Argument")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_arguments_can_be_shared() {
        fn shared<T: Send + Sync + Clone>() {}
        shared::<Kernel>();
        shared::<Arguments>();
    }

    #[test]
    fn an_argument_holds_what_was_put_into_it() {
        let mut argument = Argument::of(&[1u64, 2, 3]);
        argument.set(8, 7u64);
        // SAFETY: three numbers were put there.
        let held = unsafe { *argument.address().cast::<[u64; 3]>() };
        assert_eq!(held, [1, 7, 3]);
    }
}
