//! What runs a problem on this machine: on its CUDA device if there is one that can, else on its CPU.
//!
//! The library selects for one target; which target, and what a search installed, is decided here. `EIGHTFOLD_DEVICE=cpu`
//! keeps to the CPU.

use crate::gates::is_int8;
use crate::installed::{self, Installed};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Arch, Kernel, TileList, Workspace};
use eightfold::lab::Config;
use eightfold::lab::{FAMILIES, cpu};
use eightfold::{
    Considered, Error, Fp8Format, Fp8Tensor, Operands, Output, Problem, Result, RunReport, Target, Variant,
};
use std::sync::OnceLock;

/// The environment variable that keeps to the CPU.
const DEVICE_VARIABLE: &str = "EIGHTFOLD_DEVICE";

/// Multiprocessors of an H200: what is assumed to name a variant where there is no device.
const USUAL_MULTIPROCESSORS: usize = 132;

/// What runs a problem, and what does not.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The problem.
    pub problem: Problem,
    /// What runs.
    pub variant: Variant,
    /// Everything that was considered, what runs first.
    pub considered: Vec<Considered>,
}

/// Looks up what was installed on a device for a problem and a kernel.
type Find<'a> = &'a dyn Fn(&str, &Problem, &str) -> Option<&'static Installed>;

/// What runs a problem whose tensors are quantised as this library does it. What was [`installed`] for a kernel, the problem and
/// the device goes before what is selected for that kernel.
pub fn choose(problem: &Problem) -> Result<Choice> {
    choose_with(problem, &installed::find)
}

/// What would run if nothing were installed.
pub fn shipped(problem: &Problem) -> Result<Choice> {
    choose_with(problem, &|_, _, _| None)
}

fn choose_with(problem: &Problem, find: Find) -> Result<Choice> {
    let operands = Operands::assumed(problem);
    let on_device = match is_kept_to_cpu(std::env::var(DEVICE_VARIABLE).ok().as_deref())? {
        true => Err(format!("{DEVICE_VARIABLE}=cpu is set, which keeps to the CPU")),
        false => on_device(problem, &operands, find).map_err(|error| error.to_string()),
    };
    let mut on_cpu = eightfold::consider(problem, &operands, Target::Cpu)?;
    if let Some(choice) = find(&installed::cpu_device(), problem, "cpu")
        && choice.variant.on_cpu().and_then(|config| config.check_machine()).is_ok()
    {
        prefer(&mut on_cpu, choice);
    }
    let considered = match on_device {
        Ok(mut considered) if considered.iter().any(|one| one.chosen) => {
            considered.extend(on_cpu.into_iter().map(|one| Considered { chosen: false, ..one }));
            considered
        }
        Ok(considered) => {
            refuse_silence(problem, &considered)?;
            [on_cpu, considered].concat()
        }
        Err(reason) => {
            // What no device could compute is said rather than that there is none.
            let usual = eightfold::select(problem, &operands, Target::cuda(Arch::Sm90, USUAL_MULTIPROCESSORS));
            let (variant, reason) = match usual {
                Ok(variant) => (variant, reason),
                Err(refusal) => ("hopper".parse()?, refusal.to_string()),
            };
            on_cpu.push(Considered { variant, chosen: false, reason });
            on_cpu
        }
    };
    Ok(Choice { problem: *problem, variant: considered[0].variant, considered })
}

/// An error where a device is there and no kernel computes the problem on it: whoever has a GPU must say that the CPU is to do it.
fn refuse_silence(problem: &Problem, considered: &[Considered]) -> Result<()> {
    match considered.first() {
        Some(Considered { reason, .. }) => Err(Error::unavailable(
            format!("{problem} on this machine's GPU"),
            reason.as_str(),
            format!("set {DEVICE_VARIABLE}=cpu, or name a variant of the cpu kernel"),
        )),
        None => Ok(()),
    }
}

/// What is considered on this machine's device, with what was installed for each of its kernels first among those.
fn on_device(problem: &Problem, operands: &Operands, find: Find) -> Result<Vec<Considered>> {
    let device = Device::default()?;
    if let Some(loss) = device.loss() {
        return Err(loss);
    }
    let (arch, info) = (device.arch()?, device.info());
    let uploaded = uploaded(operands, arch);
    let mut considered = eightfold::consider(problem, &uploaded, Target::cuda(arch, info.multiprocessors))?;
    for kernel in FAMILIES.iter().map(|family| family.name) {
        let Some(choice) = find(&info.name, problem, kernel) else { continue };
        let Some(config) = choice.variant.on_device() else { continue };
        // Searches have inputs in E4M3, and a kernel's accuracies have tolerances of their own.
        let exact = choice.variant.accuracy().is_none_or(|accuracy| accuracy == problem.accuracy());
        let alike = exact && problem.input_format() == Fp8Format::E4m3;
        let is_first = considered.first().is_some_and(|one| one.chosen && one.variant.kernel() == kernel);
        if alike && is_first && config.check_uploaded(problem, operands, arch).is_ok() {
            prefer(&mut considered, choice);
        }
    }
    Ok(considered)
}

/// Host tensors as they are on a device of this architecture, where V is laid out as its best kernel reads it.
fn uploaded(operands: &Operands, arch: Arch) -> Operands {
    let configs = FAMILIES.iter().rev().filter_map(|family| family.name.parse::<Variant>().ok()?.on_device());
    let best = { configs }.find(|config| config.target(arch).is_ok());
    best.map_or(*operands, |config| config.uploaded(operands))
}

/// Puts what was installed before what would have been chosen.
fn prefer(considered: &mut Vec<Considered>, choice: &Installed) {
    considered.retain(|candidate| candidate.chosen || candidate.variant != choice.variant);
    if considered[0].variant == choice.variant {
        considered.remove(0);
    } else {
        considered[0].chosen = false;
        considered[0].reason = format!("what would run if nothing were installed: {}", considered[0].reason);
    }
    considered.insert(0, Considered { variant: choice.variant, chosen: true, reason: choice.reason() });
}

/// What the variable says; an error if it is something that is not understood.
fn is_kept_to_cpu(value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("") => Ok(false),
        Some("cpu") => Ok(true),
        Some(other) => Err(Error::invalid(
            DEVICE_VARIABLE,
            format!("`{other}` is not understood"),
            "set it to cpu to keep to the CPU, or unset it",
        )),
    }
}

impl Choice {
    /// A variant that was asked for by name, if it can run the problem: on this machine, or, where it is for a GPU and there is
    /// none, on any.
    pub fn named(problem: &Problem, variant: Variant) -> Result<Choice> {
        check(problem, &variant)?;
        let considered = vec![Considered { variant, chosen: true, reason: "asked for by name".into() }];
        Ok(Choice { problem: *problem, variant, considered })
    }

    /// What runs, why, how it is cut into tasks, and why the others do not run: some lines for a person.
    pub fn explain(&self) -> String {
        let mut text = format!("problem  {}\n", self.problem);
        for Considered { variant, chosen, reason } in &self.considered {
            let verb = if *chosen { "runs" } else { "not" };
            text.push_str(&format!("{verb:<8} {variant}\n         {reason}\n"));
        }
        let how = match (self.variant.on_device(), self.variant.on_cpu()) {
            (Some(config), _) => config.describe(&self.problem),
            (None, Ok(config)) => cpu::describe(&config, &self.problem),
            (None, Err(_)) => String::new(),
        };
        text.push_str(&format!("how      {how}\n"));
        text
    }
}

/// The problem with Q and K in INT8 where the variant takes no others.
pub(crate) fn in_format_of(problem: &Problem, variant: &Variant) -> Problem {
    if is_int8(variant) { problem.with_input_format(Fp8Format::Int8) } else { *problem }
}

/// Whether a variant that was asked for by name can run a problem, in the format that it takes.
pub fn check_named(problem: &Problem, variant: &Variant) -> Result<()> {
    check(&in_format_of(problem, variant), variant)
}

/// Whether a variant can run a problem: on this machine, or, where it is for a GPU and there is none, on any.
pub fn check(problem: &Problem, variant: &Variant) -> Result<()> {
    let Some(config) = variant.on_device() else {
        let config = variant.on_cpu()?;
        config.check()?;
        return config.check_machine();
    };
    let check = |arch| config.check_uploaded(problem, &Operands::assumed(problem), arch);
    match Device::default().and_then(|device| device.arch()) {
        Ok(arch) => check(arch),
        Err(_) => {
            let outcomes = Arch::ALL.iter().filter(|arch| config.target(**arch).is_ok());
            outcomes.map(|arch| check(*arch)).reduce(|first, second| first.or(second)).unwrap_or(Ok(()))
        }
    }
}

/// Runs a variant on tensors of the host: on the CPU, or to device 0, there, and back.
pub fn run(
    variant: &Variant,
    problem: &Problem,
    q: &Fp8Tensor,
    k: &Fp8Tensor,
    v: &Fp8Tensor,
    output: &mut Output,
) -> Result<RunReport> {
    match variant.on_device() {
        None => eightfold::lab::attention_with(&variant.on_cpu()?, problem, q, k, v, output),
        Some(config) => run_on_device(&config, problem, q, k, v, output),
    }
}

fn run_on_device(
    config: &Config,
    problem: &Problem,
    q: &Fp8Tensor,
    k: &Fp8Tensor,
    v: &Fp8Tensor,
    output: &mut Output,
) -> Result<RunReport> {
    let (device, stream) = default_stream()?;
    let operands = Operands::of_host(q, k, v);
    // Before anything is copied.
    config.check_uploaded(problem, &operands, device.arch()?)?;
    let q = DeviceTensor::upload(device, stream, q, q.layout())?;
    let k = DeviceTensor::upload(device, stream, k, k.layout())?;
    let v = DeviceTensor::upload(device, stream, v, config.value_layout())?;
    let on_device = DeviceOutput::new(device, problem)?;
    let kernel = Kernel::of(device, problem, config, &config.uploaded(&operands))?;
    let mut arguments = kernel.arguments(problem, [&q, &k, &v], &on_device)?;
    let list = TileList::new(&kernel, problem)?;
    if let Some(list) = &list {
        arguments = list.deal(arguments, problem)?;
    }
    let mut workspace = Workspace::new(stream, arguments.workspace_bytes())?;
    // SAFETY: all of it lives until the download has waited for the launch.
    unsafe { kernel.launch(stream, &arguments, &mut workspace)? };
    on_device.download(stream, output)?;
    Ok(arguments.report())
}

/// Device 0 with a stream for everything that comes from the host, opened once per process.
fn default_stream() -> Result<&'static (Device, Stream)> {
    static DEFAULT: OnceLock<Result<(Device, Stream)>> = OnceLock::new();
    let open = || {
        let device = Device::default()?;
        let stream = device.stream()?;
        Ok((device, stream))
    };
    DEFAULT.get_or_init(open).as_ref().map_err(Error::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{Shape, Window};

    #[test]
    fn the_variable_keeps_to_the_cpu_and_knows_nothing_else() {
        assert_eq!(is_kept_to_cpu(None), Ok(false));
        assert_eq!(is_kept_to_cpu(Some("")), Ok(false));
        assert_eq!(is_kept_to_cpu(Some("cpu")), Ok(true));
        let error = is_kept_to_cpu(Some("gpu")).unwrap_err().to_string();
        assert!(error.starts_with("EIGHTFOLD_DEVICE: `gpu` is not understood; "), "{error}");
    }

    #[test]
    fn a_gpu_that_cannot_is_not_passed_over_in_silence() {
        let plain = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
        let refused = |reason: &str| {
            vec![Considered { variant: "hopper".parse().unwrap(), chosen: false, reason: reason.into() }]
        };
        let windowed = plain.with_window(Window::new(Some(127), None));
        let error = refuse_silence(&windowed, &refused("window: no kernel is written for it")).unwrap_err().to_string();
        assert!(
            error.starts_with("1,8,512,64 window=127,-1 on this machine's GPU is not available: window: "),
            "{error}"
        );
        assert!(error.ends_with("set EIGHTFOLD_DEVICE=cpu, or name a variant of the cpu kernel"), "{error}");
        assert!(refuse_silence(&plain, &refused("head_dim: 72 is not one of")).is_err());
        assert_eq!(refuse_silence(&plain, &[]), Ok(()));
    }

    #[test]
    fn what_is_installed_goes_before_what_is_chosen_by_rule() {
        let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
        let by_rule = |variant: &str, chosen| Considered {
            variant: variant.parse().unwrap(),
            chosen,
            reason: "the widest".into(),
        };
        let choice = |variant: &str| Installed {
            device: "here".into(),
            problem: problem.to_string(),
            variant: variant.parse().unwrap(),
            note: "1.10×, found by a search".into(),
        };
        let rules = [by_rule("cpu:lanes", true), by_rule("cpu:baseline", false), by_rule("cpu:queue", false)];
        for (variant, left) in [("cpu:baseline", 3), ("cpu:poly-exp", 4), ("cpu:lanes", 3)] {
            let mut considered = rules.to_vec();
            prefer(&mut considered, &choice(variant));
            assert_eq!((considered.len(), considered.iter().filter(|one| one.chosen).count()), (left, 1), "{variant}");
            assert_eq!(considered[0].variant, choice(variant).variant);
            assert!(considered[0].reason.contains("1.10×") && considered[0].reason.contains("EIGHTFOLD_PLANS=off"));
            let told = considered[1].reason == "what would run if nothing were installed: the widest";
            assert_eq!(told, variant != "cpu:lanes");
        }
    }
}
