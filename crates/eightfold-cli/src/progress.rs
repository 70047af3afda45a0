//! Progress for a person: a bar on a terminal, nothing in a pipe.

use crate::commands::recording::Recording;
use crate::output::page::page;
use eightfold_lab::progress::Progress;
use eightfold_lab::record::Group;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::Duration;

/// A bar on standard error.
pub struct Bar {
    bar: ProgressBar,
}

/// The bar counts thousandths, because indicatif counts whole steps.
const STEPS: u64 = 1000;

impl Bar {
    /// A bar that is visible only if standard error is a terminal.
    pub fn new() -> Self {
        if !std::io::stderr().is_terminal() || page().quiet {
            return Bar { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {percent:>3}% {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Bar { bar }
    }
}

/// A bar that also keeps what a job has come to, round by round.
pub struct KeepingBar<'a> {
    bar: Bar,
    recording: &'a RefCell<Recording>,
}

impl<'a> KeepingBar<'a> {
    /// A bar for the job that this record is of.
    pub fn new(recording: &'a RefCell<Recording>) -> Self {
        KeepingBar { bar: Bar::new(), recording }
    }

    /// The line that the bar takes, to print beside it.
    pub fn line(&self) -> Line {
        Line(self.bar.bar.clone())
    }
}

/// The line of a bar.
pub struct Line(ProgressBar);

impl Line {
    /// Does this while the bar is out of the way.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Progress for KeepingBar<'_> {
    fn at(&mut self, share: f64, what: &str) {
        self.bar.at(share, what);
    }

    fn unfinished(&mut self, group: &Group) {
        // A disk that fills up meanwhile is reported when the problem is finished; until then the work goes on.
        let _ = self.recording.borrow_mut().keep_unfinished(group);
    }
}

impl Progress for Bar {
    fn at(&mut self, share: f64, what: &str) {
        self.bar.set_position((share.clamp(0.0, 1.0) * STEPS as f64) as u64);
        if self.bar.message() != what {
            self.bar.set_message(what.to_string());
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
