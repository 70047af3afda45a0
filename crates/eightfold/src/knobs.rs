//! What the knobs of every kernel have in common: named values, a description for people and for searches, named configs,
//! a form as text.

use crate::error::{Error, Result};
use crate::suggest;

/// The name and the meaning of a knob, and what it may be set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knob {
    /// Its name in the text of a variant.
    pub name: &'static str,
    /// The values worth trying; for tile sizes a sensible range, not every legal one.
    pub values: &'static [&'static str],
    /// What it does.
    pub what: &'static str,
}

/// A named config on a kernel's ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage<Config> {
    /// Its name, usable wherever a config is.
    pub name: &'static str,
    /// What changed since the stage before.
    pub what: &'static str,
    /// The knobs.
    pub config: Config,
}

/// The stage of this name.
pub(crate) fn find_stage<Config>(stages: &'static [Stage<Config>], name: &str) -> Result<&'static Stage<Config>> {
    let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
    stages.iter().find(|stage| stage.name == name).ok_or_else(|| suggest::unknown("stage", name, &names))
}

/// What settings of knobs must not be, whatever the problem and the machine.
pub(crate) struct Rule<Config> {
    /// The knob that breaks it.
    pub(crate) knob: &'static str,
    pub(crate) broken: fn(&Config) -> bool,
    pub(crate) because: &'static str,
    pub(crate) fix: &'static str,
}

/// An error about the first rule that is broken.
pub(crate) fn check_rules<Config>(config: &Config, rules: &[Rule<Config>]) -> Result<()> {
    match rules.iter().find(|rule| (rule.broken)(config)) {
        Some(rule) => Err(Error::invalid(rule.knob, rule.because, rule.fix)),
        None => Ok(()),
    }
}

/// An error where a number is none of those that a knob may be.
pub(crate) fn check_listed(knob: &str, value: usize, listed: &[usize]) -> Result<()> {
    if listed.contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(knob, format!("{value} is not one of {listed:?}"), "choose one of them"))
}

/// Declares an enum of knob values with their names as text.
macro_rules! knob_values {
    ($(#[$meta:meta])* $knob:ident($name:expr) { $($(#[$doc:meta])* $value:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $knob { $($(#[$doc])* $value),+ }

        impl $knob {
            /// Every value.
            pub const ALL: &'static [$knob] = &[$($knob::$value),+];
            /// The names of the values, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];
        }

        impl std::fmt::Display for $knob {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(Self::NAMES[*self as usize])
            }
        }

        impl std::str::FromStr for $knob {
            type Err = $crate::Error;
            fn from_str(text: &str) -> $crate::Result<Self> {
                let position = Self::NAMES.iter().position(|name| *name == text);
                position.map(|index| Self::ALL[index]).ok_or_else(|| $crate::suggest::unknown($name, text, Self::NAMES))
            }
        }

        impl $crate::knobs::KnobValue for $knob {
            fn read(_: &str, text: &str, _: &str) -> $crate::Result<Self> {
                text.parse()
            }

            fn on_device(&self) -> usize {
                *self as usize
            }
        }
    };
}

pub(crate) use knob_values;

/// What a knob may be, read from text.
pub(crate) trait KnobValue: Sized {
    /// `fix` is what a person should do about a number that is none.
    fn read(knob: &str, text: &str, fix: &str) -> Result<Self>;

    /// The number that device code knows it by.
    fn on_device(&self) -> usize;
}

impl KnobValue for usize {
    fn read(knob: &str, text: &str, fix: &str) -> Result<Self> {
        text.parse().map_err(|_| Error::invalid(knob, format!("`{text}` is not a number"), fix))
    }

    fn on_device(&self) -> usize {
        *self
    }
}

/// Gives a `Config`, beside its `KNOBS`, `stages::find` and `check`, its form as text: every knob by name, and back.
macro_rules! config_text {
    (numbers: $fix:literal; $($knob:ident),+ $(,)?) => {
        impl Config {
            /// The same config with one knob set from text.
            pub fn with_knob(mut self, knob: &str, value: &str) -> $crate::Result<Self> {
                match knob {
                    $(stringify!($knob) => self.$knob = $crate::knobs::KnobValue::read(knob, value, $fix)?,)+
                    _ => {
                        let names: Vec<_> = KNOBS.iter().map(|knob| knob.name).collect();
                        return Err($crate::suggest::unknown("knob", knob, &names));
                    }
                }
                Ok(self)
            }

            /// The value of a knob as text; none if there is no such knob.
            pub fn knob(&self, name: &str) -> Option<String> {
                Some(match name {
                    $(stringify!($knob) => self.$knob.to_string(),)+
                    _ => return None,
                })
            }
        }

        /// `knob=value,…`, every knob in the order of [`KNOBS`].
        impl std::fmt::Display for Config {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let knobs = KNOBS.iter().map(|knob| format!("{}={}", knob.name, self.knob(knob.name).unwrap_or_default()));
                f.write_str(&knobs.collect::<Vec<_>>().join(","))
            }
        }

        /// A stage's name, or `knob=value,…` where unnamed knobs keep their defaults; a stage may be followed by knobs.
        impl std::str::FromStr for Config {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<Self> {
                let mut config = Config::default();
                for part in text.split(',').filter(|part| !part.is_empty()) {
                    config = match part.split_once('=') {
                        Some((knob, value)) => config.with_knob(knob, value)?,
                        None => stages::find(part)?.config,
                    };
                }
                config.check()?;
                Ok(config)
            }
        }
    };
}

pub(crate) use config_text;

/// Declares the knobs of a kernel that is compiled at run time, each once: what it does, what it may be (numbers in brackets, or
/// names in braces), its default, and the macros by which device code reads it, with what it reads where that is not the value.
///
/// It makes `Config`, [`KNOBS`](Knob), the form as text, and an enum for each knob with names. Beside it stand `stages::find` and
/// `check`.
macro_rules! knobs {
    (
        $(#[$meta:meta])*
        numbers: $fix:literal;
        $(
            $(#[doc = $what:literal])+
            $knob:ident: $type:ident $values:tt = $default:expr => [$($macro:ident $(= $value:expr)?),+];
        )+
    ) => {
        $($crate::knobs::knob_type! { $(#[doc = $what])+ $knob $type $values })+

        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Config {
            $($(#[doc = $what])+ pub $knob: $type),+
        }

        /// Every knob, in the order in which a config prints them.
        pub const KNOBS: &[$crate::knobs::Knob] = &[$($crate::knobs::Knob {
            name: stringify!($knob),
            values: $crate::knobs::knob_names!($type $values),
            what: concat!($($what),+).trim_ascii(),
        }),+];

        impl Config {
            /// Every knob at its default.
            pub(crate) const DEFAULT: Config = Config { $($knob: $default),+ };

            /// Whether every number is one of those that its knob may be.
            fn check_numbers(&self) -> $crate::Result<()> {
                $($crate::knobs::knob_check!(self $knob $type $values);)+
                Ok(())
            }

            /// The macros by which device code reads the knobs.
            pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
                vec![$($(
                    (stringify!($macro), $crate::knobs::knob_define!(self $knob $($value)?).to_string())
                ),+),+]
            }
        }

        impl Default for Config {
            fn default() -> Self {
                Config::DEFAULT
            }
        }

        $crate::knobs::config_text! { numbers: $fix; $($knob),+ }
    };
}

macro_rules! knob_type {
    ($(#[$doc:meta])+ $knob:ident usize $values:tt) => {};
    ($(#[$doc:meta])+ $knob:ident $type:ident $values:tt) => {
        $crate::knobs::knob_values! { $(#[$doc])+ $type(stringify!($knob)) $values }
    };
}

macro_rules! knob_names {
    (usize [$($number:literal),+]) => { &[$(stringify!($number)),+] };
    ($type:ident $values:tt) => { $type::NAMES };
}

macro_rules! knob_check {
    ($config:ident $knob:ident usize $values:tt) => {
        $crate::knobs::check_listed(stringify!($knob), $config.$knob, &$values)?
    };
    ($config:ident $knob:ident $type:ident $values:tt) => {};
}

macro_rules! knob_define {
    ($config:ident $knob:ident) => {
        $crate::knobs::KnobValue::on_device(&$config.$knob)
    };
    ($config:ident $knob:ident $value:expr) => {
        ($value)($config)
    };
}

pub(crate) use {knob_check, knob_define, knob_names, knob_type, knobs};
