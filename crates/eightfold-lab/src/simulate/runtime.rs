//! The simulated device as a library: compiled, kept, loaded in the driver's place.

use super::compiler::CxxCompiler;
use super::toolchain::{FLAGS, Folder, key};
use super::{MULTIPROCESSORS_VARIABLE, Schedule, Work, sources};
use eightfold::{Error, Result};
use libloading::{Library, Symbol};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::path::{Path, PathBuf};

/// The name by which the driver is asked for: whoever asks is given what is loaded under it.
const DRIVER: &str = "libcuda.so";

/// The loaded library.
#[derive(Debug)]
pub(super) struct Runtime {
    library: Library,
    path: PathBuf,
}

impl Runtime {
    pub(super) fn load(compiler: &CxxCompiler, multiprocessors: Option<u32>) -> Result<Runtime> {
        let multiprocessors = multiprocessors.map_or_else(multiprocessors_of_environment, |count| Ok(Some(count)))?;
        let path = build(compiler)?;
        // SAFETY: the library was compiled from our own sources; loading it runs constructors of tables and no more.
        let library = unsafe { Library::new(&path) }.map_err(|error| {
            let fix = "remove the folder and run again";
            Error::unavailable("the simulator", format!("{} cannot be loaded: {error}", path.display()), fix)
        })?;
        let runtime = Runtime { library, path };
        if let Some(count) = multiprocessors {
            runtime.set_multiprocessors(count);
        }
        Ok(runtime)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn begin(&self, schedule: Schedule) {
        type Begin = unsafe extern "C" fn(c_ulonglong, c_int, f64);
        let begin: Symbol<'_, Begin> = self.symbol(b"sim_begin\0");
        // SAFETY: the function has this type and keeps nothing but numbers.
        unsafe { begin(schedule.seed, schedule.races.into(), schedule.limit_seconds.unwrap_or(0.0)) }
    }

    /// What this thread's launches did since [`Runtime::begin`].
    pub(super) fn work(&self) -> Work {
        let ask: Symbol<'_, unsafe extern "C" fn(*mut Work)> = self.symbol(b"sim_work\0");
        let mut work = Work::default();
        // SAFETY: the function has this type, and writes a `Work`, which is laid out here as there.
        unsafe { ask(&raw mut work) };
        work
    }

    /// What was found, as the C++ side writes it.
    pub(super) fn findings(&self) -> String {
        type Findings = unsafe extern "C" fn(*mut c_char, usize) -> usize;
        let findings: Symbol<'_, Findings> = self.symbol(b"sim_findings\0");
        // SAFETY: the function has this type; without room it only says how much it wants.
        let bytes = unsafe { findings(std::ptr::null_mut(), 0) };
        let mut text = vec![0u8; bytes + 1];
        // SAFETY: as above, and the room is as much as is told.
        unsafe { findings(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(bytes);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn set_multiprocessors(&self, count: u32) {
        type Set = unsafe extern "C" fn(c_uint);
        let set: Symbol<'_, Set> = self.symbol(b"sim_set_multiprocessors\0");
        // SAFETY: the function has this type and keeps a number.
        unsafe { set(count) }
    }

    fn symbol<T>(&self, name: &[u8]) -> Symbol<'_, T> {
        // SAFETY: the callers ask with the type that `driver.cc` defines.
        unsafe { self.library.get(name) }.expect("the library is compiled from sources that define it")
    }
}

fn build(compiler: &CxxCompiler) -> Result<PathBuf> {
    let folder = Folder::of_user()?;
    let fields = [compiler.version.as_str()].into_iter().chain(FLAGS);
    let files: Vec<_> = sources::DEVICE.iter().chain(sources::RUNTIME).copied().collect();
    let name = format!("runtime-{:032x}", key(fields.chain(files.iter().flat_map(|(name, text)| [*name, *text]))));
    folder.build(&name, DRIVER, &files, |work, target| {
        let mut arguments: Vec<String> = FLAGS.map(String::from).to_vec();
        arguments.extend(["-O3", "-shared", "-fvisibility=hidden", "-Idevice", "-Iruntime"].map(String::from));
        arguments.extend(["-o".into(), target.display().to_string(), format!("-Wl,-soname,{DRIVER}")]);
        let units = files.iter().filter(|(name, _)| name.ends_with(".cc"));
        arguments.extend(units.map(|(name, _)| (*name).to_owned()));
        arguments.push("-ldl".into());
        compiler.run("the simulator's runtime", work, &arguments)
    })
}

fn multiprocessors_of_environment() -> Result<Option<u32>> {
    let Some(text) = std::env::var(MULTIPROCESSORS_VARIABLE).ok().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count)).ok_or_else(|| {
        Error::invalid(MULTIPROCESSORS_VARIABLE, format!("{text:?} is no number from 1 to 1024"), "mend or unset it")
    })?;
    Ok(Some(count))
}
