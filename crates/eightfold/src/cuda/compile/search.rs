//! Where NVRTC may be, tried in order.

use super::compiler::Tried;
use std::fs;
use std::path::{Path, PathBuf};

/// Why there is nothing to load from a folder that exists.
pub(super) const NO_LIBRARY: &str = "no NVRTC in it";

/// The library's names, the newest first. The `.alt.` twins beside them cannot be mixed with the plain ones.
const NAMES: &[&str] = if cfg!(windows) {
    &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
} else if cfg!(target_os = "macos") {
    &["libnvrtc.dylib"]
} else {
    &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
};

/// Where the library is in a CUDA toolkit.
const TOOLKIT: &[&str] = if cfg!(windows) {
    &["bin/x64", "bin"]
} else if cfg!(target_arch = "aarch64") {
    &["lib64", "targets/sbsa-linux/lib", "targets/aarch64-linux/lib", "lib"]
} else {
    &["lib64", "targets/x86_64-linux/lib", "lib"]
};

/// Where NVIDIA's wheels put it, from CUDA 13 on and before.
const WHEEL: &[&str] = if cfg!(windows) {
    &["nvidia/cu13/bin/x86_64", "nvidia/cuda_nvrtc/bin"]
} else {
    &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"]
};

/// Where toolkits are installed, below the root.
const TOOLKITS: &[&str] = &["usr/local/cuda", "opt/cuda"];

/// Where to look; in tests, in a tree of folders made for the purpose.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The library or the folder that the program named, and no other.
    chosen: Option<PathBuf>,
    /// Folders that the program named to be looked in first, and why.
    folders: Vec<(String, PathBuf)>,
    /// A library that this process has loaded already.
    loaded: Option<PathBuf>,
    /// What stands for `/`.
    root: PathBuf,
}

/// A place, with the library in it or why there is none to load.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    origin: String,
    path: PathBuf,
    library: Result<PathBuf, String>,
}

impl Places {
    pub(super) fn of_process(chosen: Option<PathBuf>, folders: Vec<(String, PathBuf)>) -> Self {
        // Linux alone lists what is loaded so; elsewhere nothing is found.
        let loaded = fs::read_to_string("/proc/self/maps").ok().and_then(|maps| mapped(&maps));
        Places { chosen, folders, loaded, root: "/".into() }
    }

    fn list(&self) -> Vec<Place> {
        if let Some(path) = &self.chosen {
            return vec![Place::of("chosen by hand", path)];
        }
        // Two in one process would each have state of their own: that of PyTorch, say, serves us as well.
        let mut places: Vec<Place> = self.loaded.iter().map(|path| Place::of("loaded by this process", path)).collect();
        places.extend(self.folders.iter().map(|(origin, folder)| Place::of(origin, folder)));
        places.extend(TOOLKITS.iter().map(|folder| Place::of("CUDA toolkit", &self.root.join(folder))));
        drop_repeats(&mut places);
        places.extend(NAMES.iter().map(|name| Place::of_name("system loader", name)));
        places
    }
}

impl Place {
    /// A library, or the first one in a folder, a toolkit's or one of wheels.
    fn of(origin: &str, path: &Path) -> Place {
        let library = if path.is_file() {
            Ok(path.to_owned())
        } else if path.is_dir() {
            let folders = [""].iter().chain(WHEEL).chain(TOOLKIT).map(|folder| path.join(folder));
            let mut files = folders.flat_map(|folder| NAMES.iter().map(move |name| folder.join(name)));
            files.find(|file| file.is_file()).ok_or_else(|| NO_LIBRARY.into())
        } else {
            Err("no such folder".into())
        };
        Place { origin: origin.into(), path: path.into(), library }
    }

    fn of_name(origin: &str, name: &str) -> Place {
        Place { origin: origin.into(), path: name.into(), library: Ok(name.into()) }
    }
}

/// The NVRTC among the files that are mapped into a process, each at the end of a line.
fn mapped(maps: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let is_nvrtc = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so"));
    paths.into_iter().find(|path| is_nvrtc(path)).map(Path::to_owned)
}

/// Tries the places in order until one loads; `load` also tells the version. A library that was named by hand is the only one
/// tried: whoever names one must not get another.
pub(super) fn search<T>(
    places: &Places,
    load: impl Fn(&Path) -> Result<(String, T), String>,
) -> (Vec<Tried>, Option<T>) {
    let mut tried = Vec::new();
    for Place { origin, path, library } in places.list() {
        let loaded = library.as_deref().map_err(Clone::clone).and_then(&load);
        let path = library.unwrap_or(path);
        let (loaded, found) = match loaded {
            Ok((version, loaded)) => (Some(loaded), Ok(version)),
            Err(reason) => (None, Err(reason)),
        };
        tried.push(Tried { origin, path, found });
        if loaded.is_some() {
            return (tried, loaded);
        }
    }
    (tried, None)
}

/// One library can be reached by several ways; it is tried once.
fn drop_repeats(places: &mut Vec<Place>) {
    let mut seen = Vec::new();
    places.retain(|place| {
        let identity = match &place.library {
            Ok(library) => library.canonicalize().unwrap_or_else(|_| library.clone()),
            Err(_) => place.path.clone(),
        };
        let new = !seen.contains(&identity);
        if new {
            seen.push(identity);
        }
        new
    });
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// Files below a temporary folder.
        fn new(files: &[&str]) -> Self {
            let tree = Tree(tempfile::tempdir().unwrap());
            for file in files {
                let path = tree.path(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            tree
        }

        fn path(&self, inside: &str) -> PathBuf {
            self.0.path().join(inside)
        }

        fn places(&self, folders: &[&str]) -> Places {
            let folders = folders.iter().map(|folder| ((*folder).to_owned(), self.path(folder))).collect();
            Places { root: self.0.path().to_owned(), folders, ..Places::default() }
        }

        /// The libraries in the order in which they would be tried, below the tree.
        fn order(&self, places: &Places) -> Vec<String> {
            let libraries = places.list().into_iter().filter_map(|place| place.library.ok());
            let inside = libraries.filter_map(|path| path.strip_prefix(self.0.path()).map(Path::to_owned).ok());
            inside.map(|path| path.to_string_lossy().into_owned()).collect()
        }
    }

    #[test]
    fn named_folders_then_toolkits_then_the_loader() {
        let tree = Tree::new(&[
            "wheels/nvidia/cu13/lib/libnvrtc.so.13",
            "toolkit/lib64/libnvrtc.so.13",
            "usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so",
            "opt/cuda/lib64/libnvrtc.alt.so",
            "opt/cuda/lib64/libnvrtc.so",
        ]);
        let places = tree.places(&["wheels", "missing", "toolkit"]);
        let expected = [
            "wheels/nvidia/cu13/lib/libnvrtc.so.13",
            "toolkit/lib64/libnvrtc.so.13",
            "usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so",
            "opt/cuda/lib64/libnvrtc.so",
        ];
        assert_eq!(tree.order(&places), expected);
        let last: Vec<_> = places.list().into_iter().rev().take(3).map(|place| place.path).collect();
        assert_eq!(last, ["libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.13"].map(PathBuf::from));
    }

    #[test]
    fn what_is_named_by_hand_is_the_only_one_tried() {
        let tree = Tree::new(&["mine/libnvrtc.so.13", "opt/cuda/lib64/libnvrtc.so"]);
        let named = |path: &str| Places { chosen: Some(tree.path(path)), ..tree.places(&["opt/cuda"]) };
        assert_eq!(tree.order(&named("mine")), ["mine/libnvrtc.so.13"]);
        assert_eq!(tree.order(&named("mine/libnvrtc.so.13")), ["mine/libnvrtc.so.13"]);
        assert_eq!(tree.order(&named("opt/cuda")), ["opt/cuda/lib64/libnvrtc.so"]);
        assert_eq!(tree.order(&named("missing")), Vec::<String>::new());
    }

    #[test]
    fn what_the_process_has_loaded_goes_first() {
        let tree = Tree::new(&["opt/cuda/lib64/libnvrtc.so", "torch/libnvrtc.so.12"]);
        let line = "7f3c9a000000-7f3c9a800000 r--p 00000000 103:02 9437";
        let torch = tree.path("torch/libnvrtc.so.12");
        let maps =
            format!("{line} [heap]\n{line} /lib/libnvrtc-builtins.so.12.8\n{line}   {}\n{line}\n", torch.display());
        let places = Places { loaded: mapped(&maps), ..tree.places(&["opt/cuda"]) };
        assert_eq!(places.list()[0].library, Ok(torch));
        let chosen = Places { chosen: Some(tree.path("opt/cuda")), ..places };
        assert_eq!(chosen.list().len(), 1);
    }

    #[test]
    fn a_library_reached_twice_is_tried_once() {
        let tree = Tree::new(&["usr/local/cuda-13.0/lib64/libnvrtc.so.13"]);
        std::os::unix::fs::symlink(tree.path("usr/local/cuda-13.0"), tree.path("usr/local/cuda")).unwrap();
        assert_eq!(tree.order(&tree.places(&["usr/local/cuda-13.0"])).len(), 1);
    }

    #[test]
    fn every_try_is_kept_with_its_reason_until_one_loads() {
        let tree = Tree::new(&["usr/local/cuda/lib64/libnvrtc.so.12", "opt/cuda/lib64/libnvrtc.so.13"]);
        let places = tree.places(&["missing"]);
        let load = |path: &Path| match path.ends_with("libnvrtc.so.12") {
            true => Err("NVRTC 12.2 is too old".to_owned()),
            false => Ok(("NVRTC 13.0".to_owned(), path.to_owned())),
        };
        let (tried, loaded) = search(&places, load);
        assert_eq!(loaded, Some(tree.path("opt/cuda/lib64/libnvrtc.so.13")));
        let found: Vec<_> = tried.iter().map(|tried| tried.outcome()).collect();
        assert_eq!(found, ["no such folder", "NVRTC 12.2 is too old", "NVRTC 13.0"]);
        let (tried, loaded) = search(&places, |_: &Path| Err::<(String, ()), _>("broken".to_owned()));
        assert_eq!((loaded, tried.last().unwrap().path.as_path()), (None, Path::new("libnvrtc.so")));
    }
}
