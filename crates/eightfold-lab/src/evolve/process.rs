//! Another process and all of its children, which go when it goes.

use crate::exit::in_words;
use std::io::{BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// A child process in a process group of its own: a Ctrl-C in the terminal does not reach it, and killing it kills
/// whatever it started.
pub(super) struct Process {
    child: Child,
    complaints: Option<JoinHandle<String>>,
    /// How it ended, once it and its group are gone: their number may be another's by then.
    gone: Option<Option<ExitStatus>>,
}

/// A command that a shell runs.
pub(super) fn shell(command: &str) -> Command {
    let mut shell = if cfg!(windows) { Command::new("cmd") } else { Command::new("/bin/sh") };
    shell.args([if cfg!(windows) { "/C" } else { "-c" }, command]);
    shell
}

impl Process {
    /// Starts it, with its standard input and output.
    pub fn start(mut command: Command) -> std::io::Result<(Process, ChildStdin, ChildStdout)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(complaints)) = pipes else {
            return Err(std::io::Error::other("its pipes cannot be opened"));
        };
        let complaints = std::thread::spawn(move || last_line(complaints));
        Ok((Process { child, complaints: Some(complaints), gone: None }, input, output))
    }

    /// Ends it and everything that it started, and says how it ended.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        if let Some(status) = self.gone {
            return status;
        }
        // One that ended by itself tells how; its children may still be there.
        let mut ended = self.child.try_wait().ok().flatten();
        if ended.is_none() {
            // What stands between here and another machine can tell it to end, if it is not killed at once.
            self.signal("TERM");
            self.wait_a_moment();
            ended = self.child.try_wait().ok().flatten();
        }
        self.signal("KILL");
        if ended.is_none() {
            let _ = self.child.kill();
        }
        let status = self.child.wait().ok();
        self.gone = Some(status);
        status
    }

    /// Sends a signal to all of its group. The standard library kills a process alone; a shell's own kill does this.
    fn signal(&self, name: &str) {
        if cfg!(unix) {
            let kill = format!("kill -s {name} -- -{}", self.child.id());
            let _ = shell(&kill).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }

    /// How it ended, and its last words; only of one that closed its standard output.
    pub fn obituary(&mut self) -> String {
        self.wait_a_moment();
        let how = self.kill().map_or("it is gone".into(), |status| in_words(&status));
        let words = self.complaints.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if words.is_empty() { how } else { format!("{how}: {words}") }
    }

    /// One that closed its output is about to end.
    fn wait_a_moment(&mut self) {
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a reader of lines met.
pub(super) enum Heard {
    /// A line without its end.
    Line(String),
    /// More bytes without the end of a line than a line may have.
    Flood,
}

/// Reads lines of at most this many bytes in a thread of its own; the channel closes where the stream ends.
pub(super) fn lines(stream: impl Read + Send + 'static, most_bytes: usize) -> Receiver<Heard> {
    // Bounded: a process that talks without being asked is not listened to for long.
    let (sender, receiver) = sync_channel(64);
    std::thread::spawn(move || send_lines(stream, most_bytes, &sender));
    receiver
}

fn send_lines(stream: impl Read, most_bytes: usize, sender: &SyncSender<Heard>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let read = std::io::BufRead::read_until(&mut (&mut stream).take(most_bytes as u64 + 1), b'\n', &mut line);
        let ended = line.last() == Some(&b'\n');
        if read.is_err() || line.is_empty() {
            return;
        }
        let flood = !ended && line.len() > most_bytes;
        let heard = if flood { Heard::Flood } else { Heard::Line(String::from_utf8_lossy(&line).trim_end().into()) };
        if sender.send(heard).is_err() || flood {
            return;
        }
    }
}

/// Drains the stream, so that the process never blocks on it, and keeps the last line that is not empty.
fn last_line(stream: impl Read) -> String {
    const MOST: usize = 4096;
    let mut last = String::new();
    let receiver = lines_here(stream, MOST);
    for line in receiver {
        if !line.trim().is_empty() {
            last = line.trim().to_string();
        }
    }
    last
}

/// The pieces of a stream, cut at line ends or at this many bytes.
fn lines_here(stream: impl Read, most_bytes: usize) -> impl Iterator<Item = String> {
    let mut stream = BufReader::new(stream);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let read = std::io::BufRead::read_until(&mut (&mut stream).take(most_bytes as u64), b'\n', &mut line);
        (read.is_ok() && !line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned())
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Whether a process runs; one that is dead and not yet collected does not.
    fn runs(id: &str) -> bool {
        let there = shell(&format!("kill -0 {id}")).stderr(Stdio::null()).status().unwrap().success();
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        there && !stat.contains(") Z ")
    }

    #[test]
    fn the_children_of_a_process_go_with_it() {
        let (mut process, _input, output) = Process::start(shell("sleep 600 & echo $!; wait")).unwrap();
        let Heard::Line(child) = lines(output, 100).recv().unwrap() else { panic!("a flood") };
        assert!(runs(&child));
        process.kill();
        let deadline = Instant::now() + Duration::from_secs(20);
        while runs(&child) {
            assert!(Instant::now() < deadline, "a child outlived its parent");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn how_it_ended_and_its_last_words() {
        let obituary = |script: &str| Process::start(shell(script)).unwrap().0.obituary();
        assert_eq!(obituary("echo one >&2; echo last words >&2; exit 3"), "exit code 3: last words");
        assert_eq!(obituary("kill -SEGV $$"), "signal 11 (segmentation fault)");
        assert_eq!(obituary("kill -ABRT $$"), "signal 6 (aborted)");
    }

    #[test]
    fn a_flood_is_cut_off() {
        let (_process, _input, output) = Process::start(shell("echo short; yes | tr -d '\\n'")).unwrap();
        let heard = lines(output, 1000);
        assert!(matches!(heard.recv().unwrap(), Heard::Line(line) if line == "short"));
        assert!(matches!(heard.recv().unwrap(), Heard::Flood));
        assert!(heard.recv().is_err());
    }
}
