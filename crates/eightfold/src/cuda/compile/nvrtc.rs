//! NVRTC itself: the shared library and the few of its functions that are needed.

use super::source::Source;
use std::error::Error as _;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::UNIX_EPOCH;

/// The oldest NVRTC that will do: CUDA 12.4 brought `mma.sync` on E4M3 to sm_89 (PTX ISA 8.4); the conversions to and
/// from FP8 on sm_89 are older.
const OLDEST: (i32, i32) = (12, 4);
/// The first NVRTC that keeps what it has compiled and, asked for it again, reports no resources: it is told not to.
const KEEPS: (i32, i32) = (13, 0);

/// `nvrtcProgram`.
type Handle = *mut c_void;
/// `nvrtcResult`, as the number that it is: a newer library may return values that no enum of ours has.
type Status = c_int;

const SUCCESS: Status = 0;
const ERROR_INVALID_INPUT: Status = 3;
const ERROR_INVALID_OPTION: Status = 5;
const ERROR_COMPILATION: Status = 6;

/// A loaded NVRTC. It is never unloaded: its functions and its threads' state live as long as the process.
#[derive(Debug)]
pub(super) struct Library {
    version: (i32, i32),
    identity: String,
    functions: Functions,
}

#[derive(Debug, Clone, Copy)]
struct Functions {
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Handle) -> Status,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
}

/// What a compilation yields.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) image: Vec<u8>,
    pub(super) log: String,
}

/// Why a compilation yields nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// The source or an option is at fault; what the compiler logged about it, and NVRTC's name for it.
    Program { log: String, name: String },
    /// NVRTC could not do its work.
    Compiler(String),
}

impl Library {
    /// Loads the library at a path, or by a name that the system's loader knows.
    pub(super) fn open(path: &Path) -> Result<Library, String> {
        let by_name = path.components().count() == 1 && !path.exists();
        // NVRTC looks for its builtins by bare name when it first compiles: they must be in the process by then.
        if !by_name {
            let builtins = builtins_beside(path);
            if builtins.is_empty() {
                return Err("the library nvrtc-builtins is missing beside it".into());
            }
            for builtins in builtins {
                load(&builtins)?;
            }
        }
        let library = load(path)?;
        let version = version(library)?;
        let (major, minor) = version;
        if version < OLDEST {
            return Err(format!(
                "NVRTC {major}.{minor} is too old: {}.{} is the first that compiles FP8 for sm_89",
                OLDEST.0, OLDEST.1
            ));
        }
        if by_name {
            load(Path::new(&builtins_name(version)))?;
        }
        Ok(Library { version, identity: identity(path, version), functions: Functions::of(library)? })
    }

    /// Such as `NVRTC 13.0`.
    pub(super) fn version(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// Tells this very library from others of the same version, which need not generate the same code.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Compiles a source to a cubin. May be called from several threads at once.
    pub(super) fn compile(&self, source: &Source<'_>, options: &[String]) -> Result<Compiled, Failure> {
        let text = text(source.text, source.name)?;
        let name = self::text(source.name, "the file's name")?;
        let headers =
            source.headers.iter().map(|(name, text)| self::text(text, name)).collect::<Result<Vec<_>, _>>()?;
        let names = source.headers.iter().map(|(name, _)| self::text(name, name)).collect::<Result<Vec<_>, _>>()?;
        let options = options.iter().map(String::as_str).chain((self.version >= KEEPS).then_some("--no-cache"));
        let options = options.map(|option| self::text(option, option)).collect::<Result<Vec<_>, _>>()?;
        let (headers, names, options) = (pointers(&headers), pointers(&names), pointers(&options));

        let mut program = OwnedProgram { handle: ptr::null_mut(), functions: self.functions };
        // SAFETY: every pointer is to a string that ends in NUL and outlives the call (NVRTC copies them), the two
        // arrays have as many elements as is said, and the handle is written before it is used.
        let status = unsafe {
            (self.functions.create)(
                &mut program.handle,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                headers.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(status, "create a program")?;
        // SAFETY: the handle was made above, and the array holds as many strings as is said.
        let compiled = unsafe { (self.functions.compile)(program.handle, options.len() as c_int, options.as_ptr()) };
        let log = self.bytes(program.handle, self.functions.log_size, self.functions.log, "read the log")?;
        let log = String::from_utf8_lossy(log.strip_suffix(b"\0").unwrap_or(&log)).into_owned();
        match compiled {
            SUCCESS => {}
            ERROR_COMPILATION | ERROR_INVALID_INPUT | ERROR_INVALID_OPTION => {
                return Err(Failure::Program { log, name: self.error_name(compiled) });
            }
            other => return Err(Failure::Compiler(format!("{} {}", self.error_name(other), log.trim()))),
        }
        let image = self.bytes(program.handle, self.functions.cubin_size, self.functions.cubin, "read the cubin")?;
        Ok(Compiled { image, log })
    }

    /// A result of NVRTC that is fetched in two steps: first its size, then its bytes.
    fn bytes(
        &self,
        program: Handle,
        size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
        read: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
        deed: &str,
    ) -> Result<Vec<u8>, Failure> {
        let mut length = 0;
        // SAFETY: the program lives, and the size is written to a variable of this frame.
        self.check(unsafe { size(program, &mut length) }, deed)?;
        let mut bytes = vec![0; length];
        if length > 0 {
            // SAFETY: the program lives, and the buffer is as long as NVRTC has just asked for.
            self.check(unsafe { read(program, bytes.as_mut_ptr().cast()) }, deed)?;
        }
        Ok(bytes)
    }

    fn check(&self, status: Status, deed: &str) -> Result<(), Failure> {
        if status == SUCCESS {
            return Ok(());
        }
        Err(Failure::Compiler(format!("it could not {deed}: {}", self.error_name(status))))
    }

    fn error_name(&self, status: Status) -> String {
        // SAFETY: the function takes any number.
        let name = unsafe { (self.functions.error_string)(status) };
        if name.is_null() {
            return format!("NVRTC error {status}");
        }
        // SAFETY: the string is a constant of the library, which is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// A program that is destroyed with its owner.
struct OwnedProgram {
    handle: Handle,
    functions: Functions,
}

impl Drop for OwnedProgram {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once. There is nobody to tell of a
            // failure to.
            let _ = unsafe { (self.functions.destroy)(&mut self.handle) };
        }
    }
}

impl Functions {
    fn of(library: &'static libloading::Library) -> Result<Functions, String> {
        /// The function of this name.
        ///
        /// # Safety
        /// `F` must be the type of that function.
        unsafe fn symbol<F: Copy>(library: &'static libloading::Library, name: &str) -> Result<F, String> {
            // SAFETY: the caller vouches for the type; the library is never unloaded, so the copy stays good.
            unsafe { library.get::<F>(name) }.map(|symbol| *symbol).map_err(|_| format!("it has no function {name}"))
        }
        // SAFETY: the types are those of nvrtc.h, which have not changed since CUDA 11.1.
        unsafe {
            Ok(Functions {
                error_string: symbol(library, "nvrtcGetErrorString")?,
                create: symbol(library, "nvrtcCreateProgram")?,
                destroy: symbol(library, "nvrtcDestroyProgram")?,
                compile: symbol(library, "nvrtcCompileProgram")?,
                log_size: symbol(library, "nvrtcGetProgramLogSize")?,
                log: symbol(library, "nvrtcGetProgramLog")?,
                cubin_size: symbol(library, "nvrtcGetCUBINSize")?,
                cubin: symbol(library, "nvrtcGetCUBIN")?,
            })
        }
    }
}

fn version(library: &'static libloading::Library) -> Result<(i32, i32), String> {
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status;
    // SAFETY: the type is that of nvrtc.h.
    let function = unsafe { library.get::<Version>("nvrtcVersion") }.map_err(|_| "it is not NVRTC")?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both numbers are written to variables of this frame.
    match unsafe { function(&mut major, &mut minor) } {
        SUCCESS => Ok((major, minor)),
        status => Err(format!("it does not tell its version (error {status})")),
    }
}

/// Loads a library and leaves it loaded for ever.
fn load(path: &Path) -> Result<&'static libloading::Library, String> {
    // SAFETY: loading runs the library's initialisers. The path was named by the user or is where NVIDIA's installers
    // put NVRTC, whose initialisers have no requirements.
    match unsafe { libloading::Library::new(path) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(error.source().map_or_else(|| error.to_string(), ToString::to_string)),
    }
}

/// The builtins of an NVRTC, which lie in the same folder; not their `.alt.` twin, which belongs to another library.
fn builtins_beside(library: &Path) -> Vec<PathBuf> {
    let start = if cfg!(windows) { "nvrtc-builtins" } else { "libnvrtc-builtins" };
    let folder = library.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_library = name.contains(".so") || name.ends_with(".dll") || name.ends_with(".dylib");
        name.starts_with(start) && is_library && !name.contains(".alt.") && !name.contains("static")
    };
    // A toolkit has one file and two links to it.
    let mut files: Vec<PathBuf> = entries.filter(ours).filter_map(|path| path.canonicalize().ok()).collect();
    files.sort();
    files.dedup();
    files
}

fn builtins_name((major, minor): (i32, i32)) -> String {
    if cfg!(windows) {
        format!("nvrtc-builtins64_{major}{minor}.dll")
    } else if cfg!(target_os = "macos") {
        "libnvrtc-builtins.dylib".into()
    } else {
        format!("libnvrtc-builtins.so.{major}.{minor}")
    }
}

/// NVRTC tells major and minor alone, but patch releases change code too; size and date of the file stand in.
fn identity(path: &Path, (major, minor): (i32, i32)) -> String {
    let metadata = path.metadata().ok();
    let bytes = metadata.as_ref().map_or(0, fs::Metadata::len);
    let changed = metadata.and_then(|metadata| metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok());
    format!("NVRTC {major}.{minor}, {bytes} bytes of {} s", changed.unwrap_or_default().as_secs())
}

fn text(text: &str, what: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::Program {
        log: format!("nvrtc: error: a NUL byte in {:?}", what.replace('\0', "\\0")),
        name: "NVRTC_ERROR_INVALID_INPUT".into(),
    })
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_nvrtc_is_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnvrtc.so.13");
        fs::write(&library, "no library").unwrap();
        assert!(Library::open(&library).unwrap_err().contains("nvrtc-builtins is missing"));
        fs::write(folder.path().join("libnvrtc-builtins.alt.so.13.0"), "").unwrap();
        assert!(Library::open(&library).unwrap_err().contains("nvrtc-builtins is missing"));
        fs::write(folder.path().join("libnvrtc-builtins.so.13.0"), "no library").unwrap();
        let reason = Library::open(&library).unwrap_err();
        assert!(!reason.is_empty() && !reason.contains("missing beside it"), "{reason}");
        let reason = Library::open(Path::new("libnvrtc-of-no-loader.so")).unwrap_err();
        assert!(reason.contains("libnvrtc-of-no-loader.so"), "{reason}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_builtins_name_carries_the_version() {
        assert_eq!(builtins_name((13, 0)), "libnvrtc-builtins.so.13.0");
    }
}
