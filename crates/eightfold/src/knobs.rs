//! What the knobs of every kernel have in common: named values, and a description for people and for searches.

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
