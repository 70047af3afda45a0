//! What tests of the C interface share.

use eightfold::cuda::driver::{Device, Stream};
use eightfold_c::{EF_OK, ef_last_error, ef_status};
use eightfold_lab::simulate::{self, Schedule};
use std::ffi::CStr;
use std::path::Path;

/// The device, real or simulated; none where there is neither.
pub fn device() -> Option<(Device, Stream)> {
    let is_real = std::env::var_os("EIGHTFOLD_REQUIRE_DEVICE").is_some() || Path::new("/dev/nvidiactl").exists();
    let required = if is_real { "EIGHTFOLD_REQUIRE_DEVICE" } else { "EIGHTFOLD_REQUIRE_SIMULATOR" };
    let open = || {
        if !is_real {
            simulate::install_with(Some(132))?;
            simulate::begin(Schedule { races: false, ..Schedule::of_seed(0) });
        }
        let device = Device::open(0)?;
        let stream = device.stream()?;
        Ok::<_, eightfold::Error>((device, stream))
    };
    match open() {
        Ok(opened) => Some(opened),
        Err(error) => {
            assert!(std::env::var_os(required).is_none(), "{required} is set, but {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// This thread's last failure in words.
pub fn last() -> String {
    // SAFETY: the text ends with a zero and is this thread's.
    unsafe { CStr::from_ptr(ef_last_error()) }.to_string_lossy().into_owned()
}

/// A call that must succeed.
#[track_caller]
pub fn must(status: ef_status) {
    assert_eq!(status, EF_OK, "{}", last());
}
