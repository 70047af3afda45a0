//! The metrics that are collected, by the profiler's names.

use crate::numbers;
use eightfold::lab::suggest;
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// How long the launch took, at whatever clock it met.
    Duration,
    /// How busy the tensor cores are.
    TensorPipe,
    /// How busy device memory is.
    Dram,
    /// How busy the second-level cache is.
    L2,
    /// How busy the busiest part of the multiprocessors is.
    SmThroughput,
    /// For how much of the launch multiprocessors have a warp, on average.
    AtWork,
    /// For how much of it the one has that is longest at work.
    LongestAtWork,
    /// Warps that are resident, of those that could be.
    WarpsActive,
    /// How many of the schedulers' slots issued an instruction.
    IssueSlots,
    /// How busy the special-function units are, where exponentials run.
    XuPipe,
    /// How busy the multiply-add units are.
    FmaPipe,
    /// How busy the units for integers, comparisons and logic are.
    AluPipe,
    /// How busy the units for loads and stores are.
    LsuPipe,
    /// How busy the data path of shared memory is.
    SharedMemory,
    /// Traffic to and from device memory.
    DramBytes,
    /// Bank conflicts in shared memory.
    BankConflicts,
    /// Those of loads.
    BankConflictsLoad,
    /// Those of stores.
    BankConflictsStore,
    /// Instructions that go to local memory: spills.
    LocalInstructions,
    /// Instructions of the special-function units.
    XuInstructions,
    /// Instructions of the tensor cores.
    TensorInstructions,
    /// All instructions.
    Instructions,
    /// Blocks of the launch.
    Blocks,
    /// Multiprocessors that it could use.
    Multiprocessors,
}

/// What a metric's value is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Percent of the peak.
    Percent,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// A number of events.
    Count,
}

use Metric::*;

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 24] = [
        Duration,
        TensorPipe,
        Dram,
        L2,
        SmThroughput,
        AtWork,
        LongestAtWork,
        WarpsActive,
        IssueSlots,
        XuPipe,
        FmaPipe,
        AluPipe,
        LsuPipe,
        SharedMemory,
        DramBytes,
        BankConflicts,
        BankConflictsLoad,
        BankConflictsStore,
        LocalInstructions,
        XuInstructions,
        TensorInstructions,
        Instructions,
        Blocks,
        Multiprocessors,
    ];

    /// The profiler's name.
    pub fn name(self) -> &'static str {
        match self {
            Duration => "gpu__time_duration.sum",
            TensorPipe => "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            Dram => "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            L2 => "lts__throughput.avg.pct_of_peak_sustained_elapsed",
            SmThroughput => "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            AtWork => "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
            LongestAtWork => "sm__cycles_active.max.pct_of_peak_sustained_elapsed",
            WarpsActive => "sm__warps_active.avg.pct_of_peak_sustained_active",
            IssueSlots => "sm__inst_issued.avg.pct_of_peak_sustained_active",
            XuPipe => "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
            FmaPipe => "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
            AluPipe => "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
            LsuPipe => "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
            SharedMemory => "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
            DramBytes => "dram__bytes.sum",
            BankConflicts => "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
            BankConflictsLoad => "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
            BankConflictsStore => "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
            LocalInstructions => "smsp__sass_inst_executed_op_local.sum",
            XuInstructions => "smsp__inst_executed_pipe_xu.sum",
            TensorInstructions => "sm__inst_executed_pipe_tensor.sum",
            Instructions => "smsp__inst_executed.sum",
            Blocks => "launch__grid_size",
            Multiprocessors => "launch__sm_count",
        }
    }

    /// The name without how it is summed up, as the profiler lists it.
    pub fn base(self) -> &'static str {
        base(self.name())
    }

    /// Whether it has to be asked for: what is known of a launch before it runs is always there.
    pub fn asked_for(self) -> bool {
        !self.name().starts_with("launch__")
    }

    /// What a person calls it.
    pub fn words(self) -> &'static str {
        match self {
            Duration => "time",
            TensorPipe => "tensor cores",
            Dram => "device memory",
            L2 => "second-level cache",
            SmThroughput => "busiest part of the multiprocessors",
            AtWork => "multiprocessors at work",
            LongestAtWork => "the multiprocessor longest at work",
            WarpsActive => "resident warps",
            IssueSlots => "issue slots",
            XuPipe => "special-function units",
            FmaPipe => "multiply-add units",
            AluPipe => "integer and logic units",
            LsuPipe => "load/store units",
            SharedMemory => "shared memory",
            DramBytes => "device memory traffic",
            BankConflicts => "bank conflicts",
            BankConflictsLoad => "bank conflicts of loads",
            BankConflictsStore => "bank conflicts of stores",
            LocalInstructions => "local memory instructions",
            XuInstructions => "special-function instructions",
            TensorInstructions => "tensor core instructions",
            Instructions => "instructions",
            Blocks => "blocks",
            Multiprocessors => "multiprocessors",
        }
    }

    /// What its value is in.
    pub fn unit(self) -> Unit {
        match self {
            Duration => Unit::Nanoseconds,
            TensorPipe | Dram | L2 | SmThroughput | AtWork | LongestAtWork | WarpsActive => Unit::Percent,
            IssueSlots | XuPipe | FmaPipe | AluPipe | LsuPipe | SharedMemory => Unit::Percent,
            DramBytes => Unit::Bytes,
            _ => Unit::Count,
        }
    }
}

impl Unit {
    /// A value as a person reads it.
    pub fn words(self, value: f64) -> String {
        match self {
            Unit::Percent => format!("{value:.1} %"),
            Unit::Bytes => numbers::memory(value as usize),
            Unit::Nanoseconds => numbers::time(value / 1e3),
            Unit::Count => numbers::whole(value as usize),
        }
    }
}

/// A metric's name up to the first point.
pub(super) fn base(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Names that go around and that no profiler knows, and what to ask for instead.
const INVALID: &[(&str, &[Metric])] = &[
    ("smsp__inst_executed_pipe_fp16", &[TensorPipe, XuInstructions]),
    ("l1tex__data_bank_conflicts", &[BankConflicts, BankConflictsLoad, BankConflictsStore]),
];

impl FromStr for Metric {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(metric) = Metric::ALL.into_iter().find(|metric| metric.name() == text) {
            return Ok(metric);
        }
        let bare = text.strip_suffix(".sum").unwrap_or(text);
        if let Some((_, instead)) = INVALID.iter().find(|(name, _)| *name == bare) {
            let names = instead.iter().map(|metric| metric.name()).collect::<Vec<_>>().join(", ");
            return Err(Error::invalid("metric", format!("`{text}` does not exist"), format!("ask for {names}")));
        }
        Err(suggest::unknown("metric", text, &Metric::ALL.map(Metric::name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_reads_back_from_its_name() {
        for metric in Metric::ALL {
            assert_eq!(metric.name().parse(), Ok(metric));
        }
    }

    #[test]
    fn names_that_do_not_exist_are_refused_with_those_that_do() {
        let error = |text: &str| text.parse::<Metric>().unwrap_err().to_string();
        for text in ["l1tex__data_bank_conflicts", "l1tex__data_bank_conflicts.sum"] {
            assert!(error(text).contains("does not exist; ask for"), "{}", error(text));
            assert!(error(text).contains("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"));
        }
        assert!(error("smsp__inst_executed_pipe_fp16").contains(TensorPipe.name()));
        assert!(error("dram__byte.sum").contains("did you mean `dram__bytes.sum`?"));
    }
}
