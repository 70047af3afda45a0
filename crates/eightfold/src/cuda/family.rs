//! What makes a folder a family of CUDA kernels, and which there are.

use super::kernel::{Calls, Fitted};
use super::tensor::{DeviceOutput, DeviceTensor};
use super::{Arch, Operands, Specialisation, hopper, ladder};
use crate::cuda::compile::Program;
use crate::error::{Error, Result};
use crate::knobs::{Knob, Stage};
use crate::operands::Operand;
use crate::problem::{Accuracy, Mask, Problem, Shape, Window};
use crate::tensor::{Fp8Format, Granularity, Layout};
use crate::variant::{Family, NamedVariant, Variant};
use std::fmt;
use std::str::FromStr;

/// A family of CUDA kernels, by the type of its knobs. Nothing outside of its folder knows more of it than this.
pub(crate) trait CudaFamily: Copy + fmt::Display + FromStr<Err = Error> + Into<Config> + 'static {
    /// Its name in the text of a variant.
    const NAME: &'static str;
    /// Its knobs, in the order in which a config prints them.
    const KNOBS: &'static [Knob];
    /// Named configs.
    const STAGES: &'static [Stage<Self>];
    /// The files under `kernels/` that are compiled.
    const FILES: &'static [&'static str];
    /// Whether it takes Q and K in INT8.
    const INT8: bool = false;
    /// Whether debug builds turn what waits for ever into an error of the launch, by the macro `BOUNDED_WAITS`. Gates judge the
    /// kernel without.
    const BOUNDS_WAITS: bool = false;

    /// What it is compiled for on a device of this architecture.
    fn target(arch: Arch) -> Result<Arch>;

    /// What may run with tensors like these, the best first.
    fn candidates(
        problem: &Problem,
        operands: &Operands,
        arch: Arch,
        multiprocessors: usize,
    ) -> Vec<(Self, Why, Reason)>;

    /// A stage's config for heads of this many channels under this mask.
    fn at(stage: &Stage<Self>, head_dim: usize, mask: Mask) -> Self;

    /// The rules between knobs, whatever the problem and the machine.
    fn check(&self) -> Result<()>;

    /// What binds it beyond what binds every family.
    fn check_operands(&self, problem: &Problem, operands: &Operands) -> Result<()>;

    /// How exact its results are; none where the family knows no accuracies.
    fn accuracy(&self) -> Option<Accuracy> {
        None
    }

    /// The layout in which it reads V.
    fn value_layout(&self) -> Layout;

    /// What a block is.
    fn block(&self) -> Block;

    /// The dynamic shared memory of a block.
    fn shared_bytes(&self, kind: &Specialisation) -> usize;

    /// Of a kind of problem, what its program depends on; everything else is the same for all kinds.
    fn compiled_in(&self, kind: &Specialisation) -> Specialisation;

    /// The file under `kernels/` that is compiled for it.
    fn file(&self) -> &'static str;

    /// What the compiler gets.
    fn program(&self, kind: &Specialisation) -> Program;

    /// The launches for a problem with these tensors, which were checked.
    fn calls(&self, on: &Fitted, problem: &Problem, qkv: [&DeviceTensor; 3], output: &DeviceOutput) -> Result<Calls>;

    /// What launches need at most for problems that are in no size larger.
    fn workspace_bytes(&self, limits: &Problem, multiprocessors: usize) -> Result<usize>;

    /// Tiles of (queries × keys) that a launch computes.
    fn tiles(&self, problem: &Problem) -> u64;

    /// The tiles of each block in its order, where a list of them is faster than what blocks find out by themselves.
    fn schedule(&self, _on: &Fitted, _problem: &Problem) -> Result<Option<Vec<Vec<i32>>>> {
        Ok(None)
    }
}

/// A block, and the tile that it computes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Query rows of one computing warp.
    pub(crate) rows_per_warp: usize,
    pub(crate) threads: usize,
    /// How many of what compute.
    pub(crate) workers: (usize, &'static str),
}

/// What a config is a candidate as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The best of its family.
    Best,
    /// What is for tensors that the best does not take.
    OddTensors,
}

/// Why a config was chosen: what applies of a few sentences, put together when somebody asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reason(pub(crate) [&'static str; 4]);

impl Reason {
    pub(crate) fn new(text: &'static str) -> Reason {
        Reason([text, "", "", ""])
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.iter().filter(|part| !part.is_empty());
        said.next().map_or(Ok(()), |first| f.write_str(first))?;
        said.try_for_each(|part| write!(f, "; {part}"))
    }
}

/// A config that may run, and why.
pub(crate) type Candidate = (Config, Why, Reason);

/// A family in the registry.
pub(crate) struct Registered {
    pub(crate) family: Family,
    pub(crate) candidates: fn(&Problem, &Operands, Arch, usize) -> Vec<Candidate>,
}

impl Registered {
    const fn of<F: CudaFamily>() -> Registered {
        Registered {
            family: Family {
                name: F::NAME,
                knobs: F::KNOBS,
                files: F::FILES,
                parse: |text| Ok(Variant::Cuda(text.parse::<F>()?.into())),
                stages: |head_dim, mask| {
                    let named = |stage: &'static Stage<F>| NamedVariant {
                        name: stage.name,
                        what: stage.what,
                        variant: Variant::Cuda(F::at(stage, head_dim, mask).into()),
                    };
                    F::STAGES.iter().map(named).collect()
                },
            },
            candidates: |problem, operands, arch, multiprocessors| {
                let candidates = F::candidates(problem, operands, arch, multiprocessors).into_iter();
                candidates.map(|(config, why, reason)| (config.into(), why, reason)).collect()
            },
        }
    }
}

/// Makes [`Config`] and [`REGISTRY`] of the families, each a folder.
macro_rules! families {
    ($dollar:tt $($(#[$doc:meta])* $Family:ident = $folder:ident),+ $(,)?) => {
        /// The knobs of one of the CUDA kernels.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Config {
            $($(#[$doc])* $Family($folder::Config)),+
        }

        $(
            impl From<$folder::Config> for Config {
                fn from(config: $folder::Config) -> Self {
                    Config::$Family(config)
                }
            }

            impl From<$folder::Config> for Variant {
                fn from(config: $folder::Config) -> Self {
                    Variant::Cuda(config.into())
                }
            }
        )+

        /// Every family.
        pub(crate) const REGISTRY: &[Registered] = &[$(Registered::of::<$folder::Config>()),+];

        /// The same for the config of whichever family, and its type.
        macro_rules! each {
            ($dollar this:expr, $dollar config:ident: $dollar Of:ident => $dollar body:expr) => {
                match $dollar this {
                    $(Config::$Family($dollar config) => {
                        #[allow(dead_code, reason = "not everything asks for the type")]
                        type $dollar Of = $folder::Config;
                        $dollar body
                    })+
                }
            };
        }
    };
}

// From the oldest to the newest: what is newer goes before where it can run.
families! { $
    /// The staged kernel.
    Ladder = ladder,
    /// The flagship on Hopper.
    Hopper = hopper,
}

impl Config {
    /// The name of its family.
    pub fn kernel(&self) -> &'static str {
        each!(self, _config: F => F::NAME)
    }

    /// The architecture that its kernel is compiled for on a device of this one.
    pub fn target(&self, arch: Arch) -> Result<Arch> {
        each!(self, _config: F => F::target(arch))
    }

    /// Whether its kernel can compute the problem with tensors like these on this architecture; V may lie in any layout.
    pub fn check_problem(&self, problem: &Problem, operands: &Operands, arch: Arch) -> Result<()> {
        each!(self, config: F => check_problem(config, problem, operands, arch))
    }

    /// The same for tensors of a host, whose V is laid out as the kernel reads it when it is brought to the device.
    pub fn check_uploaded(&self, problem: &Problem, operands: &Operands, arch: Arch) -> Result<()> {
        self.check_problem(problem, &self.uploaded(operands), arch)
    }

    /// What tensors of a host are on the device.
    pub fn uploaded(&self, operands: &Operands) -> Operands {
        Operands { v: Operand { layout: self.value_layout(), ..operands.v }, ..*operands }
    }

    /// Whether a kernel for one kind of problem serves another.
    pub(super) fn check_kind(&self, kind: &Specialisation, other: &Specialisation) -> Result<()> {
        if each!(self, config: F => config.compiled_in(kind) == config.compiled_in(other)) {
            return Ok(());
        }
        Err(Error::invalid(
            "kernel",
            "it was compiled for another kind of problem: other head dims, mask, window, softcap, sinks, formats, scales, \
             log-sum-exp or centring, or keys that its tiles divide where these are not divided",
            "get a kernel for this problem, which is cheap where it was compiled before",
        ))
    }

    /// The file under `kernels/` that is compiled for it.
    pub fn file(&self) -> &'static str {
        each!(self, config: F => config.file())
    }

    /// What the compiler gets for a kind of problem.
    pub fn program(&self, kind: &Specialisation) -> Program {
        each!(self, config: F => config.program(kind))
    }

    /// The same, with what debug builds ask for besides.
    pub(super) fn program_to_launch(&self, kind: &Specialisation) -> Program {
        let mut program = self.program(kind);
        if cfg!(debug_assertions) && each!(self, _config: F => F::BOUNDS_WAITS) {
            program.defines.push(("BOUNDED_WAITS", "1".into()));
        }
        program
    }

    pub(super) fn calls(
        &self,
        on: &Fitted,
        problem: &Problem,
        tensors: [&DeviceTensor; 3],
        output: &DeviceOutput,
    ) -> Result<Calls> {
        each!(self, config: F => config.calls(on, problem, tensors, output))
    }

    pub(super) fn workspace_bytes(&self, limits: &Problem, multiprocessors: usize) -> Result<usize> {
        each!(self, config: F => config.workspace_bytes(limits, multiprocessors))
    }

    pub(super) fn tiles(&self, problem: &Problem) -> u64 {
        each!(self, config: F => CudaFamily::tiles(config, problem))
    }

    pub(super) fn schedule(&self, on: &Fitted, problem: &Problem) -> Result<Option<Vec<Vec<i32>>>> {
        each!(self, config: F => config.schedule(on, problem))
    }

    /// How exact its results are; none where the family knows no accuracies.
    pub fn accuracy(&self) -> Option<Accuracy> {
        each!(self, config: F => CudaFamily::accuracy(config))
    }

    /// The layout in which its kernel reads V.
    pub fn value_layout(&self) -> Layout {
        each!(self, config: F => config.value_layout())
    }

    /// The knobs of its kernel.
    pub fn knobs(&self) -> &'static [Knob] {
        each!(self, _config: F => F::KNOBS)
    }

    /// The value of a knob as text; none if there is no such knob.
    pub fn knob(&self, name: &str) -> Option<String> {
        each!(self, config: F => config.knob(name))
    }

    /// The same config with one knob set from text.
    pub fn with_knob(self, knob: &str, value: &str) -> Result<Self> {
        each!(self, config: F => Ok(config.with_knob(knob, value)?.into()))
    }

    /// Query rows of one computing warp.
    pub fn rows_per_warp(&self) -> usize {
        each!(self, config: F => config.block().rows_per_warp)
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        each!(self, config: F => config.block().threads)
    }

    /// How the problem is cut, for a person.
    pub fn describe(&self, problem: &Problem) -> String {
        let Block { queries, keys, workers: (count, what), .. } = each!(self, config: F => config.block());
        let plural = if count == 1 { "" } else { "s" };
        let Shape { batch, query_heads, query_len, .. } = problem.shape();
        format!(
            "{} tiles of {queries} queries over {} heads, each by {count} {what}{plural}, {keys} keys at a time",
            query_len.div_ceil(queries),
            batch * query_heads,
        )
    }
}

/// Its knobs as text.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(self, config: F => config.fmt(f))
    }
}

fn check_problem<F: CudaFamily>(config: &F, problem: &Problem, operands: &Operands, arch: Arch) -> Result<()> {
    config.check()?;
    let target = F::target(arch)?;
    if !F::INT8 {
        refuse_int8(F::NAME, problem)?;
    }
    check_extras(F::NAME, problem, Extras::ALL)?;
    check_scales(config.block().keys, operands)?;
    config.check_operands(problem, operands)?;
    let (bytes, most) = (config.shared_bytes(&operands.specialisation(problem)), target.max_shared_bytes());
    if bytes > most {
        return Err(Error::invalid(
            "tile_keys",
            format!(
                "the tiles of {config} need {bytes} bytes of shared memory at head dim {}, and a block has {most} on {target}",
                problem.shape().head_dim
            ),
            "set a smaller tile_keys, fewer rows or stages, or fewer sums in shared memory",
        ));
    }
    Ok(())
}

/// The way out where a device has none.
const USE_THE_CPU: &str = "use the cpu kernel, which eightfold::attention runs on tensors of the host";

/// What a kernel computes beside the plain problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extras {
    /// V of other channels than Q and K.
    pub(crate) value_dim: bool,
    pub(crate) window: bool,
    pub(crate) softcap: bool,
    pub(crate) sinks: bool,
}

impl Extras {
    const ALL: Extras = Extras { value_dim: true, window: true, softcap: true, sinks: true };
}

/// An error where Q and K are in INT8.
pub(crate) fn refuse_int8(kernel: &str, problem: &Problem) -> Result<()> {
    match problem.input_format() {
        Fp8Format::Int8 => Err(Error::invalid(
            "input_format",
            format!("the {kernel} kernel computes no scores of int8"),
            format!("quantise to E4M3, or {USE_THE_CPU}"),
        )),
        _ => Ok(()),
    }
}

/// Whether the problem has nothing beyond what the kernel computes.
pub(crate) fn check_extras(kernel: &str, problem: &Problem, written: Extras) -> Result<()> {
    let (head_dim, value_dim) = (problem.shape().head_dim, problem.value_dims().head_dim);
    let refuse = |argument: &str, what: String| {
        Err(Error::invalid(argument, format!("the {kernel} kernel computes no {what}"), USE_THE_CPU))
    };
    if value_dim != head_dim && !written.value_dim {
        return refuse("value_dim", format!("V of {value_dim} channels where Q and K have {head_dim}"));
    }
    if problem.window() != Window::default() && !written.window {
        return refuse("window", format!("sliding windows such as {}", problem.window()));
    }
    match problem.softcap() {
        Some(softcap) if !written.softcap => refuse("softcap", format!("softcap such as {softcap}")),
        _ if problem.has_sinks() && !written.sinks => refuse("sinks", "attention sinks".into()),
        _ => Ok(()),
    }
}

/// Whether no scale of K or V changes within a tile of so many keys.
pub(crate) fn check_scales(tile_keys: usize, operands: &Operands) -> Result<()> {
    for (name, granularity) in [("k scales", operands.k.granularity), ("v scales", operands.v.granularity)] {
        if let Granularity::Block { rows } = granularity
            && !rows.is_multiple_of(tile_keys)
        {
            return Err(Error::invalid(
                name,
                format!("a scale for every {rows} rows changes within a tile of {tile_keys} keys"),
                "quantise in blocks of a multiple of 256 rows, set a smaller tile_keys that divides them, or use the cpu kernel",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_has_its_architectures() {
        let ladder = Config::from(ladder::Config::default());
        let hopper = Config::from(hopper::Config::default());
        assert_eq!(ladder.target(Arch::Sm89), Ok(Arch::Sm89));
        assert_eq!(ladder.target(Arch::Sm90), Ok(Arch::Sm90));
        assert!(ladder.target(Arch::Sm90a).unwrap_err().to_string().starts_with("arch: sm_90a is for the hopper"));
        assert_eq!(hopper.target(Arch::Sm90), Ok(Arch::Sm90a));
        assert_eq!(hopper.target(Arch::Sm90a), Ok(Arch::Sm90a));
        assert!(hopper.target(Arch::Sm89).unwrap_err().to_string().starts_with("arch: the hopper kernel is made"));
    }

    #[test]
    fn a_reason_says_what_applies() {
        assert_eq!(Reason(["fast", "", "few keys", ""]).to_string(), "fast; few keys");
        assert_eq!(Reason::new("one").to_string(), "one");
    }
}
