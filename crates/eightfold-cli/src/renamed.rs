//! Flags by the names that they had before 0.1.0, answered with today's.

/// A flag that has another name, or became a command.
struct Renamed {
    old: &'static str,
    /// The commands that had it; every one if empty.
    of: &'static [&'static str],
    /// What to write instead.
    new: &'static str,
}

const RENAMED: &[Renamed] = &[
    Renamed { old: "--out", of: &["report", "attend"], new: "`--to FILE`, the file to write" },
    Renamed { old: "--out", of: &[], new: "`--records DIR`, the folder of the records" },
    Renamed { old: "--output", of: &[], new: "`--dtype`, the number format of the output" },
    Renamed { old: "--out-dtype", of: &[], new: "`--dtype`, the number format of the output" },
    Renamed { old: "--arch", of: &["run"], new: "the command `eightfold build --arch ARCH`" },
    Renamed { old: "--no-toggle", of: &["run"], new: "the command `eightfold build --no-toggle`" },
    Renamed { old: "--nvcc", of: &["run"], new: "the command `eightfold build --nvcc`" },
    Renamed { old: "--dump-tiles", of: &["run"], new: "the command `eightfold dump --variant VARIANT --to FILE`" },
    Renamed { old: "--quantizer", of: &["bench"], new: "the command `eightfold bench quantizer`" },
    Renamed { old: "--markdown", of: &["ledger"], new: "`--format markdown`" },
    Renamed { old: "--kernel", of: &["explain", "attend", "compare"], new: "`--variant VARIANT`" },
];

/// One line for a person who typed a flag that is not known any more; none if it never was.
pub fn advice(line: &[String], flag: &str) -> Option<String> {
    let flag = flag.split('=').next().unwrap_or(flag);
    let command = line.iter().find(|word| !word.starts_with('-')).map_or("", String::as_str);
    let is_of = |renamed: &&Renamed| renamed.of.is_empty() || renamed.of.contains(&command);
    let found = RENAMED.iter().filter(|renamed| renamed.old == flag).find(is_of)?;
    Some(format!("unexpected argument '{flag}'; did you mean {}?", found.new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::CommandLine;
    use clap::CommandFactory;

    #[test]
    fn a_flag_with_another_name_is_answered_by_the_command_that_had_it() {
        let of = |line: &str, flag| advice(&line.split(' ').map(String::from).collect::<Vec<_>>(), flag);
        assert!(of("bench --out x", "--out").unwrap().contains("`--records DIR`"));
        assert!(of("--out=x", "--out=x").unwrap().contains("`--records DIR`"));
        assert!(of("attend --out x", "--out").unwrap().contains("`--to FILE`"));
        assert!(of("run --arch sm_90", "--arch").unwrap().contains("`eightfold build --arch ARCH`"));
        assert_eq!(of("bench --arch sm_90", "--arch"), None);
        assert_eq!(of("bench --shpe x", "--shpe"), None);
    }

    #[test]
    fn no_command_has_a_flag_by_its_old_name() {
        for command in CommandLine::command().get_subcommands() {
            let flags: Vec<String> =
                command.get_arguments().filter_map(|flag| flag.get_long()).map(|long| format!("--{long}")).collect();
            for Renamed { old, of, .. } in RENAMED {
                let had = of.is_empty() || of.contains(&command.get_name());
                assert!(!had || !flags.contains(&old.to_string()), "{} {old}", command.get_name());
            }
        }
    }
}
