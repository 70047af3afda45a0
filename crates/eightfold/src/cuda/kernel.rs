//! A kernel for a kind of problem, and launches of it.

use super::driver::{Context, Device, Grid, Stream, TensorMap};
use super::family::Config;
use super::loaded::Loaded;
use super::tensor::{DeviceOutput, DeviceTensor, check_device};
use super::workspace::Workspace;
use super::{Operands, Specialisation, select};
use crate::error::{Error, Result};
use crate::operands::check_sinks;
use crate::problem::Problem;
use crate::report::RunReport;
use crate::variant::Variant;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, OnceLock};

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
    /// What kernels are passed for the workspace of the first launch.
    placed: OnceLock<Placed>,
}

impl Kernel {
    /// The best kernel for a problem with tensors like these, compiled unless that was done before.
    pub fn select(device: &Device, problem: &Problem, operands: &Operands) -> Result<Kernel> {
        operands.check(problem)?;
        let config = select(problem, operands, device.arch()?, device.info().multiprocessors)?;
        Kernel::of(device, problem, &config, operands)
    }

    /// Compiles (or finds) and loads this config for tensors like these.
    #[doc(hidden)]
    pub fn of(device: &Device, problem: &Problem, config: &Config, operands: &Operands) -> Result<Kernel> {
        operands.check(problem)?;
        config.check_problem(problem, operands, device.arch()?)?;
        Kernel::of_kind(device, config, operands.specialisation(problem))
    }

    /// The same for a kind of problem that the config was checked with.
    pub(super) fn of_kind(device: &Device, config: &Config, kind: Specialisation) -> Result<Kernel> {
        let (program, arch) = (config.program_to_launch(&kind), device.arch()?);
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
    #[doc(hidden)]
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
        let kind = Operands::of(q, k, v).specialisation(problem);
        self.arguments_of_kind(kind, problem, [q, k, v], output)
    }

    /// The same, where the problem is to be of this kind.
    pub(super) fn arguments_of_kind(
        &self,
        wanted: Specialisation,
        problem: &Problem,
        [q, k, v]: [&DeviceTensor; 3],
        output: &DeviceOutput,
    ) -> Result<Arguments> {
        let Inner { fitted, config, kind } = &*self.0;
        let operands = Operands::of(q, k, v);
        operands.check(problem)?;
        check_sinks(problem, [q, k, v].map(|tensor| tensor.sinks().is_some()))?;
        config.check_problem(problem, &operands, fitted.device.arch()?)?;
        config.check_kind(kind, &wanted)?;
        output.check(problem)?;
        check_device(&fitted.device, q, k, v, output)?;
        let calls = config.calls(fitted, problem, [q, k, v], output)?;
        Ok(Arguments { kernel: self.clone(), calls, tiles: config.tiles(problem), placed: OnceLock::new() })
    }

    /// The tiles of each block in its order, where a list of them is faster than what blocks find out by themselves.
    pub(super) fn schedule(&self, problem: &Problem) -> Result<Option<Vec<Vec<i32>>>> {
        self.0.config.schedule(&self.0.fitted, problem)
    }

    /// Puts a launch (two where V is put in order first) into the stream and returns at once. Nothing is allocated, and nothing
    /// waits, so it may be captured into a graph. What kernels are passed is kept for the first workspace; with another it is
    /// put together anew for each launch.
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
        let Calls { first, main, bytes, .. } = &arguments.calls;
        workspace.check(context, *bytes)?;
        let base = if *bytes == 0 { 0 } else { workspace.pointer() };
        let placed_elsewhere;
        let placed = match arguments.placed.get() {
            Some(placed) if placed.base == base => placed,
            known => {
                placed_elsewhere = Placed::at(&arguments.calls, context, base)?;
                if known.is_none() {
                    // If another thread is faster, its place is as good.
                    let _ = arguments.placed.set(placed_elsewhere);
                }
                &placed_elsewhere
            }
        };
        // SAFETY: arguments are laid out as the kernels take them (tested), and were checked; the rest is the caller's word.
        unsafe {
            if let (Some(call), Some(argument)) = (first, &placed.first) {
                call.put(stream, argument)?;
            }
            main.put(stream, &placed.main)
        }
    }
}

impl Arguments {
    /// The same launch with other addresses, by role; 0 where there is nothing. Nothing is checked.
    ///
    /// # Safety
    /// As for [`Kernel::launch`], of what lies at the addresses, which must be as the arguments were made for. They must be
    /// aligned as kernels copy, and the workspace must be as large as the arguments need.
    pub(crate) unsafe fn launch_with(&self, stream: &Stream, addresses: &[u64; ROLES], workspace: u64) -> Result<()> {
        let context = self.kernel.device().context();
        let Calls { first, main, slots, .. } = &self.calls;
        // SAFETY: arguments are laid out as the kernels take them (tested), and were checked; the rest is the caller's word.
        unsafe {
            if let Some(first) = first {
                first.put(stream, &first.bound(slots.first, addresses, context, workspace)?)?;
            }
            // Where V is put in order, its map was given a place of the workspace, which is filled in last.
            main.put(stream, &main.bound(slots.main, addresses, context, workspace)?)
        }
    }

    /// What this very problem needs.
    pub fn workspace_bytes(&self) -> usize {
        self.calls.bytes
    }

    /// Bytes that each kernel of a launch is passed.
    #[doc(hidden)]
    pub fn argument_bytes(&self) -> impl Iterator<Item = usize> {
        self.calls.first.iter().chain([&self.calls.main]).map(|call| call.argument.bytes)
    }

    /// How much of it, at the front, must be zero before the first launch; every launch leaves it so.
    pub fn zeroed_bytes(&self) -> usize {
        self.calls.zeroed_bytes
    }

    /// How many kernels a launch puts into the stream: 2 where V is put in order first.
    pub fn kernels(&self) -> usize {
        1 + usize::from(self.calls.first.is_some())
    }

    /// What a launch does: how many tiles it computes.
    pub fn report(&self) -> RunReport {
        RunReport { tiles: self.tiles, ..RunReport::default() }.of(self.kernel.variant())
    }

    /// Whether blocks of a launch may start before the launch before it is done (programmatic dependent launch).
    #[doc(hidden)]
    pub fn may_overlap(&self) -> bool {
        self.calls.main.early
    }

    /// The same launch, which now begins when everything before it in the stream is done.
    #[doc(hidden)]
    #[must_use]
    pub fn without_overlap(mut self) -> Arguments {
        self.calls.main.early = false;
        self
    }

    /// The same with tiles dealt out by a list of this many places a block, which must be of the same problem.
    pub(super) fn with_list(self, list: u64, listed: i32) -> Arguments {
        let places = self.calls.list;
        self.with_main(|argument| {
            if let Some([pointer, count]) = places {
                argument.set(pointer, list);
                argument.set(count, listed);
            }
        })
    }

    /// The same with something else written into what the kernel is passed.
    pub(super) fn with_main(mut self, change: impl FnOnce(&mut Argument)) -> Arguments {
        change(&mut self.calls.main.argument);
        Arguments { placed: OnceLock::new(), ..self }
    }
}

/// What a launch is given by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Q,
    K,
    V,
    QScales,
    KScales,
    VScales,
    KMeans,
    VMeans,
    Output,
    Lse,
    Sinks,
}

/// How many roles there are.
pub(crate) const ROLES: usize = 11;

/// Where an argument holds the address of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) role: Role,
    /// The offset.
    pub(crate) at: usize,
    /// Whether a tensor map lies there, and else a pointer.
    pub(crate) is_map: bool,
}

impl Slot {
    pub(crate) const fn pointer(role: Role, at: usize) -> Slot {
        Slot { role, at, is_map: false }
    }

    pub(crate) const fn map(role: Role, at: usize) -> Slot {
        Slot { role, at, is_map: true }
    }
}

/// The slots of the launches of one problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    pub(crate) first: &'static [Slot],
    pub(crate) main: &'static [Slot],
}

/// The launches of one problem.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    /// What puts V in order, where it is not.
    pub(crate) first: Option<Call>,
    pub(crate) main: Call,
    /// Where in the argument the address of a list of tiles goes, and how many a block has; none where no list is read.
    pub(crate) list: Option<[usize; 2]>,
    /// Of the workspace.
    pub(crate) bytes: usize,
    /// Of those, at the front, how many must be zero before the first launch.
    pub(crate) zeroed_bytes: usize,
    /// Where addresses are.
    pub(crate) slots: Slots,
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

/// What the kernels are passed where the workspace lies at this address.
#[derive(Debug, Clone, Copy)]
struct Placed {
    base: u64,
    first: Option<Argument>,
    main: Argument,
}

impl Placed {
    fn at(calls: &Calls, context: &Context, base: u64) -> Result<Placed> {
        let first = calls.first.as_ref().map(|call| call.placed(context, base)).transpose()?;
        Ok(Placed { base, first, main: calls.main.placed(context, base)? })
    }
}

impl Call {
    fn placed(&self, context: &Context, workspace: u64) -> Result<Argument> {
        self.placed_in(self.argument, context, workspace)
    }

    /// The same with other addresses.
    fn bound(&self, slots: &[Slot], addresses: &[u64; ROLES], context: &Context, workspace: u64) -> Result<Argument> {
        let mut argument = self.argument;
        for Slot { role, at, is_map } in slots.iter().copied() {
            match is_map {
                true => argument.set_map(context, at, addresses[role as usize])?,
                false => argument.set(at, addresses[role as usize]),
            }
        }
        self.placed_in(argument, context, workspace)
    }

    fn placed_in(&self, mut argument: Argument, context: &Context, workspace: u64) -> Result<Argument> {
        for address in self.addresses.iter().flatten() {
            match *address {
                Address::Pointer { at, place } => argument.set(at, workspace + place as u64),
                Address::Map { at, place } => argument.set_map(context, at, workspace + place as u64)?,
            }
        }
        Ok(argument)
    }

    /// # Safety
    /// The argument must be what the program takes, and what it points at alive until the launch is done.
    unsafe fn put(&self, stream: &Stream, argument: &Argument) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.loaded.function().launch_at(stream, self.grid, argument.address(), self.early) }
    }
}

/// The most bytes that a kernel is passed by value.
pub(super) const ARGUMENT_BYTES: usize = 832;

/// A struct that a kernel takes by value, as bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Argument {
    held: MaybeUninit<[u8; ARGUMENT_BYTES]>,
    bytes: usize,
}

impl Argument {
    pub(crate) fn of<T: Copy>(value: &T) -> Argument {
        const { assert!(size_of::<T>() <= ARGUMENT_BYTES && align_of::<T>() <= 64, "it must fit an argument") };
        let mut argument = Argument { held: MaybeUninit::uninit(), bytes: size_of::<T>() };
        // SAFETY: the value is no larger, and the two do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(
                ptr::from_ref(value).cast(),
                argument.held.as_mut_ptr().cast::<u8>(),
                size_of::<T>(),
            )
        };
        argument
    }

    /// The same with another struct behind it, which must be aligned there as it lies.
    pub(crate) fn followed_by<T: Copy>(mut self, value: &T) -> Argument {
        assert!(self.bytes.is_multiple_of(align_of::<T>()), "it must lie as the device code has it");
        self.set(self.bytes, *value);
        Argument { bytes: self.bytes + size_of::<T>(), ..self }
    }

    /// Writes a value there.
    pub(crate) fn set<T: Copy>(&mut self, at: usize, value: T) {
        assert!(at + size_of::<T>() <= ARGUMENT_BYTES, "it must lie inside");
        // SAFETY: it lies inside, by the line above, and bytes need no alignment.
        unsafe { self.held.as_mut_ptr().cast::<u8>().add(at).cast::<T>().write_unaligned(value) };
    }

    /// Lets the tensor map there walk through memory at another address.
    fn set_map(&mut self, context: &Context, at: usize, address: u64) -> Result<()> {
        assert!(at.is_multiple_of(align_of::<TensorMap>()) && at + size_of::<TensorMap>() <= ARGUMENT_BYTES);
        // SAFETY: whoever made the call says that a map lies there; it is aligned, and inside, by the line above.
        let map = unsafe { &mut *self.held.as_mut_ptr().cast::<u8>().add(at).cast::<TensorMap>() };
        map.set_address(context, address)
    }

    pub(super) fn address(&self) -> *const c_void {
        self.held.as_ptr().cast()
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
