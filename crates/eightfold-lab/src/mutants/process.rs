//! A process that may hang or die.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With this on standard output.
    Said(String),
    /// Without success, and with nothing on standard output: a signal, or a context that was lost.
    Silent(String),
    /// It was asked for what cannot be had.
    Mistake(String),
    /// Not in time.
    TimedOut,
}

/// The exit code of a mistake, which is no fault of a kernel's.
const MISTAKE: i32 = 2;

/// Runs it to its end, or to the limit.
pub(super) fn output_of(mut command: Command, limit: Duration) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ended::Mistake(format!("its process does not start: {error}")),
    };
    let (sender, receiver) = channel();
    let mut streams = child.stdout.take().zip(child.stderr.take());
    std::thread::spawn(move || {
        let mut said = [String::new(), String::new()];
        if let Some((output, complaints)) = &mut streams {
            // What is complained of fits a pipe: the one can be read to its end before the other.
            let _ = output.read_to_string(&mut said[0]);
            let _ = complaints.read_to_string(&mut said[1]);
        }
        let _ = sender.send(said);
    });
    let said = receiver.recv_timeout(limit);
    if matches!(said, Err(RecvTimeoutError::Timeout)) {
        // One that just ended needs no end.
        let _ = child.kill();
    }
    let status = child.wait();
    match (said, status) {
        (Err(_), _) => Ended::TimedOut,
        (Ok([text, _]), Ok(status)) if status.success() => Ended::Said(text),
        (Ok([_, complaints]), status) => {
            let last = complaints.lines().last().unwrap_or_default().to_string();
            match status.as_ref().ok().and_then(std::process::ExitStatus::code) {
                Some(MISTAKE) => Ended::Mistake(last),
                _ => Ended::Silent(status.map_or_else(|error| error.to_string(), |status| format!("{status} {last}"))),
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64) -> Ended {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        output_of(command, Duration::from_secs(seconds))
    }

    #[test]
    fn every_end_is_told_apart() {
        assert_eq!(shell("echo yes", 60), Ended::Said("yes\n".into()));
        assert_eq!(shell("echo no >&2; exit 2", 60), Ended::Mistake("no".into()));
        assert!(matches!(shell("kill -s SEGV $$", 60), Ended::Silent(how) if how.contains("signal")));
        assert_eq!(shell("sleep 60", 0), Ended::TimedOut);
    }
}
