//! Where NVRTC may be: a list of places made from the environment, tried in order.

use super::Tried;
use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

/// The project's own folder, where [`super::FETCH_COMMAND`] puts it.
const PROJECT_FOLDER: &str = ".nvrtc";
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

/// What the search depends on; in tests, a tree of folders made for the purpose.
#[derive(Debug, Clone, Default)]
pub(super) struct Environment {
    /// The library or the folder that the program named, and no other.
    pub(super) chosen: Option<PathBuf>,
    /// Folders that the program named to be looked in first.
    pub(super) folders: Vec<PathBuf>,
    /// The name of a library that this process has loaded already.
    pub(super) loaded: Option<&'static str>,
    /// The environment variables that matter.
    pub(super) variables: Vec<(&'static str, PathBuf)>,
    pub(super) executable: Option<PathBuf>,
    /// What stands for `/`.
    pub(super) root: PathBuf,
}

impl Environment {
    pub(super) fn of_process(chosen: Option<PathBuf>, folders: Vec<PathBuf>) -> Self {
        let read = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| (name, value.into()));
        let names = ["CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "PATH"];
        Environment {
            chosen,
            folders,
            loaded: NAMES.iter().copied().find(|name| super::nvrtc::is_loaded(name)),
            variables: names.into_iter().filter_map(read).collect(),
            executable: std::env::current_exe().ok(),
            root: PathBuf::from("/"),
        }
    }

    fn variable(&self, name: &str) -> Option<&Path> {
        self.variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_path())
    }
}

/// A place, with the library in it or why there is none to load.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    origin: String,
    path: PathBuf,
    library: Result<PathBuf, String>,
}

/// Tries the places in order until one loads; `load` also tells the version. A library that was named by hand is the only one tried: whoever names
/// one must not get another.
pub(super) fn search<T>(
    environment: &Environment,
    load: impl Fn(&Path) -> Result<(String, T), String>,
) -> (Vec<Tried>, Option<T>) {
    let mut tried = Vec::new();
    for Place { origin, path, library } in places(environment) {
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

fn places(environment: &Environment) -> Vec<Place> {
    let by_hand = |origin: &str, path: &Path| {
        let inside: Vec<&str> = [""].iter().chain(WHEEL).chain(TOOLKIT).copied().collect();
        if path.is_file() {
            Place { origin: origin.into(), path: path.into(), library: Ok(path.into()) }
        } else {
            place(origin, path.into(), &inside)
        }
    };
    if let Some(path) = &environment.chosen {
        return vec![by_hand("chosen by hand", path)];
    }
    // Two in one process would each have state of their own: that of PyTorch, say, serves us as well.
    let loaded = environment.loaded.map(|name| Place {
        origin: "loaded by this process".into(),
        path: name.into(),
        library: Ok(name.into()),
    });
    let mut places: Vec<Place> = loaded.into_iter().collect();
    places.extend(environment.folders.iter().map(|folder| by_hand("named folder", folder)));
    places.extend(project(environment));
    places.extend(toolkits(environment));
    places.extend(python(environment));
    drop_repeats(&mut places);
    places.extend(NAMES.iter().map(|name| Place {
        origin: "system loader".into(),
        path: name.into(),
        library: Ok(name.into()),
    }));
    places
}

/// A build of this project lies below its folder, wherever it is run from.
fn project(environment: &Environment) -> Option<Place> {
    let start = environment.executable.as_deref()?.parent()?;
    let above = start.ancestors().map(|folder| folder.join(PROJECT_FOLDER)).find(|folder| folder.is_dir());
    Some(match above {
        Some(folder) => place("executable's folder", folder, WHEEL),
        None => Place {
            origin: "executable's folder".into(),
            path: start.join(PROJECT_FOLDER),
            library: Err("no such folder, here or above".into()),
        },
    })
}

fn toolkits(environment: &Environment) -> Vec<Place> {
    let mut places = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        places.extend(environment.variable(name).map(|path| place(name, path.into(), TOOLKIT)));
    }
    for pattern in ["usr/local/cuda", "usr/local/cuda-13*", "opt/cuda"] {
        for folder in matches(&environment.root, pattern) {
            places.push(place("CUDA toolkit", folder, TOOLKIT));
        }
    }
    places
}

fn python(environment: &Environment) -> Vec<Place> {
    let mut sites = Vec::new();
    let mut add = |origin: &str, base: &Path, patterns: &[&str]| {
        for pattern in patterns {
            sites.extend(matches(base, pattern).into_iter().map(|site| place(origin, site, WHEEL)));
        }
    };
    // Where an installation of Python keeps packages, below its prefix.
    let in_prefix = if cfg!(windows) { &["Lib/site-packages"] } else { &["lib/python3*/site-packages"] };
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(prefix) = environment.variable(name) {
            add(name, prefix, in_prefix);
        }
    }
    if let Some(home) = environment.variable("HOME") {
        add("the user's Python packages", home, &[".local/lib/python3*/site-packages"]);
    }
    add(
        "the system's Python packages",
        &environment.root,
        &[
            "usr/lib/python3*/site-packages",
            "usr/lib/python3*/dist-packages",
            "usr/local/lib/python3*/dist-packages",
            "usr/local/lib/python3*/site-packages",
        ],
    );
    if let Some(program) = environment.variable("PATH").and_then(python_on_path) {
        // The link itself first: in a virtual environment it points out of the environment.
        for program in [Some(program.clone()), program.canonicalize().ok()].into_iter().flatten() {
            let Some(folder) = program.parent() else { continue };
            let Some(prefix) = folder.parent() else { continue };
            if folder.ends_with("shims") {
                // pyenv: what is on the path is a script, and which version it starts only it knows.
                add("Python of pyenv", prefix, &["versions/*/lib/python3*/site-packages"]);
            } else {
                add("python3 on the path", prefix, in_prefix);
            }
        }
    }
    sites
}

fn python_on_path(path: &Path) -> Option<PathBuf> {
    let name = if cfg!(windows) { "python.exe" } else { "python3" };
    std::env::split_paths(path.as_os_str()).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// The first library in these folders of a place.
fn place(origin: &str, path: PathBuf, inside: &[&str]) -> Place {
    let library = if path.is_dir() {
        let folders = inside.iter().map(|folder| path.join(folder));
        let mut files = folders.flat_map(|folder| NAMES.iter().map(move |name| folder.join(name)));
        files.find(|file| file.is_file()).ok_or_else(|| NO_LIBRARY.into())
    } else {
        Err("no such folder".into())
    };
    Place { origin: origin.into(), path, library }
}

/// What a pattern stands for below a folder, the highest version first; the pattern itself where it stands for
/// nothing, so that it is seen to have been looked for. A part of it may end in `*`.
fn matches(base: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![base.to_owned()];
    for part in pattern.split('/') {
        found = match part.strip_suffix('*') {
            None => found.into_iter().map(|folder| folder.join(part)).collect(),
            Some(start) => found.iter().flat_map(|folder| beginning_with(folder, start)).collect(),
        };
    }
    found.retain(|folder| folder.is_dir());
    if found.is_empty() { vec![base.join(pattern)] } else { found }
}

fn beginning_with(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(start));
    names.sort_by_key(|name| Reverse((numbers(name), name.clone())));
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// The numbers in a name: 3.11 comes after 3.9.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
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

        fn environment(&self) -> Environment {
            Environment { root: self.0.path().to_owned(), ..Environment::default() }
        }

        /// The libraries in the order in which they would be tried, below the tree.
        fn order(&self, environment: &Environment) -> Vec<String> {
            let libraries = places(environment).into_iter().filter_map(|place| place.library.ok());
            let inside = libraries.filter_map(|path| path.strip_prefix(self.0.path()).map(Path::to_owned).ok());
            inside.map(|path| path.to_string_lossy().into_owned()).collect()
        }
    }

    #[test]
    fn named_folders_then_the_project_then_toolkits_then_python_then_the_loader() {
        let tree = Tree::new(&[
            "work/.nvrtc/nvidia/cu13/lib/libnvrtc.so.13",
            "bin/.nvrtc/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "toolkit/lib64/libnvrtc.so.13",
            "usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so",
            "usr/local/cuda-13.10/lib64/libnvrtc.so.13",
            "opt/cuda/lib64/libnvrtc.so",
            "venv/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "home/.local/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "opt/torch/.venv/bin/python3",
            "opt/torch/.venv/lib/python3.10/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        ]);
        let search_path = std::env::join_paths([tree.path("nowhere"), tree.path("opt/torch/.venv/bin")]).unwrap();
        let environment = Environment {
            variables: vec![
                ("CUDA_HOME", tree.path("toolkit")),
                ("CUDA_PATH", tree.path("toolkit")),
                ("VIRTUAL_ENV", tree.path("venv")),
                ("HOME", tree.path("home")),
                ("PATH", search_path.into()),
            ],
            folders: vec![tree.path("work/.nvrtc")],
            executable: Some(tree.path("bin/eightfold")),
            ..tree.environment()
        };
        assert_eq!(
            tree.order(&environment),
            [
                "work/.nvrtc/nvidia/cu13/lib/libnvrtc.so.13",
                "bin/.nvrtc/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "toolkit/lib64/libnvrtc.so.13",
                "usr/local/cuda-13.10/lib64/libnvrtc.so.13",
                "usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so",
                "opt/cuda/lib64/libnvrtc.so",
                "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                "venv/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                "home/.local/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
                "opt/torch/.venv/lib/python3.10/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            ]
        );
        let last: Vec<_> = places(&environment).into_iter().rev().take(3).map(|place| place.path).collect();
        assert_eq!(last, ["libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.13"].map(PathBuf::from));
    }

    #[test]
    fn what_is_named_by_hand_is_the_only_one_tried() {
        let tree =
            Tree::new(&["mine/libnvrtc.so.13", "wheels/nvidia/cu13/lib/libnvrtc.so.13", "opt/cuda/lib64/libnvrtc.so"]);
        let named = |path: &str| Environment { chosen: Some(tree.path(path)), ..tree.environment() };
        assert_eq!(tree.order(&named("mine")), ["mine/libnvrtc.so.13"]);
        assert_eq!(tree.order(&named("mine/libnvrtc.so.13")), ["mine/libnvrtc.so.13"]);
        assert_eq!(tree.order(&named("wheels")), ["wheels/nvidia/cu13/lib/libnvrtc.so.13"]);
        assert_eq!(tree.order(&named("opt/cuda")), ["opt/cuda/lib64/libnvrtc.so"]);
        assert_eq!(tree.order(&named("missing")), Vec::<String>::new());
        let both = Environment { folders: vec![tree.path("wheels")], ..named("mine") };
        assert_eq!(tree.order(&both), ["mine/libnvrtc.so.13"]);
    }

    #[test]
    fn what_the_process_has_loaded_goes_first() {
        let tree = Tree::new(&["opt/cuda/lib64/libnvrtc.so"]);
        let environment = Environment { loaded: Some("libnvrtc.so.13"), ..tree.environment() };
        assert_eq!(places(&environment)[0].library, Ok("libnvrtc.so.13".into()));
        let chosen = Environment { chosen: Some(tree.path("opt/cuda")), ..environment };
        assert_eq!(places(&chosen).len(), 1);
    }

    #[test]
    fn alternative_builds_are_not_taken() {
        let tree = Tree::new(&["opt/cuda/lib64/libnvrtc.alt.so.13", "opt/cuda/lib64/libnvrtc.alt.so"]);
        assert_eq!(tree.order(&tree.environment()), Vec::<String>::new());
    }

    #[test]
    fn a_library_reached_twice_is_tried_once() {
        let tree = Tree::new(&["usr/local/cuda-13.0/lib64/libnvrtc.so.13"]);
        std::os::unix::fs::symlink(tree.path("usr/local/cuda-13.0"), tree.path("usr/local/cuda")).unwrap();
        assert_eq!(tree.order(&tree.environment()), ["usr/local/cuda/lib64/libnvrtc.so.13"]);
    }

    #[test]
    fn python_of_pyenv_and_behind_a_link() {
        let tree = Tree::new(&[
            "pyenv/shims/python3",
            "pyenv/versions/3.12.1/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "python/bin/python3.13",
            "python/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        ]);
        let with = |folder: &str| Environment { variables: vec![("PATH", tree.path(folder))], ..tree.environment() };
        assert_eq!(tree.order(&with("pyenv/shims")).len(), 1);
        fs::create_dir_all(tree.path("links")).unwrap();
        std::os::unix::fs::symlink(tree.path("python/bin/python3.13"), tree.path("links/python3")).unwrap();
        let found = tree.order(&with("links"));
        assert_eq!(found, ["python/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13"]);
    }

    #[test]
    fn every_try_is_kept_with_its_reason_until_one_loads() {
        let tree = Tree::new(&["usr/local/cuda/lib64/libnvrtc.so.12", "opt/cuda/lib64/libnvrtc.so.13"]);
        let environment = Environment { executable: Some(tree.path("work/eightfold")), ..tree.environment() };
        let load = |path: &Path| {
            if path.ends_with("libnvrtc.so.12") {
                Err("NVRTC 12.2 is too old".to_owned())
            } else {
                Ok(("NVRTC 13.0".to_owned(), path.to_owned()))
            }
        };
        let (tried, loaded) = search(&environment, load);
        assert_eq!(loaded, Some(tree.path("opt/cuda/lib64/libnvrtc.so.13")));
        let found: Vec<_> = tried.iter().map(|tried| tried.outcome()).collect();
        assert_eq!(found, ["no such folder, here or above", "NVRTC 12.2 is too old", "no such folder", "NVRTC 13.0"]);
        assert_eq!(tried[2].path, tree.path("usr/local/cuda-13*"));

        let (tried, loaded) = search(&environment, |_: &Path| Err::<(String, ()), _>("broken".to_owned()));
        assert_eq!(loaded, None);
        assert_eq!(tried.last().unwrap().path, Path::new("libnvrtc.so"));
    }
}
