//! `eightfold completions`: what a shell completes.

use crate::arguments::CommandLine;
use crate::{Verdict, output};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use eightfold::Result;

/// For which shell.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the shell's script.
pub fn execute(arguments: &Arguments) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut CommandLine::command(), "eightfold", &mut script);
    output::print_raw(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Passed)
}
