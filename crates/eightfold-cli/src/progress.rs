//! Progress for a person: a bar on a terminal, nothing in a pipe.

use eightfold_lab::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
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
        if !std::io::stderr().is_terminal() {
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
