//! Attention on the device: with tensors that are there, or from host tensors and back.

use super::compile::Compiler;
use super::driver::{Device, Stream};
use super::family::Config;
use super::hopper::TileList;
use super::kernel::Kernel;
use super::loaded::Loaded;
use super::tensor::{DeviceOutput, DeviceTensor};
use super::workspace::Workspace;
use super::{Arch, Operands, hopper, ladder};
use crate::error::{Error, Result};
use crate::installed;
use crate::output::Output;
use crate::plan::{Considered, RunReport};
use crate::problem::Problem;
use crate::tensor::{Fp8Format, Fp8Tensor, Layout};
use crate::variant::Variant;
use std::sync::OnceLock;

/// The environment variable that keeps a plan to the CPU.
const DEVICE_VARIABLE: &str = "EIGHTFOLD_DEVICE";

/// Attention on tensors in device memory: puts one launch of the best kernel into the stream and returns at once.
///
/// V may lie in rows, transposed ([`Layout::Bhds`]) or, which is fastest on Hopper, transposed and exchanged
/// ([`Layout::BhdsExchanged`]). Tensors and output must live until the launch is done. The first call for a kind of
/// problem compiles its kernel; later ones find it in memory, and [`Prepared`] saves the search as well, and deals out the
/// work of causal problems more evenly. Where the kernel needs memory of its own, to put V in order or to split keys, this
/// allocates it and waits for the launch: [`Prepared`] does neither.
pub fn attention_on(
    stream: &Stream,
    problem: &Problem,
    q: &DeviceTensor,
    k: &DeviceTensor,
    v: &DeviceTensor,
    output: &mut DeviceOutput,
) -> Result<()> {
    let device = stream.device();
    let operands = Operands::of(q, k, v);
    let installed = |kernel| installed_config(device, problem, kernel, &installed::find).map(|(config, _)| config);
    let installed = ["hopper", "ladder"].into_iter().filter_map(installed).filter(|config| reads(config, v.layout()));
    let by_rule = candidates(problem, &operands, device.arch(), device.info().multiprocessors);
    let mut candidates: Vec<Config> = installed.chain(by_rule).collect();
    // What is installed goes first among those of its kernel.
    candidates.sort_by_key(|config| matches!(config, Config::Ladder(_)));
    // The first that serves and compiles; if none does, the first says why.
    let mut refusal = None;
    for config in candidates {
        let made = Kernel::of(device, problem, &config, &operands)
            .and_then(|kernel| Ok((kernel.arguments(problem, [q, k, v], output)?, kernel)));
        match made {
            Ok((arguments, kernel)) => {
                let mut growing = stream.workspace();
                let mut workspace = growing.at_least(stream, arguments.workspace_bytes())?;
                // SAFETY: tensors and output are borrowed, and freed only when the device has done with them, or else a
                // caller's, who vouched for that. The workspace is the stream's own, in which launches follow each other.
                return unsafe { kernel.launch(stream, &arguments, &mut workspace) };
            }
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.unwrap_or_else(|| Error::unavailable("CUDA", "no kernel was considered", "use the cpu kernel")))
}

/// Whether a kernel reads values as they lie: the hopper kernel puts them in order itself.
fn reads(config: &Config, layout: Layout) -> bool {
    match config {
        Config::Hopper(_) => true,
        Config::Ladder(_) => {
            layout != Layout::BhdsExchanged && config.value_layout().is_transposed() == layout.is_transposed()
        }
    }
}

/// What may run with tensors like these, the best first.
fn candidates(problem: &Problem, operands: &Operands, arch: Arch, multiprocessors: usize) -> Vec<Config> {
    let on_hopper = hopper::target(arch).is_ok().then(|| hopper_candidates(problem, operands, multiprocessors));
    let ladder = match operands.v.layout {
        Layout::BhdsExchanged => Vec::new(),
        layout => ladder_candidates(problem, multiprocessors, layout),
    };
    let on_hopper = on_hopper.into_iter().flatten().map(Config::Hopper);
    let mut candidates: Vec<Config> = on_hopper.chain(ladder.into_iter().map(Config::Ladder)).collect();
    if candidates.is_empty() {
        // It says that the layout is not for this device.
        candidates.push(Config::Hopper(hopper::choose(problem, operands, multiprocessors).0));
    }
    candidates
}

/// The chosen config, then smaller tiles for scales that change within its own.
fn hopper_candidates(problem: &Problem, operands: &Operands, multiprocessors: usize) -> Vec<hopper::Config> {
    let (best, _) = hopper::choose(problem, operands, multiprocessors);
    let smaller = |tile_keys: usize| hopper::Config {
        tile_keys,
        flight: best.flight.min(tile_keys / 32),
        stages: best.stages.max(2),
        ..best.streamed()
    };
    vec![best, smaller(128), smaller(64)]
}

/// What may run with V in this layout, the best first: then, for scales that change within its tiles, the stages from
/// the last to the first.
fn ladder_candidates(problem: &Problem, multiprocessors: usize, layout: Layout) -> Vec<ladder::Config> {
    use ladder::{Config, Pv, STAGES};
    let (best, _) = ladder::choose(problem, multiprocessors);
    let stages = STAGES.iter().rev().map(|stage| stage.at(problem.shape().head_dim));
    let transposed = layout.is_transposed();
    let is_read = |config: &Config| (config.value_layout() == Layout::Bhds) == transposed;
    let reads = |config: Config| match is_read(&config) || transposed {
        true => config,
        false => Config { pv: Pv::Mma, ..config },
    };
    let small = [best, Config { tile_keys: 64, ..best }, Config { tile_keys: 32, key_groups: 1, ..best }];
    let legal = |config: &Config| config.check().is_ok();
    small.into_iter().chain(stages).map(reads).filter(is_read).filter(legal).collect()
}

/// What was considered for a problem on this machine's device, what is chosen first; an error if the environment is not
/// understood.
///
/// `EIGHTFOLD_DEVICE=cpu` in the environment keeps to the CPU.
pub(crate) fn choose(problem: &Problem, find: installed::Find) -> Result<Vec<Considered>> {
    let value = std::env::var_os(DEVICE_VARIABLE);
    let outcome = match is_kept_to_cpu(value.as_deref().map(|value| value.to_string_lossy()).as_deref())? {
        true => Err(format!("{DEVICE_VARIABLE}=cpu is set, which keeps to the CPU")),
        false => choose_on_device(problem, find).map_err(|error| error.to_string()),
    };
    Ok(outcome.unwrap_or_else(|reason| {
        let (config, _) = hopper::choose(problem, &Operands::hoped(problem), USUAL_MULTIPROCESSORS);
        vec![Considered { variant: Variant::Hopper(config), chosen: false, reason }]
    }))
}

/// Of an H200: what is assumed to name a config where there is no device.
const USUAL_MULTIPROCESSORS: usize = 132;

/// The configs for a problem on this machine's device, and why; or why none can.
fn choose_on_device(problem: &Problem, find: installed::Find) -> Result<Vec<Considered>> {
    let device = Device::default()?;
    if let Some(loss) = device.loss() {
        return Err(loss);
    }
    let (arch, info) = (device.arch(), device.info());
    let compiler = Compiler::find()?;
    // The tensors are known when the plan runs; these suit every tile.
    let operands = Operands::hoped(problem);
    let mut candidates: Vec<(Config, String)> = Vec::new();
    if hopper::target(arch).is_ok() {
        candidates.extend(installed_config(&device, problem, "hopper", find));
        let (config, reason) = hopper::choose(problem, &operands, info.multiprocessors);
        candidates.push((config.into(), reason));
    }
    candidates.extend(installed_config(&device, problem, "ladder", find));
    let (config, reason) = ladder::choose(problem, info.multiprocessors);
    candidates.push((config.into(), reason.into()));
    candidates.dedup_by_key(|(config, _)| *config);

    let here = format!("{} ({arch}) is there, {} compiles for it", info.name, compiler.version());
    let fits = |config: &Config| config.check_uploaded(problem, &operands, arch);
    Ok(consider(candidates, &here, &fits, &|config| compiles(&device, problem, &operands, config)))
}

/// What becomes of candidates, the best first: the first that fits and compiles is chosen, and others that fit say when they
/// would run. What is chosen goes first.
fn consider(
    candidates: Vec<(Config, String)>,
    here: &str,
    fits: &dyn Fn(&Config) -> Result<()>,
    compiles: &dyn Fn(&Config) -> Result<()>,
) -> Vec<Considered> {
    let mut considered: Vec<Considered> = Vec::new();
    for (config, reason) in candidates {
        let variant = Variant::from(config);
        let before = considered.iter().find(|one| one.chosen).map(|one| one.variant.kernel());
        let outcome = match before {
            None => fits(&config).and_then(|()| compiles(&config)).map(|()| format!("{here}; {reason}")),
            Some(kernel) if kernel == variant.kernel() => {
                fits(&config).map(|()| format!("what would run if nothing were installed: {reason}"))
            }
            Some(kernel) => {
                fits(&config).map(|()| format!("where the {kernel} kernel does not suit the tensors: {reason}"))
            }
        };
        let chosen = before.is_none() && outcome.is_ok();
        let reason = outcome.unwrap_or_else(|error| error.to_string());
        considered.push(Considered { variant, chosen, reason });
    }
    considered.sort_by_key(|candidate| !candidate.chosen);
    considered
}

/// Whether the compiler knows the instructions of a kernel: an old one may not know the hopper kernel's.
fn compiles(device: &Device, problem: &Problem, operands: &Operands, config: &Config) -> Result<()> {
    match config {
        Config::Ladder(_) => Ok(()),
        Config::Hopper(_) => {
            let program = operands.specialisation(problem).program(*config);
            Loaded::get(device, &program, config.target(device.arch())?).map(|_| ())
        }
    }
}

/// What was installed for a problem on this device and a kernel, if it can still run there and is as exact as the problem
/// asks for, and why it runs. Searches have inputs in E4M3, so it is for those.
fn installed_config(
    device: &Device,
    problem: &Problem,
    kernel: &str,
    find: installed::Find,
) -> Option<(Config, String)> {
    let choice = find(&device.info().name, problem, kernel)?;
    let config = choice.variant.on_device()?;
    let exact = choice.variant.accuracy().is_none_or(|accuracy| accuracy == problem.accuracy());
    let alike = exact && problem.input_format() == Fp8Format::E4m3;
    let fits = alike && config.check_uploaded(problem, &Operands::hoped(problem), device.arch()).is_ok();
    fits.then(|| (config, choice.reason()))
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

/// The config for host tensors on this machine's device: the planned one, or where it does not suit them the first that
/// does; none if none does.
pub(crate) fn suiting(planned: &Config, problem: &Problem, operands: &Operands) -> Option<Config> {
    let device = Device::default().ok()?;
    let arch = device.arch();
    // The kernel gets V laid out as it reads it; the ladder, transposed.
    let turned = Operands { v: super::operands::Operand { layout: Layout::Bhds, ..operands.v }, ..*operands };
    let others = candidates(problem, &turned, arch, device.info().multiprocessors);
    [*planned].into_iter().chain(others).find(|config| config.check_uploaded(problem, operands, arch).is_ok())
}

/// Computes attention on host tensors: to device 0, there, and back. The plan has checked tensors and output.
pub(crate) fn run(
    config: &Config,
    problem: &Problem,
    q: &Fp8Tensor,
    k: &Fp8Tensor,
    v: &Fp8Tensor,
    output: &mut Output,
) -> Result<RunReport> {
    let (device, stream) = default_stream()?;
    // Before anything is copied.
    config.check_uploaded(problem, &Operands::of_host(q, k, v), device.arch())?;
    let q = DeviceTensor::upload(device, stream, q, q.layout())?;
    let k = DeviceTensor::upload(device, stream, k, k.layout())?;
    let v = DeviceTensor::upload(device, stream, v, config.value_layout())?;
    let on_device = DeviceOutput::new(device, problem)?;
    let kernel = Kernel::of(device, problem, config, &Operands::of(&q, &k, &v))?;
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
    use crate::problem::Shape;
    use crate::tensor::Granularity;

    #[test]
    fn the_variable_keeps_to_the_cpu_and_knows_nothing_else() {
        assert_eq!(is_kept_to_cpu(None), Ok(false));
        assert_eq!(is_kept_to_cpu(Some("")), Ok(false));
        assert_eq!(is_kept_to_cpu(Some("cpu")), Ok(true));
        let error = is_kept_to_cpu(Some("gpu")).unwrap_err().to_string();
        assert!(error.starts_with("EIGHTFOLD_DEVICE: `gpu` is not understood; "), "{error}");
    }

    #[test]
    fn what_is_installed_goes_before_the_rule_of_its_kernel_and_a_refusal_passes_it_on() {
        let config = |text: &str| text.parse::<Variant>().unwrap().on_device().unwrap();
        let [searched, fast, copied, staged] =
            [config("hopper:fast,flight=1"), config("hopper:fast"), config("ladder:unpack"), config("ladder")];
        let told = [(searched, "installed"), (fast, "tall tiles"), (copied, "installed too"), (staged, "pipelined")];
        let told = || told.iter().map(|(config, reason)| (*config, reason.to_string())).collect();
        let refused = |refused: &'static [&str]| {
            move |config: &Config| match refused.contains(&Variant::from(*config).kernel()) {
                true => Err(Error::unavailable("it", "no", "mend it")),
                false => Ok(()),
            }
        };
        let considered = |unfit, uncompiled| consider(told(), "a GPU", &refused(unfit), &refused(uncompiled));
        let words = |considered: &[Considered]| -> Vec<(Config, bool, String)> {
            considered.iter().map(|one| (one.variant.on_device().unwrap(), one.chosen, one.reason.clone())).collect()
        };
        let all = words(&considered(&[], &[]));
        assert_eq!(all[0], (searched, true, "a GPU; installed".into()));
        assert_eq!(all[1], (fast, false, "what would run if nothing were installed: tall tiles".into()));
        let second = "where the hopper kernel does not suit the tensors: installed too";
        assert_eq!(all[2], (copied, false, second.into()));
        for (unfit, uncompiled) in [(&["hopper"][..], &[][..]), (&[], &["hopper"])] {
            let without = words(&considered(unfit, uncompiled));
            assert_eq!(without[0], (copied, true, "a GPU; installed too".into()));
            assert_eq!(without[1], (searched, false, "it is not available: no; mend it".into()));
            assert_eq!(without[3], (staged, false, "what would run if nothing were installed: pipelined".into()));
        }
        assert!(considered(&["hopper", "ladder"], &[]).iter().all(|one| !one.chosen));
    }

    #[test]
    fn values_are_served_in_every_layout() {
        for head_dim in [64, 128] {
            for len in [32, 512, 4096] {
                let problem = Problem::new(Shape::new(1, 8, len, head_dim)).unwrap();
                for layout in [Layout::Bhsd, Layout::Bhds, Layout::BhdsExchanged] {
                    let mut operands = Operands::hoped(&problem);
                    operands.v.layout = layout;
                    let candidates = |arch| candidates(&problem, &operands, arch, 132);
                    let [first, .., last] = candidates(Arch::Sm90)[..] else { panic!("too few") };
                    assert!(matches!(first, Config::Hopper(_)));
                    assert_eq!(matches!(last, Config::Ladder(_)), layout != Layout::BhdsExchanged);
                    for config in candidates(Arch::Sm90) {
                        assert_eq!(config.check_problem(&problem, &operands, Arch::Sm90), Ok(()), "{layout}");
                        if let Config::Ladder(config) = config {
                            let transposed = config.value_layout() == Layout::Bhds;
                            assert_eq!(transposed, layout == Layout::Bhds);
                        }
                    }
                    let serves = |config: &Config| config.check_problem(&problem, &operands, Arch::Sm89).is_ok();
                    assert_eq!(candidates(Arch::Sm89).iter().any(serves), layout != Layout::BhdsExchanged);
                }
            }
        }
    }

    #[test]
    fn scales_that_change_often_are_served_with_smaller_tiles() {
        let problem = Problem::new(Shape::new(4, 16, 4096, 64)).unwrap();
        let mut operands = Operands::hoped(&problem);
        operands.k.granularity = Granularity::Block { rows: 64 };
        let serves = |config: &&Config| config.check_problem(&problem, &operands, Arch::Sm90).is_ok();
        let candidates = candidates(&problem, &operands, Arch::Sm90, 132);
        let Some(Config::Hopper(config)) = candidates.iter().find(serves) else { panic!("not hopper") };
        assert_eq!(config.tile_keys, 64);
    }
}
