//! The resource gate: what the compiler says a kernel takes, against what it may take.

use super::resource_limits::{ResourceLimits, ResourcePolicy, WarpTile};
use super::{Check, Gate, GateReport, Outcome};
use crate::compile::{Compiled, Disassembler, Resources};
use eightfold::cuda::{Arch, Operands};
use eightfold::lab::compile::Program;
use eightfold::lab::{Config, Specialisation};
use eightfold::{Error, Fp8Format, Mask, OutputFormat, Problem, Result, Shape};
use serde::{Deserialize, Serialize};

/// Compiles a program: the compiler, or what stands in for it in a test.
pub type Compile<'a> = &'a (dyn Fn(&Program, Arch) -> Result<Compiled> + Sync);

/// A compiled kernel, as a record keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// What it was compiled for.
    pub arch: String,
    /// The compiler and its version.
    pub compiler: String,
    /// A hash of the machine code, in hexadecimal.
    pub code_hash: String,
    /// Registers per thread.
    pub registers: u32,
    /// Shared memory that the source declares.
    pub static_shared_bytes: usize,
    /// Shared memory that the launch asks for.
    pub dynamic_shared_bytes: usize,
    /// Bytes written to local memory because registers ran out.
    pub spill_store_bytes: usize,
    /// Bytes read back.
    pub spill_load_bytes: usize,
    /// The stack frame.
    pub stack_bytes: usize,
    /// What the compiler warned of, one line each.
    pub warnings: Vec<String>,
    /// Threads of a block.
    pub threads: usize,
    /// Blocks that a multiprocessor holds at a time.
    pub blocks_per_multiprocessor: usize,
    /// The share of a multiprocessor's warps that these blocks fill; reported, never gated.
    pub occupancy: f64,
}

impl Build {
    /// What is worth keeping of a kernel whose blocks have this many threads.
    pub fn of(compiled: &Compiled, threads: usize) -> Self {
        let cubin = &compiled.cubin;
        let Resources {
            registers,
            static_shared_bytes,
            dynamic_shared_bytes,
            spill_store_bytes,
            spill_load_bytes,
            stack_bytes,
            ref warnings,
            ..
        } = compiled.resources;
        let blocks =
            blocks_per_multiprocessor(cubin.arch, registers, static_shared_bytes + dynamic_shared_bytes, threads);
        Build {
            arch: cubin.arch.to_string(),
            compiler: cubin.compiler.clone(),
            code_hash: format!("{:016x}", compiled.code_hash),
            registers,
            static_shared_bytes,
            dynamic_shared_bytes,
            spill_store_bytes,
            spill_load_bytes,
            stack_bytes,
            warnings: warnings.clone(),
            threads,
            blocks_per_multiprocessor: blocks,
            occupancy: (blocks * threads.div_ceil(WARP)) as f64 / multiprocessor(cubin.arch).warps as f64,
        }
    }

    /// Shared memory of one block.
    pub fn shared_bytes(&self) -> usize {
        self.static_shared_bytes + self.dynamic_shared_bytes
    }
}

/// The checks of this gate, in the order in which they are listed.
pub mod checks {
    /// Registers per thread.
    pub const REGISTERS: &str = "registers";
    /// Shared memory of one block, static and dynamic together.
    pub const SHARED: &str = "shared memory bytes";
    /// Spilled to local memory.
    pub const SPILL_STORES: &str = "spill store bytes";
    /// Read back.
    pub const SPILL_LOADS: &str = "spill load bytes";
    /// The stack frame.
    pub const STACK: &str = "stack frame bytes";
    /// Lines in which the compiler warns.
    pub const WARNINGS: &str = "compiler warnings";
    /// Instructions that touch an accumulator between its product and the wait for it, where there is a disassembler to tell.
    pub const EARLY_TOUCHES: &str = "accumulators touched before the wait";
}

/// What the gate decided about a kernel, and the kernel if it compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// The decision.
    pub gate: GateReport,
    /// What was compiled.
    pub build: Option<Build>,
}

impl Built {
    fn without_build(outcome: Outcome, summary: String) -> Self {
        Built { gate: GateReport { gate: Gate::Resource, outcome, summary, checks: Vec::new() }, build: None }
    }

    /// The gate could not be applied, for this reason.
    pub fn unavailable(reason: impl ToString) -> Self {
        Built::without_build(Outcome::Unavailable, reason.to_string())
    }
}

/// What is compiled where no problem says otherwise: E4M3 with a scale per tensor or head, f32 output, keys for many
/// whole tiles.
pub fn plain_specialisation(head_dim: usize, mask: Mask) -> Specialisation {
    Specialisation {
        head_dim,
        value_dim: head_dim,
        mask,
        window: false,
        softcap: false,
        sinks: false,
        key_len: 4096,
        input: Fp8Format::E4m3,
        output: OutputFormat::F32,
        query_blocks: false,
        key_blocks: false,
        value_blocks: false,
        lse: true,
        centred: true,
        dump: false,
    }
}

/// Whether a kernel of this config exists for the head dim and the mask and fits on the architecture; the error names the
/// rule.
pub fn restriction(config: &Config, specialisation: &Specialisation, arch: Arch) -> Result<()> {
    let &Specialisation { head_dim, value_dim, mask, .. } = specialisation;
    // A key fits any tile; two tiles of 64 queries are for configs whose blocks work in pairs.
    let shape = Shape::new(1, 1, 1, head_dim).with_query_len(128);
    let problem = Problem::new(shape)?.with_value_dim(value_dim)?.with_mask(mask);
    config.check_uploaded(&problem, &Operands::assumed(&problem), arch)
}

/// Compiles a kernel and judges what it takes. One that a restriction rules out is unavailable; one that does not
/// compile has failed.
pub fn examine(
    config: &Config,
    specialisation: &Specialisation,
    arch: Arch,
    compile: Compile,
    policy: &ResourcePolicy,
) -> Built {
    if let Err(error) = restriction(config, specialisation, arch) {
        return Built::unavailable(error);
    }
    let target = match config.target(arch) {
        Ok(target) => target,
        Err(error) => return Built::unavailable(error),
    };
    match compile(&specialisation.program(*config), target) {
        // An invalid program is the kernel's fault; anything else is the machine's.
        Err(error @ Error::Invalid { .. }) => {
            Built::without_build(Outcome::Fail, format!("does not compile: {}", first_line(&error.to_string())))
        }
        Err(error) => Built::unavailable(error),
        Ok(compiled) => {
            let limits = policy.limits(target, WarpTile::of(config, specialisation.value_dim));
            let gate = with_machine_code(judge(&compiled.resources, &limits), &compiled);
            Built { gate, build: Some(Build::of(&compiled, config.threads())) }
        }
    }
}

/// The gate with a look at the machine code of a kernel that multiplies by warpgroups, where there is a disassembler.
fn with_machine_code(gate: GateReport, compiled: &Compiled) -> GateReport {
    if compiled.cubin.arch != Arch::Sm90a {
        return gate;
    }
    match Disassembler::find().and_then(|tool| tool.early_touches(&compiled.cubin)) {
        Ok(touches) => with_early_touches(gate, &touches),
        // What cannot be judged has not passed; what is not there is no fault of the kernel's.
        Err(error @ Error::Invalid { .. }) => GateReport { outcome: Outcome::Fail, summary: error.to_string(), ..gate },
        Err(_) => gate,
    }
}

fn with_early_touches(mut gate: GateReport, touches: &[String]) -> GateReport {
    gate.checks.push(Check::at_most(checks::EARLY_TOUCHES, touches.len() as f64, 0.0));
    if let Some(first) = touches.first() {
        let said = format!("an accumulator is touched before the wait for its product: `{first}`");
        gate.summary = if gate.outcome == Outcome::Pass { said } else { format!("{}; {said}", gate.summary) };
        gate.outcome = Outcome::Fail;
    }
    gate
}

/// Every resource against its limit.
pub fn judge(resources: &Resources, limits: &ResourceLimits) -> GateReport {
    let shared_bytes = resources.static_shared_bytes + resources.dynamic_shared_bytes;
    let count = |name, value: usize, limit: usize| Check::at_most(name, value as f64, limit as f64);
    let default = &limits.default;
    let checks = vec![
        count(checks::REGISTERS, resources.registers as usize, limits.registers as usize),
        count(checks::SHARED, shared_bytes, limits.shared_bytes),
        count(checks::SPILL_STORES, resources.spill_store_bytes, default.spill_store_bytes),
        count(checks::SPILL_LOADS, resources.spill_load_bytes, default.spill_load_bytes),
        count(checks::STACK, resources.stack_bytes, default.stack_bytes),
        count(checks::WARNINGS, resources.warnings.len(), default.warnings),
    ];
    let failed: Vec<_> = checks.iter().filter(|check| !check.pass).collect();
    let summary = if failed.is_empty() {
        format!("{} registers, {shared_bytes} bytes of shared memory", resources.registers)
    } else {
        let said = failed.iter().map(|check| match resources.warnings.first() {
            Some(warning) if check.name == checks::WARNINGS => format!("the compiler warns: {}", first_line(warning)),
            _ => format!("{} {}, limit {}", check.value, check.name, check.limit),
        });
        said.collect::<Vec<_>>().join("; ")
    };
    let outcome = if failed.is_empty() { Outcome::Pass } else { Outcome::Fail };
    GateReport { gate: Gate::Resource, outcome, summary, checks }
}

fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

const WARP: usize = 32;
/// Registers of a multiprocessor, on every architecture here.
const REGISTERS: usize = 64 * 1024;
/// A warp's registers are allotted in units of this many.
const REGISTER_UNIT: usize = 256;
/// A multiprocessor has four schedulers, each with a quarter of the registers.
const SCHEDULERS: usize = 4;
/// Shared memory that the system takes for each block.
const RESERVED_SHARED_BYTES: usize = 1024;

struct Multiprocessor {
    warps: usize,
    blocks: usize,
    shared_bytes: usize,
}

/// From the table of compute capabilities in the CUDA programming guide.
fn multiprocessor(arch: Arch) -> Multiprocessor {
    match arch {
        Arch::Sm89 => Multiprocessor { warps: 48, blocks: 24, shared_bytes: 100 * 1024 },
        _ => Multiprocessor { warps: 64, blocks: 32, shared_bytes: 228 * 1024 },
    }
}

fn blocks_per_multiprocessor(arch: Arch, registers: u32, shared_bytes: usize, threads: usize) -> usize {
    let Multiprocessor { warps, blocks, shared_bytes: room } = multiprocessor(arch);
    let block_warps = threads.div_ceil(WARP).max(1);
    let warp_registers = (registers.max(1) as usize * WARP).next_multiple_of(REGISTER_UNIT);
    let by_registers = REGISTERS / SCHEDULERS / warp_registers * SCHEDULERS / block_warps;
    let by_shared = room / (shared_bytes + RESERVED_SHARED_BYTES);
    [blocks, warps / block_warps, by_registers, by_shared].into_iter().min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Thresholds;
    use crate::kernel::Kernel;
    use eightfold::lab::compile::Cubin;
    use eightfold::lab::{hopper, ladder};

    fn limits() -> ResourceLimits {
        let mut limits = Thresholds::embedded().resource.limits(Arch::Sm89, WarpTile { rows: 16, head_dim: 64 });
        limits.registers = 120;
        limits
    }

    /// What is never compiled is never judged.
    #[test]
    fn whatever_the_plan_may_choose_is_compiled() {
        for (head_dim, mask) in [(64, Mask::None), (64, Mask::Causal), (128, Mask::None), (128, Mask::Causal)] {
            let specialisation = plain_specialisation(head_dim, mask);
            for other in Kernel::HOPPER.others(head_dim, mask) {
                let outcome = restriction(&other.variant.on_device().unwrap(), &specialisation, Arch::Sm90a);
                assert_eq!(outcome, Ok(()), "{}, {head_dim} channels, {mask:?}", other.name);
            }
        }
    }

    fn resources() -> Resources {
        Resources { registers: 120, dynamic_shared_bytes: 40_960, ..Resources::default() }
    }

    #[test]
    fn what_is_at_its_limit_passes() {
        let report = judge(&resources(), &limits());
        assert_eq!((report.gate, report.outcome, report.checks.len()), (Gate::Resource, Outcome::Pass, 6));
        assert_eq!(report.summary, "120 registers, 40960 bytes of shared memory");
    }

    #[test]
    fn each_resource_can_fail_alone_and_is_named() {
        let cases: [(Resources, &str); 6] = [
            (Resources { registers: 121, ..resources() }, "121 registers, limit 120"),
            (Resources { static_shared_bytes: 60_417, ..resources() }, "101377 shared memory bytes, limit 101376"),
            (Resources { spill_store_bytes: 4, ..resources() }, "4 spill store bytes, limit 0"),
            (Resources { spill_load_bytes: 8, ..resources() }, "8 spill load bytes, limit 0"),
            (Resources { stack_bytes: 16, ..resources() }, "16 stack frame bytes, limit 0"),
            (
                Resources { warnings: vec!["(C7508) setmaxnreg ignored".into()], ..resources() },
                "the compiler warns: (C7508) setmaxnreg ignored",
            ),
        ];
        for (resources, expected) in cases {
            let report = judge(&resources, &limits());
            assert_eq!((report.outcome, report.summary.as_str()), (Outcome::Fail, expected));
            assert_eq!(report.failed().count(), 1);
        }
    }

    #[test]
    fn an_accumulator_that_is_touched_too_early_fails_and_is_quoted() {
        let gate = with_early_touches(judge(&resources(), &limits()), &[]);
        assert_eq!((gate.outcome, gate.checks.len()), (Outcome::Pass, 7));
        let gate = with_early_touches(judge(&resources(), &limits()), &["MOV R1, R24".into(), "MOV R2, R25".into()]);
        assert_eq!(gate.outcome, Outcome::Fail);
        assert!(gate.summary.contains("`MOV R1, R24`") && gate.failed().count() == 1, "{}", gate.summary);
    }

    fn compiled(arch: Arch) -> Compiled {
        let cubin = Cubin {
            image: Vec::new().into(),
            entry: "ladder_attention".into(),
            arch,
            log: String::new(),
            compiler: "NVRTC 13.0".into(),
            cached: false,
        };
        Compiled { cubin, resources: resources(), code_hash: 0xabc }
    }

    #[test]
    fn a_kernel_that_compiles_is_kept_with_its_hash() {
        let config = ladder::find_stage("baseline").unwrap().config.into();
        let policy = Thresholds::embedded().resource;
        let built =
            examine(&config, &plain_specialisation(64, Mask::None), Arch::Sm89, &|_, arch| Ok(compiled(arch)), &policy);
        let build = built.build.unwrap();
        assert_eq!((built.gate.outcome, build.code_hash.as_str()), (Outcome::Pass, "0000000000000abc"));
        assert_eq!((build.threads, build.registers, build.shared_bytes()), (128, 120, 40_960));
    }

    #[test]
    fn a_kernel_that_does_not_compile_fails_with_the_first_line() {
        let config = ladder::find_stage("baseline").unwrap().config.into();
        let broken = |_: &Program, _| Err(Error::invalid("source", "attention.cu(3): error: no such thing\nmore", "x"));
        let policy = Thresholds::embedded().resource;
        let built = examine(&config, &plain_specialisation(64, Mask::None), Arch::Sm89, &broken, &policy);
        assert_eq!(built.gate.outcome, Outcome::Fail);
        assert_eq!(built.gate.summary, "does not compile: source: attention.cu(3): error: no such thing");
    }

    #[test]
    fn what_a_restriction_rules_out_is_unavailable_with_the_reason() {
        let config = ladder::find_stage("baseline").unwrap().config.into();
        let policy = Thresholds::embedded().resource;
        let never = |_: &Program, _| panic!("it was compiled");
        let built = examine(&config, &plain_specialisation(192, Mask::None), Arch::Sm89, &never, &policy);
        assert_eq!(built.gate.outcome, Outcome::Unavailable);
        assert!(built.gate.summary.starts_with("tile_keys: heads of 192 and 192 channels"), "{}", built.gate.summary);
        let config = hopper::find_stage("fast").unwrap().config.into();
        let built = examine(&config, &plain_specialisation(64, Mask::None), Arch::Sm89, &never, &policy);
        assert_eq!(built.gate.outcome, Outcome::Unavailable);
        assert!(built.gate.summary.starts_with("arch: the hopper kernel is made of"), "{}", built.gate.summary);
    }

    #[test]
    fn a_hopper_kernel_is_compiled_for_what_its_instructions_are_of() {
        let config = hopper::find_stage("fast").unwrap().config.into();
        let policy = Thresholds::embedded().resource;
        let kind = plain_specialisation(64, Mask::None);
        let built = examine(&config, &kind, Arch::Sm90, &|_, arch| Ok(compiled(arch)), &policy);
        assert_eq!(built.build.unwrap().arch, "sm_90a");
    }

    #[test]
    fn occupancy_is_that_of_the_scarcest_resource() {
        // 128 registers: 4096 a warp, 16 warps a multiprocessor, 4 blocks of 4 warps.
        assert_eq!(blocks_per_multiprocessor(Arch::Sm90, 128, 0, 128), 4);
        // 48 KiB and the reserved one: 4 of them in 228 KiB, 2 in 100 KiB.
        assert_eq!(blocks_per_multiprocessor(Arch::Sm90, 32, 48 * 1024, 128), 4);
        assert_eq!(blocks_per_multiprocessor(Arch::Sm89, 32, 48 * 1024, 128), 2);
        // Few registers, no shared memory: warps, or blocks of a single one.
        assert_eq!(blocks_per_multiprocessor(Arch::Sm89, 16, 0, 256), 6);
        assert_eq!(blocks_per_multiprocessor(Arch::Sm90, 16, 0, 32), 32);
    }
}
