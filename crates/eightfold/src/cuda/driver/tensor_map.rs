//! Tensor maps: how TMA of a Hopper device walks through a tensor.

use super::context::Context;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use std::ptr;

/// Dimensions of every map.
const RANK: u32 = 4;
/// The engine counts strides in 16 bytes, and below a tebibyte.
const STRIDE_BYTES: u64 = 16;
const MOST_STRIDE_BYTES: u64 = 1 << 40;

/// The driver's `CUtensorMap`, as a kernel takes it by value.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TensorMap {
    words: [u64; 16],
}

/// Bytes in memory as a tensor, innermost dimension first, and the box of it that is copied at a time.
///
/// Whatever of a box lies outside the tensor arrives as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) pointer: u64,
    pub(crate) sizes: [usize; 4],
    /// Bytes between neighbours of every dimension but the innermost.
    pub(crate) strides: [usize; 3],
    /// The innermost size is also what 16-byte chunks are exchanged within, against bank conflicts: 64 or 128 bytes.
    pub(crate) part: [usize; 4],
}

impl TensorMap {
    /// `name` is that of the tensor, for errors.
    pub(crate) fn encode(context: &Context, name: &str, walk: &Walk) -> Result<TensorMap> {
        let strides = walk.checked_strides(name)?;
        let sizes = walk.sizes.map(|size| size as u64);
        // A part is at most 256 in every direction, so that it fits.
        let part = walk.part.map(|size| size as u32);
        let swizzle = match walk.part[0] {
            64 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            128 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            other => {
                let reason = format!("no pattern against bank conflicts is for lines of {other} bytes");
                return Err(Error::invalid(name, reason, "use lines of 64 or 128 bytes"));
            }
        };
        let mut map = CUtensorMap { opaque: [0; 16] };
        context.call("cuTensorMapEncodeTiled", || {
            // SAFETY: the arrays are of the rank that is told, and they and the map outlive the call, which reads
            // nothing at the address.
            unsafe {
                sys::cuTensorMapEncodeTiled(
                    &mut map,
                    CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                    RANK,
                    ptr::with_exposed_provenance_mut(walk.pointer as usize),
                    sizes.as_ptr(),
                    strides.as_ptr(),
                    part.as_ptr(),
                    [1; 4].as_ptr(),
                    CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle,
                    CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                )
            }
        })?;
        Ok(TensorMap { words: map.opaque })
    }

    /// Lets it walk through memory at another address, a multiple of 16, otherwise alike.
    pub(crate) fn set_address(&mut self, context: &Context, address: u64) -> Result<()> {
        let map = ptr::from_mut(self).cast::<CUtensorMap>();
        context.call("cuTensorMapReplaceAddress", || {
            // SAFETY: the map was made by `encode`, is as large and as aligned as the driver's own, and outlives the call,
            // which reads nothing at the address.
            unsafe { sys::cuTensorMapReplaceAddress(map, ptr::with_exposed_provenance_mut(address as usize)) }
        })
    }
}

impl Walk {
    /// The strides that the driver takes; of a dimension of size 1 any will do.
    fn checked_strides(&self, name: &str) -> Result<[u64; 3]> {
        let mut strides = [STRIDE_BYTES; 3];
        for (index, stride) in strides.iter_mut().enumerate() {
            if self.sizes[index + 1] == 1 {
                continue;
            }
            *stride = self.strides[index] as u64;
            let fix = "lay the tensor out as bhsd, each head and each sequence in memory of its own";
            if *stride == 0 {
                let reason = "a stride of 0 repeats a head or a sequence, which TMA cannot do";
                return Err(Error::invalid(name, reason, fix));
            }
            if *stride >= MOST_STRIDE_BYTES || !stride.is_multiple_of(STRIDE_BYTES) {
                let reason = format!(
                    "TMA cannot follow a stride of {stride} bytes: it must be a multiple of \
                     {STRIDE_BYTES} below 2^40"
                );
                return Err(Error::invalid(name, reason, fix));
            }
        }
        Ok(strides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_what_the_device_code_takes() {
        assert_eq!((size_of::<TensorMap>(), align_of::<TensorMap>()), (128, 64));
        assert_eq!(size_of::<TensorMap>(), size_of::<CUtensorMap>());
    }

    #[test]
    fn strides_that_the_engine_cannot_follow_are_refused() {
        let walk = Walk { pointer: 0x1000, sizes: [64, 100, 8, 1], strides: [64, 6400, 0], part: [64, 128, 1, 1] };
        assert_eq!(walk.checked_strides("q"), Ok([64, 6400, 16]));
        let refused = |sizes: [usize; 4], strides: [usize; 3]| {
            Walk { sizes, strides, ..walk }.checked_strides("q").unwrap_err().to_string()
        };
        assert!(refused([64, 100, 8, 2], [64, 6400, 0]).starts_with("q: a stride of 0 repeats a head"));
        assert!(refused([64, 100, 8, 2], [64, 6400, 1 << 40]).contains("a stride of 1099511627776 bytes"));
        assert!(refused([64, 100, 8, 1], [72, 6400, 0]).contains("a stride of 72 bytes"));
    }
}
