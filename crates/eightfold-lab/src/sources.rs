//! Fingerprints of the sources of each kernel: a record carries those of its day, and is stale when they are others now.
//!
//! Comments, blank lines and unit tests do not count. The build script computes them; a build without a checkout has none.

#[cfg(test)]
#[path = "sources/paths.rs"]
mod paths;

use std::collections::BTreeMap;

/// Every kernel's, as `name=hash`, separated by `;`.
const BUILT: Option<&str> = option_env!("EIGHTFOLD_SOURCES");

/// The fingerprint of every kernel's sources in this build, by the kernel's name.
pub fn all() -> BTreeMap<String, String> {
    let each = BUILT.unwrap_or_default().split(';').filter_map(|pair| pair.split_once('='));
    each.map(|(name, hash)| (name.into(), hash.into())).collect()
}

/// The fingerprint of a kernel's sources in this build.
pub fn of(kernel: &str) -> Option<String> {
    all().remove(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_kernel_has_sources_and_a_fingerprint_of_its_own() {
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold");
        let mut hashes = Vec::new();
        for kernel in paths::kernels() {
            // The families' own folders must be there; what they share may move.
            let found = paths::of(kernel).iter().filter(|path| library.join(path).exists()).count();
            assert!(found >= 2, "{kernel}: {:?}", paths::of(kernel));
            hashes.push(of(kernel).unwrap_or_else(|| panic!("{kernel} has no fingerprint")));
        }
        assert!(crate::kernel::Kernel::all().all(|kernel| of(&kernel.to_string()).is_some()));
        hashes.dedup();
        assert_eq!(hashes.len(), paths::kernels().count());
        assert_eq!((paths::of("no-such-kernel").len(), of("no-such-kernel")), (0, None));
    }
}
