//! Where an NVRTC may be on this machine: folders made from the environment, in the order in which they are worth a look.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

/// Where `compile::FETCH_COMMAND` puts NVRTC.
const PROJECT_FOLDER: &str = ".nvrtc";

/// What the folders depend on; in tests, a tree made for the purpose.
#[derive(Debug, Clone, Default)]
pub(super) struct Surroundings {
    variables: Vec<(&'static str, PathBuf)>,
    current: Option<PathBuf>,
    executable: Option<PathBuf>,
    /// What stands for `/`.
    root: PathBuf,
}

impl Surroundings {
    pub(super) fn of_process() -> Self {
        let read = |name| super::variable(name).map(|value| (name, value));
        let names = ["CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "PATH"];
        Surroundings {
            variables: names.into_iter().filter_map(read).collect(),
            current: std::env::current_dir().ok(),
            executable: std::env::current_exe().ok(),
            root: PathBuf::from("/"),
        }
    }

    fn variable(&self, name: &str) -> Option<&Path> {
        self.variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_path())
    }

    /// The folders, each with what it is.
    pub(super) fn folders(&self) -> Vec<(String, PathBuf)> {
        let mut folders = self.project();
        folders.extend(self.toolkits());
        folders.extend(self.python());
        folders
    }

    /// The project's own folder, in the current folder or above it; and where a build of this project is run from elsewhere, above
    /// the executable.
    fn project(&self) -> Vec<(String, PathBuf)> {
        let executables = self.executable.as_deref().and_then(Path::parent);
        let starts = [("current folder", self.current.as_deref()), ("executable's folder", executables)];
        let mut folders = Vec::new();
        for (origin, start) in starts {
            let mut above = start.into_iter().flat_map(Path::ancestors).map(|folder| folder.join(PROJECT_FOLDER));
            folders.extend(above.find(|folder| folder.is_dir()).map(|folder| (origin.to_owned(), folder)));
        }
        folders
    }

    fn toolkits(&self) -> Vec<(String, PathBuf)> {
        let named = ["CUDA_HOME", "CUDA_PATH"].map(|name| Some((name.to_owned(), self.variable(name)?.to_owned())));
        let mut folders: Vec<_> = named.into_iter().flatten().collect();
        for pattern in ["usr/local/cuda", "usr/local/cuda-13*", "opt/cuda"] {
            folders.extend(matches(&self.root, pattern).into_iter().map(|folder| ("CUDA toolkit".into(), folder)));
        }
        folders
    }

    fn python(&self) -> Vec<(String, PathBuf)> {
        let mut sites = Vec::new();
        let mut add = |origin: &str, base: &Path, patterns: &[&str]| {
            for pattern in patterns {
                sites.extend(matches(base, pattern).into_iter().map(|site| (origin.to_owned(), site)));
            }
        };
        // Where an installation of Python keeps packages, below its prefix.
        let in_prefix = if cfg!(windows) { &["Lib/site-packages"] } else { &["lib/python3*/site-packages"] };
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(prefix) = self.variable(name) {
                add(name, prefix, in_prefix);
            }
        }
        if let Some(home) = self.variable("HOME") {
            add("the user's Python packages", home, &[".local/lib/python3*/site-packages"]);
        }
        add(
            "the system's Python packages",
            &self.root,
            &[
                "usr/lib/python3*/site-packages",
                "usr/lib/python3*/dist-packages",
                "usr/local/lib/python3*/dist-packages",
                "usr/local/lib/python3*/site-packages",
            ],
        );
        if let Some(program) = self.variable("PATH").and_then(python_on_path) {
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
}

fn python_on_path(path: &Path) -> Option<PathBuf> {
    let name = if cfg!(windows) { "python.exe" } else { "python3" };
    std::env::split_paths(path.as_os_str()).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// What a pattern stands for below a folder, the highest version first; the pattern itself where it stands for
/// nothing. A part of it may end in `*`.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// Folders, and programs where a name says so, below a temporary folder.
        fn new(paths: &[&str]) -> Self {
            let tree = Tree(tempfile::tempdir().unwrap());
            for path in paths {
                let path = tree.path(path);
                if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
                    && path.parent().unwrap().ends_with("bin")
                {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, "").unwrap();
                } else {
                    fs::create_dir_all(path).unwrap();
                }
            }
            tree
        }

        fn path(&self, inside: &str) -> PathBuf {
            self.0.path().join(inside)
        }

        fn around(&self) -> Surroundings {
            Surroundings { root: self.0.path().to_owned(), ..Surroundings::default() }
        }

        /// The folders that exist, below the tree.
        fn order(&self, around: &Surroundings) -> Vec<String> {
            let folders = around.folders().into_iter().map(|(_, folder)| folder).filter(|folder| folder.is_dir());
            let inside = folders.filter_map(|path| path.strip_prefix(self.0.path()).map(Path::to_owned).ok());
            inside.map(|path| path.to_string_lossy().into_owned()).collect()
        }
    }

    #[test]
    fn the_project_then_toolkits_then_python() {
        let tree = Tree::new(&[
            "work/.nvrtc",
            "work/below",
            "bin/.nvrtc",
            "toolkit",
            "usr/local/cuda-13.0",
            "usr/local/cuda-13.10",
            "opt/cuda",
            "venv/lib/python3.9/site-packages",
            "venv/lib/python3.11/site-packages",
            "home/.local/lib/python3.12/site-packages",
            "usr/local/lib/python3.12/dist-packages",
            "opt/torch/.venv/bin/python3",
            "opt/torch/.venv/lib/python3.10/site-packages",
        ]);
        let search_path = std::env::join_paths([tree.path("nowhere"), tree.path("opt/torch/.venv/bin")]).unwrap();
        let around = Surroundings {
            variables: vec![
                ("CUDA_HOME", tree.path("toolkit")),
                ("VIRTUAL_ENV", tree.path("venv")),
                ("HOME", tree.path("home")),
                ("PATH", search_path.into()),
            ],
            current: Some(tree.path("work/below")),
            executable: Some(tree.path("bin/eightfold")),
            ..tree.around()
        };
        let mut found = tree.order(&around);
        // The program itself and what the link points at are one here.
        found.dedup();
        assert_eq!(
            found,
            [
                "work/.nvrtc",
                "bin/.nvrtc",
                "toolkit",
                "usr/local/cuda-13.10",
                "usr/local/cuda-13.0",
                "opt/cuda",
                "venv/lib/python3.11/site-packages",
                "venv/lib/python3.9/site-packages",
                "home/.local/lib/python3.12/site-packages",
                "usr/local/lib/python3.12/dist-packages",
                "opt/torch/.venv/lib/python3.10/site-packages",
            ]
        );
    }

    #[test]
    fn python_of_pyenv_and_behind_a_link() {
        let tree = Tree::new(&[
            "pyenv/versions/3.12.1/lib/python3.12/site-packages",
            "pyenv/shims",
            "python/bin/python3.13",
            "python/lib/python3.13/site-packages",
            "links",
        ]);
        fs::write(tree.path("pyenv/shims/python3"), "").unwrap();
        std::os::unix::fs::symlink(tree.path("python/bin/python3.13"), tree.path("links/python3")).unwrap();
        let with = |folder: &str| Surroundings { variables: vec![("PATH", tree.path(folder))], ..tree.around() };
        let mut found = tree.order(&with("pyenv/shims"));
        found.dedup();
        assert_eq!(found, ["pyenv/versions/3.12.1/lib/python3.12/site-packages"]);
        assert_eq!(tree.order(&with("links")), ["python/lib/python3.13/site-packages"]);
    }
}
