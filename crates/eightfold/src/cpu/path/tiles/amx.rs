//! AMX: the tile instructions of x86-64 as they are.

use super::operations::{Configuration, Tiles};
use std::arch::asm;

/// The calling thread's tile registers in their full configuration, for as long as this lives. The thread's own configuration
/// comes back after it: tiles may be in use by another library in the same thread, which would fault without them.
pub(super) struct Configured {
    before: Configuration,
}

impl Configured {
    /// Keeps the configuration that the thread has, and loads the full one.
    ///
    /// # Safety
    ///
    /// The CPU must have AMX, and the process the permission to use it.
    pub(super) unsafe fn new() -> Self {
        let mut before = Configuration([0; 64]);
        // SAFETY: the instructions are there, as the caller promises, and write or read 64 bytes that are this function's.
        unsafe {
            asm!("sttilecfg [{}]", in(reg) before.0.as_mut_ptr(), options(nostack, preserves_flags));
            load_configuration(&Configuration::FULL);
        }
        Configured { before }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        const NOT_CONFIGURED: u8 = 0;
        // SAFETY: `new` was promised that the instructions are there.
        unsafe {
            if self.before.0[0] == NOT_CONFIGURED {
                asm!("tilerelease", options(nostack, nomem, preserves_flags));
            } else {
                load_configuration(&self.before);
            }
        }
    }
}

/// # Safety
///
/// As for [`Configured::new`].
unsafe fn load_configuration(configuration: &Configuration) {
    // SAFETY: the instruction reads the 64 bytes of the configuration.
    unsafe { asm!("ldtilecfg [{}]", in(reg) configuration, options(nostack, preserves_flags, readonly)) }
}

/// The registers of the calling thread. It must live no longer than a [`Configured`] of the same thread.
pub(super) struct Amx;

// SAFETY of every block: a `Configured` lives, as the type demands, and addresses are valid, as the trait demands. The compiler
// itself makes no use of these registers, and keeps the order of statements that it does not know to be pure.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Tiles for Amx {
    #[inline(always)]
    unsafe fn zero<const TILE: usize>(&mut self) {
        unsafe { asm!("tilezero tmm{tile}", tile = const TILE, options(nostack, nomem, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        unsafe {
            asm!("tileloadd tmm{tile}, [{from} + {stride}*1]", tile = const TILE, from = in(reg) from,
                stride = in(reg) stride, options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_once<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        unsafe {
            asm!("tileloaddt1 tmm{tile}, [{from} + {stride}*1]", tile = const TILE, from = in(reg) from,
                stride = in(reg) stride, options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{tile}", tile = const TILE, to = in(reg) to,
                stride = in(reg) stride, options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn multiply<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        unsafe {
            asm!("tdpbf16ps tmm{sum}, tmm{left}, tmm{right}", sum = const SUM, left = const LEFT, right = const RIGHT,
                options(nostack, nomem, preserves_flags));
        }
    }
}
