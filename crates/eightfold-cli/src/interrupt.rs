//! Ctrl-C as a wish instead of an end: the first asks to stop, the second stops.

use std::sync::atomic::AtomicBool;

/// Whether someone asked to stop.
static STOP: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C, or the first request to terminate, only sets this.
pub fn watch() -> &'static AtomicBool {
    #[cfg(unix)]
    unix::watch();
    &STOP
}

#[cfg(unix)]
mod unix {
    use super::STOP;
    use std::sync::atomic::Ordering;

    const INTERRUPT: i32 = 2;
    const TERMINATE: i32 = 15;
    const DEFAULT: usize = 0;

    // The C library's, which the standard library links anyway.
    unsafe extern "C" {
        fn signal(number: i32, handler: usize) -> usize;
    }

    extern "C" fn note(number: i32) {
        STOP.store(true, Ordering::Relaxed);
        // SAFETY: `signal` may be called in a handler, and the default action is always a valid one.
        unsafe { signal(number, DEFAULT) };
    }

    pub fn watch() {
        let handler: extern "C" fn(i32) = note;
        for number in [INTERRUPT, TERMINATE] {
            // SAFETY: the handler has the signature that `signal` asks for, lives as long as the program, and does
            // nothing that a handler must not do.
            unsafe { signal(number, handler as usize) };
        }
    }
}
