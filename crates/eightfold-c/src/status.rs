//! How a call ends: a status, and the text of the last failure.

use eightfold::{Error, Result};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended: one of the `EF_OK`, `EF_INVALID`, … numbers.
#[allow(non_camel_case_types)]
pub type ef_status = i32;

/// All went well.
pub const EF_OK: ef_status = 0;
/// An argument breaks a rule.
pub const EF_INVALID: ef_status = 1;
/// The request is sound, but this machine cannot serve it.
pub const EF_UNAVAILABLE: ef_status = 2;
/// A call of the device's driver failed.
pub const EF_DEVICE: ef_status = 3;
/// A fault of this library. Nothing was lost but the call.
pub const EF_INTERNAL: ef_status = 4;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an entry: an error or a panic becomes a status, and its text the thread's last error.
pub(crate) fn guard(work: impl FnOnce() -> Result<()>) -> ef_status {
    // What a panic may leave half done is behind locks, whose poison is looked at, or is dropped with the call.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => EF_OK,
        Ok(Err(error)) => {
            remember(&error.to_string());
            match error {
                Error::Invalid { .. } => EF_INVALID,
                Error::Unavailable { .. } => EF_UNAVAILABLE,
                Error::Device { .. } => EF_DEVICE,
                _ => EF_INTERNAL,
            }
        }
        Err(panic) => {
            remember(&format!("the library failed: {}; please report it with the arguments", words(&*panic)));
            EF_INTERNAL
        }
    }
}

/// The same for what gives nothing back, such as freeing.
pub(crate) fn quietly(work: impl FnOnce()) {
    guard(|| {
        work();
        Ok(())
    });
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why")
}

fn remember(text: &str) {
    let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    // A thread that is ending has no place for it any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// The text of this thread's last failure: which argument, which rule, what to do. Empty if nothing failed.
///
/// It is valid until the next call that fails in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn ef_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the text is this thread's and ends with a zero.
        unsafe { CStr::from_ptr(ef_last_error()) }.to_str().unwrap().into()
    }

    #[test]
    fn every_way_to_fail_has_its_status_and_its_text() {
        assert_eq!(last(), "");
        assert_eq!(guard(|| Err(Error::invalid("q", "is\0 null", "pass one"))), EF_INVALID);
        assert_eq!(last(), "q: is null; pass one");
        assert_eq!(guard(|| Ok(())), EF_OK);
        assert_eq!(last(), "q: is null; pass one");
        assert_eq!(guard(|| Err(Error::unavailable("CUDA", "no driver", "install it"))), EF_UNAVAILABLE);
        let failed = Error::Device { call: "cuCall".into(), name: "CUDA_ERROR".into(), fix: "look".into() };
        assert_eq!(guard(|| Err(failed)), EF_DEVICE);
        assert_eq!(guard(|| panic!("at {}", 7)), EF_INTERNAL);
        assert_eq!(last(), "the library failed: at 7; please report it with the arguments");
        let elsewhere = std::thread::spawn(last).join().unwrap();
        assert_eq!(elsewhere, "");
    }
}
