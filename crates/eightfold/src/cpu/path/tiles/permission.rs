//! Whether this process may use tile registers: the CPU must have them, the system must keep them for each thread, and on Linux
//! it must have been asked, once for the whole process.

use super::vectors;
use std::fmt;
use std::sync::OnceLock;

/// What tiles need that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The CPU has no AMX, or none for bf16.
    Instructions,
    /// The CPU lacks the AVX-512 that works beside the tiles.
    Vectors,
    /// The system does not keep tile registers when threads take turns.
    System,
    /// The system was asked and refused, with this error number.
    Refused(i32),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Some thread has an alternative stack for signals that could not hold the tile registers.
        const ENOSPC: i32 = 28;
        match self {
            Missing::Instructions => f.write_str("this CPU has no AMX tiles for bf16"),
            Missing::Vectors => {
                f.write_str("this CPU lacks AVX-512 F, BW, DQ, VL, VBMI or BF16, which works beside AMX tiles")
            }
            Missing::System => f.write_str("this system does not keep AMX tiles for each thread"),
            Missing::Refused(ENOSPC) => f.write_str(
                "the system refuses AMX tiles: a thread's alternative stack for signals is too small to hold them",
            ),
            Missing::Refused(error) => write!(f, "the system refuses AMX tiles to this process (error {error})"),
        }
    }
}

/// What was found of the CPU and the system.
#[derive(Debug, Clone, Copy)]
struct Found {
    instructions: bool,
    vectors: bool,
    system: bool,
}

/// The first thing that is missing. The system is asked only where everything else is there: what it grants, it grants for the
/// life of the process, and signals take a larger stack from then on.
fn decide(found: Found, ask: impl FnOnce() -> Result<(), i32>) -> Result<(), Missing> {
    let Found { instructions, vectors, system } = found;
    if !instructions {
        return Err(Missing::Instructions);
    }
    if !vectors {
        return Err(Missing::Vectors);
    }
    if !system {
        return Err(Missing::System);
    }
    ask().map_err(Missing::Refused)
}

static DECIDED: OnceLock<Result<(), Missing>> = OnceLock::new();

/// Whether this process may use tiles. Looks and asks once.
pub(in crate::cpu) fn check() -> Result<(), Missing> {
    *DECIDED.get_or_init(|| decide(Found::here(), ask))
}

/// Lets this process use tiles whatever CPU and system say; false if that was decided before.
///
/// # Safety
///
/// Something must do what tile instructions do: a handler of the signal that they raise where there are none.
pub unsafe fn assume() -> bool {
    vectors::avx512_is_here() && DECIDED.set(Ok(())).is_ok()
}

#[cfg(target_arch = "x86_64")]
impl Found {
    /// Looks at the CPU this runs on.
    fn here() -> Self {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const LEAF: u32 = 7;
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        const OSXSAVE: u32 = 1 << 27;
        const TILE_STATES: u64 = 0b11 << 17;
        // SAFETY: every x86-64 CPU has this instruction.
        #[allow(unused_unsafe)]
        let features = unsafe { if __cpuid(0).eax < LEAF { 0 } else { __cpuid_count(LEAF, 0).edx } };
        let instructions = features & AMX_TILE != 0 && features & AMX_BF16 != 0;
        // SAFETY: as above; the register of states is there where the system says that it uses it.
        #[allow(unused_unsafe)]
        let system = instructions && unsafe { __cpuid(1).ecx & OSXSAVE != 0 && states() & TILE_STATES == TILE_STATES };
        Found { instructions, vectors: vectors::avx512_is_here(), system }
    }
}

/// The register states that the system keeps for each thread.
///
/// # Safety
///
/// The system must have announced that it uses the register.
#[cfg(target_arch = "x86_64")]
unsafe fn states() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the instruction is there, as the caller promises, and changes these registers only.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(not(target_arch = "x86_64"))]
impl Found {
    fn here() -> Self {
        Found { instructions: false, vectors: false, system: false }
    }
}

/// Asks Linux for tile registers, and whether they were granted.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask() -> Result<(), i32> {
    const ARCH_PRCTL: isize = 158;
    const ARCH_GET_XCOMP_PERM: usize = 0x1022;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    const EACCES: i32 = 13;
    let arch_prctl = |code: usize, argument: usize| {
        let result: isize;
        // SAFETY: `arch_prctl` reads its arguments, or writes the states to `argument`, which is a u64's address then.
        unsafe {
            std::arch::asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") code, in("rsi") argument,
                lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        if result < 0 { Err(-result as i32) } else { Ok(()) }
    };
    arch_prctl(ARCH_REQ_XCOMP_PERM, TILE_DATA)?;
    let mut granted = 0u64;
    arch_prctl(ARCH_GET_XCOMP_PERM, &raw mut granted as usize)?;
    if granted >> TILE_DATA & 1 == 1 { Ok(()) } else { Err(EACCES) }
}

/// How other systems are asked is not known here.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn ask() -> Result<(), i32> {
    const ENOSYS: i32 = 38;
    Err(ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thing_that_is_missing_is_named_and_the_system_is_asked_last() {
        let all = Found { instructions: true, vectors: true, system: true };
        let unasked = || -> Result<(), i32> { panic!("asked in vain") };
        assert_eq!(decide(Found { instructions: false, ..all }, unasked), Err(Missing::Instructions));
        assert_eq!(decide(Found { vectors: false, ..all }, unasked), Err(Missing::Vectors));
        assert_eq!(decide(Found { system: false, ..all }, unasked), Err(Missing::System));
        assert_eq!(decide(all, || Ok(())), Ok(()));
        for (error, words) in
            [(28, "stack for signals is too small"), (22, "refuses AMX tiles to this process (error 22)")]
        {
            let refused = decide(all, || Err(error)).unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }

    #[test]
    fn what_is_found_here_is_what_is_decided() {
        let found = Found::here();
        let before = check();
        assert_eq!(before, check());
        assert!(found.instructions || before == Err(Missing::Instructions), "{found:?}, {before:?}");
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn a_system_without_tiles_refuses_them_with_an_error() {
        // Where there are none, the kernel must say so, and the process must live on.
        let found = Found::here();
        assert!(ask().is_err() || found.instructions, "granted what is not there: {found:?}");
        // A CPU that announces what the system does not know of.
        let announced = Found { instructions: true, vectors: true, system: true };
        let decided = decide(announced, ask);
        assert!(matches!(decided, Err(Missing::Refused(_))) || found.instructions, "{decided:?}");
    }
}
