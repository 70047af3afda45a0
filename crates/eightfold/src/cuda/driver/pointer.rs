//! Addresses that come from a caller, checked before a kernel gets them.

use super::context::Context;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUmemorytype, CUpointer_attribute};
use std::ffi::c_void;
use std::ptr;

/// What addresses and strides must be a multiple of: kernels copy this much at a time.
pub(crate) const ALIGNMENT_BYTES: usize = 16;

/// Whether `bytes` bytes of this device's memory lie at the address: not null, aligned, and as far as the driver knows
/// the memory, of this device and long enough.
pub(crate) fn check_pointer(context: &Context, name: &str, pointer: u64, bytes: usize, aligned: bool) -> Result<()> {
    check_address(name, pointer, aligned)?;
    if let Some(loss) = context.loss() {
        return Err(loss);
    }
    let not_device = |what: &str| {
        Err(Error::invalid(
            name,
            format!("{pointer:#x} {what}"),
            format!("pass the address of memory on device {}", context.ordinal()),
        ))
    };
    match attribute::<u32>(context, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) {
        None => return not_device("is no address that the driver knows"),
        Some(kind) if kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32 => return not_device("is host memory"),
        Some(_) => {}
    }
    let ordinal = attribute::<i32>(context, CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    if let Some(ordinal) = ordinal
        && usize::try_from(ordinal).is_ok_and(|ordinal| ordinal != context.ordinal())
    {
        return not_device(&format!("is memory of device {ordinal}"));
    }
    let start = attribute::<u64>(context, CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer);
    let size = attribute::<usize>(context, CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer);
    if let (Some(start), Some(size)) = (start, size) {
        let end = start.saturating_add(size as u64);
        check_room(name, end.saturating_sub(pointer), bytes)?;
    }
    Ok(())
}

fn check_address(name: &str, pointer: u64, aligned: bool) -> Result<()> {
    if pointer == 0 {
        return Err(Error::invalid(name, "is a null pointer", "pass the address of device memory"));
    }
    let multiple = if aligned { ALIGNMENT_BYTES as u64 } else { 4 };
    if !pointer.is_multiple_of(multiple) {
        return Err(Error::invalid(
            name,
            format!("address {pointer:#x} is not a multiple of {multiple} bytes"),
            "allocate it anew, or copy the part to the front of an allocation",
        ));
    }
    Ok(())
}

fn check_room(name: &str, room_bytes: u64, bytes: usize) -> Result<()> {
    if bytes as u64 > room_bytes {
        return Err(Error::invalid(
            name,
            format!("{bytes} bytes are needed, but the allocation ends after {room_bytes}"),
            "check dims, strides and granularity against what was allocated",
        ));
    }
    Ok(())
}

/// What the driver says about an address; none if it says nothing.
fn attribute<T: Default>(context: &Context, attribute: CUpointer_attribute, pointer: u64) -> Option<T> {
    let mut value = T::default();
    let data: *mut c_void = ptr::from_mut(&mut value).cast();
    // SAFETY: the callers ask with the type that the driver documents for the attribute; the value outlives the call.
    context
        .call("cuPointerGetAttribute", || unsafe { sys::cuPointerGetAttribute(data, attribute, pointer) })
        .ok()
        .map(|()| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_misaligned_addresses_are_refused_by_name() {
        let refused = |result: Result<()>| result.unwrap_err().to_string();
        assert!(refused(check_address("q", 0, true)).starts_with("q: is a null pointer; "));
        assert!(refused(check_address("k", 0x1008, true)).starts_with("k: address 0x1008 is not a multiple of 16"));
        assert!(refused(check_address("scales", 0x1002, false)).contains("not a multiple of 4"));
        assert_eq!(check_address("q", 0x1010, true), Ok(()));
        assert_eq!(check_address("scales", 0x1004, false), Ok(()));
    }

    #[test]
    fn an_allocation_must_be_long_enough() {
        assert_eq!(check_room("v", 64, 64), Ok(()));
        let error = check_room("v", 64, 65).unwrap_err().to_string();
        assert!(error.starts_with("v: 65 bytes are needed, but the allocation ends after 64"), "{error}");
    }
}
