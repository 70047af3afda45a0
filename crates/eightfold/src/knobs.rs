//! What the knobs of every kernel have in common: named values, a description for people and for searches, named configs.

use crate::error::Result;
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
    };
}

pub(crate) use knob_values;
