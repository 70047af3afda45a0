//! Kernels that are wrong in one known way each, and the checks that must see it.

mod local;
mod noise;
mod plain;

use eightfold::{
    Error, Fp8Format, Fp8Tensor, Layout, Output, Problem, Result, RunReport, Scales, Shape, Values, Variant, Window,
    fp8,
};
use eightfold_lab::gates::{PlannedVariant, Subject, checks};
use half::f16;
pub use local::{Local, Replayed};
pub use noise::{NOISES, Noise};
use plain::{Plain, row_offset, store, store_row};

/// Where a fault shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// On any problem.
    Anywhere,
    /// Under a causal mask.
    Causal,
    /// On one of the odd problems: grouped heads, unequal lengths, rows without keys.
    OnOddProblems,
    /// On one of the problems with a window, a softcap, sinks, or V of other channels.
    OnScoredProblems,
}

/// One way to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: Kind,
    /// Where it shows.
    pub shows: Shows,
    /// The checks that must see it, each of them.
    pub seen_by: &'static [&'static str],
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    ZeroOutput,
    MeanOfValues,
    LastKeyTileStale,
    LastKeysIgnored,
    ValuesOffByHalfAStep,
    KeysOffByHalfAStep,
    LastQueryTileUnwritten,
    LastHeadUnwritten,
    SecondLaunchDoesNothing,
    FirstOutputReplayed,
    AddsToTheOutput,
    ScaleMissing,
    KeyScaleIgnored,
    ValueScaleOfTheFirstHeadForAll,
    CausalSeesOneTooMany,
    CausalSeesOneTooFew,
    CausalAlignedTopLeft,
    HeadsMappedInterleaved,
    LseInLog2,
    LseWithoutTheMaximum,
    RowsSwapped,
    OneElementNan,
    OneElementWrong,
    OutputInTheOtherLayout,
    LastChannelsZero,
    SumInHalfPrecision,
    WeightsTruncatedTo8Bits,
    EmptyRowsNotZero,
    EmptyRowsGetLseZero,
    WindowStartsOneTooEarly,
    WindowStartsOneTooLate,
    WindowEndsOneTooLate,
    WindowEndsOneTooEarly,
    WindowIgnored,
    SinkForgotten,
    SinkOfTheNextHead,
    SinkCountedInTheOutput,
    EmptyRowsLoseTheirSink,
    SoftcapLeftOut,
    OutputOfAnotherSize,
    ReturnsAnError,
    Panics,
}

/// Every planted fault.
pub const FAULTS: &[Fault] = {
    use Kind::*;
    use Shows::*;
    const fn fault(kind: Kind, shows: Shows, seen_by: &'static [&'static str]) -> Fault {
        Fault { kind, shows, seen_by }
    }
    const TOLERANCE: &[&str] = &[checks::RELATIVE_L2];
    &[
        fault(
            ZeroOutput,
            Anywhere,
            &[
                checks::MAX_ABS,
                checks::MEAN_ABS,
                checks::BAD_FRACTION,
                checks::RELATIVE_L2,
                checks::LSE,
                checks::END_TO_END_L2,
                checks::END_TO_END_COSINE,
            ],
        ),
        fault(MeanOfValues, Anywhere, &[checks::RELATIVE_L2, checks::BAD_FRACTION, checks::END_TO_END_L2]),
        fault(LastKeyTileStale, Anywhere, TOLERANCE),
        fault(LastKeysIgnored, Anywhere, &[checks::RELATIVE_L2, checks::LSE]),
        fault(ValuesOffByHalfAStep, Anywhere, TOLERANCE),
        fault(KeysOffByHalfAStep, Anywhere, &[checks::RELATIVE_L2, checks::LSE]),
        fault(LastQueryTileUnwritten, Anywhere, &[checks::UNWRITTEN, checks::NON_FINITE]),
        fault(LastHeadUnwritten, Anywhere, &[checks::UNWRITTEN, checks::NON_FINITE]),
        fault(SecondLaunchDoesNothing, Anywhere, &[checks::UNWRITTEN]),
        fault(FirstOutputReplayed, Anywhere, &[checks::RELATIVE_L2, checks::END_TO_END_L2]),
        fault(AddsToTheOutput, Anywhere, &[checks::NON_FINITE, checks::MAX_ABS]),
        fault(ScaleMissing, Anywhere, &[checks::RELATIVE_L2, checks::LSE, checks::END_TO_END_L2]),
        fault(KeyScaleIgnored, Anywhere, &[checks::RELATIVE_L2, checks::LSE, checks::END_TO_END_L2]),
        fault(ValueScaleOfTheFirstHeadForAll, Anywhere, TOLERANCE),
        fault(CausalSeesOneTooMany, Causal, &[checks::RELATIVE_L2, checks::LSE, checks::END_TO_END_L2]),
        fault(CausalSeesOneTooFew, Causal, &[checks::RELATIVE_L2, checks::NON_FINITE]),
        fault(CausalAlignedTopLeft, OnOddProblems, &[checks::RELATIVE_L2, checks::LSE]),
        fault(HeadsMappedInterleaved, OnOddProblems, &[checks::RELATIVE_L2, checks::LSE]),
        fault(LseInLog2, Anywhere, &[checks::LSE]),
        fault(LseWithoutTheMaximum, Anywhere, &[checks::LSE]),
        fault(RowsSwapped, Anywhere, TOLERANCE),
        fault(OneElementNan, Anywhere, &[checks::NON_FINITE]),
        fault(OneElementWrong, Anywhere, &[checks::MAX_ABS]),
        fault(OutputInTheOtherLayout, Anywhere, &[checks::RELATIVE_L2, checks::END_TO_END_COSINE]),
        fault(LastChannelsZero, Anywhere, &[checks::RELATIVE_L2, checks::BAD_FRACTION, checks::END_TO_END_L2]),
        fault(SumInHalfPrecision, Anywhere, TOLERANCE),
        fault(WeightsTruncatedTo8Bits, Anywhere, TOLERANCE),
        fault(EmptyRowsNotZero, OnOddProblems, &[checks::EMPTY_ROWS]),
        fault(EmptyRowsGetLseZero, OnOddProblems, &[checks::EMPTY_ROWS]),
        fault(WindowStartsOneTooEarly, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE]),
        fault(WindowStartsOneTooLate, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE]),
        fault(WindowEndsOneTooLate, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE, checks::EMPTY_ROWS]),
        fault(WindowEndsOneTooEarly, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE]),
        fault(WindowIgnored, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE, checks::END_TO_END_L2]),
        fault(SinkForgotten, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE, checks::EMPTY_ROWS]),
        fault(SinkOfTheNextHead, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE, checks::EMPTY_ROWS]),
        fault(SinkCountedInTheOutput, OnScoredProblems, &[checks::RELATIVE_L2, checks::END_TO_END_L2]),
        fault(EmptyRowsLoseTheirSink, OnScoredProblems, &[checks::EMPTY_ROWS, checks::NON_FINITE]),
        fault(SoftcapLeftOut, OnScoredProblems, &[checks::RELATIVE_L2, checks::LSE, checks::END_TO_END_L2]),
        fault(OutputOfAnotherSize, Anywhere, &[checks::ERRORS]),
        fault(ReturnsAnError, Anywhere, &[checks::ERRORS]),
        fault(Panics, Anywhere, &[checks::ERRORS]),
    ]
};

/// A real variant with a fault planted in it.
pub struct Faulty {
    variant: PlannedVariant,
    kind: Kind,
    launches: usize,
    first_output: Option<Output>,
}

impl Faulty {
    /// This variant with this fault.
    pub fn new(variant: Variant, kind: Kind) -> Self {
        Faulty { variant: PlannedVariant(variant), kind, launches: 0, first_output: None }
    }
}

impl Subject for Faulty {
    fn name(&self) -> String {
        format!("{} with {:?}", self.variant.name(), self.kind)
    }

    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport> {
        self.launches += 1;
        let shape = problem.shape();
        let rows = shape.batch * shape.query_heads * shape.query_len;
        let plain = |plain: Plain, [q, k, v]: [&Fp8Tensor; 3], output: &mut Output| {
            let sinks = q.sinks().unwrap_or_default();
            plain.run(problem, [&q.dequantize(), &k.dequantize(), &v.dequantize()], sinks, output);
            Ok(RunReport::default())
        };
        match self.kind {
            Kind::ZeroOutput => {
                output.values.fill(0.0);
                output.lse.iter_mut().flatten().for_each(|lse| *lse = 0.0);
                Ok(RunReport::default())
            }
            Kind::MeanOfValues => plain(Plain { score: |_| 0.0, ..Plain::default() }, [q, k, v], output),
            Kind::LastKeyTileStale => {
                let (k, v) = (with_stale_last_tile(k)?, with_stale_last_tile(v)?);
                self.variant.run(problem, q, &k, &v, output)
            }
            Kind::LastKeysIgnored => {
                let visible =
                    |problem: &Problem, query: usize| 0..problem.visible(query).end.min(problem.shape().key_len - TILE);
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::ValuesOffByHalfAStep => {
                let values = half_a_step_up(v);
                Plain::default().run(problem, [&q.dequantize(), &k.dequantize(), &values], &[], output);
                Ok(RunReport::default())
            }
            Kind::KeysOffByHalfAStep => {
                let keys = half_a_step_up(k);
                Plain::default().run(problem, [&q.dequantize(), &keys, &v.dequantize()], &[], output);
                Ok(RunReport::default())
            }
            Kind::LastQueryTileUnwritten => {
                let last = shape.query_len - TILE..shape.query_len;
                self.run_but_leave_rows(problem, [q, k, v], output, |row| last.contains(&(row % shape.query_len)))
            }
            Kind::LastHeadUnwritten => {
                let first = rows - shape.query_len;
                self.run_but_leave_rows(problem, [q, k, v], output, |row| row >= first)
            }
            Kind::SecondLaunchDoesNothing if self.launches > 1 => Ok(RunReport::default()),
            Kind::FirstOutputReplayed => {
                if let Some(first) = &self.first_output {
                    output.clone_from(first);
                    return Ok(RunReport::default());
                }
                let report = self.variant.run(problem, q, k, v, output);
                self.first_output = Some(output.clone());
                report
            }
            Kind::AddsToTheOutput => {
                let before = output.values.to_f32();
                let report = self.variant.run(problem, q, k, v, output);
                let after = output.values.to_f32();
                for (index, (before, after)) in before.iter().zip(after).enumerate() {
                    store(output, index, before + after);
                }
                report
            }
            Kind::ScaleMissing => self.variant.run(&problem.with_softmax_scale(1.0)?, q, k, v, output),
            Kind::KeyScaleIgnored => {
                let k = with_scales(k, vec![1.0; k.scales().values().len()])?;
                self.variant.run(problem, q, &k, v, output)
            }
            Kind::ValueScaleOfTheFirstHeadForAll => {
                let scales = v.scales().values();
                let v = with_scales(v, vec![scales[0]; scales.len()])?;
                self.variant.run(problem, q, k, &v, output)
            }
            Kind::CausalSeesOneTooMany => {
                let visible =
                    |problem: &Problem, query: usize| 0..(problem.visible(query).end + 1).min(problem.shape().key_len);
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::CausalSeesOneTooFew => {
                let visible = |problem: &Problem, query: usize| 0..problem.visible(query).end.saturating_sub(1);
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::CausalAlignedTopLeft => {
                let visible = |problem: &Problem, query: usize| match problem.mask() {
                    eightfold::Mask::Causal => 0..(query + 1).min(problem.shape().key_len),
                    _ => 0..problem.shape().key_len,
                };
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::WindowStartsOneTooEarly => {
                let visible = |problem: &Problem, query: usize| {
                    let seen = problem.visible(query);
                    if seen.is_empty() { seen } else { seen.start.saturating_sub(1)..seen.end }
                };
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::WindowStartsOneTooLate => {
                let visible = |problem: &Problem, query: usize| {
                    let seen = problem.visible(query);
                    if seen.start == 0 { seen } else { seen.start + 1..seen.end }
                };
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::WindowEndsOneTooLate => {
                let visible = |problem: &Problem, query: usize| {
                    let seen = problem.visible(query);
                    seen.start..(seen.end + 1).min(problem.shape().key_len)
                };
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::WindowEndsOneTooEarly => {
                let visible = |problem: &Problem, query: usize| {
                    let seen = problem.visible(query);
                    if seen.len() > 1 { seen.start..seen.end - 1 } else { seen }
                };
                plain(Plain { visible, ..Plain::default() }, [q, k, v], output)
            }
            Kind::WindowIgnored => self.variant.run(&problem.with_window(Window::default()), q, k, v, output),
            Kind::SinkForgotten => plain(Plain { sink: |_, _| None, ..Plain::default() }, [q, k, v], output),
            Kind::SinkOfTheNextHead => {
                let sink = |sinks: &[f32], head: usize| sinks.get((head + 1) % sinks.len().max(1)).copied();
                plain(Plain { sink, ..Plain::default() }, [q, k, v], output)
            }
            Kind::SinkCountedInTheOutput => plain(Plain { sink_value: 1.0, ..Plain::default() }, [q, k, v], output),
            Kind::SoftcapLeftOut => plain(Plain { softcap: |_| None, ..Plain::default() }, [q, k, v], output),
            Kind::HeadsMappedInterleaved => {
                let kv_head = |shape: Shape, head| head % shape.kv_heads;
                plain(Plain { kv_head, ..Plain::default() }, [q, k, v], output)
            }
            Kind::SumInHalfPrecision => {
                let accumulator = |sum| f16::from_f64(sum).to_f64();
                plain(Plain { accumulator, ..Plain::default() }, [q, k, v], output)
            }
            Kind::WeightsTruncatedTo8Bits => {
                let weight = |weight: f64, _| (weight * 256.0).floor() / 256.0;
                plain(Plain { weight, ..Plain::default() }, [q, k, v], output)
            }
            Kind::OutputInTheOtherLayout => {
                let other = if problem.output_layout() == Layout::Bhsd { Layout::Bshd } else { Layout::Bhsd };
                self.variant.run(&problem.with_output_layout(other)?, q, k, v, output)
            }
            Kind::OutputOfAnotherSize => {
                output.values = Values::F32(vec![0.0]);
                Ok(RunReport::default())
            }
            Kind::ReturnsAnError => Err(Error::invalid("tile_keys", "planted", "take the fault out")),
            Kind::Panics => panic!("planted"),
            Kind::LseInLog2
            | Kind::LseWithoutTheMaximum
            | Kind::RowsSwapped
            | Kind::OneElementNan
            | Kind::OneElementWrong
            | Kind::LastChannelsZero
            | Kind::EmptyRowsNotZero
            | Kind::EmptyRowsGetLseZero
            | Kind::EmptyRowsLoseTheirSink
            | Kind::SecondLaunchDoesNothing => {
                let report = self.variant.run(problem, q, k, v, output);
                self.spoil(problem, [q, k, v], output);
                report
            }
        }
    }
}

impl Faulty {
    /// Breaks a right output.
    fn spoil(&self, problem: &Problem, [q, k, _]: [&Fp8Tensor; 3], output: &mut Output) {
        let Shape { query_len, head_dim, .. } = problem.shape();
        let rows = output.values.len() / problem.value_dims().head_dim;
        let empty = |row: &usize| problem.visible(row % query_len).is_empty();
        let values = output.values.to_f32();
        match self.kind {
            Kind::LseInLog2 => output.lse.iter_mut().flatten().for_each(|lse| *lse *= std::f32::consts::LOG2_E),
            Kind::LseWithoutTheMaximum => {
                // The score of the first key stands for the maximum: what is missing is of that size.
                let (q, k) = (q.dequantize(), k.dequantize());
                let score: f64 = q[..head_dim].iter().zip(&k[..head_dim]).map(|(q, k)| q * k).sum();
                let missing = score as f32 * problem.softmax_scale();
                output.lse.iter_mut().flatten().for_each(|lse| *lse -= missing);
            }
            Kind::RowsSwapped => {
                for (from, to) in [(rows - 1, rows - 2), (rows - 2, rows - 1)] {
                    let offset = row_offset(problem, from);
                    store_row(problem, output, to, &values[offset..offset + head_dim]);
                }
            }
            Kind::OneElementNan => store(output, values.len() / 2, f32::NAN),
            Kind::OneElementWrong => {
                // Above 0.06 for outputs of any size, the unit of the limit being their root mean square.
                let index = values.len() / 2;
                let most = values.iter().fold(1f32, |most, value| most.max(value.abs()));
                store(output, index, values[index] + 0.07 * most);
            }
            Kind::LastChannelsZero => {
                for row in 0..rows {
                    let offset = row_offset(problem, row);
                    (offset + head_dim - 8..offset + head_dim).for_each(|index| store(output, index, 0.0));
                }
            }
            Kind::EmptyRowsNotZero => {
                (0..rows).filter(empty).for_each(|row| store_row(problem, output, row, &vec![0.5; head_dim]));
            }
            Kind::EmptyRowsGetLseZero => {
                let lse = output.lse.iter_mut().flatten().enumerate();
                lse.filter(|(row, _)| empty(row)).for_each(|(_, lse)| *lse = 0.0);
            }
            Kind::EmptyRowsLoseTheirSink => {
                let lse = output.lse.iter_mut().flatten().enumerate();
                lse.filter(|(row, _)| empty(row)).for_each(|(_, lse)| *lse = f32::NEG_INFINITY);
            }
            _ => {}
        }
    }

    /// Runs, but leaves some rows as they were.
    fn run_but_leave_rows(
        &mut self,
        problem: &Problem,
        [q, k, v]: [&Fp8Tensor; 3],
        output: &mut Output,
        leave: impl Fn(usize) -> bool,
    ) -> Result<RunReport> {
        let head_dim = problem.shape().head_dim;
        let before = output.clone();
        let report = self.variant.run(problem, q, k, v, output);
        let values = before.values.to_f32();
        for row in (0..values.len() / head_dim).filter(|row| leave(*row)) {
            let offset = row_offset(problem, row);
            store_row(problem, output, row, &values[offset..offset + head_dim]);
            if let (Some(lse), Some(before)) = (&mut output.lse, &before.lse) {
                lse[row] = before[row];
            }
        }
        report
    }
}

/// Keys or queries of the smallest tile that a kernel could forget.
const TILE: usize = 16;

fn with_scales(tensor: &Fp8Tensor, scales: Vec<f32>) -> Result<Fp8Tensor<'static>> {
    let scales = Scales::new(tensor.scales().granularity(), scales)?;
    Fp8Tensor::new(tensor.dims(), tensor.layout(), tensor.format(), tensor.codes().to_vec(), scales)
}

/// The last tile of rows of every head replaced by the tile before, as when a copy was not waited for.
fn with_stale_last_tile(tensor: &Fp8Tensor) -> Result<Fp8Tensor<'static>> {
    assert_eq!(tensor.layout(), Layout::Bhsd);
    let (dims, tile) = (tensor.dims(), TILE * tensor.dims().head_dim);
    let mut codes = tensor.codes().to_vec();
    for head in codes.chunks_mut(dims.len * dims.head_dim) {
        let last = head.len() - tile;
        head.copy_within(last - tile..last, last);
    }
    Fp8Tensor::new(dims, tensor.layout(), tensor.format(), codes, tensor.scales().clone())
}

/// The values with half a step between neighbouring codes added to each: a dequantiser that disagrees with the
/// quantiser about where a code's interval begins.
fn half_a_step_up(tensor: &Fp8Tensor) -> Vec<f64> {
    assert_eq!(tensor.format(), Fp8Format::E4m3);
    let values = tensor.dequantize();
    let (dims, head_dim) = (tensor.dims(), tensor.dims().head_dim);
    let mut up = Vec::with_capacity(values.len());
    for (row, values) in values.chunks(head_dim).enumerate() {
        let head = row / dims.len;
        let scale = tensor.scales().of_row(dims, head / dims.heads, head % dims.heads, row % dims.len);
        for (code, value) in tensor.codes()[row * head_dim..].iter().zip(values) {
            let magnitude = code & 0x7f;
            // The step from the code below, as the largest finite code has no neighbour above it.
            let below = magnitude.saturating_sub(1).min(0x7d);
            let decode = |code| f64::from(fp8::decode(Fp8Format::E4m3, code));
            let step = decode(below + 1) - decode(below);
            up.push(value + step / 2.0 * f64::from(scale));
        }
    }
    up
}
