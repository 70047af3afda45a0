//! Another process that answers JSON lines, and whatever may go wrong with it.

use crate::exit;
use eightfold::{Error, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A process that gets one request per line and gives one answer per line. It ends with its owner.
pub(crate) struct Worker {
    name: String,
    fix: String,
    child: Child,
    requests: ChildStdin,
    answers: Receiver<std::io::Result<String>>,
    complaints: Option<JoinHandle<String>>,
    /// How it ended by itself.
    ended: Option<ExitStatus>,
    timeout: Duration,
}

impl Worker {
    /// Starts the process. `fix` is what a person should do if it fails.
    pub fn start(name: &str, fix: &str, mut command: Command, timeout: Duration) -> Result<Self> {
        let unavailable = |reason: String| Error::unavailable(name, reason, fix);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child =
            command.spawn().map_err(|error| unavailable(format!("`{program}` cannot be started: {error}")))?;
        let (Some(requests), Some(output), Some(complaints)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(unavailable("its pipes cannot be opened".into()));
        };
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let complaints = std::thread::spawn(move || last_line(complaints));
        Ok(Worker {
            name: name.into(),
            fix: fix.into(),
            child,
            requests,
            answers,
            complaints: Some(complaints),
            ended: None,
            timeout,
        })
    }

    /// Changes what a person should do if it fails from now on.
    pub fn set_fix(&mut self, fix: &str) {
        self.fix = fix.into();
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, request: &Value) -> Result<Value> {
        // A worker that died is reported by listen, which knows what it said last.
        let _ = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        self.listen()
    }

    /// Waits for the next answer; an answer with the field `error` is an error.
    pub fn listen(&mut self) -> Result<Value> {
        let line = match self.answers.recv_timeout(self.timeout) {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => {
                return Err(self.failed(format!("its answer cannot be read: {error}")));
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = self.timeout.as_secs_f64();
                return Err(self.failed(format!("no answer within {seconds} s")));
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.ended = self.wait_a_moment();
                self.stop();
                let how = self.signal().map_or("it ended early".into(), |signal| {
                    format!("it was ended by {}", exit::signal_in_words(signal))
                });
                let last = self.complaints.take().and_then(|thread| thread.join().ok());
                let said = last.filter(|line| !line.is_empty()).map(|line| format!(": {line}"));
                return Err(self.error(how + &said.unwrap_or_default()));
            }
        };
        let answer = serde_json::from_str::<Value>(&line).ok().filter(Value::is_object);
        let Some(answer) = answer else {
            let start: String = line.chars().take(60).collect();
            return Err(self.failed(format!("it answered `{start}`, which is not a JSON object")));
        };
        match answer.get("error") {
            Some(error) => {
                let text = error.as_str().map_or_else(|| error.to_string(), str::to_string);
                Err(self.error(text.lines().next().unwrap_or_default().to_string()))
            }
            None => Ok(answer),
        }
    }

    /// The error that says this about the worker.
    pub fn error(&self, reason: String) -> Error {
        Error::unavailable(&self.name, reason, &self.fix)
    }

    /// The signal that ended it, if it was one and none of ours.
    pub fn signal(&self) -> Option<i32> {
        self.ended.as_ref().and_then(exit::signal)
    }

    /// One that closed its output is about to end.
    fn wait_a_moment(&mut self) -> Option<ExitStatus> {
        for _ in 0..200 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// After this, question and answer may be out of step, so the process goes.
    fn failed(&mut self, reason: String) -> Error {
        self.stop();
        self.error(reason)
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Drains the stream, so that the process never blocks on it, and keeps the last line that is not empty.
fn last_line(stream: impl Read) -> String {
    let mut last = String::new();
    for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
        if !line.trim().is_empty() {
            last = line.trim().to_string();
        }
    }
    last
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Instant;

    fn shell(script: &str) -> Worker {
        shell_with(script, Duration::from_secs(30))
    }

    fn shell_with(script: &str, timeout: Duration) -> Worker {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Worker::start("the peer", "mend it", command, timeout).unwrap()
    }

    fn complaint(script: &str) -> String {
        shell(script).ask(&json!({"command": "load"})).unwrap_err().to_string()
    }

    #[test]
    fn questions_are_answered_in_turn() {
        let mut worker = shell(r#"while read -r line; do echo "{\"got\": $line}"; done"#);
        for number in 0..3 {
            assert_eq!(worker.ask(&json!(number)).unwrap(), json!({"got": number}));
        }
    }

    #[test]
    fn a_program_that_is_not_there() {
        let command = Command::new("/no/such/python");
        let error = Worker::start("the peer", "mend it", command, Duration::from_secs(1));
        let error = error.err().unwrap().to_string();
        assert!(error.starts_with("the peer is not available: `/no/such/python` cannot be started"), "{error}");
    }

    #[test]
    fn errors_as_data_leave_the_worker_alive() {
        let mut worker = shell(r#"read -r a; printf '%s\n' '{"error": "no\nmore"}'; read -r b; echo '{"ok": 1}'"#);
        let error = worker.ask(&json!(1)).unwrap_err().to_string();
        assert_eq!(error, "the peer is not available: no; mend it");
        assert_eq!(worker.ask(&json!(2)).unwrap(), json!({"ok": 1}));
    }

    #[test]
    fn garbage_is_quoted() {
        assert!(complaint("read -r a; echo hello").contains("`hello`, which is not a JSON object"));
        assert!(complaint("read -r a; echo '[1]'").contains("`[1]`, which is not a JSON object"));
    }

    #[test]
    fn a_death_is_reported_with_the_last_words() {
        assert!(
            complaint("read -r a; echo first >&2; echo last words >&2; exit 3").contains("it ended early: last words")
        );
        assert!(complaint("exit 0").contains("it ended early"));
    }

    #[test]
    fn a_signal_that_ended_it_is_told_and_an_exit_is_none() {
        let mut worker = shell("read -r a; kill -ILL $$");
        let error = worker.ask(&json!(1)).unwrap_err().to_string();
        assert!(error.contains("it was ended by signal 4 (illegal instruction)"), "{error}");
        assert_eq!(worker.signal(), Some(4));
        let mut worker = shell("read -r a; exit 4");
        assert!(worker.ask(&json!(1)).is_err() && worker.signal().is_none());
    }

    #[test]
    fn a_hang_ends_at_the_time_limit_and_the_process_is_gone() {
        let start = Instant::now();
        let mut worker = shell_with("exec sleep 60", Duration::from_millis(500));
        assert!(worker.ask(&json!(1)).unwrap_err().to_string().contains("no answer within 0.5 s"));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(worker.child.try_wait().unwrap().is_some());
    }
}
