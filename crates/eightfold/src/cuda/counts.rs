//! Sizes, strides and scales as the kernels count them.

use crate::error::{Error, Result};
use crate::tensor::Granularity;

/// How the index of a scale is found: (batch · heads + head) · first + row / second.
pub(crate) fn scale_strides(granularity: Granularity, len: usize) -> Result<(i32, i32)> {
    Ok(match granularity {
        Granularity::Tensor => (0, i32::MAX),
        Granularity::Head => (1, i32::MAX),
        Granularity::Block { rows } => {
            (size("scales", len.div_ceil(rows.max(1)))?, i32::try_from(rows.max(1)).unwrap_or(i32::MAX))
        }
    })
}

pub(crate) fn size(name: &str, size: usize) -> Result<i32> {
    i32::try_from(size).map_err(|_| {
        Error::invalid(
            name,
            format!("{size} is more than the {} that a CUDA kernel counts to", i32::MAX),
            "make it smaller",
        )
    })
}

pub(crate) fn stride(name: &str, stride: usize) -> Result<i64> {
    i64::try_from(stride).map_err(|_| Error::invalid(name, format!("{stride} cannot be addressed"), "make it smaller"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_granularity_finds_its_scale() {
        assert_eq!(scale_strides(Granularity::Tensor, 100), Ok((0, i32::MAX)));
        assert_eq!(scale_strides(Granularity::Head, 100), Ok((1, i32::MAX)));
        assert_eq!(scale_strides(Granularity::Block { rows: 64 }, 100), Ok((2, 64)));
        assert_eq!(scale_strides(Granularity::Block { rows: usize::MAX }, 100), Ok((1, i32::MAX)));
        assert!(size("key_len", 1 << 31).unwrap_err().to_string().starts_with("key_len: 2147483648 is more"));
    }
}
