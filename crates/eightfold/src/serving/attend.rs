//! Attention over sequences of different lengths.

use super::layout::check_format;
use super::pages::PagedTensor;
use super::table::{BlockTable, Packed};
use crate::cpu;
use crate::error::{Error, Result};
use crate::output::Output;
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::{Dims, Fp8Tensor};

/// Where the keys and values of each sequence are.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum KeyValues<'a> {
    /// In the pages of a cache.
    Paged {
        /// The keys.
        k: &'a PagedTensor<'a>,
        /// The values.
        v: &'a PagedTensor<'a>,
        /// Whose pages are which.
        table: &'a BlockTable<'a>,
    },
    /// One sequence behind the other: tensors of batch 1.
    Packed {
        /// The keys.
        k: &'a Fp8Tensor<'a>,
        /// The values.
        v: &'a Fp8Tensor<'a>,
        /// Whose rows are which.
        rows: &'a Packed<'a>,
    },
}

impl KeyValues<'_> {
    /// How many sequences there are.
    pub(crate) fn sequences(&self) -> usize {
        match self {
            KeyValues::Paged { table, .. } => table.sequences(),
            KeyValues::Packed { rows, .. } => rows.sequences(),
        }
    }

    /// The keys of a sequence.
    pub(crate) fn length(&self, sequence: usize) -> usize {
        match self {
            KeyValues::Paged { table, .. } => table.length(sequence),
            KeyValues::Packed { rows, .. } => rows.rows(sequence).len(),
        }
    }
}

/// A call, with every rule checked.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub problem: &'a Problem,
    pub q: &'a Fp8Tensor<'a>,
    pub queries: &'a Packed<'a>,
    pub keys: KeyValues<'a>,
}

impl<'a> Call<'a> {
    /// Whether everything fits together, and lies where it is said to.
    pub(crate) fn new(
        problem: &'a Problem,
        q: &'a Fp8Tensor<'a>,
        queries: &'a Packed<'a>,
        keys: KeyValues<'a>,
    ) -> Result<Self> {
        let shape = problem.shape();
        check_plain(problem, q)?;
        check_packed("q", q, problem, shape.query_heads)?;
        if q.layout().is_transposed() || q.means().is_some() {
            return Err(Error::invalid("q", "is transposed or centred", "quantise it in rows, without centring"));
        }
        queries.check("q", q.dims().len)?;
        match keys {
            KeyValues::Paged { k, v, table } => {
                for (name, tensor) in [("k", k), ("v", v)] {
                    let layout = tensor.layout();
                    if (layout.heads, layout.head_dim) != (shape.kv_heads, shape.head_dim) {
                        return Err(Error::invalid(
                            name,
                            format!(
                                "has {} heads of {} channels, but the problem needs {} of {}",
                                layout.heads, layout.head_dim, shape.kv_heads, shape.head_dim
                            ),
                            "give cache and problem the same heads",
                        ));
                    }
                    check_format(name, tensor.format(), problem.input_format())?;
                    tensor.check(name, table)?;
                }
            }
            KeyValues::Packed { k, v, rows } => {
                for (name, tensor) in [("k", k), ("v", v)] {
                    check_packed(name, tensor, problem, shape.kv_heads)?;
                    rows.check(name, tensor.dims().len)?;
                }
                if k.layout().is_transposed() {
                    return Err(Error::invalid("k", "is transposed, which is for V alone", "lay it out in rows"));
                }
            }
        }
        let call = Call { problem, q, queries, keys };
        call.check_lengths()?;
        Ok(call)
    }

    fn check_lengths(&self) -> Result<()> {
        let shape = self.problem.shape();
        let sequences = self.queries.sequences();
        if sequences != self.keys.sequences() || sequences != shape.batch {
            return Err(Error::invalid(
                "queries",
                format!(
                    "are of {sequences} sequences, the keys of {}, and the problem's batch is {}",
                    self.keys.sequences(),
                    shape.batch
                ),
                "give queries and keys of as many sequences as the problem has",
            ));
        }
        for sequence in 0..sequences {
            let lengths = [
                ("queries", self.queries.rows(sequence).len(), shape.query_len),
                ("keys", self.keys.length(sequence), shape.key_len),
            ];
            if let Some((name, length, most)) = lengths.into_iter().find(|(_, length, most)| length > most) {
                return Err(Error::invalid(
                    name,
                    format!("sequence {sequence} has {length}, but the problem says at most {most}"),
                    "make the problem with the largest lengths of the batch",
                ));
            }
        }
        Ok(())
    }

    /// The problem of one sequence.
    pub(crate) fn problem_of(&self, sequence: usize) -> Problem {
        self.problem.with_lengths(self.queries.rows(sequence).len(), self.keys.length(sequence))
    }
}

/// Sequences of different lengths know neither sinks nor V of other channels yet.
fn check_plain(problem: &Problem, q: &Fp8Tensor) -> Result<()> {
    problem.input_format().check_fp8("attention of sequences of different lengths")?;
    let fix = "attend to one sequence at a time by eightfold::attention";
    if problem.has_sinks() || q.sinks().is_some() {
        return Err(Error::invalid("sinks", "are not there for sequences of different lengths", fix));
    }
    let (head_dim, value_dim) = (problem.shape().head_dim, problem.value_dims().head_dim);
    if value_dim != head_dim {
        let rule = format!(
            "V of {value_dim} channels where Q and K have {head_dim} is not there for sequences of different lengths"
        );
        return Err(Error::invalid("value_dim", rule, fix));
    }
    Ok(())
}

/// A packed tensor has batch 1, the problem's heads and its format.
fn check_packed(name: &str, tensor: &Fp8Tensor, problem: &Problem, heads: usize) -> Result<()> {
    let (dims, head_dim) = (tensor.dims(), problem.shape().head_dim);
    let needed = Dims { batch: 1, heads, head_dim, ..dims };
    if dims != needed {
        return Err(Error::invalid(
            name,
            format!("has dims {dims}, but a packed one for the problem has {needed}"),
            "put the rows of all sequences behind each other in one tensor of batch 1",
        ));
    }
    check_format(name, tensor.format(), problem.input_format())
}

/// Attention of sequences of different lengths on this machine's CPU, by as many threads as rayon's current pool has.
///
/// Q is packed: `[1,Hq,Sq,D]` with the rows of all sequences, in any layout in rows; values quantised with
/// [`Granularity::Block`](crate::Granularity::Block) of one row have a scale for each token and head. The problem gives the number
/// of sequences and the most queries and keys that one has. The output is packed as Q is, in the problem's output layout, and the
/// log-sum-exp is `[Hq,Sq]`. Rows of no sequence, and of one without keys, are zero, with a log-sum-exp of −∞.
pub fn attention(problem: &Problem, q: &Fp8Tensor, queries: &Packed, keys: KeyValues) -> Result<Output> {
    let mut output = Output::zeros_of(problem, q.dims());
    let config = cpu::best(problem);
    attention_with(&config, problem, q, queries, keys, &mut output)?;
    Ok(output)
}

/// The same with these knobs, into an output for Q's dims.
pub fn attention_with(
    config: &cpu::Config,
    problem: &Problem,
    q: &Fp8Tensor,
    queries: &Packed,
    keys: KeyValues,
    output: &mut Output,
) -> Result<RunReport> {
    let call = Call::new(problem, q, queries, keys)?;
    output.check_dims(problem, q.dims())?;
    config.check()?;
    config.check_machine()?;
    cpu::run_ragged(config, &call, output).map(|report| report.of(crate::variant::Variant::Cpu(*config)))
}
