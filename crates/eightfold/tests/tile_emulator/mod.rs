//! Tile instructions for CPUs that have none: a handler of SIGILL that does what they do, on the registers' portable twin.

use eightfold::lab::cpu::tiles::{Configuration, Twin};
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// The registers of a thread. Only the handler touches them, which nothing interrupts that would.
    static REGISTERS: UnsafeCell<Twin> = const { UnsafeCell::new(Twin::RELEASED) };
}

static EXECUTED: AtomicUsize = AtomicUsize::new(0);

/// How many instructions the handler has executed.
pub fn executed() -> usize {
    EXECUTED.load(Ordering::Relaxed)
}

/// Whether the CPU announces tiles.
pub fn cpu_has_tiles() -> bool {
    const AMX_TILE: u32 = 1 << 24;
    // SAFETY: every x86-64 CPU has this instruction.
    #[allow(unused_unsafe)]
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & AMX_TILE != 0
    }
}

/// Catches SIGILL from now on.
pub fn install() {
    // SAFETY: the action is initialised before it is used, and the handler has the signature that its flag asks for.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0, "the handler cannot be installed");
    }
}

extern "C" fn handle(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands over the context of the thread, whose instruction pointer is at the instruction, which is 15 bytes
    // long at most; what it names is what the program named.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as *const u8;
        let Some(instruction) = Instruction::decode(at, registers) else {
            eprintln!("an illegal instruction that is no tile instruction");
            process::abort();
        };
        REGISTERS.with(|twin| instruction.execute(&mut *twin.get()));
        registers[libc::REG_RIP as usize] += instruction.length as i64;
    }
    EXECUTED.fetch_add(1, Ordering::Relaxed);
}

/// A tile instruction with the address that it names.
struct Instruction {
    /// The prefix that the opcode implies: 0 for none, 1 for 66, 2 for F3, 3 for F2.
    prefix: u8,
    opcode: u8,
    /// Whether the operand is a register.
    is_register: bool,
    reg: usize,
    rm: usize,
    /// The register that the prefix names.
    other: usize,
    address: usize,
    stride: usize,
    length: usize,
}

/// The general registers in the order of their numbers.
const GENERAL: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

impl Instruction {
    /// Reads VEX.128.*.0F38.W0 with a register or a memory operand; none if it is something else.
    ///
    /// # Safety
    ///
    /// There must be an instruction.
    unsafe fn decode(at: *const u8, registers: &[i64]) -> Option<Self> {
        // SAFETY: bytes are read as far as those before say that the instruction goes.
        let byte = |index: usize| unsafe { at.add(index).read() };
        let (first, second, third) = (byte(0), byte(1), byte(2));
        let is_vex = first == 0xc4 && second & 0x1f == 2 && third & 0x84 == 0;
        if !is_vex {
            return None;
        }
        // These bits are stored inverted.
        let (r, x, b) = (!second >> 7 & 1, !second >> 6 & 1, !second >> 5 & 1);
        let (opcode, modrm) = (byte(3), byte(4));
        let (mode, reg, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let mut instruction = Instruction {
            prefix: third & 3,
            opcode,
            is_register: mode == 3,
            reg: usize::from(r << 3 | reg),
            rm: usize::from(b << 3 | rm),
            other: usize::from(!third >> 3 & 15),
            address: 0,
            stride: 0,
            length: 5,
        };
        if mode == 3 {
            return Some(instruction);
        }
        let general = |number: u8| registers[GENERAL[usize::from(number)] as usize] as usize;
        let base = if rm == 4 {
            let sib = byte(5);
            instruction.length += 1;
            let (scale, index, base) = (sib >> 6, x << 3 | sib >> 3 & 7, sib & 7);
            if index != 4 {
                instruction.stride = general(index) << scale;
            }
            assert!(base != 5 || mode != 0, "an address without a base");
            base
        } else {
            assert!(rm != 5 || mode != 0, "an address relative to the instruction");
            rm
        };
        let displacement = match mode {
            0 => 0,
            1 => isize::from(byte(instruction.length) as i8),
            _ => i32::from_le_bytes([0, 1, 2, 3].map(|index| byte(instruction.length + index))) as isize,
        };
        instruction.length += [0, 1, 4][usize::from(mode)];
        instruction.address = general(b << 3 | base).wrapping_add_signed(displacement);
        Some(instruction)
    }

    /// # Safety
    ///
    /// What it names must be valid.
    unsafe fn execute(&self, twin: &mut Twin) {
        let Instruction { prefix, opcode, is_register, reg, rm, other, address, stride, .. } = *self;
        // SAFETY: the program vouches for addresses that it names.
        unsafe {
            match (opcode, prefix, is_register) {
                (0x49, 0, false) => twin.configure(&Configuration((address as *const [u8; 64]).read_unaligned())),
                (0x49, 1, false) => (address as *mut [u8; 64]).write_unaligned(twin.configuration().0),
                (0x49, 0, true) if reg == 0 && rm == 0 => *twin = Twin::RELEASED,
                (0x49, 3, true) => twin.zero(reg),
                (0x4b, 1 | 3, false) => twin.load(reg, address as *const u8, stride),
                (0x4b, 2, false) => twin.store(reg, address as *mut u8, stride),
                (0x5c, 2, true) => twin.multiply(reg, rm, other),
                _ => panic!("opcode {opcode:02x} with prefix {prefix} is none that is used"),
            }
        }
    }
}
