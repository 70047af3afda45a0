//! Where kernels run, and what would run there.

use crate::border::{self, Grows, handle};
use crate::constants::EF_CPU;
use crate::problem::{ef_problem, problem_of};
use crate::status::{ef_status, guard, quietly};
use eightfold::cuda::compile;
use eightfold::cuda::driver::Device;
use eightfold::{Error, Operands, Result, Target};
use std::ffi::c_char;
use std::fmt::Write;

/// Which device to open, and with what.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_context_args {
    /// `sizeof(ef_context_args)`.
    pub struct_size: u32,
    /// A CUDA device's ordinal, or `EF_CPU`.
    pub device: i32,
    /// An NVRTC library, or a folder that holds one, for the whole process; null to look in the usual places. It must be named
    /// before the first kernel is compiled.
    pub nvrtc: *const c_char,
    /// The folder in which compiled kernels are kept for later processes; null to keep them in memory alone. It must be named
    /// before the first kernel is compiled.
    pub cache: *const c_char,
}

// SAFETY: it begins with its size, has 24 bytes, and zero is a value of every field.
unsafe impl Grows for ef_context_args {
    const REQUIRED: usize = 8;
}

/// A device, opened; or this machine's CPU. It may be shared by threads.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_context(Option<Device>);

impl ef_context {
    /// The device, or an error where there is none.
    pub(crate) fn device(&self) -> Result<&Device> {
        self.0.as_ref().ok_or_else(|| {
            Error::invalid("context", "is the CPU's", "open a context with a device's ordinal, or call ef_attention")
        })
    }

    fn target(&self) -> Result<Target> {
        Ok(match &self.0 {
            Some(device) => Target::cuda(device.arch()?, device.info().multiprocessors),
            None => Target::Cpu,
        })
    }
}

/// Opens a device. It uses the device's primary context, as the CUDA runtime and PyTorch do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_context_open(args: *const ef_context_args, out: *mut *mut ef_context) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        border::give(out, || {
            let args = border::read("args", args)?;
            if let Some(path) = border::text("nvrtc", args.nvrtc)? {
                compile::set_nvrtc(path)?;
            }
            if let Some(folder) = border::text("cache", args.cache)? {
                compile::keep_in(folder)?;
            }
            if args.device == EF_CPU {
                return Ok(ef_context(None));
            }
            let ordinal = usize::try_from(args.device).map_err(|_| {
                Error::invalid(
                    "device",
                    format!("{} is no ordinal", args.device),
                    "pass 0 for the first device, or EF_CPU",
                )
            })?;
            Ok(ef_context(Some(Device::open(ordinal)?)))
        })
    })
}

/// Closes a context; null is allowed. What was made with it stays usable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_context_close(context: *mut ef_context) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(context) });
}

/// Writes which kernels were considered for a problem there, the chosen one first, and why: a line each.
///
/// The text is cut to `capacity` bytes, a zero at its end included; `needed`, if not null, is told the bytes of all of it.
/// Tensors are taken to be as this library quantises them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_explain(
    context: *const ef_context,
    problem: *const ef_problem,
    text: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let (target, problem) = (handle("context", context)?.target()?, problem_of(problem)?);
        let mut lines = String::new();
        for one in eightfold::consider(&problem, &Operands::assumed(&problem), target)? {
            let mark = if one.chosen { "runs" } else { "does not run" };
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{} {mark}: {}", one.variant, one.reason);
        }
        border::put_text(&lines, text, capacity, needed)
    })
}

/// The number that changes when a function or a struct of this header changes in a way that older programs would notice.
pub const EF_ABI_VERSION: u32 = 1;

/// The `EF_ABI_VERSION` of the library.
#[unsafe(no_mangle)]
pub extern "C" fn ef_abi_version() -> u32 {
    EF_ABI_VERSION
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn ef_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
