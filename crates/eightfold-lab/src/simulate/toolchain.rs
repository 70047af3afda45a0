//! Kernels as libraries of the host, compiled by its C++ compiler and kept on disk.

use super::compiler::CxxCompiler;
use super::sources;
use crate::environment;
use eightfold::cuda::Arch;
use eightfold::lab::compile::{self, Overlay, Program, Toolchain};
use eightfold::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// What every unit is compiled with.
pub(super) const FLAGS: [&str; 7] =
    ["-std=c++17", "-g1", "-march=native", "-fPIC", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-w"];

/// What a kernel is compiled with besides: every access is shown to hooks, which are those of the runtime; and no load
/// that the source makes under a condition is made without.
const KERNEL_FLAGS: [&str; 9] = [
    "-O1",
    "-fsanitize=thread",
    "-fno-tree-phiprop",
    "-fno-ssa-phiopt",
    "-fno-if-conversion",
    "-fno-tree-loop-im",
    "-fno-extern-tls-init",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
];

/// Compiled kernels are held below this, the longest unused first.
const MOST_BYTES: u64 = 2 << 30;

/// A change to a kernel's source, to see what the simulator says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The file under `kernels/`.
    pub file: String,
    /// What stands there, once.
    pub before: String,
    /// What is to stand there.
    pub after: String,
}

thread_local! {
    static EDITS: RefCell<Vec<Edit>> = const { RefCell::new(Vec::new()) };
}

/// Lets this thread compile kernels with these changes from now on. `main` is the file that includes the others: a
/// comment in it tells the changed program from any other that is loaded.
pub fn plant(main: &'static str, edits: Vec<Edit>) {
    let mark: String = edits.iter().map(|edit| format!("{} {}\n{}", edit.file, edit.before, edit.after)).collect();
    let marked = compile::source_text(main).filter(|_| !edits.is_empty()).and_then(|text| {
        let text = format!("{text}\n// {:032x}\n", key([mark.as_str()]));
        Overlay::new(BTreeMap::from([(main.to_owned(), text)])).ok()
    });
    compile::set_overlay(marked.map(Arc::new));
    EDITS.set(edits);
}

fn edited(name: &str, text: &str) -> Result<String> {
    EDITS.with_borrow(|edits| {
        let mut text = text.to_owned();
        for edit in edits.iter().filter(|edit| edit.file == name) {
            if text.matches(&edit.before).count() != 1 {
                let reason = format!("{:?} does not stand there once", edit.before);
                return Err(Error::invalid(name, reason, "change something that stands there once"));
            }
            text = text.replacen(&edit.before, &edit.after, 1);
        }
        Ok(text)
    })
}

/// A source with a way in before every kernel, on its line, so that lines stay what they are.
fn with_entries(text: &str) -> String {
    const KERNEL: &str = "extern \"C\" __global__ void";
    const ARGUMENT: &str = "(const __grid_constant__ ";
    let mut parts = text.split(KERNEL);
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let entry = part.split_once(ARGUMENT).and_then(|(before, after)| {
            let name = before.rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next()?;
            Some(format!("SIMULATED_ENTRY({name}, {}) ", after.split_whitespace().next()?))
        });
        made += &entry.unwrap_or_default();
        made += KERNEL;
        made += part;
    }
    made
}

/// FNV-1a over fields, each with its length.
pub(super) fn key<'a>(fields: impl IntoIterator<Item = &'a str>) -> u128 {
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let add = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    fields.into_iter().fold(start, |hash, field| {
        let length = (field.len() as u64).to_le_bytes();
        length.into_iter().chain(field.bytes()).fold(hash, add)
    })
}

/// Where compiled libraries are kept.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Beside compiled kernels for GPUs; a temporary folder where there is no place for those.
    pub(super) fn of_user() -> Result<Folder> {
        let place = environment::cache_folder()
            .map_or_else(|| std::env::temp_dir().join("eightfold-simulator"), |folder| folder.join("simulator"));
        fs::create_dir_all(&place).map_err(|error| unwritable(&place, &error))?;
        fs::canonicalize(&place).map(Folder).map_err(|error| unwritable(&place, &error))
    }

    /// The library `file` of this name, compiled from files if it is not there. It is there whole or not at all.
    pub(super) fn build(
        &self,
        name: &str,
        file: &str,
        files: &[(&str, impl AsRef<str>)],
        compile: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let place = self.0.join(name);
        let library = place.join(file);
        if library.is_file() {
            // Not being able to mark the use costs at most an early eviction.
            let _ = fs::File::open(&library).and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(library);
        }
        let work = tempfile::tempdir_in(&self.0).map_err(|error| unwritable(&self.0, &error))?;
        for (name, text) in files {
            let path = work.path().join(name);
            let written =
                fs::create_dir_all(path.parent().unwrap_or(&path)).and_then(|()| fs::write(&path, text.as_ref()));
            written.map_err(|error| unwritable(&path, &error))?;
        }
        let made = work.path().join(file);
        compile(work.path(), &made)?;
        let kept = fs::create_dir_all(&place).and_then(|()| fs::rename(&made, &library));
        kept.map_err(|error| unwritable(&library, &error))?;
        self.tidy();
        Ok(library)
    }

    /// Removes what was not used for longest until the rest is below the limit.
    fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let mut found: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for folder in entries.flatten().map(|entry| entry.path()) {
            let Ok(files) = fs::read_dir(&folder) else { continue };
            let files: Vec<_> = files.flatten().filter_map(|file| file.metadata().ok()).collect();
            let used = files.iter().filter_map(|file| file.modified().ok()).max();
            if let Some(used) = used {
                found.push((used, files.iter().map(fs::Metadata::len).sum(), folder));
            }
        }
        let mut total: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
        found.sort();
        for (_, bytes, folder) in found {
            if total <= MOST_BYTES {
                return;
            }
            // Another process may be faster.
            let _ = fs::remove_dir_all(folder);
            total -= bytes;
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    Error::unavailable(
        "the simulator",
        format!("{} cannot be written: {error}", path.display()),
        "set EIGHTFOLD_CACHE to a folder that can be",
    )
}

/// The C++ compiler in NVRTC's place. What it hands to the driver is the path of the compiled kernel.
#[derive(Debug)]
pub(super) struct SimulatedToolchain {
    compiler: CxxCompiler,
    runtime: PathBuf,
}

impl SimulatedToolchain {
    pub(super) fn new(compiler: CxxCompiler, runtime: PathBuf) -> Self {
        SimulatedToolchain { compiler, runtime }
    }
}

impl Toolchain for SimulatedToolchain {
    fn version(&self) -> String {
        format!("simulator, {}", self.compiler.version)
    }

    fn compile(&self, files: &[(&str, &str)], program: &Program, _arch: Arch) -> Result<Vec<u8>> {
        // Headers of `ptx/` have twins, which are found first; all others are compiled as they are.
        let mut all: Vec<(&str, String)> =
            sources::DEVICE.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        for (name, text) in files.iter().filter(|(name, _)| !name.starts_with("ptx/")) {
            all.push((name, with_entries(&edited(name, text)?)));
        }
        all.push(("unit.cc", format!("#include \"{}\"\n", program.file)));
        let defines: Vec<String> = program.defines.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
        let runtime = self.runtime.display().to_string();
        let fields = [self.compiler.version.as_str(), &runtime].into_iter().chain(FLAGS).chain(KERNEL_FLAGS);
        let texts = all.iter().flat_map(|(name, text)| [*name, text.as_str()]);
        let name =
            format!("{}-{:032x}", program.entry, key(fields.chain(defines.iter().map(String::as_str)).chain(texts)));
        let library = Folder::of_user()?.build(&name, "kernel.so", &all, |work, target| {
            let what = format!("{} `{}` for the simulator", program.file, program.entry);
            let mut arguments: Vec<String> = FLAGS.into_iter().chain(KERNEL_FLAGS).map(String::from).collect();
            arguments.push(format!("-ffile-prefix-map={}=.", work.display()));
            arguments
                .extend(["-Idevice", "-I.", "-include", "cuda.h", "-c", "unit.cc", "-o", "unit.o"].map(String::from));
            arguments.extend(defines.iter().cloned());
            self.compiler.run(&what, work, &arguments)?;
            // Linked apart, without the library that the hooks would come from.
            let link = ["-shared", "unit.o", &runtime, "-o", &target.display().to_string()].map(String::from);
            self.compiler.run(&what, work, &link)
        })?;
        Ok([library.as_os_str().as_encoded_bytes(), b"\0"].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_made_once_and_kept_whole() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder(place.path().to_owned());
        let files = [("a/b.h", "x")];
        let made = folder.build("n", "k.so", &files, |work, target| {
            assert_eq!(fs::read_to_string(work.join("a/b.h")).unwrap(), "x");
            fs::write(target, "compiled").unwrap();
            Ok(())
        });
        assert_eq!(fs::read_to_string(made.unwrap()).unwrap(), "compiled");
        folder.build("n", "k.so", &files, |_, _| panic!("it is there")).unwrap();
        let failed = folder.build("m", "k.so", &files, |_, _| Err(Error::invalid("x", "no", "mend it")));
        assert!(failed.is_err() && !place.path().join("m").exists());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left of what failed");
    }

    #[test]
    fn every_kernel_of_a_source_has_a_way_in() {
        let kernel =
            "extern \"C\" __global__ void __launch_bounds__(THREADS, 2)\n    f_1(const __grid_constant__ Problem p) {}";
        let text = format!("struct Problem {{}};\n{kernel}\n{kernel}\n");
        let made = with_entries(&text);
        assert_eq!(made.matches("SIMULATED_ENTRY(f_1, Problem) extern").count(), 2);
        assert_eq!(made.lines().count(), text.lines().count());
        assert_eq!(with_entries("void g() {}"), "void g() {}");
    }

    #[test]
    fn a_fault_must_stand_where_it_is_planted() {
        let edit = |before: &str| Edit { file: "a.cu".into(), before: before.into(), after: "y".into() };
        EDITS.set(vec![edit("x")]);
        assert_eq!(edited("a.cu", "wxz"), Ok("wyz".into()));
        assert_eq!(edited("b.cu", "wxz"), Ok("wxz".into()));
        assert!(edited("a.cu", "xx").is_err() && edited("a.cu", "w").is_err());
        EDITS.set(Vec::new());
    }
}
