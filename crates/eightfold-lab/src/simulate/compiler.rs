//! The machine's C++ compiler.

use eightfold::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that names the compiler, before `CXX`.
const VARIABLE: &str = "EIGHTFOLD_CXX";
const NAMES: [&str; 3] = ["c++", "g++", "clang++"];

/// A C++ compiler that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CxxCompiler {
    /// The command.
    pub path: PathBuf,
    /// The first line of what it says about itself.
    pub version: String,
}

impl CxxCompiler {
    /// The one that `EIGHTFOLD_CXX` or `CXX` names, else the first of c++, g++ and clang++ that there is.
    pub fn find() -> Result<CxxCompiler> {
        if cfg!(not(target_os = "linux")) {
            return Err(Error::unavailable(
                "the simulator",
                "it stands in for the driver in a way that works on Linux alone",
                "run it on Linux, or in a container",
            ));
        }
        let named = [VARIABLE, "CXX"].into_iter().filter_map(std::env::var_os).find(|name| !name.is_empty());
        let candidates: Vec<PathBuf> = match named {
            Some(name) => vec![name.into()],
            None => NAMES.iter().map(PathBuf::from).collect(),
        };
        candidates.iter().find_map(|path| Self::at(path)).ok_or_else(|| {
            let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
            Error::unavailable(
                "the simulator",
                format!("it needs a C++ compiler, and none of these runs: {}", tried.join(", ")),
                format!("install g++ (Debian: apt-get install g++) or clang++, or name one in {VARIABLE}"),
            )
        })
    }

    fn at(path: &Path) -> Option<CxxCompiler> {
        let said = Command::new(path).arg("--version").output().ok().filter(|said| said.status.success())?;
        let version = String::from_utf8_lossy(&said.stdout).lines().next()?.to_owned();
        Some(CxxCompiler { path: path.to_owned(), version })
    }

    /// Runs it; an error is what it printed, as far as that is an error.
    pub(super) fn run(&self, what: &str, folder: &Path, arguments: &[String]) -> Result<()> {
        let output = Command::new(&self.path).args(arguments).current_dir(folder).output();
        let reason = match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => first_errors(&String::from_utf8_lossy(&output.stderr)),
            Err(error) => error.to_string(),
        };
        Err(Error::invalid(what, format!("{} does not compile it: {reason}", self.version), "mend the source"))
    }
}

fn first_errors(log: &str) -> String {
    const SHOWN: usize = 3;
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("error")).take(SHOWN).collect();
    if errors.is_empty() { log.lines().take(SHOWN).collect::<Vec<_>>().join(" / ") } else { errors.join(" / ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_says_what_it_is_and_nothing_else_is_one() {
        assert_eq!(CxxCompiler::at(Path::new("/nowhere/c++")), None);
        if let Ok(found) = CxxCompiler::find() {
            assert!(!found.version.is_empty());
            let error = found.run("x.cc", Path::new("/"), &["/nowhere/x.cc".into()]).unwrap_err().to_string();
            assert!(error.starts_with("x.cc: ") && error.contains("/nowhere/x.cc"), "{error}");
        }
    }

    #[test]
    fn of_a_long_log_the_first_errors_are_told() {
        let log = "a.cu:1: note: x\na.cu:2: error: one\na.cu:3: error: two\nerror: three\nerror: four\n";
        assert_eq!(first_errors(log), "a.cu:2: error: one / a.cu:3: error: two / error: three");
        assert_eq!(first_errors("odd\n"), "odd");
    }
}
