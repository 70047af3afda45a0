//! Work in a fork of the test's process.

/// A fork that takes longer is killed.
const MOST_SECONDS: u32 = 30;

/// The exit status of a fork that does this; 128 and the signal if one killed it.
pub fn status_of(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child does its work in the one thread it has, and leaves without what others would clean up.
    unsafe {
        match libc::fork() {
            -1 => panic!("cannot fork"),
            0 => {
                libc::alarm(MOST_SECONDS);
                libc::_exit(work())
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
            }
        }
    }
}
