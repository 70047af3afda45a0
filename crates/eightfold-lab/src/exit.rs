//! How another process ended, in words.

use std::process::ExitStatus;

/// The signal that ended it; none for a process that exited, and where there are no signals.
pub(crate) fn signal(status: &ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(status);
    #[cfg(not(unix))]
    None
}

/// A signal by its number and by what it means.
pub(crate) fn signal_in_words(signal: i32) -> String {
    let name = match signal {
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "arithmetic error",
        9 => "killed, as the system does when memory runs out",
        11 => "segmentation fault",
        15 => "terminated",
        _ => "a signal",
    };
    format!("signal {signal} ({name})")
}

/// A signal or an exit code.
pub(crate) fn in_words(status: &ExitStatus) -> String {
    match (signal(status), status.code()) {
        (Some(signal), _) => signal_in_words(signal),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "it is gone".into(),
    }
}
