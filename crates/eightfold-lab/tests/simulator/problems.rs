//! Problems beyond the plain one, on both kernels: windows, attention sinks, softcaps and every head dim, on sizes that divide
//! nothing.

use crate::support::{in_parallel, simulator};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Granularity, Layout, Mask, OutputFormat, Problem, Shape, Window};
use eightfold_lab::choice;
use eightfold_lab::gates::{self, Case, Outcome, Thresholds};
use eightfold_lab::inputs::{Family, Inputs};
use eightfold_lab::kernel::Kernel;
use eightfold_lab::simulate::{Schedules, SimulatedVariant};

/// Streamed keys for two warpgroups and for three, split keys, and all keys at once.
const TWO: &str = "hopper:fast,warpgroups=2,tile_keys=64,stages=2,promote=256,sums=registers,flight=2";
const THREE: &str = "hopper:precise,warpgroups=3,tile_keys=128,stages=2,promote=256,sums=shared,flight=2";
const SPLIT: &str =
    "hopper:exact-exp,warpgroups=1,tile_keys=64,stages=2,promote=256,sums=shared,split_keys=on,flight=2";
const WIDE: &str = "hopper:exact-exp,warpgroups=2,tile_keys=64,stages=2,scores=f32,promote=256,sums=shared,flight=2";
const AT_ONCE: &str = "hopper:fast,warpgroups=1,tile_keys=512,stages=1,promote=0,sums=registers,keys=at-once,flight=4";

fn problem(shape: &str, mask: Mask, window: Window) -> Problem {
    let problem = shape.parse::<Shape>().and_then(Problem::new).unwrap();
    problem.with_mask(mask).with_window(window).with_lse(true)
}

/// How K and V are quantised.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Centred,
    Blocks,
}

fn check(variant: &str, problem: &Problem, kind: Kind, seeds: Vec<u64>) -> Result<(), String> {
    let thresholds = Thresholds::embedded();
    let policy = &thresholds.correctness.reference;
    let (head_dim, mask) = (problem.shape().head_dim.max(problem.value_dims().head_dim), problem.mask());
    let variant = eightfold_lab::kernel::suited(variant, head_dim, mask).map_err(|error| error.to_string())?;
    choice::check(problem, &variant).map_err(|error| format!("{variant} {problem}: {error}"))?;
    let inputs = Inputs::of_problem(problem, Family::BiasedValues, 1);
    let small = Quantizer::new(problem.input_format()).with_largest_code(SMALL_CODES);
    let case = match kind {
        Kind::Plain => Case::prepare(problem, &inputs, &small, policy),
        Kind::Blocks => {
            Case::prepare(problem, &inputs, &small.with_granularity(Granularity::Block { rows: 64 }), policy)
        }
        Kind::Centred => {
            let quantize = |values: &[f32], dims, by: Quantizer| by.quantize(values, dims, Layout::Bhsd).unwrap();
            let q = quantize(&inputs.q, problem.shape().query_dims(), small);
            let k = quantize(&inputs.k, problem.shape().key_dims(), small.centered());
            let v = quantize(&inputs.v, problem.value_dims(), Quantizer::new(problem.input_format()).centered());
            let q = match inputs.sinks {
                Some(sinks) => q.with_sinks(sinks).unwrap(),
                None => q,
            };
            Case::of_tensors(problem, "centred", q, k, v, policy)
        }
    };
    let case = case.map_err(|error| error.to_string())?;
    let mut subject = SimulatedVariant { variant, schedules: Schedules { seeds, ..Schedules::default() } };
    let report = gates::check(&mut subject, std::slice::from_ref(&case), thresholds.tolerance(&variant), &thresholds);
    match report.gate.outcome {
        Outcome::Pass => Ok(()),
        _ => Err(format!("{variant} {problem} {kind:?}: {}", report.gate.summary)),
    }
}

fn check_all(jobs: Vec<(&str, Problem, Kind)>) {
    let jobs: Vec<_> = jobs.into_iter().enumerate().collect();
    let failed = in_parallel(jobs, |(index, (variant, problem, kind))| {
        check(variant, &problem, kind, vec![7 * index as u64 % 36]).err()
    });
    assert_eq!(failed.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn windows_of_every_width_are_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let mut jobs = Vec::new();
    for (index, width) in [0, 1, 63, 64, 65, 1000].into_iter().enumerate() {
        let (left, open) = (Window::new(Some(width), None), Window::new(Some(width), Some(1)));
        let right = Window::new(None, Some(width));
        // Queries before the first key and rows without keys; unequal lengths; heads that share a tile.
        jobs.extend([
            (TWO, problem("1,2,1,130,333,64", Mask::Causal, left).with_sinks(), Kind::Plain),
            (THREE, problem("1,2,2,200,90,64", Mask::None, open), Kind::Plain),
            (SPLIT, problem("1,6,2,9,517,64", Mask::None, open).with_sinks(), Kind::Plain),
            (AT_ONCE, problem("1,4,2,150,150,64", Mask::Causal, left).with_sinks(), Kind::Plain),
        ]);
        jobs.extend(match index % 3 {
            0 => vec![
                (WIDE, problem("1,2,1,130,333,128", Mask::None, left), Kind::Plain),
                (AT_ONCE, problem("1,2,2,90,140,64", Mask::None, right), Kind::Plain),
            ],
            1 => vec![
                (TWO, problem("1,2,1,130,333,128", Mask::None, right).with_sinks(), Kind::Centred),
                (SPLIT, problem("1,4,1,5,517,64", Mask::Causal, left).with_sinks(), Kind::Centred),
            ],
            _ => vec![
                (WIDE, problem("1,3,1,150,300,64", Mask::Causal, left).with_sinks(), Kind::Blocks),
                (TWO, problem("1,2,2,300,70,64", Mask::None, open).with_sinks(), Kind::Blocks),
            ],
        });
    }
    check_all(jobs);
}

/// A window far behind the first keys, of whose tile the kernel has room for no more than it sees.
#[test]
fn keys_behind_a_window_come_at_once_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let at_once = "hopper:fast,warpgroups=1,tile_keys=256,stages=1,promote=0,sums=registers,keys=at-once,flight=4";
    let left = Window::new(Some(127), None);
    check_all(vec![
        (at_once, problem("1,2,1,200,650,64", Mask::Causal, left).with_sinks(), Kind::Plain),
        (at_once, problem("1,8,1,1,700,64", Mask::Causal, left).with_sinks(), Kind::Centred),
        (at_once, problem("1,2,2,400,401,128", Mask::None, Window::new(Some(64), Some(63))), Kind::Plain),
        (at_once, problem("1,2,2,330,70,64", Mask::None, Window::new(Some(64), Some(63))).with_sinks(), Kind::Plain),
    ]);
}

/// Capped scores in f16 and in f32, of codes with a mean of K taken from them, behind windows and beside sinks.
#[test]
fn capped_scores_are_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let exact = "hopper:exact-exp,warpgroups=2,tile_keys=64,stages=2,scores=f32,promote=256,sums=shared,flight=2";
    let precise = "hopper:precise,warpgroups=1,tile_keys=64,stages=2,scores=f32,promote=256,sums=shared,flight=2";
    let at_once = "hopper:balanced,warpgroups=1,tile_keys=256,stages=1,promote=0,sums=registers,keys=at-once,flight=4";
    let at_once_f32 =
        "hopper:precise,warpgroups=1,tile_keys=128,stages=1,scores=f32,promote=0,sums=registers,keys=at-once,flight=2";
    let (open, left) = (Window::default(), Window::new(Some(64), None));
    let capped = |shape, mask, window, bound| problem(shape, mask, window).with_softcap(bound).unwrap();
    check_all(vec![
        (TWO, capped("1,2,1,130,333,64", Mask::Causal, open, 50.0), Kind::Plain),
        (TWO, capped("1,2,2,70,200,128", Mask::None, left, 2.0).with_sinks(), Kind::Centred),
        (SPLIT, capped("1,6,2,9,517,64", Mask::None, open, 5.0).with_sinks(), Kind::Centred),
        (exact, capped("1,2,2,130,200,64", Mask::Causal, left, 5.0), Kind::Blocks),
        (precise, capped("1,2,1,70,200,128", Mask::Causal, open, 3.0).with_sinks(), Kind::Centred),
        (at_once, capped("1,4,2,150,150,64", Mask::Causal, left, 30.0).with_sinks(), Kind::Plain),
        (at_once, capped("1,2,2,70,256,64", Mask::None, open, 1.0), Kind::Centred),
        (at_once_f32, capped("1,2,2,70,100,64", Mask::Causal, open, 20.0).with_sinks(), Kind::Plain),
    ]);
}

/// Heads that no tile is made for, V of other channels, and tiles of which products have two parts; in every output format.
#[test]
fn every_head_dim_is_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let wide = "hopper:fast,warpgroups=2,tile_keys=128,stages=2,promote=512,sums=shared,flight=2";
    let widest = "hopper:exact-exp,warpgroups=2,tile_keys=64,stages=2,scores=f32,promote=256,sums=shared,flight=2";
    let dims = [8, 24, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256];
    let formats = [OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16];
    let mut jobs = Vec::new();
    for (index, head_dim) in dims.into_iter().enumerate() {
        // Beside its own, another tile's.
        let value_dims = [head_dim, dims[(5 * index + 3) % dims.len()]];
        for (turn, value_dim) in value_dims.into_iter().enumerate() {
            let variant = match head_dim.max(value_dim) {
                ..=128 => [TWO, SPLIT, AT_ONCE][(index + turn) % 3],
                129..=192 if turn == 0 => wide,
                129..=192 => SPLIT,
                _ => widest,
            };
            let (mask, left) = ([Mask::None, Mask::Causal][(index + turn) % 2], Window::new(Some(64), Some(1)));
            let window = if index % 3 == 1 { left } else { Window::default() };
            let plain = problem(&format!("1,2,1,70,150,{head_dim}"), mask, window).with_value_dim(value_dim).unwrap();
            let plain = plain.with_output_format(formats[(index / 2 + turn) % 3]);
            let problem = if index % 4 == 2 { plain.with_sinks() } else { plain };
            jobs.push((variant, problem, if index % 2 == 0 { Kind::Plain } else { Kind::Centred }));
        }
    }
    check_all(jobs);
}

/// Every head dim under both masks, behind windows of every width, with sinks and a softcap and without; every stage has its turn.
#[test]
fn every_problem_is_right_on_the_ladder_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let dims = [8, 24, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256];
    let widths = [0, 1, 63, 64, 65, 1000];
    let formats = [OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16];
    // Queries before the first key, which see none, and heads that share keys.
    let shapes = ["1,4,2,40,150", "1,2,1,90,70"];
    let mut jobs = Vec::new();
    for (index, head_dim) in dims.into_iter().enumerate() {
        for (turn, mask) in [Mask::None, Mask::Causal].into_iter().enumerate() {
            let place = 2 * index + turn;
            let width = widths[(index + 3 * turn) % widths.len()];
            let window = match place % 4 {
                0 => Window::new(Some(width), Some(width / 2)),
                1 | 3 => Window::new(Some(width), None),
                _ => Window::new(None, Some(width)),
            };
            let value_dim = if index % 3 == 2 { dims[(5 * index + 3) % dims.len()] } else { head_dim };
            let mut problem = problem(&format!("{},{head_dim}", shapes[(index / 2 + turn) % 2]), mask, window);
            problem = problem.with_value_dim(value_dim).unwrap().with_output_format(formats[place % 3]);
            if index % 2 == turn {
                problem = problem.with_sinks();
            }
            if place % 3 == 1 {
                problem = problem.with_softcap(5.0).unwrap();
            }
            let stages = Kernel::LADDER.stages(head_dim.max(value_dim), mask);
            let variant = stages[7 * place % stages.len()].variant;
            // A scale for every 64 keys is for tiles of no more.
            let kind = match variant.knob("tile_keys").as_deref() {
                Some("128") => Kind::Centred,
                _ => [Kind::Plain, Kind::Centred, Kind::Blocks][(index / 3 + turn) % 3],
            };
            jobs.push((variant.to_string(), problem, kind));
        }
    }
    check_all(jobs.iter().map(|(variant, problem, kind)| (variant.as_str(), *problem, *kind)).collect());
}
