//! The metrics that are collected, by the profiler's names.

use eightfold::{Error, Result, suggest};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// How busy the tensor cores are.
    TensorPipe,
    /// How busy device memory is.
    Dram,
    /// How busy the busiest part of the multiprocessors is.
    SmThroughput,
    /// Warps that are resident, of those that could be.
    WarpsActive,
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
    /// Instructions of the special-function units, where exponentials run.
    XuInstructions,
}

/// What a metric's value is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Percent of the peak.
    Percent,
    /// Bytes.
    Bytes,
    /// A number of events.
    Count,
}

use Metric::*;

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 10] = [
        TensorPipe,
        Dram,
        SmThroughput,
        WarpsActive,
        DramBytes,
        BankConflicts,
        BankConflictsLoad,
        BankConflictsStore,
        LocalInstructions,
        XuInstructions,
    ];

    /// The profiler's name.
    pub fn name(self) -> &'static str {
        match self {
            TensorPipe => "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            Dram => "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            SmThroughput => "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            WarpsActive => "sm__warps_active.avg.pct_of_peak_sustained_active",
            DramBytes => "dram__bytes.sum",
            BankConflicts => "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
            BankConflictsLoad => "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
            BankConflictsStore => "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
            LocalInstructions => "smsp__sass_inst_executed_op_local.sum",
            XuInstructions => "smsp__inst_executed_pipe_xu.sum",
        }
    }

    /// What its value is in.
    pub fn unit(self) -> Unit {
        match self {
            TensorPipe | Dram | SmThroughput | WarpsActive => Unit::Percent,
            DramBytes => Unit::Bytes,
            _ => Unit::Count,
        }
    }
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
