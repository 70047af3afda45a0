//! What crosses the border: argument structs that grow, handles, slices, text.

use eightfold::{Dims, Error, Result};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::{ptr, slice};

/// An argument struct: it begins with a `u32`, its size as the caller knows it.
///
/// # Safety
/// Implementers must be `repr(C)` with a leading `u32`, a multiple of 8 bytes, and of fields for which all zero is a value.
/// A field of 8 bytes must not straddle a multiple of 8.
pub(crate) unsafe trait Grows: Copy {
    /// The bytes that every caller must know; later fields are zero where the caller does not.
    const REQUIRED: usize;
}

/// The size of a struct as the caller knows it.
///
/// # Safety
/// `from` must be null or have as many bytes as its first four say.
unsafe fn size_of_given<T: Grows>(name: &str, from: *const T) -> Result<usize> {
    let known = size_of::<T>();
    const { assert!(size_of::<T>().is_multiple_of(8) && T::REQUIRED <= size_of::<T>() && T::REQUIRED >= 8) };
    if from.is_null() {
        return Err(Error::invalid(name, "is a null pointer", "pass the address of the struct"));
    }
    // SAFETY: it is not null, and so begins with its size.
    let size = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    if size > known {
        return Err(Error::invalid(
            name,
            format!("struct_size is {size}, and this library knows {known} bytes"),
            "set struct_size to sizeof of the struct, and use a library as new as the header",
        ));
    }
    if size < T::REQUIRED || !size.is_multiple_of(8) {
        return Err(Error::invalid(
            name,
            format!("struct_size is {size}, and the first version of the struct has {} bytes", T::REQUIRED),
            "set struct_size to sizeof of the struct",
        ));
    }
    Ok(size)
}

/// Takes an argument struct by value.
///
/// # Safety
/// `from` must be null or have as many bytes as its first four say.
pub(crate) unsafe fn read<T: Grows>(name: &str, from: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both have as many bytes, by the caller's word and by the check. What is not copied is zero, and by the trait's
    // rules that is a value.
    unsafe {
        let size = size_of_given(name, from)?;
        ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size);
        Ok(value.assume_init())
    }
}

/// Fills a caller's struct, as far as the caller knows it; it keeps its size.
///
/// # Safety
/// `to` must be null or have as many writable bytes as its first four say.
pub(crate) unsafe fn answer<T: Grows>(name: &str, to: *mut T, value: T) -> Result<()> {
    const SIZE_BYTES: usize = size_of::<u32>();
    // SAFETY: both have as many bytes, by the caller's word and by the check, and the two do not overlap.
    unsafe {
        let size = size_of_given(name, to.cast_const())?;
        let (from, to) = (ptr::from_ref(&value).cast::<u8>(), to.cast::<u8>());
        ptr::copy_nonoverlapping(from.add(SIZE_BYTES), to.add(SIZE_BYTES), size - SIZE_BYTES);
    }
    Ok(())
}

/// A result whose error says of which argument it speaks: `k.scales` where the library says `scales`.
pub(crate) fn named<T>(name: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| match error {
        Error::Invalid { argument, rule, fix } => Error::invalid(format!("{name}.{argument}"), rule, fix),
        error => error,
    })
}

/// What a handle stands for.
///
/// # Safety
/// It must be null or a handle that this library gave out and that is not freed during the call.
pub(crate) unsafe fn handle<'a, T>(name: &str, handle: *const T) -> Result<&'a T> {
    // SAFETY: the caller's word.
    unsafe { handle.as_ref() }.ok_or_else(|| Error::invalid(name, "is a null pointer", "pass the handle"))
}

/// Gives out a handle; null where `make` fails.
///
/// # Safety
/// `out` must be null or writable.
pub(crate) unsafe fn give<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: the caller's word.
    unsafe {
        put("out", out, ptr::null_mut())?;
        put("out", out, Box::into_raw(Box::new(make()?)))
    }
}

/// Writes a result.
///
/// # Safety
/// `out` must be null or writable.
pub(crate) unsafe fn put<T>(name: &str, out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(Error::invalid(name, "is a null pointer", "pass the address of a variable for the result"));
    }
    // SAFETY: it is not null, and so writable; it may be misaligned.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Frees what a handle stands for.
///
/// # Safety
/// It must be null or a handle that this library gave out, and is not used after.
pub(crate) unsafe fn take<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: it was made by `give` and is freed once, by the caller's word.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Checks the address and the length of a caller's array.
fn check_array<T>(name: &str, start: *const T, count: u64) -> Result<usize> {
    if start.is_null() {
        return Err(Error::invalid(name, "is a null pointer", "pass the address of the first element"));
    }
    if !start.is_aligned() {
        return Err(Error::invalid(
            name,
            format!("address {start:p} is not a multiple of {} bytes", align_of::<T>()),
            "align the array as its elements need",
        ));
    }
    let count = size(name, count)?;
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    fits.then_some(count).ok_or_else(|| {
        Error::invalid(name, format!("{count} elements are more than can be addressed"), "pass how many there are")
    })
}

/// A caller's array to read.
///
/// # Safety
/// `start` must be null or point at `count` elements that no one writes to while the result is used.
pub(crate) unsafe fn array<'a, T>(name: &str, start: *const T, count: u64) -> Result<&'a [T]> {
    let count = check_array(name, start, count)?;
    // SAFETY: it is neither null nor misaligned, and the rest is the caller's word.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// Copies values into a caller's array.
///
/// # Safety
/// `start` must be null or point at `count` writable elements.
pub(crate) unsafe fn fill<T: Copy>(name: &str, start: *mut T, count: u64, values: &[T]) -> Result<()> {
    let room = check_array(name, start.cast_const(), count)?;
    check_count(name, room, values.len())?;
    // SAFETY: there is room for them, by the caller's word, and they are this library's own, so the two do not overlap.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), start, values.len()) };
    Ok(())
}

/// Whether an array has as many elements as it must.
pub(crate) fn check_count(name: &str, count: usize, expected: usize) -> Result<()> {
    if count != expected {
        return Err(Error::invalid(
            name,
            format!("has {count} elements where {expected} are needed"),
            "pass one for each element of the sizes",
        ));
    }
    Ok(())
}

/// Writes text with a zero at its end, as far as there is room; `needed` is told the bytes of all of it.
///
/// # Safety
/// `buffer` must be null or have `capacity` writable bytes; `needed` must be null or writable.
pub(crate) unsafe fn put_text(text: &str, buffer: *mut c_char, capacity: u64, needed: *mut u64) -> Result<()> {
    let capacity = size("capacity", capacity)?;
    if buffer.is_null() && capacity > 0 {
        return Err(Error::invalid("text", "is a null pointer", "pass a buffer, or capacity 0 to ask for the size"));
    }
    if !needed.is_null() {
        // SAFETY: it is not null, and so writable.
        unsafe { needed.write_unaligned(text.len() as u64 + 1) };
    }
    if capacity > 0 {
        let mut length = text.len().min(capacity - 1);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        // SAFETY: the buffer has room for as many bytes and the zero.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), length);
            buffer.add(length).write(0);
        }
    }
    Ok(())
}

/// A caller's text; none where the pointer is null.
///
/// # Safety
/// It must be null or end with a zero.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and so ends with a zero.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| Error::invalid(name, "is not UTF-8", "pass text in UTF-8"))
}

/// A size of this machine.
pub(crate) fn size(name: &str, value: u64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Error::invalid(name, format!("{value} is more than this machine can address"), "make it smaller"))
}

/// Sizes as C gives them: batch, heads, rows, channels.
pub(crate) fn dims(sizes: [u64; 4]) -> Result<Dims> {
    const MOST: u64 = isize::MAX as u64 / 8;
    let count = sizes.iter().try_fold(1, |count: u64, size| count.checked_mul(*size));
    if count.is_none_or(|count| count > MOST) {
        return Err(Error::invalid("sizes", format!("{sizes:?} are more than can be addressed"), "make them smaller"));
    }
    let [batch, heads, len, head_dim] = sizes;
    Ok(Dims::new(size("batch", batch)?, size("heads", heads)?, size("len", len)?, size("head_dim", head_dim)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    #[repr(C)]
    struct Sample {
        struct_size: u32,
        first: i32,
        later: u64,
    }

    // SAFETY: it begins with its size, has 16 bytes, and zero is a value of every field.
    unsafe impl Grows for Sample {
        const REQUIRED: usize = 8;
    }

    fn sample(struct_size: u32) -> Result<Sample> {
        // SAFETY: as many bytes as are said are there, or the size is refused.
        unsafe { read("sample", &Sample { struct_size, first: 3, later: 5 }) }
    }

    #[test]
    fn older_structs_are_taken_and_newer_ones_refused() {
        assert_eq!(sample(16).unwrap(), Sample { struct_size: 16, first: 3, later: 5 });
        assert_eq!(sample(8).unwrap(), Sample { struct_size: 8, first: 3, later: 0 });
        for size in [0, 4, 7, 12, 17, 24, u32::MAX] {
            assert!(sample(size).unwrap_err().to_string().starts_with(&format!("sample: struct_size is {size},")));
        }
        // SAFETY: null is refused.
        assert!(unsafe { read::<Sample>("sample", ptr::null()) }.is_err());
    }

    #[test]
    fn text_is_cut_to_its_room() {
        for (capacity, expected) in [(0, ""), (1, ""), (3, "ab"), (4, "ab"), (5, "abä"), (9, "abä")] {
            let mut buffer = [1 as c_char; 9];
            let mut needed = 0;
            // SAFETY: the buffer is at least as large as it is said to be.
            unsafe { put_text("abä", buffer.as_mut_ptr(), capacity, &mut needed).unwrap() };
            assert_eq!(needed, 5);
            if capacity > 0 {
                // SAFETY: it ends with a zero.
                assert_eq!(unsafe { text("text", buffer.as_ptr()) }.unwrap(), Some(expected));
            }
        }
    }
}
