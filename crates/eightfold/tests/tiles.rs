//! The tile instructions as they are, on any x86-64 CPU with AVX-512 under Linux.
//!
//! Where there is no AMX they raise SIGILL. A handler then decodes the instruction, does what it does on the portable twin of the
//! registers, and goes on behind it. So the assembly is shown to name the registers, addresses, strides and shapes that the twin
//! was told. Where there is AMX, the same tests run on it.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod fork;
mod tile_emulator;

use eightfold::lab::attention_with;
use eightfold::lab::cpu::tiles::{self, Configuration};
use eightfold::lab::cpu::{Config, Features, Simd};
use eightfold::quantize::Quantizer;
use eightfold::{Fp8Format, Fp8Tensor, Granularity, Output, Problem, Shape};
use std::arch::asm;
use std::sync::OnceLock;
use std::thread;
use tile_emulator::executed;

/// What executes tile instructions here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Executed {
    ByTheCpu,
    ByTheHandler,
}

/// Makes sure that something executes tile instructions; none where nothing can, with the reason printed.
fn tiles() -> Option<Executed> {
    static TILES: OnceLock<Option<Executed>> = OnceLock::new();
    *TILES.get_or_init(|| {
        // Emulated, what detection finds must come after what is assumed.
        if tile_emulator::cpu_has_tiles() {
            return match Features::detect().amx {
                Ok(()) => Some(Executed::ByTheCpu),
                Err(missing) => {
                    println!("not run: {missing}");
                    None
                }
            };
        }
        tile_emulator::install();
        // SAFETY: the handler executes the instructions.
        if unsafe { tiles::assume() } {
            return Some(Executed::ByTheHandler);
        }
        println!("not run: this CPU has no AVX-512 to work beside tiles");
        None
    })
}

struct Case {
    problem: Problem,
    q: Fp8Tensor<'static>,
    k: Fp8Tensor<'static>,
    v: Fp8Tensor<'static>,
}

impl Case {
    fn new(shape: &str, causal: bool, loud: f32) -> Self {
        Case::with(shape, causal, loud, Fp8Format::E4m3, Granularity::Head)
    }

    fn with(shape: &str, causal: bool, loud: f32, format: Fp8Format, granularity: Granularity) -> Self {
        let problem = Problem::new(shape.parse().unwrap()).unwrap().with_input_format(format);
        Case::of(if causal { problem.causal() } else { problem }, loud, granularity)
    }

    fn of(problem: Problem, loud: f32, granularity: Granularity) -> Self {
        let quantizer = Quantizer::new(problem.input_format()).with_granularity(granularity);
        let (problem, shape): (Problem, Shape) = (problem.with_lse(true), problem.shape());
        let values = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|index| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
        };
        let quantize = |dims: eightfold::Dims, seed, factor: f32| {
            let values: Vec<f32> = values(dims.count(), seed).iter().map(|value| value * factor).collect();
            quantizer.quantize(&values, dims, eightfold::Layout::Bhsd).unwrap()
        };
        Case {
            problem,
            q: quantize(shape.query_dims(), 1, loud),
            k: quantize(shape.key_dims(), 2, loud),
            v: quantize(problem.value_dims(), 3, 1.0),
        }
    }

    /// The bits of the output and of the log-sum-exp.
    fn run(&self, config: &Config) -> (Vec<u32>, Vec<u32>) {
        let mut output = Output::zeros(&self.problem);
        output.poison();
        attention_with(config, &self.problem, &self.q, &self.k, &self.v, &mut output).unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        (bits(&output.values.to_f32()), bits(&output.lse.unwrap()))
    }
}

fn config(text: &str, simd: Simd) -> Config {
    Config { simd, ..format!("amx,{text}").parse().unwrap() }
}

/// Bit for bit where the handler executes; nearly where the CPU does, whose sums are documented but were not compared.
fn assert_same(by: Executed, tiles: &[u32], twin: &[u32], what: &str) {
    if by == Executed::ByTheHandler {
        assert!(tiles == twin, "{what}: the instructions gave other bits than their twin");
        return;
    }
    let pairs = || tiles.iter().zip(twin).map(|(tile, twin)| (f32::from_bits(*tile), f32::from_bits(*twin)));
    println!("{what}: {} of {} bits differ from the twin's", pairs().filter(|(a, b)| a != b).count(), twin.len());
    let error: f64 = pairs().filter(|(a, b)| a != b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let size: f64 = pairs().filter(|(_, b)| b.is_finite()).map(|(_, b)| f64::from(b).powi(2)).sum();
    assert!(error <= 1e-8 * size, "{what}: {:.1e} from the twin", (error / size).sqrt());
}

#[test]
fn the_instructions_compute_what_their_twin_does() {
    let Some(by) = tiles() else { return };
    let blocks = Granularity::Block { rows: 48 };
    let plain = Problem::new("1,2,70,72".parse().unwrap()).unwrap();
    let (bounded, narrow) = (plain.with_softcap(0.5).unwrap(), plain.causal().with_value_dim(24).unwrap());
    let cases = [
        ("heads of 64", Case::new("1,2,70,64", false, 1.0)),
        ("causal, tails", Case::new("1,2,150,40", true, 1.0)),
        ("an odd number of tiles of channels", Case::new("1,1,40,144", false, 1.0)),
        ("two query heads on one of K", Case::new("1,4,2,50,133,96", true, 1.0)),
        ("maxima that must be subtracted", Case::new("1,1,64,64", true, 30.0)),
        ("a scale for every 48 rows", Case::with("1,1,130,64", false, 1.0, Fp8Format::E4m3, blocks)),
        ("scores that are bounded", Case::of(bounded, 1.0, blocks)),
        ("a narrow V", Case::of(narrow, 1.0, Granularity::Head)),
        ("E5M2", Case::with("1,1,64,64", true, 1.0, Fp8Format::E5m2, Granularity::Head)),
    ];
    for (name, case) in &cases {
        for knobs in ["numbers=bf16", "numbers=bf16x2", "numbers=bf16,tile_keys=64"] {
            let before = executed();
            let tiles = case.run(&config(knobs, Simd::Amx));
            assert!(by == Executed::ByTheCpu || executed() > before, "{name}: no tile instruction was executed");
            let twin = case.run(&config(knobs, Simd::AmxTwin));
            assert_same(by, &tiles.0, &twin.0, &format!("{name}, {knobs}"));
            assert_same(by, &tiles.1, &twin.1, &format!("{name}, {knobs}, log-sum-exp"));
        }
    }
}

/// The tile configuration of this thread.
fn configuration() -> [u8; 64] {
    let mut configuration = Configuration([0; 64]);
    // SAFETY: tests that ask for it made sure that something executes it; it writes 64 bytes.
    unsafe { asm!("sttilecfg [{}]", in(reg) configuration.0.as_mut_ptr(), options(nostack)) };
    configuration.0
}

#[test]
fn a_thread_has_its_own_configuration_back_after_a_call() {
    if tiles().is_none() {
        return;
    }
    let case = Case::new("1,1,32,64", false, 1.0);
    let serial = config("numbers=bf16,schedule=serial", Simd::Amx);
    thread::spawn(move || {
        assert_eq!(configuration(), [0; 64], "a new thread has none");
        case.run(&serial);
        assert_eq!(configuration(), [0; 64], "something was left configured");
        let mut own = Configuration::FULL;
        (own.0[16 + 2 * 5], own.0[48 + 5]) = (16, 3);
        // SAFETY: something executes it; it reads 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &own, options(nostack, readonly)) };
        case.run(&serial);
        assert_eq!(configuration(), own.0, "the caller's own configuration is gone");
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    })
    .join()
    .unwrap();
}

#[test]
fn threads_come_and_go() {
    if tiles().is_none() {
        return;
    }
    let case = Case::new("2,2,40,64", false, 1.0);
    let config = config("numbers=bf16", Simd::Amx);
    let expected = case.run(&config);
    for _ in 0..3 {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(case.run(&config) == expected, "another thread, another result"));
            }
        });
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert!(pool.install(|| case.run(&config)) == expected, "another pool, another result");
    }
}

/// The child of a fork has one thread, and no tiles configured: it computes as its parent does.
#[test]
fn a_fork_computes_the_same() {
    if tiles().is_none() {
        return;
    }
    let case = Case::new("1,1,40,64", false, 1.0);
    let config = config("numbers=bf16,schedule=serial", Simd::Amx);
    let expected = case.run(&config);
    assert_eq!(fork::status_of(|| if case.run(&config) == expected { 0 } else { 1 }), 0);
}
