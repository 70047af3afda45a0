//! What the knobs of every kernel have in common: named values, a description for people and for searches, named configs,
//! a form as text.

use crate::error::{Error, Result};
use crate::suggest;
use std::iter;

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

/// Configs without end, every listed value of every knob as likely as any other; a seed always gives the same.
pub(crate) fn draws<Config: Default>(
    seed: u64,
    knobs: &'static [Knob],
    set: fn(Config, &str, &str) -> Result<Config>,
) -> impl Iterator<Item = Config> {
    let mut state = seed;
    let mut below = move |count: usize| {
        // Knuth's generator; its high bits look random enough to pick values by.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % count
    };
    let draw = move || {
        let draw = |config, knob: &Knob| set(config, knob.name, knob.values[below(knob.values.len())]);
        knobs.iter().try_fold(Config::default(), draw)
    };
    iter::repeat_with(draw).flatten()
}

/// Declares an enum of knob values with their names as text.
macro_rules! knob_values {
    ($(#[$meta:meta])* $knob:ident($name:literal) { $($(#[$doc:meta])* $value:ident = $text:literal),+ $(,)? }) => {
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
        }
    };
}

pub(crate) use knob_values;

/// What a knob may be, read from text.
pub(crate) trait KnobValue: Sized {
    /// `fix` is what a person should do about a number that is none.
    fn read(knob: &str, text: &str, fix: &str) -> Result<Self>;
}

impl KnobValue for usize {
    fn read(knob: &str, text: &str, fix: &str) -> Result<Self> {
        text.parse().map_err(|_| Error::invalid(knob, format!("`{text}` is not a number"), fix))
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
