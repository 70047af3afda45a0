//! Texts that stand for files under `kernels/`, for kernels that are being changed.

use super::fingerprint::Key;
use super::source::{self, Source};
use crate::error::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files that stand for those of the same name under `kernels/`, or stand beside them. They are compiled in their place by a
/// thread that [`with_overlay`] gives them to, and change nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    files: BTreeMap<String, String>,
    fingerprint: Arc<str>,
}

/// Bytes of all files at the very most: ten times what all kernels have together.
pub const MOST_OVERLAY_BYTES: usize = 4 << 20;

impl Overlay {
    /// These files, by their names under `kernels/`. A name that leads elsewhere is an error, as is nothing at all.
    pub fn new(files: BTreeMap<String, String>) -> Result<Overlay> {
        files.keys().try_for_each(|name| check_name(name))?;
        let bytes: usize = files.values().map(String::len).sum();
        if files.is_empty() || bytes > MOST_OVERLAY_BYTES {
            let rule = format!("{} files with {bytes} bytes are no kernel's sources", files.len());
            return Err(Error::invalid("source", rule, format!("give 1 to {MOST_OVERLAY_BYTES} bytes")));
        }
        let fields = files.iter().flat_map(|(name, text)| [name, text]);
        let key = fields.fold(Key::new(), |key, field| key.field(field.as_bytes())).finish();
        Ok(Overlay { fingerprint: format!("{key:032x}").into(), files })
    }

    /// Name and text of each file.
    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.files
    }

    /// A hash of names and texts, in hexadecimal: equal files have the same, on every machine.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The text that is compiled for this name: its own, or that of the file under `kernels/`.
    pub fn text<'a>(&'a self, name: &str) -> Option<&'a str> {
        self.files.get(name).map(String::as_str).or_else(|| source::text(name))
    }

    /// A file with every header that it reaches.
    pub(super) fn source<'a>(&'a self, name: &'a str) -> Result<Source<'a>> {
        let own = self.files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        Source::embedded_with(name, own)
    }
}

/// A relative path of plain names that ends as device code does.
fn check_name(name: &str) -> Result<()> {
    let plain = |part: &str| {
        let letters = part.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
        letters && !part.is_empty() && !part.starts_with('.')
    };
    let parts: Vec<&str> = name.split('/').collect();
    let ends = [".cu", ".cuh"].iter().any(|ending| name.ends_with(ending));
    if name.len() > 200 || parts.len() != 2 || !ends || !parts.into_iter().all(plain) {
        let name: String = name.chars().take(80).collect();
        let rule = format!("{name:?} is no file under kernels/");
        return Err(Error::invalid("source", rule, "name files as hopper/scores.cuh is named"));
    }
    Ok(())
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Overlay>>> = const { RefCell::new(None) };
}

/// Does something while whatever this thread compiles and loads is made from these files. Kernels that are loaded stay what
/// they are, so that two sides of a comparison can have sources of their own.
pub fn with_overlay<T>(overlay: Option<&Arc<Overlay>>, run: impl FnOnce() -> T) -> T {
    struct Restored(Option<Arc<Overlay>>);
    impl Drop for Restored {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restored = Restored(CURRENT.replace(overlay.cloned()));
    run()
}

/// The same for all that this thread compiles from now on.
pub fn set_overlay(overlay: Option<Arc<Overlay>>) {
    CURRENT.set(overlay);
}

/// The files that this thread compiles in place of those under `kernels/`.
pub(super) fn current() -> Option<Arc<Overlay>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Tells a program that this thread compiles from others of the same file.
pub(crate) fn replacement(_file: &str) -> Option<Arc<str>> {
    CURRENT.with_borrow(|current| current.as_ref().map(|overlay| overlay.fingerprint.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::arch::Arch;
    use crate::cuda::compile::compiler::{Compiler, Program, files};

    fn overlay(files: &[(&str, &str)]) -> Result<Overlay> {
        Overlay::new(files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect())
    }

    #[test]
    fn names_lead_to_kernels_alone() {
        for name in [
            "",
            "a.cu",
            "/etc/a.cu",
            "../a.cu",
            "hopper/../a.cu",
            "hopper/a/b.cu",
            "hopper/.a.cu",
            "hopper/a.txt",
            "hopper\\a.cu",
            "hopper/a\n.cu",
            "hopper/ä.cu",
        ] {
            assert!(overlay(&[(name, "x")]).is_err(), "{name:?}");
        }
        assert!(overlay(&[]).is_err());
        assert!(overlay(&[("hopper/a.cu", &"x".repeat(MOST_OVERLAY_BYTES + 1))]).is_err());
        assert!(overlay(&[("hopper/new-part_2.cuh", "x")]).is_ok());
    }

    #[test]
    fn equal_files_have_the_same_fingerprint_and_others_another() {
        let one = overlay(&[("hopper/a.cu", "x"), ("hopper/b.cu", "y")]).unwrap();
        let again = overlay(&[("hopper/b.cu", "y"), ("hopper/a.cu", "x")]).unwrap();
        let other = overlay(&[("hopper/a.cu", "y"), ("hopper/b.cu", "x")]).unwrap();
        assert_eq!(one, again);
        assert!(one.fingerprint() != other.fingerprint() && one.fingerprint().len() == 32);
    }

    #[test]
    fn headers_are_replaced_and_added_for_this_thread_until_it_ends() {
        let header = "hopper/tile.cuh";
        let main = "hopper/attention.cu";
        let program = Program { file: main, entry: "x", defines: Vec::new(), dynamic_shared_bytes: 0 };
        let shipped = files(&program).unwrap();
        let changed = format!("#include \"hopper/new.cuh\"\n{}", source::text(header).unwrap());
        let overlay = Arc::new(overlay(&[(header, &changed), ("hopper/new.cuh", "// new")]).unwrap());
        with_overlay(Some(&overlay), || {
            let seen = files(&program).unwrap();
            let text = |name: &str| seen.iter().find(|(one, _)| one == name).map(|(_, text)| text.as_str());
            assert_eq!((text(header), text("hopper/new.cuh")), (Some(changed.as_str()), Some("// new")));
            assert_eq!(text(main), source::text(main));
            assert_eq!(replacement(main).as_deref(), Some(overlay.fingerprint()));
            let elsewhere = std::thread::scope(|scope| scope.spawn(|| files(&program).unwrap()).join().unwrap());
            assert_eq!(elsewhere, shipped);
            with_overlay(None, || assert_eq!(files(&program).unwrap(), shipped));
            assert!(replacement(main).is_some());
        });
        assert_eq!((files(&program).unwrap(), replacement(main)), (shipped, None));
        assert_eq!((overlay.text(header), overlay.text("none")), (Some(changed.as_str()), None));
    }

    #[test]
    fn what_is_replaced_is_compiled() {
        let Ok(compiler) = Compiler::find() else { return };
        let file = "quantize/quantize.cu";
        let program = Program { file, entry: "replaced", defines: Vec::new(), dynamic_shared_bytes: 0 };
        let text = "extern \"C\" __global__ void replaced(float* x) { *x = 1; }";
        let overlay = Arc::new(overlay(&[(file, text)]).unwrap());
        let compile = || compiler.compile(&program, Arch::Sm90).map(|cubin| cubin.entry);
        assert!(compile().is_err());
        assert_eq!(with_overlay(Some(&overlay), compile), Ok("replaced".into()));
        assert!(compile().is_err());
    }
}
