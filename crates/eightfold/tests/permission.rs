//! A system that does not give tiles to the process: the next path computes, and nothing crashes.
//!
//! What was found holds for the life of a process, so each case is a fork of its own. On a CPU with AMX they are refused; on others
//! they are not there, and the same must hold.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod fork;

use eightfold::lab::cpu::Features;
use eightfold::lab::cpu::tiles::Missing;
use eightfold::{Problem, Shape, quantize, reference};
use std::thread;

/// The case could not be made to happen here.
const NOT_MADE: i32 = 77;

/// 0 if tiles are missing for this reason, or are not there at all, and attention is right without them.
fn computes_without_tiles(refused: Missing) -> i32 {
    let problem = Problem::new(Shape::new(1, 2, 70, 64)).unwrap();
    let dims = problem.shape().query_dims();
    let values: Vec<f32> = (0..dims.count()).map(|index| ((index * 7919) % 2003) as f32 / 1001.5 - 1.0).collect();
    let [q, k, v] = [(); 3].map(|()| quantize(&values, dims).unwrap());
    let output = eightfold::attention(&problem, &q, &k, &v).unwrap();
    let expected = reference::attention(&problem, &q.dequantize(), &k.dequantize(), &v.dequantize()).unwrap();
    let close = |(value, expected): (&f32, &f64)| (f64::from(*value) - expected).abs() < 2e-3;
    if !output.values.to_f32().iter().zip(&expected.values).all(close) {
        return 1;
    }
    match Features::detect().amx {
        Err(Missing::Instructions | Missing::Vectors | Missing::System) => 0,
        Err(missing) if missing == refused => 0,
        _ => 2,
    }
}

/// Makes `arch_prctl`, by which a process asks for tiles, fail with this error from now on; false if that is not allowed here.
fn forbid_asking(error: i32) -> bool {
    let load_number = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut steps = [
        step(load_number, 0, 0),
        step(is_equal, 1, libc::SYS_arch_prctl as u32),
        step(answer, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program outlives the call, which copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}

#[test]
fn a_system_that_refuses_tiles_leaves_the_next_path() {
    let status = fork::status_of(|| match forbid_asking(libc::EPERM) {
        true => computes_without_tiles(Missing::Refused(libc::EPERM)),
        false => NOT_MADE,
    });
    if status == NOT_MADE {
        println!("not run: this process may not filter its own system calls");
        return;
    }
    assert_eq!(status, 0);
}

/// Linux refuses tiles while some thread has an alternative stack for signals that could not hold them.
#[test]
fn a_small_stack_for_signals_leaves_the_next_path() {
    const SMALL: usize = 4096;
    let status = fork::status_of(|| {
        let mut memory = [0u8; SMALL];
        let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: SMALL };
        // SAFETY: the stack outlives the thread, which leaves the process when this is done.
        if unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) } != 0 {
            return NOT_MADE;
        }
        // Threads that come later are refused nothing.
        thread::scope(|scope| {
            let others = [(); 2].map(|()| scope.spawn(|| computes_without_tiles(Missing::Refused(libc::ENOSPC))));
            others.into_iter().map(|other| other.join().unwrap_or(3)).max().unwrap_or(3)
        })
    });
    if status == NOT_MADE {
        println!("not run: the system wants a larger stack for signals already");
        return;
    }
    assert_eq!(status, 0);
}
