//! A process that has PyTorch loaded, and what is said to it.

use super::torch_host::TorchOnHost;
use super::worker::Worker;
use eightfold::{Dims, Error, Fp8Tensor, Layout, Mask, Output, Problem, Result, Values, Window};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

pub(super) const WORKER: &str = include_str!("torch_worker.py");
const TRITON_FP8: &str = include_str!("triton_fp8.py");

/// Longer than an import of PyTorch from a cold disk, or a block of runs on the longest shapes.
const TIMEOUT: Duration = Duration::from_secs(120);

const FIX_AT_START: &str =
    "install it with `python3 -m pip install torch`, or choose a Python that has it with --python";

const FIX_ONCE_RUNNING: &str = "measure this problem without it";

/// A Python process that has PyTorch loaded.
pub struct Torch {
    worker: Worker,
    scratch: TempDir,
    version: String,
    cuda: Option<String>,
    launch: Launch,
    /// A hash of the problem and the inputs that are on the GPU.
    pub(super) on_cuda: Option<u64>,
    /// Those that compute on the CPU, each with a process of its own.
    on_host: Vec<TorchOnHost>,
}

/// What starts such a process, and how many threads its kernels run on.
#[derive(Clone)]
pub(super) struct Launch {
    pub python: String,
    pub script: String,
    /// A variable of its environment.
    pub setting: Option<(&'static str, &'static str)>,
    pub timeout: Duration,
    pub threads: usize,
}

impl Torch {
    /// Starts this Python and imports PyTorch in it; kernels will run on that many threads.
    pub fn start(python: &str, threads: usize) -> Result<Self> {
        let (python, script) = (python.into(), WORKER.into());
        Torch::launch(Launch { python, script, setting: None, timeout: TIMEOUT, threads })
    }

    pub(super) fn launch(launch: Launch) -> Result<Self> {
        let no_folder = |error: std::io::Error| {
            Error::unavailable("PyTorch", format!("no temporary folder: {error}"), "set TMPDIR to a writable folder")
        };
        let scratch = tempfile::tempdir().map_err(no_folder)?;
        // Triton reads a kernel's source from its file.
        std::fs::write(scratch.path().join("triton_fp8.py"), TRITON_FP8).map_err(no_folder)?;
        let mut command = Command::new(&launch.python);
        command.args(["-c", &launch.script]).arg(scratch.path()).envs(launch.setting);
        let mut worker = Worker::start("PyTorch", FIX_AT_START, command, launch.timeout)?;
        let hello = worker.listen()?;
        let version = hello.get("version").and_then(|version| version.as_str());
        let version = version.ok_or_else(|| worker.error("it gave no version".into()))?.to_string();
        let cuda = hello.get("cuda").and_then(|name| name.as_str()).map(str::to_string);
        worker.set_fix(FIX_ONCE_RUNNING);
        Ok(Torch { worker, scratch, version, cuda, launch, on_cuda: None, on_host: Vec::new() })
    }

    /// PyTorch on the CPU, once for each of its number types.
    pub fn on_host(&mut self) -> &mut [TorchOnHost] {
        if self.on_host.is_empty() {
            self.on_host = TorchOnHost::of_each_dtype(&self.version, &self.launch);
        }
        &mut self.on_host
    }

    /// The signal that ended the process.
    pub(super) fn signal(&self) -> Option<i32> {
        self.worker.signal()
    }

    /// PyTorch's own version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The name of the GPU that it sees; none without one.
    pub fn cuda(&self) -> Option<&str> {
        self.cuda.as_deref()
    }

    /// Hands over the inputs, to be computed on the CPU in numbers of this type.
    pub(super) fn load(
        &mut self,
        dtype: &str,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
    ) -> Result<()> {
        let asked = self.launch.threads;
        let mut request = self.describe_inputs("load", problem, q, k, v)?;
        request["dtype"] = dtype.into();
        request["threads"] = asked.into();
        let answer = self.worker.ask(&request)?;
        let threads = answer.get("threads").and_then(|threads| threads.as_u64());
        if threads != Some(asked as u64) {
            return Err(self.worker.error(format!("it runs on {threads:?} threads instead of {asked}")));
        }
        Ok(())
    }

    /// Writes the dequantised inputs to a file, and the request that says what they are.
    pub(super) fn describe_inputs(
        &mut self,
        command: &str,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
    ) -> Result<Value> {
        let file = self.scratch.path().join("inputs.f32");
        let bytes = [q, k, v].map(in_f32).concat();
        std::fs::write(&file, bytes)
            .map_err(|error| self.worker.error(format!("its inputs cannot be written: {error}")))?;
        if problem.softcap().is_some() || problem.has_sinks() {
            let what = if problem.has_sinks() { "attention sinks" } else { "softcap" };
            return Err(self.worker.error(format!("it cannot: scaled_dot_product_attention has no {what}")));
        }
        let window = problem.window();
        let dims = |tensor: &Fp8Tensor| {
            let dims = tensor.dims();
            [dims.batch, dims.heads, dims.len, dims.head_dim]
        };
        Ok(json!({
            "command": command,
            "file": file,
            "query_dims": dims(q),
            "key_dims": dims(k),
            "value_dims": dims(v),
            "window": (window != Window::default()).then_some([window.left, window.right]),
            "causal": problem.mask() == Mask::Causal,
            "scale": problem.softmax_scale(),
        }))
    }

    pub(super) fn time(&mut self, iterations: usize, flush_bytes: usize) -> Result<Vec<u64>> {
        let request = json!({"command": "time", "iterations": iterations, "flush_bytes": flush_bytes});
        self.ask_times(&request, iterations)
    }

    /// Sends a request that is answered by this many times.
    pub(super) fn ask_times(&mut self, request: &Value, iterations: usize) -> Result<Vec<u64>> {
        let answer = self.worker.ask(request)?;
        let times: Option<Vec<u64>> = answer
            .get("ns")
            .and_then(|times| times.as_array())
            .and_then(|times| times.iter().map(|time| time.as_u64()).collect());
        times
            .filter(|times| times.len() == iterations)
            .ok_or_else(|| self.worker.error(format!("it gave no {iterations} times")))
    }

    /// Sends a request.
    pub(super) fn ask(&mut self, request: &Value) -> Result<Value> {
        self.worker.ask(request)
    }

    /// A folder for what is exchanged; it goes with the process.
    pub(super) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The error that says this about PyTorch.
    pub(crate) fn error(&self, reason: String) -> Error {
        self.worker.error(reason)
    }

    /// The result of the last run, in `[B,H,S,D]` order.
    pub(super) fn output(&mut self, count: usize) -> Result<Vec<f32>> {
        self.read_output("output", json!({}), count)
    }

    /// Has a result written to a file, and reads it.
    pub(super) fn read_output(&mut self, command: &str, mut request: Value, count: usize) -> Result<Vec<f32>> {
        let file = self.scratch.path().join("output.f32");
        request["command"] = command.into();
        request["file"] = json!(file);
        self.worker.ask(&request)?;
        let bytes =
            std::fs::read(&file).map_err(|error| self.worker.error(format!("its output cannot be read: {error}")))?;
        let (values, rest) = bytes.as_chunks::<4>();
        if values.len() != count || !rest.is_empty() {
            return Err(self.worker.error(format!("its output has {} bytes, not {}", bytes.len(), count * 4)));
        }
        Ok(values.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
    }

    /// The place of the output's values, if the problem is one that PyTorch is asked for.
    pub(super) fn room_for<'o>(&self, problem: &Problem, output: &'o mut Output) -> Result<&'o mut Vec<f32>> {
        let Values::F32(values) = &mut output.values else {
            return Err(self.worker.error("it is asked for f32 alone".into()));
        };
        if problem.lse() || problem.output_layout() != Layout::Bhsd {
            return Err(self.worker.error("it is asked for [B,H,S,D] without log-sum-exp alone".into()));
        }
        Ok(values)
    }
}

/// A tensor's values in f32 and `[B,H,S,D]` order, as bytes; a large one's heads on all cores.
fn in_f32(tensor: &Fp8Tensor) -> Vec<u8> {
    let Dims { batch, heads, len, head_dim, .. } = tensor.dims();
    let mut bytes = vec![0; batch * heads * len * head_dim * size_of::<f32>()];
    let of_heads = bytes.par_chunks_exact_mut(len * head_dim * size_of::<f32>());
    of_heads.enumerate().for_each(|(index, bytes)| {
        let values = tensor.dequantize_rows(index / heads, index % heads, 0..len);
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = (value as f32).to_ne_bytes();
        }
    });
    bytes
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn start(python: &str, script: &str) -> String {
        start_within(python, script, Duration::from_secs(30))
    }

    fn launch(python: &str, script: &str, timeout: Duration) -> Launch {
        Launch { python: python.into(), script: script.into(), setting: None, timeout, threads: 1 }
    }

    fn start_within(python: &str, script: &str, timeout: Duration) -> String {
        match Torch::launch(launch(python, script, timeout)) {
            Ok(_) => "started".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_missing_python_says_how_to_get_one() {
        let error = start("/no/such/python", "");
        assert!(error.contains("cannot be started") && error.contains("--python"), "{error}");
    }

    #[test]
    fn a_failed_import_is_told_in_its_own_words() {
        // The shell stands in for a Python without PyTorch: it answers what the worker answers then.
        let script = r#"echo '{"error": "ModuleNotFoundError: No module named torch"}'"#;
        let error = start("/bin/sh", script);
        assert!(error.contains("No module named torch; install it"), "{error}");
    }

    #[test]
    fn every_way_to_misbehave_at_the_start_is_an_error() {
        assert!(start("/bin/sh", "echo Welcome").contains("not a JSON object"));
        assert!(start("/bin/sh", "exit 1").contains("ended early"));
        let hang = start_within("/bin/sh", "exec sleep 60", Duration::from_millis(500));
        assert!(hang.contains("no answer within"), "{hang}");
        assert!(start("/bin/sh", "echo '{}'").contains("no version"));
    }

    /// A stand-in that says hello, loads, and then answers as told.
    fn stand_in(rest: &str) -> Torch {
        let script = format!(r#"echo '{{"version": "0"}}'; read -r load; echo '{{"threads": 1}}'; {rest}"#);
        Torch::launch(launch("/bin/sh", &script, Duration::from_secs(30))).unwrap()
    }

    fn loaded(rest: &str) -> Torch {
        let mut torch = stand_in(rest);
        let problem = Problem::new(eightfold::Shape::new(1, 1, 1, 8)).unwrap();
        let scales = eightfold::Scales::per_tensor(1.0).unwrap();
        let dims = problem.shape().query_dims();
        let tensor = Fp8Tensor::new(dims, Layout::Bhsd, problem.input_format(), vec![0u8; 8], scales).unwrap();
        torch.load("float32", &problem, &tensor, &tensor, &tensor).unwrap();
        torch
    }

    #[test]
    fn times_come_back_as_they_were_sent() {
        let mut torch = loaded(r#"read -r time; echo '{"ns": [3, 1, 2]}'"#);
        assert_eq!(torch.time(3, 0).unwrap(), [3, 1, 2]);
    }

    #[test]
    fn times_that_are_no_times_are_refused() {
        for answer in [r#"{"ns": [3, 1]}"#, r#"{"ns": "x"}"#, r#"{"ns": [1, -2, 3]}"#, "{}"] {
            let mut torch = loaded(&format!("read -r time; echo '{answer}'"));
            assert!(torch.time(3, 0).unwrap_err().to_string().contains("no 3 times"), "{answer}");
        }
    }

    #[test]
    fn an_output_of_the_wrong_size_or_none_at_all_is_refused() {
        let mut torch = loaded(r#"read -r output; echo '{}'"#);
        assert!(torch.output(8).unwrap_err().to_string().contains("cannot be read"));
        let mut torch = loaded(r#"read -r output; echo '{}'"#);
        std::fs::write(torch.scratch.path().join("output.f32"), [0; 31]).unwrap();
        assert!(torch.output(8).unwrap_err().to_string().contains("31 bytes, not 32"));
    }

    #[test]
    fn a_worker_that_ignores_the_thread_count_is_refused() {
        let mut torch = stand_in("");
        torch.launch.threads = 2;
        let problem = Problem::new(eightfold::Shape::new(1, 1, 1, 8)).unwrap();
        let scales = eightfold::Scales::per_tensor(1.0).unwrap();
        let dims = problem.shape().query_dims();
        let tensor = Fp8Tensor::new(dims, Layout::Bhsd, problem.input_format(), vec![0u8; 8], scales).unwrap();
        let error = torch.load("float32", &problem, &tensor, &tensor, &tensor).unwrap_err().to_string();
        assert!(error.contains("threads instead of 2"), "{error}");
    }

    /// The real worker script, run by any Python without PyTorch, must answer with an error as data.
    #[test]
    fn the_real_script_reports_a_failed_import() {
        let hidden = format!("import sys; sys.modules['torch'] = None\n{WORKER}");
        match Command::new("python3").arg("--version").output() {
            Ok(output) if output.status.success() => {}
            _ => return,
        }
        let error = Torch::launch(launch("python3", &hidden, Duration::from_secs(30))).err().unwrap().to_string();
        assert!(error.contains("ModuleNotFoundError"), "{error}");
    }
}
