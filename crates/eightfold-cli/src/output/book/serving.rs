//! The page of attention to pages.

use super::{of, source};
use crate::output::paged_table;
use eightfold_lab::archive::Filed;
use eightfold_lab::decode::{Case, goals};
use eightfold_lab::record::Kind;
use std::fmt::Write;

pub(super) fn page(filed: &[Filed]) -> String {
    let mut text = String::from(
        "# Paged decoding\n\nAttention to an FP8 cache in pages, `[page, token, head, channel]` with values in rows, N(0,1) keys and \
         N(1,1) values, pages in random order, bf16 queries and outputs. Beside it stands a kernel that reads as many bytes and \
         does nothing else, and PyTorch's attention in bf16 on keys and values that were gathered beforehand (`contiguous`), as one \
         runs it who has no kernel for pages. Launches go around copies of the cache that no second-level cache holds.\n\n",
    );
    let mut found = false;
    for filed in of(filed, "serving", Kind::Paged) {
        found = true;
        text.push_str(&source(filed));
        for group in &filed.record.paged {
            let _ = write!(text, "```text\n{}```\n\n", paged_table::render(group));
        }
    }
    if !found {
        text.push_str(
            "There is no record yet: the kernel has been compiled for Ada and Hopper, and run on the simulated device alone.\n",
        );
    }
    let (machine, goals) = goals();
    let _ = write!(
        text,
        "\n## What was predicted\n\nµs on an {machine}, before any of it was timed there; the floor is a plain read of the same bytes, \
         measured with the peers. `crates/eightfold-lab/ledger/paged.toml` has the model.\n\n| case | floor | predicted | goal | because \
         |\n| --- | --- | --- | --- | --- |\n"
    );
    for goal in goals {
        let title = goal.case.parse::<Case>().map_or_else(|_| goal.case.clone(), |case| case.title());
        let floor = goal.floor.map_or(String::new(), |floor| floor.to_string());
        let [least, most] = goal.predicted;
        let _ = writeln!(text, "| {title} | {floor} | {least} to {most} | {} | {} |", goal.goal, goal.because);
    }
    text
}
