//! What the Python package is beside torch's own attention: times of calls, what they cost the host, models. Measured by its
//! `tests/h200.py`, whose file becomes a record here.

use crate::measure::Samples;
use crate::verification::Verification;
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Our call among the contestants, as a user would write it.
pub const OURS: &str = "eightfold";

/// How many times faster than the fastest of torch's backends the call is to be. With heads of 128 channels it takes INT8, which is
/// more exact, and quantising weighs more the fewer keys there are.
pub const fn target(len: usize, head_dim: usize, causal: bool) -> f64 {
    match (head_dim, len, causal) {
        (128, ..=2048, _) => 1.2,
        (128, ..=8192, false) => 1.5,
        (128, ..=8192, true) => 1.3,
        (128, _, _) => 1.7,
        (_, _, false) => 1.6,
        (_, _, true) => 1.4,
    }
}

/// What a call may take on the host above its launches.
pub const MOST_ABOVE_LAUNCHES_US: f64 = 6.0;

/// All that one run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonRun {
    /// Of Python, torch and what else took part.
    pub versions: BTreeMap<String, String>,
    /// Calls on tensors of a shape, in turns.
    pub shapes: Vec<ShapeRun>,
    /// What calls cost the host, in turns; a run of calls alone has none.
    #[serde(default)]
    pub host: Option<HostRun>,
    /// Models with random weights, beside torch's attention.
    #[serde(default)]
    pub models: Vec<ModelRun>,
    /// The same, decoding from a cache.
    #[serde(default)]
    pub generations: Vec<GenerationRun>,
}

/// bf16 in, bf16 out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the first are those of Shape")]
pub struct ShapeRun {
    pub batch: usize,
    pub heads: usize,
    pub len: usize,
    pub head_dim: usize,
    pub causal: bool,
    /// The kernel that our call launches, with its knobs.
    pub kernel: String,
    /// How far our result is from that of the fastest backend: the relative L2 norm of the difference.
    pub difference: f64,
    /// Everyone, with as many turns.
    pub contestants: Vec<TimedCall>,
    /// Those that did not run, and why.
    pub missing: BTreeMap<String, String>,
    /// Our call with Q and K in each format, which is a contestant, too: `eightfold, FORMAT`.
    #[serde(default)]
    pub formats: Vec<FormatRun>,
}

/// What our call does with Q and K quantised to one format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatRun {
    /// The format.
    pub name: String,
    /// The kernel that attends, with its knobs.
    pub kernel: String,
    /// How many kernels the call launches.
    pub kernels: usize,
    /// How far the result is from that of the fastest backend, with V of N(0, 1) and of N(1, 1).
    pub differences: [f64; 2],
}

/// A call, timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedCall {
    /// What a person calls it.
    pub name: String,
    /// A time for each turn.
    pub samples: Samples,
}

/// What calls cost the host: from the call until it returns, with an idle device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the first are those of Shape")]
pub struct HostRun {
    pub batch: usize,
    pub heads: usize,
    pub len: usize,
    pub head_dim: usize,
    /// How many kernels our calls launch, by kind of call.
    pub kernels: BTreeMap<String, usize>,
    /// Everyone: of ours, `call, KIND` and `launches, KIND` belong together.
    pub calls: Vec<TimedCall>,
}

/// A model of transformers with random weights, run with torch's attention and with ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRun {
    /// Its class.
    pub name: String,
    /// What it is made of.
    pub config: BTreeMap<String, usize>,
    /// Sequences and tokens of each.
    pub tokens: [usize; 2],
    /// Calls of attention that ran here, which should be one for each layer.
    pub served: usize,
    /// Of the embeddings and of every layer's output: the relative L2 norm of the difference.
    pub layers: Vec<f64>,
    /// Of the logits.
    pub logits: f64,
}

/// A model of transformers with random weights that decodes: with torch's attention on a cache in the model's type, and the same
/// tokens with ours on an FP8 cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationRun {
    /// Its class.
    pub name: String,
    /// What it is made of.
    pub config: BTreeMap<String, usize>,
    /// Sequences and tokens of each before the first is decoded.
    pub tokens: [usize; 2],
    /// Calls of attention that ran here: one for each layer and token, and those of the prompt.
    pub served: usize,
    /// Of every token's logits: the relative L2 norm of the difference.
    pub differences: Vec<f64>,
    /// Seconds that decoding took with sdpa, without the prompt.
    pub sdpa_seconds: f64,
    /// The same with ours.
    pub eightfold_seconds: f64,
    /// Bytes of the cache with sdpa.
    pub sdpa_cache_bytes: u64,
    /// Bytes of ours, scales included.
    pub cache_bytes: u64,
}

impl GenerationRun {
    /// Tokens that were decoded in a second with sdpa, and with ours.
    pub fn tokens_per_second(&self) -> [f64; 2] {
        let decoded = (self.tokens[0] * self.differences.len()) as f64;
        [self.sdpa_seconds, self.eightfold_seconds].map(|seconds| decoded / seconds)
    }

    /// The largest difference of a token's logits.
    pub fn largest_difference(&self) -> f64 {
        self.differences.iter().copied().fold(0.0, f64::max)
    }
}

impl TimedCall {
    /// The median.
    pub fn p50_us(&self) -> Option<f64> {
        self.samples.summary().map(|summary| summary.p50_us)
    }
}

fn p50_us(calls: &[TimedCall], name: &str) -> Option<f64> {
    calls.iter().find(|call| call.name == name)?.p50_us()
}

impl ShapeRun {
    /// A contestant's median.
    pub fn p50_us(&self, name: &str) -> Option<f64> {
        p50_us(&self.contestants, name)
    }

    /// The fastest of torch's backends.
    pub fn best_peer(&self) -> Option<(&str, f64)> {
        let peers = self.contestants.iter().filter(|call| call.name.starts_with("torch-"));
        let timed = peers.filter_map(|call| Some((&*call.name, call.p50_us()?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// How many times faster than that our call is.
    pub fn speedup(&self) -> Option<f64> {
        self.speedup_of(OURS)
    }

    /// The same of a contestant.
    pub fn speedup_of(&self, name: &str) -> Option<f64> {
        Some(self.best_peer()?.1 / self.p50_us(name)?)
    }
}

impl HostRun {
    /// What a kind of call takes above its launches alone.
    pub fn above_launches_us(&self, kind: &str) -> Option<f64> {
        let of = |what: &str| p50_us(&self.calls, &format!("{what}, {kind}"));
        Some(of("call")? - of("launches")?)
    }
}

/// What the file holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    run: PythonRun,
    tests: Verification,
}

/// Reads what `tests/h200.py` wrote: the measurements, and how the package's tests went before.
pub fn read(text: &str) -> Result<(PythonRun, Verification)> {
    let Written { run, tests } =
        serde_json::from_str(text).map_err(|error| invalid(format!("is no file of the Python package: {error}")))?;
    for shape in &run.shapes {
        let turns = shape.contestants.iter().map(|call| call.samples.ns.len());
        let is_ours = |call: &TimedCall| call.name == OURS;
        if !shape.contestants.iter().any(is_ours) || turns.clone().min() != turns.max() {
            return Err(invalid("has a shape where contestants did not take turns, or ours is missing".into()));
        }
    }
    let calls =
        run.shapes.iter().flat_map(|shape| &shape.contestants).chain(run.host.iter().flat_map(|host| &host.calls));
    if let Some(call) = calls.into_iter().find(|call| call.samples.ns.is_empty() || call.samples.ns.contains(&0)) {
        return Err(invalid(format!("has no times of `{}`, or times of nothing", call.name)));
    }
    let timed =
        |run: &GenerationRun| run.sdpa_seconds > 0.0 && run.eightfold_seconds > 0.0 && !run.differences.is_empty();
    if !run.generations.iter().all(timed) {
        return Err(invalid("has a model that decoded nothing, or in no time".into()));
    }
    let of_formats = |shape: &ShapeRun| {
        shape.formats.iter().all(|format| shape.p50_us(&format!("{OURS}, {}", format.name)).is_some())
    };
    if !run.shapes.iter().all(of_formats) {
        return Err(invalid("has a format that no contestant is of".into()));
    }
    // Calls alone come with what else a session ran.
    if run.shapes.is_empty() || (tests.checks.is_empty() && run.host.is_some()) {
        return Err(invalid("holds no times, or no tests".into()));
    }
    Ok((run, tests))
}

fn invalid(rule: String) -> Error {
    Error::invalid("import", rule, "give the file that crates/eightfold-python/tests/h200.py wrote")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: &str = include_str!("../fixtures/python.json");

    #[test]
    fn a_file_of_the_package_is_read_and_compared() {
        let (run, tests) = read(WRITTEN).unwrap();
        assert_eq!((run.shapes.len(), run.models.len(), tests.findings()), (2, 2, 0));
        let shape = &run.shapes[0];
        assert_eq!(shape.best_peer(), Some(("torch-cudnn", 900.0)));
        assert_eq!(shape.speedup(), Some(1.8));
        assert_eq!(shape.formats.iter().map(|format| &*format.name).collect::<Vec<_>>(), ["e4m3", "int8"]);
        assert_eq!(shape.speedup_of("eightfold, e4m3"), Some(1.875));
        let host = run.host.as_ref().unwrap();
        assert_eq!(host.above_launches_us("bf16"), Some(4.5));
        assert_eq!(host.above_launches_us("FP4"), None);
        assert_eq!(run.generations[0].tokens_per_second(), [100.0, 150.0]);
        assert_eq!(run.generations[0].largest_difference(), 0.02);
    }

    #[test]
    fn calls_alone_need_no_tests() {
        let mut file: serde_json::Value = serde_json::from_str(WRITTEN).unwrap();
        file["tests"]["checks"] = serde_json::json!([]);
        assert!(read(&file.to_string()).unwrap_err().to_string().contains("no tests"));
        for part in ["host", "models", "generations"] {
            file["run"].as_object_mut().unwrap().remove(part);
        }
        let (run, _) = read(&file.to_string()).unwrap();
        assert_eq!((run.shapes.len(), run.host, run.models.len()), (2, None, 0));
    }

    #[test]
    fn a_file_without_turns_times_or_tests_is_refused() {
        let changed = |from: &str, to: &str| {
            let text = WRITTEN.replacen(from, to, 1);
            assert_ne!(text, WRITTEN, "{from}");
            read(&text).unwrap_err().to_string()
        };
        assert!(changed("[500000, ", "[").contains("take turns"));
        assert!(changed("\"eightfold\", \"samples\"", "\"others\", \"samples\"").contains("ours is missing"));
        assert!(changed("[9500, 9000, 10000]", "[]").contains("no times of `call, bf16`"));
        assert!(changed("\"sdpa_seconds\": 0.06", "\"sdpa_seconds\": 0").contains("decoded nothing"));
        assert!(changed("\"name\": \"int8\"", "\"name\": \"int4\"").contains("no contestant is of"));
        assert!(changed("\"causal\": false", "\"causal\": 3").contains("no file of the Python package"));
        assert!(read("{}").is_err());
    }
}
