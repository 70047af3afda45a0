//! What can go wrong, said so that a person can act on it.

use std::fmt;

/// The result of every fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A mistake in an argument, something this machine cannot do, or a fault of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks a rule.
    Invalid {
        /// The argument, by the name that the caller gave it.
        argument: String,
        /// The rule and the value that breaks it.
        rule: String,
        /// What to do instead.
        fix: String,
    },
    /// The request is sound, but this machine cannot serve it.
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why it is not to be had.
        reason: String,
        /// What would make it available, or what to use instead.
        fix: String,
    },
    /// A call of the device's driver failed.
    Device {
        /// The driver's function.
        call: String,
        /// CUDA's name for what happened, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        name: String,
        /// What to do about it.
        fix: String,
    },
}

impl Error {
    /// An [`Error::Invalid`] that names the argument, the broken rule and the fix.
    pub fn invalid(argument: impl Into<String>, rule: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Invalid { argument: argument.into(), rule: rule.into(), fix: fix.into() }
    }

    /// An [`Error::Unavailable`] that names the wish, the reason and the way out.
    pub fn unavailable(what: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Unavailable { what: what.into(), reason: reason.into(), fix: fix.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid { argument, rule, fix } => write!(f, "{argument}: {rule}; {fix}"),
            Error::Unavailable { what, reason, fix } => {
                write!(f, "{what} is not available: {reason}; {fix}")
            }
            Error::Device { call, name, fix } => write!(f, "{call}: {name}; {fix}"),
        }
    }
}

impl std::error::Error for Error {}
