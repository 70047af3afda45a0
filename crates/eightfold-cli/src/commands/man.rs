//! `eightfold man`: the manual page of a command.

use crate::arguments::CommandLine;
use crate::{Verdict, output};
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use eightfold::lab::suggest;
use eightfold::{Error, Result};

/// Of which command.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The command [default: eightfold itself]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Prints the page in the language of man: `eightfold man bench | man -l -` shows it.
pub fn execute(arguments: &Arguments) -> Result<Verdict> {
    let mut all = CommandLine::command();
    all.build();
    let command = match &arguments.command {
        None => all,
        Some(name) => named(&all, name)?,
    };
    let mut page = Vec::new();
    Man::new(command)
        .render(&mut page)
        .map_err(|error| Error::unavailable("the manual page", error.to_string(), "ask for the command's --help"))?;
    output::print_raw(&String::from_utf8_lossy(&page))?;
    Ok(Verdict::Passed)
}

/// The command of this name.
fn named(all: &Command, name: &str) -> Result<Command> {
    let names: Vec<&str> = all.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
    let found = all.get_subcommands().find(|one| one.get_name() == name && names.contains(&name));
    let command = found.ok_or_else(|| suggest::unknown("command", name, &names))?;
    Ok(command.clone())
}
