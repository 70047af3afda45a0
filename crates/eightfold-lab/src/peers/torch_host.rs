//! PyTorch's flash attention on the CPU on dequantised inputs, in each of its number types.

use super::torch::{Launch, Torch};
use crate::exit;
use crate::gates::{Case, Subject};
use crate::measure::{Cache, Contestant, flush_bytes};
use eightfold::{Fp8Tensor, Output, Problem, Result, RunReport};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What PyTorch computes in on a CPU, and writes its results as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDtype {
    /// 32 bits.
    F32,
    /// The upper half of f32.
    Bf16,
    /// IEEE half.
    F16,
}

impl HostDtype {
    /// Every type.
    pub const ALL: [HostDtype; 3] = [HostDtype::F32, HostDtype::Bf16, HostDtype::F16];

    /// What tables call PyTorch in these numbers.
    pub fn name(self) -> &'static str {
        match self {
            HostDtype::F32 => "torch-f32",
            HostDtype::Bf16 => "torch-bf16",
            HostDtype::F16 => "torch-f16",
        }
    }

    /// What it writes its results as.
    pub fn output_format(self) -> &'static str {
        match self {
            HostDtype::F32 => "f32",
            HostDtype::Bf16 => "bf16",
            HostDtype::F16 => "f16",
        }
    }

    fn torch_name(self) -> &'static str {
        match self {
            HostDtype::F32 => "float32",
            HostDtype::Bf16 => "bfloat16",
            HostDtype::F16 => "float16",
        }
    }

    /// The variable that keeps oneDNN from tile instructions, and leaves it all others for these numbers. PyTorch 2.15 dies of
    /// them in bf16 on servers with AMX.
    fn without_tiles(self) -> (&'static str, &'static str) {
        ("ONEDNN_MAX_CPU_ISA", if self == HostDtype::F16 { "AVX512_CORE_FP16" } else { "AVX512_CORE_BF16" })
    }
}

/// A peer's process died of an instruction, and was started anew with a setting that avoids it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// The signal.
    pub signal: i32,
    /// The variable of the environment and its value.
    pub setting: String,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it crashed by {}, and was started again with {}", exit::signal_in_words(self.signal), self.setting)
    }
}

/// An instruction that the CPU has not, or that was not permitted.
const ILLEGAL_INSTRUCTION: i32 = 4;

/// PyTorch on the CPU in one number type, in a process of its own, whose end is not that of the others.
pub struct TorchOnHost {
    dtype: HostDtype,
    version: String,
    launch: Launch,
    process: Option<Torch>,
    crash: Option<Crash>,
}

impl TorchOnHost {
    /// One for each type; their processes start when they are needed.
    pub(super) fn of_each_dtype(version: &str, launch: &Launch) -> Vec<Self> {
        let of =
            |dtype| TorchOnHost { dtype, version: version.into(), launch: launch.clone(), process: None, crash: None };
        HostDtype::ALL.map(of).into()
    }

    /// The numbers.
    pub fn dtype(&self) -> HostDtype {
        self.dtype
    }

    /// What it died of before it was started as it runs now.
    pub fn crash(&self) -> Option<&Crash> {
        self.crash.as_ref()
    }

    /// What runs, in words.
    pub fn describe(&self) -> String {
        let with = self.crash.as_ref().map_or(String::new(), |crash| format!(", with {}", crash.setting));
        format!(
            "PyTorch {} scaled_dot_product_attention, FLASH_ATTENTION backend, CPU, {} on dequantised inputs{with}",
            self.version,
            self.dtype.output_format(),
        )
    }

    fn process(&mut self) -> Result<&mut Torch> {
        Ok(match &mut self.process {
            Some(process) => process,
            none => none.insert(Torch::launch(self.launch.clone())?),
        })
    }

    fn load(&mut self, problem: &Problem, q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Result<()> {
        let dtype = self.dtype.torch_name();
        self.process()?.load(dtype, problem, q, k, v)
    }

    fn output(&mut self, problem: &Problem) -> Result<Vec<f32>> {
        self.process()?.output(problem.shape().query_dims().count())
    }

    /// Notes a death by an illegal instruction, and has the next process avoid it; false if that is not what happened, or is
    /// of no use.
    fn avoids_crash(&mut self) -> bool {
        let signal = self.process.take_if(|process| process.signal().is_some()).and_then(|process| process.signal());
        if signal != Some(ILLEGAL_INSTRUCTION) || self.crash.is_some() {
            return false;
        }
        let setting = self.dtype.without_tiles();
        self.launch.setting = Some(setting);
        self.crash = Some(Crash { signal: ILLEGAL_INSTRUCTION, setting: format!("{}={}", setting.0, setting.1) });
        true
    }
}

/// PyTorch goes through the same correctness gate as our kernels; it gives no log-sum-exp, and is read in f32 in `[B,H,S,D]`
/// order.
impl Subject for TorchOnHost {
    fn name(&self) -> String {
        self.dtype.name().into()
    }

    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport> {
        let values = self.process()?.room_for(problem, output)?;
        let mut compute = || self.load(problem, q, k, v).and_then(|()| self.output(problem));
        let computed = match compute() {
            Err(_) if self.avoids_crash() => self.load(problem, q, k, v).and_then(|()| self.output(problem)),
            computed => computed,
        };
        values.copy_from_slice(&computed?);
        Ok(RunReport::default())
    }
}

/// PyTorch on the inputs of one case.
pub struct TorchContestant<'a> {
    torch: &'a mut TorchOnHost,
    case: &'a Case,
    expected: Vec<f32>,
    cache: Cache,
}

impl<'a> TorchContestant<'a> {
    /// A contestant that passed the correctness gate on this case.
    pub fn new(torch: &'a mut TorchOnHost, case: &'a Case) -> Self {
        TorchContestant { torch, case, expected: Vec::new(), cache: Cache::Hot }
    }

    /// The same on caches as they are, or on cold ones.
    pub fn with_cache(self, cache: Cache) -> Self {
        TorchContestant { cache, ..self }
    }
}

impl Contestant for TorchContestant<'_> {
    fn prepare(&mut self) -> Result<()> {
        let Case { problem, q, k, v, .. } = self.case;
        self.torch.load(problem, q, k, v)?;
        self.expected = self.torch.output(problem)?;
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let flush_bytes = if self.cache == Cache::Cold { flush_bytes() } else { 0 };
        self.torch.process()?.time(iterations, flush_bytes)
    }

    fn verify(&mut self) -> Result<()> {
        let output = self.torch.output(&self.case.problem)?;
        if output.iter().zip(&self.expected).any(|(a, b)| a.to_bits() != b.to_bits()) {
            let reason = "the timed runs gave another output than the checked one";
            return Err(self.torch.process()?.error(reason.into()));
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

    fn run(torch: &mut TorchOnHost, case: &Case) -> Result<Vec<f32>> {
        let mut output = Output::zeros(&case.problem);
        torch.run(&case.problem, &case.q, &case.k, &case.v, &mut output)?;
        Ok(output.values.to_f32())
    }

    #[test]
    fn every_number_type_is_a_peer_with_a_name() {
        let Some(mut torch) = scripted("") else { return };
        let case = case();
        // The stand-in gives back Q.
        let expected: Vec<f32> = case.q.dequantize().iter().map(|value| *value as f32).collect();
        for (peer, name) in torch.on_host().iter_mut().zip(["torch-f32", "torch-bf16", "torch-f16"]) {
            assert_eq!(peer.name(), name);
            assert_eq!(run(peer, &case).unwrap(), expected, "{name}");
            assert_eq!(peer.crash(), None, "{name}");
            let mut contestant = TorchContestant::new(peer, &case);
            contestant.prepare().unwrap();
            assert_eq!(contestant.run_block(3).unwrap().len(), 3);
            contestant.verify().unwrap();
        }
    }

    #[test]
    fn a_crash_by_an_instruction_is_noted_and_mended_by_a_setting() {
        let Some(mut torch) = scripted("CRASHES_IN = 'bfloat16'; CRASHES_WITH_SETTING = False") else { return };
        let case = case();
        let setting = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16";
        for peer in torch.on_host() {
            run(peer, &case).unwrap();
            let crashed = peer.dtype() == HostDtype::Bf16;
            let crash = crashed.then(|| Crash { signal: 4, setting: setting.into() });
            assert_eq!(peer.crash(), crash.as_ref());
            assert_eq!(peer.describe().ends_with(setting), crashed, "{}", peer.describe());
            TorchContestant::new(peer, &case).prepare().unwrap();
        }
    }

    #[test]
    fn a_crash_that_the_setting_does_not_mend_is_an_error_that_names_the_signal() {
        let Some(mut torch) = scripted("CRASHES_IN = 'bfloat16'; CRASHES_WITH_SETTING = True") else { return };
        let case = case();
        let [float, bf16, _] = torch.on_host() else { unreachable!("there are three") };
        let error = run(bf16, &case).unwrap_err().to_string();
        assert!(error.contains("signal 4 (illegal instruction)"), "{error}");
        assert!(bf16.crash().is_some() && run(bf16, &case).is_err() && run(float, &case).is_ok());
    }
}
