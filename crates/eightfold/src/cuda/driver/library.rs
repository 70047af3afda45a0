//! Loading the driver, once per process.

use super::failure::outcome;
use crate::error::{Error, Result};
use cudarc::driver::sys;
use libloading::Library;
use std::sync::OnceLock;

/// The library's names, in cudarc's order.
const NAMES: &[&str] = if cfg!(windows) { &["cuda.dll", "nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// The oldest driver whose interface is used, as the driver counts: 1000 · major + 10 · minor.
const OLDEST_DRIVER: i32 = 12_040;

/// The version of the driver, loaded and initialised on the first call.
pub(super) fn driver_version() -> Result<i32> {
    static VERSION: OnceLock<Result<i32>> = OnceLock::new();
    VERSION.get_or_init(load).clone()
}

/// `13.0` for 13000.
pub(super) fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn load() -> Result<i32> {
    if !is_driver_present() {
        return Err(Error::unavailable(
            "CUDA",
            "there is no NVIDIA driver: libcuda.so.1 cannot be loaded",
            "install the NVIDIA driver (in a container: start it with GPU access), or use the cpu kernel",
        ));
    }
    let mut version = 0;
    // SAFETY: the library is loaded and has this function; `version` outlives the call.
    outcome("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    check_version(version)?;
    // SAFETY: the library is loaded and has this function; 0 is the only flag that exists.
    outcome("cuInit", unsafe { sys::cuInit(0) })?;
    Ok(version)
}

fn check_version(version: i32) -> Result<()> {
    if version < OLDEST_DRIVER {
        return Err(Error::unavailable(
            "CUDA",
            format!(
                "the driver is too old: it is for CUDA {}, and {} is needed",
                version_text(version),
                version_text(OLDEST_DRIVER)
            ),
            "update the NVIDIA driver, or use the cpu kernel",
        ));
    }
    Ok(())
}

/// The driver's library, held for the rest of the process; none where it cannot be loaded. It is loaded by the names that cudarc
/// tries, here and not there: cudarc panics where it is missing, and has no library to ask where it is linked (as candle does).
pub(super) fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    // SAFETY: loading runs the library's initialisers; libcuda is made to be loaded by any process.
    let load = |name: &&str| unsafe { Library::new(*name) }.ok();
    LIBRARY.get_or_init(|| NAMES.iter().find_map(load)).as_ref()
}

/// Whether the driver's library, and not another of its name, can be loaded.
fn is_driver_present() -> bool {
    let Some(library) = library() else { return false };
    // SAFETY: the symbols are looked up and not called.
    unsafe {
        library.get::<unsafe extern "C" fn()>(b"cuInit\0").is_ok()
            && library.get::<unsafe extern "C" fn()>(b"cuDriverGetVersion\0").is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_named_with_what_is_needed() {
        assert_eq!(check_version(12_040), Ok(()));
        assert_eq!(check_version(13_000), Ok(()));
        let error = check_version(11_080).unwrap_err().to_string();
        assert!(error.contains("CUDA 11.8") && error.contains("12.4 is needed"), "{error}");
    }

    #[test]
    fn asking_for_the_driver_twice_gives_the_same_answer() {
        assert_eq!(driver_version(), driver_version());
    }
}
