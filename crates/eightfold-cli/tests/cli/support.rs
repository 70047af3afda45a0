//! A folder to work in, tensors to put there, and the command to run on them.

use assert_cmd::Command;
use eightfold_lab::gates::Thresholds;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// A folder of its own for one test.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// `eightfold`, to be run here; the arguments are split at blanks.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::cargo_bin("eightfold").unwrap();
        command.current_dir(self.path()).args(arguments.split_whitespace());
        command
    }

    /// Runs it.
    pub fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Writes `gates.toml`, with a limit of the mean error that nothing meets.
    pub fn write_impossible_gates(&self) {
        let embedded = Thresholds::embedded_text();
        let impossible = embedded.replace("mean_abs = 0.02", "mean_abs = 1e-12");
        assert_ne!(impossible, embedded);
        std::fs::write(self.file("gates.toml"), impossible).unwrap();
    }

    /// Runs `eightfold` here, expects success, returns standard output.
    pub fn succeed(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Everything in this folder, hidden files included, as paths below it. What a running command takes away meanwhile is
    /// left out.
    pub fn contents(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                found.push(path.strip_prefix(self.path()).unwrap().display().to_string());
                if path.is_dir() {
                    folders.push(path);
                }
            }
        }
        found.sort();
        found
    }

    pub fn write(&self, name: &str, tensors: &[Tensor]) {
        let views = tensors
            .iter()
            .map(|tensor| (tensor.name, TensorView::new(tensor.dtype, tensor.sizes.clone(), &tensor.bytes).unwrap()));
        std::fs::write(self.file(name), safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A tensor as it will lie in a file.
#[derive(Clone)]
pub struct Tensor {
    pub name: &'static str,
    pub dtype: Dtype,
    pub sizes: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn f32(name: &'static str, sizes: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { name, dtype: Dtype::F32, sizes: sizes.to_vec(), bytes }
    }

    pub fn f16(name: &'static str, sizes: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        Tensor { name, dtype: Dtype::F16, sizes: sizes.to_vec(), bytes }
    }

    pub fn bf16(name: &'static str, sizes: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
        Tensor { name, dtype: Dtype::BF16, sizes: sizes.to_vec(), bytes }
    }

    pub fn codes(name: &'static str, dtype: Dtype, sizes: &[usize], codes: &[u8]) -> Self {
        Tensor { name, dtype, sizes: sizes.to_vec(), bytes: codes.to_vec() }
    }
}

/// Numbers between −1 and 1 that look random and are the same everywhere.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// q, k and v of one size in f32.
pub fn sound_tensors(sizes: &[usize]) -> Vec<Tensor> {
    let count = sizes.iter().product();
    let tensor = |(seed, name)| Tensor::f32(name, sizes, &numbers(count, seed));
    [(1, "q"), (2, "k"), (3, "v")].map(tensor).to_vec()
}
