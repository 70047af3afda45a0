//! Which keys a query may see.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Which keys a query may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask {
    /// Every query sees every key.
    None,
    /// Bottom-right aligned, as FlashAttention does: the last query sees every key, and query `i` sees
    /// keys `0 ..= i + key_len - query_len`. With more queries than keys the first ones see nothing.
    Causal,
}

impl Mask {
    /// The causal mask if it is asked for, and else none.
    pub fn causal_if(causal: bool) -> Mask {
        if causal { Mask::Causal } else { Mask::None }
    }
}

/// A sliding window: how far a query sees from its own key, which for query `i` is key `i + key_len - query_len`, as in
/// FlashAttention. The default is open on both sides.
///
/// ```
/// use eightfold::{Problem, Shape, Window};
///
/// let problem = Problem::new(Shape::new(1, 8, 512, 64))?.causal().with_window(Window::new(Some(127), None));
/// assert_eq!(problem.visible(300), 173..301);
/// # Ok::<(), eightfold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Window {
    /// Keys before its own that a query sees; all where this is none.
    pub left: Option<usize>,
    /// Keys after its own that a query sees; all where this is none.
    pub right: Option<usize>,
}

impl Window {
    /// So many keys on either side of a query's own; none leaves a side open.
    pub const fn new(left: Option<usize>, right: Option<usize>) -> Window {
        Window { left, right }
    }
}

/// `L,R`, where −1 is an open side.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: Option<usize>| side.map_or_else(|| "-1".into(), |keys| keys.to_string());
        write!(f, "{},{}", side(self.left), side(self.right))
    }
}

impl FromStr for Window {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            Error::invalid(
                "window",
                format!("`{text}` is not the numbers of keys to the left and to the right"),
                "write L,R, for example 127,0, with -1 for a side that is open",
            )
        };
        let side = |side: &str| match side.trim() {
            "-1" => Ok(None),
            keys => keys.parse().map(Some).map_err(|_| invalid()),
        };
        let (left, right) = text.split_once(',').ok_or_else(invalid)?;
        Ok(Window { left: side(left)?, right: side(right)? })
    }
}
