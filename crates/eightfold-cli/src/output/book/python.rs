//! The page of the Python package on a device, beside torch's own attention.

use super::{NONE, error, of, peer_title, ratio, source, table, time};
use eightfold::Shape;
use eightfold_lab::archive::Filed;
use eightfold_lab::python::{
    FormatRun, GenerationRun, HostRun, MOST_ABOVE_LAUNCHES_US, ModelRun, OURS, PythonRun, ShapeRun, TimedCall, target,
};
use eightfold_lab::record::Kind;
use std::collections::BTreeMap;
use std::fmt::Write;

const OPENING: &str = "# Python calls\n\n\
    `eightfold.attention` on torch tensors: bf16 in, bf16 out, quantising included, beside the backends of torch's \
    `scaled_dot_product_attention`. Contestants took turns. A time is the median of the device's time for a call, from \
    events around a few calls that follow each other.\n\n";

const NO_RECORD: &str = "Not measured yet: `scripts/h200.sh OUT python` makes the record on a machine with a GPU.\n";

pub(super) fn page(filed: &[Filed]) -> String {
    let mut text = String::from(OPENING);
    let records = of(filed, "python", Kind::Python).filter_map(|one| Some((one, one.record.python.as_ref()?)));
    let records: Vec<_> = records.collect();
    // A run of calls alone, which is newer, stands beside the last that has everything.
    let Some((last, calls)) = records.last() else { return text + NO_RECORD };
    let whole = records.iter().rfind(|(_, run)| run.host.is_some());
    for (filed, run) in whole.into_iter().filter(|(whole, _)| whole.name != last.name).chain([&(*last, *calls)]) {
        text.push_str(&source(filed));
        let versions = run.versions.iter().map(|(name, version)| format!("{name} {version}"));
        let _ = write!(text, "{}.\n\n", versions.collect::<Vec<_>>().join(", "));
        text.push_str(&times(run));
        text.push_str(&formats(run));
    }
    let Some((filed, run)) = whole else { return text };
    text.push_str(&run.host.as_ref().map(host).unwrap_or_default());
    text.push_str(&models(&run.models));
    text.push_str(&generations(&run.generations));
    if let Some(tests) = &filed.record.verification {
        let passed = tests.checks.len() - tests.findings();
        let _ = write!(text, "## Tests\n\n{passed} of {} tests passed there, by {}.\n", tests.checks.len(), tests.by);
    }
    text
}

fn times(run: &PythonRun) -> String {
    let mut peers: Vec<&str> = Vec::new();
    for name in run.shapes.iter().flat_map(|shape| &shape.contestants).map(|call| &*call.name) {
        if name != OURS && !peers.contains(&name) {
            peers.push(name);
        }
    }
    let titles = peers.iter().map(|name| peer_title(name));
    let head: Vec<&str> =
        ["shape", OURS].into_iter().chain(titles).chain(["× fastest of torch", "target", "difference"]).collect();
    let rows = run.shapes.iter().map(|shape| {
        let times = std::iter::once(OURS).chain(peers.iter().copied()).map(|name| time(shape.p50_us(name)));
        let times = times.collect::<Vec<_>>().join(" | ");
        let (speedup, difference) = (ratio(shape.speedup()), error(Some(shape.difference)));
        format!("| {} | {times} | {speedup} | {} | {difference} |", title(shape), against_target(shape))
    });
    let text = table(&head, rows);
    format!(
        "{text}*Difference* is that from the result of the fastest of torch's backends, relative, in the L2 norm.\n\n"
    )
}

/// Whether INT8 keeps what it promises: as fast, and closer.
fn formats(run: &PythonRun) -> String {
    let rows: Vec<String> = run
        .shapes
        .iter()
        .flat_map(|shape| shape.formats.iter().map(move |format| (shape, format)))
        .map(|(shape, FormatRun { name, kernel, kernels, differences: [plain, biased] })| {
            let ours = format!("{OURS}, {name}");
            let (time, speedup) = (time(shape.p50_us(&ours)), ratio(shape.speedup_of(&ours)));
            let (plain, biased) = (error(Some(*plain)), error(Some(*biased)));
            format!("| {} | {name} | {time} | {speedup} | {plain} | {biased} | {kernels} | `{kernel}` |", title(shape))
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let head =
        ["shape", "Q and K", "time", "× fastest of torch", "difference", "with V of mean 1", "launches", "kernel"];
    format!(
        "What Q and K are quantised to decides how far the result is from torch's, in the same turns:\n\n{}",
        table(&head, rows.into_iter())
    )
}

fn title(shape: &ShapeRun) -> String {
    let sizes = Shape::new(shape.batch, shape.heads, shape.len, shape.head_dim);
    format!("{sizes}{}", if shape.causal { ", causal" } else { "" })
}

fn against_target(shape: &ShapeRun) -> String {
    let target = target(shape.len, shape.head_dim, shape.causal);
    let reached = match shape.speedup() {
        Some(speedup) if speedup >= target => "reached",
        Some(_) => "missed",
        None => return NONE.into(),
    };
    format!("{}: {reached}", ratio(Some(target)))
}

fn host(run: &HostRun) -> String {
    let HostRun { batch, heads, len, head_dim, .. } = *run;
    let mut text = format!(
        "## What a call costs the host\n\nFrom the call until it returns, with an idle device, at {}: the median of turns.\n\n",
        Shape::new(batch, heads, len, head_dim)
    );
    let rows = run.calls.iter().map(|call: &TimedCall| format!("| {} | {} |", call.name, time(call.p50_us())));
    text.push_str(&table(&["call", "host"], rows));
    for (kind, kernels) in &run.kernels {
        let Some(above) = run.above_launches_us(kind) else { continue };
        let reached = if above <= MOST_ABOVE_LAUNCHES_US { "reached" } else { "missed" };
        let _ = writeln!(
            text,
            "- {kind}: {above:.1} µs above its launches, {kernels} in all; the target of {MOST_ABOVE_LAUNCHES_US} µs is {reached}."
        );
    }
    text.push('\n');
    text
}

fn made_of(config: &BTreeMap<String, usize>) -> String {
    config.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

fn generations(runs: &[GenerationRun]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let rows = runs.iter().map(|run| {
        let ([sequences, tokens], decoded) = (run.tokens, run.differences.len());
        let [sdpa, ours] = run.tokens_per_second().map(|rate| format!("{rate:.0}"));
        let largest = error(Some(run.largest_difference()));
        let last = error(run.differences.last().copied());
        let memory = ratio(Some(run.sdpa_cache_bytes as f64 / run.cache_bytes as f64));
        let (name, config, served) = (&run.name, made_of(&run.config), run.served);
        format!(
            "| `{name}` | {config} | {sequences} × {tokens} | {decoded} | {served} | {sdpa} | {ours} | {memory} | {largest} | {last} |"
        )
    });
    let head = [
        "model",
        "made of",
        "prompt",
        "decoded",
        "calls served",
        "tokens/s, sdpa",
        "tokens/s, eightfold",
        "memory of the cache, sdpa's by ours",
        "logits, largest",
        "logits, last",
    ];
    format!(
        "## Decoding\n\nThe same tokens decoded, as sdpa chose them, from a cache in bf16 with `attn_implementation=\"sdpa\"`, and from \
         `eightfold.transformers.Fp8Cache` with ours: the difference of each token's logits, relative, in the L2 norm. Steps \
         are eager calls, one kernel after the other.\n\n{}",
        table(&head, rows)
    )
}

fn models(models: &[ModelRun]) -> String {
    let rows = models.iter().map(|model| {
        let config = made_of(&model.config);
        let [sequences, tokens] = model.tokens;
        let layer = |layer: &f64| if *layer == 0.0 { "0".into() } else { error(Some(*layer)) };
        let layers = model.layers.iter().map(layer).collect::<Vec<_>>().join(", ");
        let (served, logits) = (model.served, error(Some(model.logits)));
        format!("| `{}` | {config} | {sequences} × {tokens} | {served} | {layers} | {logits} |", model.name)
    });
    let head = ["model", "made of", "tokens", "calls served", "embeddings and layers", "logits"];
    format!(
        "## Models\n\nModels of transformers with random weights in bf16: the difference from `attn_implementation=\"sdpa\"`, \
         relative, in the L2 norm.\n\n{}",
        table(&head, rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold_lab::provenance::Provenance;
    use eightfold_lab::python;
    use eightfold_lab::record::Record;

    fn filed() -> Filed {
        let written = include_str!("../../../../eightfold-lab/fixtures/python.json");
        let (run, tests) = python::read(written).unwrap();
        let mut record = Record::new(Kind::Python, Provenance::capture(1));
        record.provenance.time_utc = "2026-01-02T00:00:00Z".to_string().try_into().unwrap();
        (record.provenance.checkout, record.provenance.built_from) = (None, Some("0123456789".into()));
        record.provenance.gpu = Some(eightfold_lab::provenance::Gpu { name: "A GPU".into(), ..Default::default() });
        (record.python, record.verification) = (Some(run), Some(tests));
        Filed { topic: "python".into(), name: "20260102T000000Z-python".into(), path: "record.json".into(), record }
    }

    #[test]
    fn the_page_says_what_was_reached_and_what_was_missed() {
        insta::assert_snapshot!(page(&[filed()]));
    }

    #[test]
    fn without_a_record_the_page_says_how_to_make_one() {
        assert!(page(&[]).ends_with(NO_RECORD));
    }
}
