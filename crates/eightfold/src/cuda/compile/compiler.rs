//! The compiler of this process, and what it makes of a program.

pub use super::options::defines;
pub use super::overlay::{MOST_OVERLAY_BYTES, Overlay, set_overlay, with_overlay};

use super::cache::{Cache, Entry};
use super::choice::{self, Choice, FETCH_COMMAND};
use super::fingerprint::Key;
use super::search::Places;
use super::source::Source;
use super::{nvrtc, options, overlay, search, source};
use crate::cuda::arch::Arch;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// One kernel to be compiled: which file, which function, which settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// The file under `kernels/` that holds the function, such as `ladder/attention.cu`.
    pub file: &'static str,
    /// The function, `extern "C"`.
    pub entry: &'static str,
    /// Macros that the source reads, in the order in which they are given to the compiler.
    pub defines: Vec<(&'static str, String)>,
    /// Shared memory that the launch will ask for on top of what the source declares.
    pub dynamic_shared_bytes: usize,
}

/// A compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// The ELF file that the driver loads.
    pub image: Arc<[u8]>,
    /// The function.
    pub entry: String,
    /// What it was compiled for.
    pub arch: Arch,
    /// What the compiler said, its report on registers and memory included; empty where nothing was said.
    pub log: String,
    /// The compiler and its version.
    pub compiler: String,
    /// Whether it came from the cache.
    pub cached: bool,
}

#[cfg(test)]
impl Cubin {
    /// Whether the compiler neither spilled registers nor warned of anything.
    pub(crate) fn is_lean(&self) -> bool {
        let mut frames = self.log.lines().filter(|line| line.contains(" bytes stack frame"));
        let lean = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
        frames.all(|line| line.ends_with(lean)) && !self.log.contains("warning") && !self.log.contains("(C7")
    }
}

/// One place where NVRTC was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Why it was looked at.
    pub origin: String,
    /// The library, or the folder where there is none.
    pub path: PathBuf,
    /// The version that was loaded from there, or why none was.
    pub found: std::result::Result<String, String>,
}

impl Tried {
    pub(super) fn outcome(&self) -> &str {
        self.found.as_ref().unwrap_or_else(|reason| reason)
    }
}

/// A loaded NVRTC with a cache of what it compiled, or what stands for it. Any number of threads may compile at once.
#[derive(Debug)]
pub struct Compiler {
    backend: Backend,
    version: String,
}

#[derive(Debug)]
enum Backend {
    Nvrtc { library: nvrtc::Library, cache: Cache },
    Toolchain(Box<dyn Toolchain>),
}

/// What makes of a kernel's sources something that the driver of this process can load, in place of NVRTC: where the
/// driver is not NVIDIA's but runs kernels by other means.
pub trait Toolchain: std::fmt::Debug + Send + Sync {
    /// Its name and version.
    fn version(&self) -> String;

    /// The image that the driver is handed. The first of the files, each a name under `kernels/` and its text, is the
    /// program's; the others are the headers that it reaches.
    fn compile(&self, files: &[(&str, &str)], program: &Program, arch: Arch) -> Result<Vec<u8>>;
}

/// What the one search of this process found.
struct Search {
    tried: Vec<Tried>,
    compiler: Option<Compiler>,
}

static SEARCH: OnceLock<Search> = OnceLock::new();

fn searched() -> &'static Search {
    SEARCH.get_or_init(|| {
        let Choice { nvrtc, folders, cache, toolchain } = choice::settled();
        if let Some(toolchain) = toolchain {
            let version = toolchain.version();
            return Search {
                tried: Vec::new(),
                compiler: Some(Compiler { backend: Backend::Toolchain(toolchain), version }),
            };
        }
        let load = |path: &Path| nvrtc::Library::open(path).map(|library| (library.version(), library));
        let (tried, library) = search::search(&Places::of_process(nvrtc, folders), load);
        Search {
            tried,
            compiler: library.map(|library| Compiler::new(library, Cache::new(cache, Cache::DEFAULT_MAX_BYTES))),
        }
    })
}

/// The text of a file under `kernels/`.
pub fn source_text(file: &str) -> Option<&'static str> {
    source::text(file)
}

/// The files that this thread compiles a program from: its own first, then the headers that it reaches, each with its name
/// under `kernels/`.
pub fn files(program: &Program) -> Result<Vec<(String, String)>> {
    let overlay = overlay::current();
    let source = match &overlay {
        Some(overlay) => overlay.source(program.file)?,
        None => Source::embedded(program.file)?,
    };
    Ok(owned(&source))
}

/// The same where this text stands for the program's own file.
pub fn files_of_text(program: &Program, text: &str) -> Result<Vec<(String, String)>> {
    Source::of_text(program.file, text).map(|source| owned(&source))
}

fn owned(source: &Source<'_>) -> Vec<(String, String)> {
    source.files().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

/// A hash of files under `kernels/` with every header that they reach, in hexadecimal.
pub fn source_fingerprint(files: &[&str]) -> String {
    let sources: Vec<_> = files.iter().filter_map(|file| Source::embedded(file).ok()).collect();
    let fields = sources.iter().flat_map(Source::files).flat_map(|(name, text)| [name, text]);
    format!("{:016x}", fields.fold(Key::new(), |key, field| key.field(field.as_bytes())).finish() as u64)
}

impl Compiler {
    /// The first NVRTC that can be found and loaded. The search runs once per process.
    pub fn find() -> Result<&'static Compiler> {
        let Search { tried, compiler } = searched();
        compiler.as_ref().ok_or_else(|| not_found(tried))
    }

    /// Every place that was looked at, in order, up to and including the one that is used.
    pub fn search() -> &'static [Tried] {
        &searched().tried
    }

    /// The NVRTC of this library file, whatever else there is.
    pub fn load(library: &Path) -> Result<Compiler> {
        let library = nvrtc::Library::open(library)
            .map_err(|reason| Error::unavailable("NVRTC", format!("{}: {reason}", library.display()), fetch()))?;
        Ok(Compiler::new(library, Cache::new(None, 0)))
    }

    /// Keeps what is compiled in this folder, up to this size.
    pub fn with_cache(mut self, folder: &Path, max_bytes: u64) -> Self {
        if let Backend::Nvrtc { cache, .. } = &mut self.backend {
            *cache = Cache::new(Some(folder.to_owned()), max_bytes);
        }
        self
    }

    fn new(library: nvrtc::Library, cache: Cache) -> Self {
        Compiler { version: library.version(), backend: Backend::Nvrtc { library, cache } }
    }

    /// The version, such as `NVRTC 13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Why compiled kernels are not kept, if they are not: compiling works without a cache, only slower.
    pub fn cache_note(&self) -> Option<&str> {
        match &self.backend {
            Backend::Nvrtc { cache, .. } => cache.trouble(),
            Backend::Toolchain(_) => None,
        }
    }

    /// Compiles, or takes the result from the cache.
    pub fn compile(&self, program: &Program, arch: Arch) -> Result<Cubin> {
        match overlay::current() {
            Some(overlay) => self.compile_source(&overlay.source(program.file)?, program, arch),
            None => self.compile_source(&Source::embedded(program.file)?, program, arch),
        }
    }

    /// Compiles this text in place of the program's file; it may include the headers under `kernels/`.
    pub fn compile_text(&self, text: &str, program: &Program, arch: Arch) -> Result<Cubin> {
        self.compile_source(&Source::of_text(program.file, text)?, program, arch)
    }

    fn compile_source(&self, source: &Source<'_>, program: &Program, arch: Arch) -> Result<Cubin> {
        let (library, cache) = match &self.backend {
            Backend::Nvrtc { library, cache } => (library, cache),
            Backend::Toolchain(toolchain) => {
                let files: Vec<_> = source.files().collect();
                let image = toolchain.compile(&files, program, arch)?;
                return self.cubin(image, String::new(), program, arch);
            }
        };
        let settings = options::nvrtc(program, arch);
        let mut options = settings.clone();
        options.extend(options::NVRTC_REPORT.map(String::from));
        let key = key(library, source, &options, program.entry);
        if let Some(Entry { log, image, .. }) = cache.get(key) {
            return Ok(Cubin { cached: true, ..self.cubin(image, log, program, arch)? });
        }
        let compiled = match library.compile(source, &options) {
            Ok(compiled) => compiled,
            Err(nvrtc::Failure::Compiler(reason)) => return Err(Error::unavailable(&*self.version, reason, fetch())),
            Err(nvrtc::Failure::Program { log, name }) => {
                let mut errors = errors_of(&log);
                if errors.is_empty() {
                    // When it is to report resources, NVRTC swallows some errors of the assembler, such as too much
                    // shared memory. Asked again without, it tells.
                    if let Err(nvrtc::Failure::Program { log, .. }) = library.compile(source, &settings) {
                        errors = errors_of(&log);
                    }
                }
                return Err(failed(program, arch, &self.version, &errors, &name));
            }
        };
        let cubin = self.cubin(compiled.image.clone(), compiled.log.clone(), program, arch)?;
        let description = format!("{} {} {} {}", self.version, source.name, program.entry, options.join(" "));
        cache.put(key, &Entry { description, log: compiled.log, image: compiled.image });
        Ok(cubin)
    }

    fn cubin(&self, image: Vec<u8>, log: String, program: &Program, arch: Arch) -> Result<Cubin> {
        if image.is_empty() {
            // As for a virtual architecture, of which there is no machine code.
            return Err(failed(program, arch, &self.version, &[], "it made an empty file"));
        }
        let (entry, compiler) = (program.entry.to_owned(), self.version.clone());
        Ok(Cubin { image: image.into(), entry, arch, log, compiler, cached: false })
    }
}

/// What a compiled kernel depends on. The architecture is among the options.
fn key(library: &nvrtc::Library, source: &Source<'_>, options: &[String], entry: &str) -> u128 {
    let compiler = [library.identity(), entry].into_iter();
    let files = source.files().flat_map(|(name, text)| [name, text]);
    let fields = compiler.chain(options.iter().map(String::as_str)).chain(files);
    fields.fold(Key::new(), |key, field| key.field(field.as_bytes())).finish()
}

/// The lines of a compiler's log that say why a compilation failed, each with its file and line where the compiler gives them.
pub fn errors_of(log: &str) -> Vec<String> {
    const MARKS: [&str; 6] =
        [": error", ": catastrophic error", "; error ", "ptxas error", "ptxas fatal", "nvcc fatal"];
    let is_error = |line: &&str| MARKS.iter().any(|mark| line.contains(mark));
    let mut errors: Vec<String> = log.lines().map(str::trim).filter(is_error).map(str::to_owned).collect();
    // "aborted due to errors" adds nothing to the errors themselves.
    if errors.len() > 1 {
        errors.retain(|line| !line.contains("aborted due to errors"));
    }
    errors
}

/// The error of a program that does not compile: the first of the compiler's own errors, and how many more there are.
pub fn failed(program: &Program, arch: Arch, compiler: &str, errors: &[String], name: &str) -> Error {
    const SHOWN: usize = 3;
    let mut reason = match errors {
        [] => name.to_owned(),
        errors => errors[..errors.len().min(SHOWN)].join(" / "),
    };
    if errors.len() > SHOWN {
        reason.push_str(&format!(" / and {} more", errors.len() - SHOWN));
    }
    let defines: Vec<_> = program.defines.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let settings = if defines.is_empty() { "no settings".into() } else { defines.join(" ") };
    Error::invalid(
        format!("{} `{}`", program.file, program.entry),
        format!("{compiler} does not compile it for {arch}: {reason}"),
        format!("mend the source or choose other settings (it was given {settings})"),
    )
}

fn not_found(tried: &[Tried]) -> Error {
    let told = |tried: &Tried| format!("{} ({}): {}", tried.path.display(), tried.origin, tried.outcome());
    let reason = match tried {
        // Named by hand: then it is the only place.
        [only] => told(only),
        all => {
            // That there is none needs no telling; that there is one which cannot be used does.
            let unusable = all.iter().filter(|tried| tried.path.exists() && tried.outcome() != search::NO_LIBRARY);
            let unusable: Vec<String> = unusable.map(told).collect();
            let places = format!("it is in none of the {} places looked at", all.len());
            [places].into_iter().chain(unusable).collect::<Vec<_>>().join("; ")
        }
    };
    Error::unavailable("NVRTC", reason, fetch())
}

fn fetch() -> String {
    format!(
        "run `{FETCH_COMMAND}` in the project's folder, or name the folder that holds one (cuda::compile::set_nvrtc; for the \
         command --nvrtc or EIGHTFOLD_NVRTC)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_is_the_same_wherever_it_is_named() {
        let (_, wheel) = FETCH_COMMAND.rsplit_once(' ').unwrap();
        let unpinned = wheel.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (file, must_name_it) in [(".ci/run", true), ("README.md", false), ("CONTRIBUTING.md", false)] {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let mut named = text.match_indices(unpinned).map(|(at, _)| &text[at..]);
            assert!(!must_name_it || named.clone().next().is_some(), "{file} must name {wheel}");
            assert!(named.all(|rest| rest.starts_with(wheel)), "{file} must name {wheel} and no other version");
        }
    }

    #[test]
    fn a_compiler_can_be_shared() {
        fn shared<T: Sync + Send>() {}
        shared::<Compiler>();
    }

    #[test]
    fn not_finding_one_tells_what_stood_in_the_way() {
        let tried = |path: &str, reason: &str| Tried {
            origin: "CUDA toolkit".into(),
            path: path.into(),
            found: Err(reason.into()),
        };
        let here = env!("CARGO_MANIFEST_DIR");
        let places = [tried("/nowhere", "no such folder"), tried(here, search::NO_LIBRARY), tried(here, "too old")];
        let error = not_found(&places).to_string();
        assert!(error.contains("none of the 3 places") && error.contains("too old") && error.contains(FETCH_COMMAND));
        assert!(!error.contains("no such folder") && !error.contains(search::NO_LIBRARY), "{error}");
        let named = not_found(&places[..1]).to_string();
        assert!(named.contains("/nowhere (CUDA toolkit): no such folder"), "{named}");
    }

    #[test]
    fn a_failure_shows_the_first_errors_and_counts_the_rest() {
        let program = Program { file: "a.cu", entry: "k", defines: vec![("N", "3".into())], dynamic_shared_bytes: 0 };
        let errors: Vec<String> = (1..=5).map(|line| format!("a.cu({line}): error: no")).collect();
        let error = failed(&program, Arch::Sm89, "NVRTC 13.0", &errors, "NVRTC_ERROR_COMPILATION").to_string();
        assert!(error.contains("a.cu(3)") && !error.contains("a.cu(4)") && error.contains("and 2 more"), "{error}");
        assert!(error.contains("sm_89") && error.contains("N=3"), "{error}");
        let error = failed(&program, Arch::Sm89, "NVRTC 13.0", &[], "NVRTC_ERROR_COMPILATION").to_string();
        assert!(error.contains("NVRTC_ERROR_COMPILATION"), "{error}");
    }

    #[test]
    fn errors_keep_file_and_line() {
        let log = "\
ptx/matrix.cuh(1): error: identifier \"yy\" is undefined
  static int z = yy;
                 ^

ladder/attention.cu(2): warning #177-D: variable \"unused\" was declared but never referenced
1 error detected in the compilation of \"ladder/attention.cu\".
";
        assert_eq!(errors_of(log), ["ptx/matrix.cuh(1): error: identifier \"yy\" is undefined"]);
        let assembler = "\
ptxas application ptx input, line 27; error   : Not a name of any known instruction: 'bogus'
ptxas fatal   : Ptx assembly aborted due to errors
";
        assert_eq!(errors_of(assembler).len(), 1);
        assert!(errors_of(assembler)[0].contains("'bogus'"));
        assert_eq!(errors_of("nvrtc: error: invalid value for --gpu-architecture (-arch)\n").len(), 1);
        assert_eq!(errors_of("a.cu(1): catastrophic error: cannot open source file \"b.cuh\"\n").len(), 1);
        let shared = "ptxas error   : Entry function 'k' uses too much shared data (0x7a120 bytes, 0xc000 max)\n";
        assert_eq!(errors_of(shared).len(), 1);
    }
}
