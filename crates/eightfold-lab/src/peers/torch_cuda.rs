//! PyTorch's scaled_dot_product_attention on a GPU, backend by backend, in bf16 on dequantised inputs; and kernels that
//! compute on FP8 inputs as ours do, in the same process.

use super::torch::Torch;
use crate::gates::{Case, Subject};
use crate::measure::{Cache, Contestant, GRAPH_LAUNCHES, Timer};
use eightfold::cuda::driver::Device;
use eightfold::{Fp8Tensor, Mask, Output, Problem, Result, RunReport};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A backend of PyTorch's scaled_dot_product_attention, or a kernel on FP8 inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// One operation after the other.
    Math,
    /// The memory-efficient kernels that come from xFormers.
    Efficient,
    /// FlashAttention-2.
    Flash,
    /// cuDNN.
    Cudnn,
    /// FP8 attention in Triton.
    TritonFp8,
    /// cuDNN's FP8 attention, where its frontend for Python is installed.
    CudnnFp8,
    /// FlashAttention-3 in FP8, where its package is installed.
    Fa3Fp8,
    /// SageAttention, where its package is installed: INT8 scores, FP8 weights and values.
    Sage,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Backend; 8] = [
        Backend::Math,
        Backend::Efficient,
        Backend::Flash,
        Backend::Cudnn,
        Backend::TritonFp8,
        Backend::CudnnFp8,
        Backend::Fa3Fp8,
        Backend::Sage,
    ];

    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Math => "torch-math",
            Backend::Efficient => "torch-efficient",
            Backend::Flash => "torch-flash",
            Backend::Cudnn => "torch-cudnn",
            Backend::TritonFp8 => "triton-fp8",
            Backend::CudnnFp8 => "cudnn-fp8",
            Backend::Fa3Fp8 => "fa3-fp8",
            Backend::Sage => "sageattention",
        }
    }

    /// What PyTorch, or the process that it runs in, calls it.
    fn torch_name(self) -> &'static str {
        match self {
            Backend::Math => "MATH",
            Backend::Efficient => "EFFICIENT_ATTENTION",
            Backend::Flash => "FLASH_ATTENTION",
            Backend::Cudnn => "CUDNN_ATTENTION",
            Backend::TritonFp8 => "TRITON_FP8",
            Backend::CudnnFp8 => "CUDNN_FP8",
            Backend::Fa3Fp8 => "FA3_FP8",
            Backend::Sage => "SAGE",
        }
    }

    /// What it writes its results as.
    pub fn output_format(self) -> &'static str {
        if self == Backend::CudnnFp8 { "e4m3" } else { "bf16" }
    }

    /// Whether it computes in numbers of 8 bits, as our kernels do.
    pub fn is_fp8(self) -> bool {
        matches!(self, Backend::TritonFp8 | Backend::CudnnFp8 | Backend::Fa3Fp8 | Backend::Sage)
    }
}

impl Torch {
    /// What runs, in words.
    pub fn describe_cuda(&self, backend: Backend) -> String {
        let version = self.version();
        let device = self.cuda().unwrap_or("no GPU");
        if backend == Backend::Sage {
            let how = "bf16 inputs that it quantises in the call: INT8 scores, FP8 values";
            return format!("sageattention beside PyTorch {version}, {device}, {how}");
        }
        if backend.is_fp8() {
            let name = backend.name();
            return format!("{name} beside PyTorch {version}, {device}, E4M3 with one scale for each tensor");
        }
        let backend = backend.torch_name();
        format!(
            "PyTorch {version} scaled_dot_product_attention, {backend} backend, {device}, bf16 on dequantised inputs"
        )
    }

    /// Puts the inputs of a case onto the GPU, in place of those before.
    pub fn load_on_cuda(&mut self, case: &Case) -> Result<()> {
        self.load_tensors_on_cuda(&case.problem, &case.q, &case.k, &case.v)
    }

    fn load_tensors_on_cuda(&mut self, problem: &Problem, q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Result<()> {
        let mut hash = DefaultHasher::new();
        (problem.mask() == Mask::Causal, problem.softmax_scale().to_bits()).hash(&mut hash);
        for tensor in [q, k, v] {
            (format!("{} {}", tensor.dims(), tensor.layout()), tensor.codes()).hash(&mut hash);
            tensor.scales().values().iter().chain(tensor.means().into_iter().flatten()).for_each(|value| {
                value.to_bits().hash(&mut hash);
            });
        }
        let hash = Some(hash.finish());
        // All backends compute on the same inputs, and large ones take seconds.
        if self.on_cuda != hash {
            self.on_cuda = None;
            let request = self.describe_inputs("load_cuda", problem, q, k, v)?;
            self.ask(&request)?;
            self.on_cuda = hash;
        }
        Ok(())
    }

    /// Runs the backend once, which chooses and loads its kernels, and captures a graph of launches.
    fn prepare_on_cuda(&mut self, backend: Backend) -> Result<()> {
        let request = json!({"command": "prepare_cuda", "backend": backend.torch_name(), "launches": GRAPH_LAUNCHES});
        self.ask(&request).map(|_| ())
    }

    fn output_of_cuda(&mut self, backend: Backend, timer: Timer, count: usize) -> Result<Vec<f32>> {
        let extra = json!({"backend": backend.torch_name(), "timer": timer});
        self.read_output("output_cuda", extra, count)
    }
}

/// One backend goes through the same correctness gate as our kernels; it gives no log-sum-exp, and is read in f32 in
/// `[B,H,S,D]` order.
pub struct TorchOnCuda<'a> {
    /// The process.
    pub torch: &'a mut Torch,
    /// The backend.
    pub backend: Backend,
}

impl Subject for TorchOnCuda<'_> {
    fn name(&self) -> String {
        self.backend.name().into()
    }

    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport> {
        let values = self.torch.room_for(problem, output)?;
        self.torch.load_tensors_on_cuda(problem, q, k, v)?;
        self.torch.prepare_on_cuda(self.backend)?;
        let computed = self.torch.output_of_cuda(self.backend, Timer::GraphReplay, values.len())?;
        values.copy_from_slice(&computed);
        Ok(RunReport::default())
    }
}

/// One backend under one timer, on inputs that are already on the GPU; all of them share one process.
pub struct TorchCudaContestant<'a, 't> {
    torch: &'a RefCell<&'t mut Torch>,
    backend: Backend,
    timer: Timer,
    /// What is written before every run to empty the second-level cache.
    flush_bytes: usize,
}

impl<'a, 't> TorchCudaContestant<'a, 't> {
    /// A contestant that passed the correctness gate on the case whose inputs were put onto the GPU.
    pub fn new(torch: &'a RefCell<&'t mut Torch>, backend: Backend, timer: Timer) -> Self {
        TorchCudaContestant { torch, backend, timer, flush_bytes: 0 }
    }

    /// The same on caches as they are, or on cold ones.
    pub fn with_cache(self, cache: Cache) -> Self {
        let l2_bytes = || Device::default().map_or(0, |device| device.info().l2_bytes);
        TorchCudaContestant { flush_bytes: if cache == Cache::Cold { 2 * l2_bytes() } else { 0 }, ..self }
    }

    fn ask(&self, command: &str) -> Result<Value> {
        let request = json!({"command": command, "backend": self.backend.torch_name(), "timer": self.timer});
        self.torch.borrow_mut().ask(&request)
    }
}

impl Contestant for TorchCudaContestant<'_, '_> {
    fn prepare(&mut self) -> Result<()> {
        self.torch.borrow_mut().prepare_on_cuda(self.backend)?;
        self.ask("keep_cuda").map(|_| ())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let request = json!({
            "command": "time_cuda",
            "backend": self.backend.torch_name(),
            "timer": self.timer,
            "iterations": iterations,
            "flush_bytes": self.flush_bytes,
        });
        self.torch.borrow_mut().ask_times(&request, iterations)
    }

    fn launches_per_run(&self) -> usize {
        if self.timer == Timer::GraphReplay { GRAPH_LAUNCHES } else { 1 }
    }

    fn verify(&mut self) -> Result<()> {
        let answer = self.ask("same_cuda")?;
        if answer.get("same").and_then(Value::as_bool) != Some(true) {
            return Err(self.torch.borrow().error("the timed runs gave another output than the checked one".into()));
        }
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::scripted;
    use super::*;
    use crate::gates::Thresholds;
    use crate::inputs::{Family, Inputs};
    use eightfold::Shape;
    use eightfold::quantize::Quantizer;

    fn case() -> Case {
        let problem = Problem::new(Shape::new(1, 2, 24, 16)).unwrap();
        let inputs = Inputs::generate(problem.shape(), Family::Gaussian, 1);
        let quantizer = Quantizer::new(problem.input_format());
        Case::prepare(&problem, &inputs, &quantizer, &Thresholds::embedded().correctness.reference).unwrap()
    }

    fn contestant<'a, 't>(
        torch: &'a RefCell<&'t mut Torch>,
        backend: Backend,
        timer: Timer,
    ) -> TorchCudaContestant<'a, 't> {
        TorchCudaContestant::new(torch, backend, timer)
    }

    #[test]
    fn backends_take_turns_on_the_same_inputs_under_both_timers() {
        let Some(mut torch) = scripted("") else { return };
        assert_eq!(torch.cuda(), Some("Fake GPU"));
        torch.load_on_cuda(&case()).unwrap();
        let shared = RefCell::new(&mut torch);
        let mut field: Vec<_> = [Backend::Math, Backend::Flash]
            .into_iter()
            .flat_map(|backend| [Timer::GraphReplay, Timer::Event].map(|timer| contestant(&shared, backend, timer)))
            .collect();
        field.iter_mut().for_each(|contestant| contestant.prepare().unwrap());
        for contestant in &mut field {
            // A graph of twenty launches of 3 microseconds takes 60, which is 3 for each.
            assert_eq!(contestant.run_block(4).unwrap(), [3000; 4]);
        }
        field.iter_mut().for_each(|contestant| contestant.verify().unwrap());
        assert_eq!(field[0].launches_per_run() / field[1].launches_per_run(), GRAPH_LAUNCHES);
    }

    #[test]
    fn an_output_that_no_replay_wrote_is_not_verified() {
        let Some(mut torch) = scripted("") else { return };
        torch.load_on_cuda(&case()).unwrap();
        let shared = RefCell::new(&mut torch);
        let mut contestant = contestant(&shared, Backend::Flash, Timer::GraphReplay);
        contestant.prepare().unwrap();
        contestant.run_block(0).unwrap();
        assert!(contestant.verify().is_err());
    }

    #[test]
    fn a_backend_that_refuses_is_told_in_its_own_words_and_the_others_go_on() {
        let Some(mut torch) = scripted("") else { return };
        let Case { problem, q, k, v, .. } = &case();
        let mut run = |backend| {
            let mut output = Output::zeros(problem);
            let ran = TorchOnCuda { torch: &mut torch, backend }.run(problem, q, k, v, &mut output);
            ran.map(|_| output.values.to_f32())
        };
        let refused = run(Backend::Cudnn).unwrap_err().to_string();
        assert!(refused.contains("RuntimeError: No available kernel"), "{refused}");
        for (backend, module) in [(Backend::Fa3Fp8, "flash_attn_interface"), (Backend::Sage, "sageattention")] {
            let absent = run(backend).unwrap_err().to_string();
            assert!(absent.contains(&format!("not found: this Python has no {module}")), "{absent}");
        }
        // The stand-in gives back Q.
        let expected: Vec<f32> = q.dequantize().iter().map(|value| *value as f32).collect();
        assert_eq!(run(Backend::Efficient).unwrap(), expected);
    }
}
