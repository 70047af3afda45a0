//! PyTorch's scaled_dot_product_attention on a GPU, backend by backend, in bf16 on dequantised inputs.

use super::torch::Torch;
use crate::gates::{Case, Subject};
use crate::measure::{Contestant, GRAPH_LAUNCHES, Timer};
use eightfold::{Fp8Tensor, Output, Problem, Result, RunReport};
use serde_json::json;
use std::cell::RefCell;

/// A backend of PyTorch's scaled_dot_product_attention.
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
}

impl Backend {
    /// Every backend.
    pub const ALL: [Backend; 4] = [Backend::Math, Backend::Efficient, Backend::Flash, Backend::Cudnn];

    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Math => "torch-math",
            Backend::Efficient => "torch-efficient",
            Backend::Flash => "torch-flash",
            Backend::Cudnn => "torch-cudnn",
        }
    }

    /// What PyTorch calls it.
    fn torch_name(self) -> &'static str {
        match self {
            Backend::Math => "MATH",
            Backend::Efficient => "EFFICIENT_ATTENTION",
            Backend::Flash => "FLASH_ATTENTION",
            Backend::Cudnn => "CUDNN_ATTENTION",
        }
    }
}

impl Torch {
    /// What runs, in words.
    pub fn describe_cuda(&self, backend: Backend) -> String {
        let version = self.version();
        let device = self.cuda().unwrap_or("no GPU");
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
        let request = self.describe_inputs("load_cuda", problem, q, k, v)?;
        self.ask(&request).map(|_| ())
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
    count: usize,
    expected: Vec<f32>,
}

impl<'a, 't> TorchCudaContestant<'a, 't> {
    /// A contestant that passed the correctness gate on this case, whose inputs were put onto the GPU.
    pub fn new(torch: &'a RefCell<&'t mut Torch>, backend: Backend, timer: Timer, case: &Case) -> Self {
        let count = case.problem.shape().query_dims().count();
        TorchCudaContestant { torch, backend, timer, count, expected: Vec::new() }
    }

    fn output(&self) -> Result<Vec<f32>> {
        self.torch.borrow_mut().output_of_cuda(self.backend, self.timer, self.count)
    }
}

impl Contestant for TorchCudaContestant<'_, '_> {
    fn prepare(&mut self) -> Result<()> {
        self.torch.borrow_mut().prepare_on_cuda(self.backend)?;
        self.expected = self.output()?;
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let request = json!({
            "command": "time_cuda",
            "backend": self.backend.torch_name(),
            "timer": self.timer,
            "iterations": iterations,
        });
        self.torch.borrow_mut().ask_times(&request, iterations)
    }

    fn launches_per_run(&self) -> usize {
        if self.timer == Timer::GraphReplay { GRAPH_LAUNCHES } else { 1 }
    }

    fn verify(&mut self) -> Result<()> {
        let output = self.output()?;
        if output.iter().zip(&self.expected).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(self.torch.borrow().error("the timed runs gave another output than the checked one".into()));
        }
        Ok(())
    }
}
