//! The scales without which codes mean nothing.

use super::Dims;
use crate::error::{Error, Result};
use std::fmt;

/// How much of a tensor shares one scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Granularity {
    /// One scale for all.
    Tensor,
    /// One scale per (batch, head).
    Head,
    /// One scale per this many consecutive rows of a head; the last block may be shorter.
    Block {
        /// Rows per block.
        rows: usize,
    },
}

impl Granularity {
    /// How many scales a tensor of these dimensions has.
    pub fn count(self, dims: Dims) -> usize {
        match self {
            Granularity::Tensor => 1,
            Granularity::Head => dims.batch * dims.heads,
            Granularity::Block { rows } => dims.batch * dims.heads * dims.len.div_ceil(rows.max(1)),
        }
    }
}

impl Granularity {
    /// A block has rows; `argument` is what the caller gave it as.
    pub(crate) fn check(self, argument: &str) -> Result<()> {
        match self {
            Granularity::Block { rows: 0 } => {
                Err(Error::invalid(argument, "a block of 0 rows holds nothing", "give at least 1 row per block"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Granularity::Tensor => f.write_str("per tensor"),
            Granularity::Head => f.write_str("per head"),
            Granularity::Block { rows } => write!(f, "per block of {rows} rows"),
        }
    }
}

/// The scales of a tensor: value = code · scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Scales {
    granularity: Granularity,
    values: Vec<f32>,
}

impl Scales {
    /// Scales in `[batch, head, block]` order; each must be finite and positive.
    pub fn new(granularity: Granularity, values: Vec<f32>) -> Result<Self> {
        granularity.check("scales")?;
        if let Some((index, scale)) = values.iter().enumerate().find(|(_, scale)| !scale.is_finite() || **scale <= 0.0)
        {
            return Err(Error::invalid(
                "scales",
                format!("scale {index} is {scale}, not a finite positive number"),
                "divide the largest magnitude by the format's largest value to get a scale, and use 1 where all is zero",
            ));
        }
        Ok(Scales { granularity, values })
    }

    /// One scale for the whole tensor.
    pub fn per_tensor(scale: f32) -> Result<Self> {
        Scales::new(Granularity::Tensor, vec![scale])
    }

    /// How much of the tensor shares a scale.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The scales in `[batch, head, block]` order.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The scale of one row of a tensor of these dimensions.
    pub fn of_row(&self, dims: Dims, batch: usize, head: usize, row: usize) -> f32 {
        let head_index = batch * dims.heads + head;
        match self.granularity {
            Granularity::Tensor => self.values[0],
            Granularity::Head => self.values[head_index],
            Granularity::Block { rows } => self.values[head_index * dims.len.div_ceil(rows) + row / rows],
        }
    }
}
