//! The kernels' sources, inside the binary.

use crate::error::{Error, Result};
use crate::suggest;

/// Name and text of files under `kernels/`.
type Table<'a> = [(&'a str, &'a str)];

macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $path)))),*]
    };
}

/// Every file under `kernels/`, one a line.
static EMBEDDED: &Table<'static> = embedded![
    "attention/lanes.cuh",
    "attention/operands.cuh",
    "attention/output.cuh",
    "attention/ring.cuh",
    "attention/scoring.cuh",
    "attention/settings.cuh",
    "hopper/accumulator.cuh",
    "hopper/arrange.cu",
    "hopper/attention.cu",
    "hopper/descriptor.cuh",
    "hopper/dump.cuh",
    "hopper/merge.cuh",
    "hopper/problem.cuh",
    "hopper/produce.cuh",
    "hopper/ragged.cuh",
    "hopper/scores.cuh",
    "hopper/settings.cuh",
    "hopper/shared.cuh",
    "hopper/short.cu",
    "hopper/store.cuh",
    "hopper/tile.cuh",
    "hopper/value_order.cuh",
    "hopper/weights.cuh",
    "ladder/attention.cu",
    "ladder/dump.cuh",
    "ladder/load.cuh",
    "ladder/merge.cuh",
    "ladder/pipeline.cuh",
    "ladder/problem.cuh",
    "ladder/scores.cuh",
    "ladder/settings.cuh",
    "ladder/shared.cuh",
    "ladder/softmax.cuh",
    "ladder/store.cuh",
    "ladder/values.cuh",
    "paged/append.cu",
    "paged/attend.cuh",
    "paged/attention.cu",
    "paged/load.cuh",
    "paged/merge.cuh",
    "paged/merge_outputs.cu",
    "paged/pages.cuh",
    "paged/problem.cuh",
    "paged/queries.cuh",
    "paged/schedule.cuh",
    "paged/settings.cuh",
    "paged/shared.cuh",
    "paged/validate.cu",
    "ptx/address.cuh",
    "ptx/arithmetic.cuh",
    "ptx/barrier.cuh",
    "ptx/bulk.cuh",
    "ptx/cluster.cuh",
    "ptx/convert.cuh",
    "ptx/copy.cuh",
    "ptx/exponential.cuh",
    "ptx/half.cuh",
    "ptx/load.cuh",
    "ptx/matrix.cuh",
    "ptx/register.cuh",
    "ptx/wgmma.cuh",
    "quantize/fused.cu",
    "quantize/means.cuh",
    "quantize/problem.cuh",
    "quantize/quantize.cu",
    "quantize/quotient.cuh",
    "quantize/row_scales.cuh",
    "quantize/rows.cuh",
    "quantize/turn.cuh",
    "quantize/validate.cu",
    "quantize/values.cuh",
    "ragged/gather.cu",
    "ragged/plan.cu",
    "ragged/problem.cuh",
];

/// The text of a file under `kernels/`.
pub(super) fn text(name: &str) -> Option<&'static str> {
    find(EMBEDDED, name)
}

/// A source with every header that it reaches, and no other: what is not reached must not change its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    pub(super) headers: Vec<(&'a str, &'a str)>,
}

impl<'a> Source<'a> {
    /// A file under `kernels/`.
    pub(super) fn embedded(name: &'a str) -> Result<Source<'a>> {
        Self::embedded_with(name, std::iter::empty())
    }

    /// The same where these files stand for those of their names.
    pub(super) fn embedded_with(name: &'a str, own: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Source<'a>> {
        let mut table: Vec<(&str, &str)> = own.collect();
        // What is found first counts.
        table.extend(EMBEDDED);
        let text = find(&table, name).ok_or_else(|| {
            suggest::unknown("program.file", name, &EMBEDDED.iter().map(|(name, _)| *name).collect::<Vec<_>>())
        })?;
        Self::gather(name, text, &table)
    }

    /// A text of the caller's; its headers are those under `kernels/`.
    pub(super) fn of_text(name: &'a str, text: &'a str) -> Result<Source<'a>> {
        Self::gather(name, text, EMBEDDED)
    }

    /// Itself and its headers, each with its name.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        [(self.name, self.text)].into_iter().chain(self.headers.iter().copied())
    }

    fn gather(name: &'a str, text: &'a str, table: &Table<'a>) -> Result<Source<'a>> {
        let mut headers: Vec<(&'a str, &'a str)> = Vec::new();
        let mut unread = vec![(name, text)];
        while let Some((includer, text)) = unread.pop() {
            for wanted in text.lines().filter_map(included) {
                if wanted == name || headers.iter().any(|(known, _)| *known == wanted) {
                    continue;
                }
                let entry = table.iter().find(|(name, _)| *name == wanted).ok_or_else(|| {
                    Error::invalid(
                        includer,
                        format!("includes {wanted:?}, which is not among the kernels' sources"),
                        "name headers by their path under kernels/, and list each in compile/source.rs",
                    )
                })?;
                headers.push(*entry);
                unread.push(*entry);
            }
        }
        headers.sort_unstable();
        Ok(Source { name, text, headers })
    }
}

fn find<'a>(table: &Table<'a>, name: &str) -> Option<&'a str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The header that a line includes in quotes. One inside `#if` counts: which branch is taken is not known here.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TABLE: &Table<'static> = &[
        ("main.cu", "#include \"ptx/matrix.cuh\"\n  #  include \"ladder/tile.cuh\" // tiles\n"),
        ("ptx/matrix.cuh", "#pragma once\n#include \"ptx/base.cuh\"\n"),
        ("ptx/base.cuh", "#pragma once\n#include \"ptx/matrix.cuh\"\n"),
        ("ladder/tile.cuh", "// #include \"nowhere.cuh\"\n#include <cuda_fp8.h>\n"),
        ("ptx/unrelated.cuh", ""),
    ];

    #[test]
    fn headers_are_those_reached_once_each() {
        let source = Source::gather("main.cu", TABLE[0].1, TABLE).unwrap();
        let names: Vec<_> = source.headers.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["ladder/tile.cuh", "ptx/base.cuh", "ptx/matrix.cuh"]);
    }

    #[test]
    fn a_header_that_is_not_there_is_named_with_its_includer() {
        let table: &Table<'_> = &[("a.cuh", "#include \"b.cuh\"")];
        let error = Source::gather("main.cu", "#include \"a.cuh\"", table).unwrap_err().to_string();
        assert!(error.starts_with("a.cuh: includes \"b.cuh\""), "{error}");
    }

    #[test]
    fn a_file_that_does_not_exist_is_an_error() {
        assert!(matches!(Source::embedded("ladder/attention.cpp"), Err(Error::Invalid { .. })));
    }

    #[test]
    fn every_file_under_kernels_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let mut folders = vec![root.clone()];
        let mut missing = Vec::new();
        while let Some(folder) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for path in entries.map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
                if find(EMBEDDED, &name).is_none() {
                    missing.push(name);
                }
            }
        }
        assert!(missing.is_empty(), "add to EMBEDDED: {missing:?}");
    }

    #[test]
    fn every_embedded_source_finds_its_headers() {
        for (name, _) in EMBEDDED {
            Source::embedded(name).unwrap();
        }
    }
}
