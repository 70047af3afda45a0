//! Ranges with names on the timeline of a profiler (NVTX): what a run was doing when a kernel ran. NVIDIA's library is loaded at
//! run time; where it is not found, or no profiler listens, nothing happens.

use libloading::Library;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::sync::OnceLock;

/// What the library is called, in CUDA's folders and in the wheel `nvidia-nvtx`.
const NAMES: [&str; 2] = ["libnvToolsExt.so.1", "libnvToolsExt.so"];

/// A library of another name or place.
const VARIABLE: &str = "EIGHTFOLD_NVTX";

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// The two functions, with the library that they are of.
struct Ranges {
    push: Push,
    pop: Pop,
    _library: Library,
}

impl Ranges {
    fn load(path: &Path) -> Option<Ranges> {
        // SAFETY: the library is NVIDIA's, or one that the user names in its place; loading it has no conditions.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: nvToolsExt.h declares both functions with these types.
        let (push, pop) =
            unsafe { (*library.get::<Push>(b"nvtxRangePushA\0").ok()?, *library.get::<Pop>(b"nvtxRangePop\0").ok()?) };
        Some(Ranges { push, pop, _library: library })
    }

    fn found() -> Option<&'static Ranges> {
        static FOUND: OnceLock<Option<Ranges>> = OnceLock::new();
        let find = || match std::env::var_os(VARIABLE) {
            Some(named) => Ranges::load(Path::new(&named)),
            None => NAMES.iter().find_map(|name| Ranges::load(Path::new(name))),
        };
        FOUND.get_or_init(find).as_ref()
    }
}

/// A range, from now until this is dropped, by the thread that it was made on.
#[must_use = "the range ends when this is dropped"]
pub struct Range {
    ranges: Option<&'static Ranges>,
    /// A range ends on the thread that it began on.
    _not_send: std::marker::PhantomData<*const ()>,
}

/// Begins a range such as `launch ladder:unpack`; the name is put together only where somebody listens.
pub fn range(step: &str, variant: &str) -> Range {
    let begin = |ranges: &&'static Ranges| {
        let Ok(name) = CString::new(format!("{step} {variant}")) else { return false };
        // SAFETY: the name ends with a zero, and is read before the call returns.
        unsafe { (ranges.push)(name.as_ptr()) };
        true
    };
    Range { ranges: Ranges::found().filter(begin), _not_send: std::marker::PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(ranges) = self.ranges {
            // SAFETY: this thread began the range, and those that began later have ended.
            unsafe { (ranges.pop)() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_nothing_happens() {
        assert!(Ranges::load(Path::new("/no/such/libnvToolsExt.so.1")).is_none());
        let outer = range("prepare", "ladder:unpack");
        drop(range("launch", "a name with a \0 in it"));
        drop(outer);
    }

    #[test]
    #[cfg(unix)]
    fn a_library_is_told_every_name_and_every_end() {
        let place = tempfile::tempdir().unwrap();
        let (source, library) = (place.path().join("nvtx.c"), place.path().join("nvtx.so"));
        let text = "static char last[64]; static int depth;\n\
            int nvtxRangePushA(const char *name) { int i = 0; for (; name[i] && i < 63; i++) last[i] = name[i]; last[i] = 0; return depth++; }\n\
            int nvtxRangePop(void) { return --depth; }\n\
            const char *last_name(void) { return last; }\n";
        std::fs::write(&source, text).unwrap();
        let built =
            std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        if !built.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("EIGHTFOLD_REQUIRE_SIMULATOR").is_none(), "there is no C compiler");
            return;
        }
        let ranges = Ranges::load(&library).unwrap();
        let name = CString::new("launch hopper:fast").unwrap();
        // SAFETY: the functions are those of the text above.
        let said = unsafe {
            assert_eq!([(ranges.push)(name.as_ptr()), (ranges.push)(name.as_ptr())], [0, 1]);
            assert_eq!([(ranges.pop)(), (ranges.pop)()], [1, 0]);
            let last = ranges._library.get::<unsafe extern "C" fn() -> *const c_char>(b"last_name\0").unwrap();
            std::ffi::CStr::from_ptr(last())
        };
        assert_eq!(said.to_str(), Ok("launch hopper:fast"));
        // What lacks the functions is not taken for the library.
        std::fs::write(&source, "int something_else;\n").unwrap();
        let other = place.path().join("other.so");
        let compiler =
            std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&other).arg(&source).status();
        assert!(compiler.unwrap().success() && Ranges::load(&other).is_none());
    }
}
