//! The record of a run: versioned JSON that says what was computed, how, where, and what came out.

use crate::bound::Bound;
use crate::compare::Comparison;
use crate::decode::PagedGroup;
use crate::evolve::Evolution;
use crate::gates::{Build, CaseReport, Gate, GateReport, Outcome, Thresholds, ToggleReport};
use crate::measure::{Cache, Conditions, HostGroup, PageReading, Reading, Samples, Summary, Timer};
use crate::mutants::{Trial, Tried};
use crate::peers::Crash;
use crate::profile::Profiled;
use crate::provenance::Provenance;
use crate::python::PythonRun;
use crate::quantizer::QuantizerGroup;
use crate::sources;
use crate::store;
use crate::verification::Verification;
use eightfold::{Error, Mask, Problem, Result, Shape, Window};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The version of the format; it grows when a reader of the old one would be misled.
pub const SCHEMA: u32 = 1;

/// The job that a record comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Every stage of the ladder on the standard shapes.
    Ladder,
    /// The gates for chosen variants.
    Run,
    /// One variant through every gate in a row.
    Gate,
    /// Each stage of a ladder alone, and all but each.
    Ablation,
    /// What the plan picks, beside what is near it.
    Survey,
    /// Timing of chosen variants and peers.
    Bench,
    /// Compiling for an architecture, without a device.
    Build,
    /// One variant against another, or one record against another.
    Compare,
    /// What Nsight Compute counted for chosen variants.
    Profile,
    /// A search of a kernel's knobs.
    Evolve,
    /// Timing of the device's quantiser.
    Quantizer,
    /// Timing of attention to pages.
    Paged,
    /// What launches cost the host.
    Host,
    /// What compute-sanitizer found.
    Sanitizer,
    /// The tests of the CUDA backend on a device.
    Tests,
    /// Mutants of the device code, each of which a gate must notice.
    Mutants,
    /// The Python package on a device, beside torch.
    Python,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Ladder => "ladder",
            Kind::Run => "run",
            Kind::Gate => "gate",
            Kind::Ablation => "ablation",
            Kind::Survey => "survey",
            Kind::Bench => "bench",
            Kind::Build => "build",
            Kind::Compare => "compare",
            Kind::Profile => "profile",
            Kind::Evolve => "evolve",
            Kind::Quantizer => "quantizer",
            Kind::Paged => "paged",
            Kind::Host => "host",
            Kind::Sanitizer => "sanitizer",
            Kind::Tests => "tests",
            Kind::Mutants => "mutants",
            Kind::Python => "python",
        })
    }
}

/// Everything about one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`] at the time of writing.
    pub schema: u32,
    /// The job.
    pub kind: Kind,
    /// Code, machine, compiler, time.
    pub provenance: Provenance,
    /// The limits and policies that applied; today's in a record whose limits had another form.
    #[serde(deserialize_with = "limits_of_their_time")]
    pub thresholds: Thresholds,
    /// One group per problem: only within a group may times be compared.
    pub groups: Vec<Group>,
    /// What was compiled without being run, one per architecture, head dim and mask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub builds: Vec<BuildGroup>,
    /// The proofs that every knob reaches the machine code, one per architecture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub toggles: Vec<ToggleReport>,
    /// The verdicts of a comparison.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// The search that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evolution: Option<Evolution>,
    /// The device's quantiser against the clock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quantizers: Vec<QuantizerGroup>,
    /// Attention to pages against the clock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paged: Vec<PagedGroup>,
    /// What launches cost the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostGroup>,
    /// The Python package beside torch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonRun>,
    /// What another program found: compute-sanitizer, or the test runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// What became of mutants of the device code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutants: Option<Trial>,
    /// The fingerprints of the sources of every kernel of this build, by the kernel's name; none in records from before this
    /// was kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, String>,
    /// Why the run ended before its end; what is recorded was done before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
}

/// Kernels compiled for one architecture and kind of problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuildGroup {
    /// The architecture.
    pub arch: String,
    /// Channels per head.
    pub head_dim: usize,
    /// Whether the kernels have the causal mask.
    pub causal: bool,
    /// Whether the keys end within a tile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tail: bool,
    /// The kernels.
    pub entries: Vec<BuildEntry>,
}

impl BuildGroup {
    /// What the kernels are for, in words.
    pub fn kind(&self) -> String {
        let causal = if self.causal { ", causal" } else { "" };
        let tail = if self.tail { ", a last tile that is cut" } else { "" };
        format!("{}, head dim {}{causal}{tail}", self.arch, self.head_dim)
    }
}

/// One kernel that was compiled, or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuildEntry {
    /// What a person calls it: a stage or a variant.
    pub name: String,
    /// The variant with every knob.
    pub implementation: String,
    /// Whether it comes from a second compiler, whose failure is not ours.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peer: bool,
    /// What the resource gate decided.
    pub gate: GateReport,
    /// What came out of the compiler.
    pub build: Option<Build>,
}

/// The contestants of one problem, timed in one interleaved run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The shape's name, or the list of its sizes.
    pub shape: String,
    /// What was computed; of a sweep, the largest of its problems.
    pub problem: ProblemRecord,
    /// Who computed it.
    pub entries: Vec<Entry>,
    /// Whether every case is a problem of its own, which its origin names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sweep: bool,
    /// The least time that any kernel could take; none where nothing was timed or the device's rates are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// What reading K and V alone took, on a CPU, where few queries meet every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<Reading>,
    /// The same from pages, one for each page size that was timed; none in records from before this was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub page_readings: Vec<PageReading>,
    /// What else went on while contestants took their turns; none where nothing was timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
}

impl Group {
    /// A group without contestants yet.
    pub fn new(shape: impl Into<String>, problem: &Problem) -> Self {
        let entries = Vec::new();
        Group {
            shape: shape.into(),
            problem: problem.into(),
            entries,
            sweep: false,
            bound: None,
            reading: None,
            page_readings: Vec::new(),
            conditions: None,
        }
    }

    /// What reading alone took of what this entry reads: of its pages where K and V lie in pages, else of the tensors. None where
    /// that was not timed.
    pub fn reading_of(&self, entry: &Entry) -> Option<&Reading> {
        match entry.pages {
            Some(pages) => self.page_readings.iter().find(|one| one.page_size == pages).map(|one| &one.reading),
            None => self.reading.as_ref(),
        }
    }

    /// What results are written as, and who writes something else; who was not there writes nothing.
    pub fn outputs(&self) -> String {
        let ours = self.problem.output_format.as_str();
        let there = |entry: &&Entry| entry.gates.iter().all(|gate| gate.outcome != Outcome::Unavailable);
        let written =
            self.entries.iter().filter(there).filter_map(|entry| Some((entry.output_format.as_deref()?, &*entry.name)));
        let mut others: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (format, name) in written.filter(|(format, _)| *format != ours) {
            others.entry(format).or_default().push(name);
        }
        let others = others.iter().map(|(format, names)| format!(" ({} in {format})", names.join(", ")));
        format!("{}{}", self.problem.outputs(), others.collect::<String>())
    }
}

/// One contestant on one problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What a person calls it: a stage, a variant, a peer.
    pub name: String,
    /// The variant with every knob, or what the peer says about itself.
    pub implementation: String,
    /// Whether it is somebody else's implementation, measured beside ours.
    pub peer: bool,
    /// Tokens of a page, where K and V are read from pages; none in records from before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<usize>,
    /// What a peer writes its results as. Ours writes what the problem says; none in records from before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_format: Option<String>,
    /// What the gates decided.
    pub gates: Vec<GateReport>,
    /// What the correctness gate saw, case by case.
    pub cases: Vec<CaseReport>,
    /// The timing; none unless the correctness gate passed and the timed runs were verified.
    pub timing: Option<Timing>,
    /// The time of single launches on an idle device, for contestants on a GPU; `timing` is then by graph replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_timing: Option<Timing>,
    /// The time by graph replay of launches that begin when the one before is done; none for contestants whose launches
    /// never overlap, whose `timing` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separate_timing: Option<Timing>,
    /// What came out of the compiler, for kernels that are compiled at run time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// What a profiler counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profiled>,
    /// What a peer's process died of before it was measured as `implementation` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash: Option<Crash>,
    /// What else a reader must know: why a peer was not timed, which cases were left out.
    pub note: Option<String>,
}

/// The raw samples and their summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The statistics.
    pub summary: Summary,
    /// Every counted run.
    pub samples: Samples,
    /// What the times were taken with; the host's clock in records from before this was kept.
    #[serde(default = "host_clock")]
    pub timer: Timer,
    /// Where the inputs were when a run began.
    #[serde(default)]
    pub cache: Cache,
    /// How many different inputs the rounds went around.
    #[serde(default = "one")]
    pub inputs: usize,
}

fn host_clock() -> Timer {
    Timer::HostClock
}

fn one() -> usize {
    1
}

impl Timing {
    /// Samples with their summary; none without samples.
    pub fn new(timer: Timer, samples: Samples) -> Option<Self> {
        samples.summary().map(|summary| Timing { summary, samples, timer, cache: Cache::Hot, inputs: 1 })
    }
}

/// An [`eightfold::Problem`] as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of Problem and Shape, and documented there")]
pub struct ProblemRecord {
    pub batch: usize,
    pub query_heads: usize,
    pub kv_heads: usize,
    pub query_len: usize,
    pub key_len: usize,
    pub head_dim: usize,
    /// Where V has other channels than Q and K.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_dim: Option<usize>,
    pub causal: bool,
    /// `L,R`, where there is a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sinks: bool,
    pub softmax_scale: f32,
    pub input_format: String,
    pub output_format: String,
    pub output_layout: String,
    pub lse: bool,
    pub gflop: f64,
}

impl ProblemRecord {
    /// The sizes.
    pub fn shape(&self) -> Shape {
        let ProblemRecord { batch, query_heads, kv_heads, query_len, key_len, head_dim, .. } = *self;
        Shape::new(batch, query_heads, query_len, head_dim).with_kv_heads(kv_heads).with_key_len(key_len)
    }

    /// The sizes as text.
    pub fn sizes(&self) -> String {
        format!("{}{}", self.shape(), self.value_dim.map_or_else(String::new, |value_dim| format!("/{value_dim}")))
    }

    /// What results are written as, in words.
    pub fn outputs(&self) -> String {
        format!("outputs in {}", self.output_format)
    }

    /// The problem again, as far as it is timed: shape, mask and window, softcap and sinks, output format.
    pub fn to_problem(&self) -> Result<Problem> {
        let mut problem = Problem::new(self.shape())?.with_mask(Mask::causal_if(self.causal));
        if let Some(value_dim) = self.value_dim {
            problem = problem.with_value_dim(value_dim)?;
        }
        if let Some(window) = &self.window {
            problem = problem.with_window(window.parse()?);
        }
        if let Some(softcap) = self.softcap {
            problem = problem.with_softcap(softcap)?;
        }
        if self.sinks {
            problem = problem.with_sinks();
        }
        Ok(problem.with_output_format(self.output_format.parse()?))
    }

    /// What a person calls the shape, its sizes if that says something else, and the mask, with what else makes the problem.
    pub fn title(&self, name: &str) -> String {
        let sizes = self.sizes();
        let mut title = if name == sizes { sizes } else { format!("{name} ({sizes})") };
        let window = self.window.as_ref().map(|window| format!(", window {window}"));
        let softcap = self.softcap.map(|softcap| format!(", softcap {softcap}"));
        let causal = self.causal.then(|| ", causal".to_string());
        let sinks = self.sinks.then(|| ", sinks".to_string());
        [causal, window, softcap, sinks].into_iter().flatten().for_each(|part| title.push_str(&part));
        title
    }
}

impl From<&Problem> for ProblemRecord {
    fn from(problem: &Problem) -> Self {
        let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim, .. } = problem.shape();
        ProblemRecord {
            batch,
            query_heads,
            kv_heads,
            query_len,
            key_len,
            head_dim,
            value_dim: Some(problem.value_dims().head_dim).filter(|value_dim| *value_dim != head_dim),
            causal: problem.mask() == Mask::Causal,
            window: Some(problem.window())
                .filter(|window| *window != Window::default())
                .map(|window| window.to_string()),
            softcap: problem.softcap(),
            sinks: problem.has_sinks(),
            softmax_scale: problem.softmax_scale(),
            input_format: problem.input_format().to_string(),
            output_format: problem.output_format().to_string(),
            output_layout: problem.output_layout().to_string(),
            lse: problem.lse(),
            gflop: problem.flop() / 1e9,
        }
    }
}

/// What to do about a file that is no record.
const OWN_RECORD: &str = "give the path of a record.json that this program wrote";

fn limits_of_their_time<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Thresholds, D::Error> {
    let mut value = serde_json::Value::deserialize(deserializer)?;
    // The limits of the profile gate were not always data.
    if let Some(sections) = value.as_object_mut().filter(|sections| !sections.contains_key("profile")) {
        sections.insert("profile".into(), serde_json::json!(Thresholds::embedded().profile));
    }
    Ok(serde_json::from_value(value).unwrap_or_else(|_| Thresholds::embedded()))
}

impl Record {
    /// A record without results yet.
    pub fn new(kind: Kind, provenance: Provenance) -> Self {
        Record {
            schema: SCHEMA,
            kind,
            provenance,
            thresholds: Thresholds::embedded(),
            groups: Vec::new(),
            builds: Vec::new(),
            toggles: Vec::new(),
            comparisons: Vec::new(),
            evolution: None,
            quantizers: Vec::new(),
            paged: Vec::new(),
            hosts: Vec::new(),
            python: None,
            verification: None,
            mutants: None,
            sources: sources::all(),
            ended_early: None,
        }
    }

    /// Whether a gate of ours failed, or could not be trusted; a peer's failure is not ours, and a valid negative is
    /// no failure.
    pub fn failed(&self) -> bool {
        let found = self.verification.as_ref().is_some_and(|verification| verification.findings() > 0);
        let noticed = |tried: &Tried| tried.is_settled();
        let slipped_through = self.mutants.as_ref().is_some_and(|trial| !trial.tried.iter().all(noticed));
        found || slipped_through || self.gates().any(|gate| matches!(gate.outcome, Outcome::Fail | Outcome::Invalid))
    }

    /// Every gate that a kernel of ours met.
    pub fn gates(&self) -> impl Iterator<Item = &GateReport> {
        let ours = self.groups.iter().flat_map(|group| &group.entries).filter(|entry| !entry.peer);
        let built = self.builds.iter().flat_map(|group| &group.entries).filter(|entry| !entry.peer);
        let built = built.map(|entry| &entry.gate);
        let toggled = self.toggles.iter().map(|toggle| &toggle.gate);
        let worked = self.quantizers.iter().map(|group| &group.entries);
        let worked = worked.chain(self.paged.iter().map(|group| &group.entries));
        let worked = worked.flatten().filter_map(|entry| entry.gate.as_ref());
        ours.flat_map(|entry| &entry.gates).chain(built).chain(toggled).chain(worked)
    }

    /// The record as JSON on one line (raw samples would otherwise take a line each), with a newline at the end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string(self).expect("a record holds only plain data with string keys");
        text.push('\n');
        text
    }

    /// The record with one check, the nearest to its limit, for every case that passed; all else is as it was.
    ///
    /// The limits are in `thresholds`, and the errors in the case: what is left out can be computed from them.
    #[must_use]
    pub fn compact(mut self) -> Self {
        for case in self.groups.iter_mut().flat_map(|group| &mut group.entries).flat_map(|entry| &mut entry.cases) {
            if case.checks.iter().all(|check| check.pass) {
                let nearest = case.checks.iter().max_by(|a, b| a.share().total_cmp(&b.share())).cloned();
                case.checks = nearest.into_iter().collect();
            }
        }
        self
    }

    /// Reads a record back, compressed or not.
    pub fn read(path: &Path) -> Result<Self> {
        let invalid = |rule: String| Error::invalid("record", format!("{} {rule}", path.display()), OWN_RECORD);
        let text = store::read_text(path).map_err(|error| invalid(format!("cannot be read: {error}")))?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| invalid(format!("is not JSON: {error}")))?;
        let schema = value.get("schema").and_then(serde_json::Value::as_u64);
        if schema != Some(u64::from(SCHEMA)) {
            let found = schema.map_or("none".into(), |schema| schema.to_string());
            let rule = format!("{} has schema {found}, and this version reads {SCHEMA}", path.display());
            let newer = schema.is_some_and(|schema| schema > u64::from(SCHEMA));
            let fix = if newer { "use the version of Eightfold that wrote it, or a later one" } else { OWN_RECORD };
            return Err(Error::invalid("record", rule, fix));
        }
        serde_json::from_value(value).map_err(|error| invalid(format!("does not hold a record: {error}")))
    }
}

/// Reads a number that may have been NaN or infinite when it was written: JSON has only `null` for those.
pub(crate) fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl Entry {
    /// An entry of ours that has met no gate yet.
    pub fn new(name: impl Into<String>, implementation: impl Into<String>) -> Self {
        Entry {
            name: name.into(),
            implementation: implementation.into(),
            peer: false,
            pages: None,
            output_format: None,
            gates: Vec::new(),
            cases: Vec::new(),
            timing: None,
            launch_timing: None,
            separate_timing: None,
            build: None,
            profile: None,
            crash: None,
            note: None,
        }
    }

    /// What a gate decided; none where it was not reached.
    pub fn gate(&self, gate: Gate) -> Option<&GateReport> {
        self.gates.iter().find(|report| report.gate == gate)
    }

    /// The outcome of the correctness gate; none where it was not reached.
    pub fn correctness(&self) -> Option<&GateReport> {
        self.gate(Gate::Correctness)
    }

    /// The largest relative L2 norm of the kernel's own error over the cases.
    pub fn worst_relative_l2(&self) -> Option<f64> {
        self.cases.iter().map(|case| case.kernel.relative_l2).reduce(f64::max)
    }

    /// The median time, where there is one.
    pub fn p50_us(&self) -> Option<f64> {
        self.timing.as_ref().map(|timing| timing.summary.p50_us)
    }

    /// The median time of a single launch on an idle device, where it was taken.
    pub fn launch_p50_us(&self) -> Option<f64> {
        self.launch_timing.as_ref().map(|timing| timing.summary.p50_us)
    }

    /// The median time by graph replay without overlap, where launches may overlap and it was taken.
    pub fn separate_p50_us(&self) -> Option<f64> {
        self.separate_timing.as_ref().map(|timing| timing.summary.p50_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Record::read(file.path()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_a_record_is_refused_with_the_reason() {
        assert!(read("not json").contains("is not JSON"));
        assert!(read("{}").contains("has schema none"));
        assert!(read(r#"{"schema": 2}"#).contains("has schema 2, and this version reads 1"));
        assert!(read(r#"{"schema": 1}"#).contains("does not hold a record"));
        assert!(Record::read(Path::new("/nowhere")).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn a_compact_record_keeps_failures_and_the_check_nearest_to_its_limit() {
        use crate::gates::Check;
        let checks = vec![Check::at_most("a", 0.1, 1.0), Check::at_most("b", 0.9, 1.0), Check::at_most("c", 0.0, 0.0)];
        let case = |checks: Vec<Check>| crate::gates::CaseReport {
            origin: "gaussian seed 1".into(),
            kernel: Default::default(),
            end_to_end: Default::default(),
            quantizer: Default::default(),
            lse_max_abs: None,
            run: Default::default(),
            output_hash: 7,
            repeatable: true,
            rows_compared: 8,
            unit: 1.0,
            judged_by: String::new(),
            checks,
        };
        let failed = [checks.clone(), vec![Check::at_most("d", 2.0, 1.0)]].concat();
        let problem = Problem::new(Shape::new(1, 1, 8, 8)).unwrap();
        let mut record = Record::new(Kind::Run, Provenance::capture(1));
        let cases = vec![case(checks), case(failed.clone())];
        record
            .groups
            .push(Group { entries: vec![Entry { cases, ..Entry::new("x", "x") }], ..Group::new("x", &problem) });
        let compact = record.clone().compact();
        let kept = |index: usize| &compact.groups[0].entries[0].cases[index].checks;
        assert_eq!(kept(0).iter().map(|check| &*check.name).collect::<Vec<_>>(), ["b"]);
        assert_eq!(kept(1), &failed);
        assert_eq!(compact.clone().compact(), compact);
    }

    #[test]
    fn a_check_that_saw_nan_is_read_back_as_nan() {
        let check = crate::gates::Check::at_most("error", f64::NAN, 1.0);
        let text = serde_json::to_string(&check).unwrap();
        let read: crate::gates::Check = serde_json::from_str(&text).unwrap();
        assert!(read.value.is_nan() && !read.pass);
    }

    #[test]
    fn readings_from_pages_are_read_back_and_older_records_have_none() {
        let samples = Samples { ns: vec![9_200_000; 3], rounds: vec![3] };
        let timing = Timing::new(Timer::HostClock, samples).unwrap();
        let of = |bytes| Reading { bytes, timing: timing.clone() };
        let problem = Problem::new(Shape::new(1, 1, 1, 8)).unwrap();
        let [tensors, pages, others] = [None, Some(16), Some(64)].map(|pages| Entry { pages, ..Entry::new("x", "x") });
        let mut record = Record::new(Kind::Bench, Provenance::capture(1));
        record.groups.push(Group {
            entries: vec![tensors, pages, others],
            reading: Some(of(1)),
            page_readings: vec![PageReading { page_size: 16, reading: of(2) }],
            ..Group::new("x", &problem)
        });
        let back: Record = serde_json::from_str(&record.to_json()).unwrap();
        assert_eq!(back, record);
        let group = &back.groups[0];
        let bytes: Vec<_> = group.entries.iter().map(|entry| group.reading_of(entry).map(|one| one.bytes)).collect();
        assert_eq!(bytes, [Some(1), Some(2), None]);

        let mut older = serde_json::to_value(&record).unwrap();
        let group = older["groups"][0].as_object_mut().unwrap();
        group.remove("page_readings").unwrap();
        group["entries"][1].as_object_mut().unwrap().remove("pages").unwrap();
        let older: Record = serde_json::from_value(older).unwrap();
        let group = &older.groups[0];
        assert!(group.page_readings.is_empty());
        // As it was shown then.
        assert_eq!(group.reading_of(&group.entries[1]).map(|one| one.bytes), Some(1));
    }

    #[test]
    fn what_is_written_is_told_with_who_writes_something_else() {
        let problem = Problem::new(Shape::new(1, 1, 8, 8)).unwrap().with_output_format(eightfold::OutputFormat::Bf16);
        let peer = |name: &str, format: Option<&str>| Entry {
            peer: true,
            output_format: format.map(Into::into),
            ..Entry::new(name, name)
        };
        let mut group = Group::new("x", &problem);
        group.entries = vec![Entry::new("ours", "ours"), peer("old", None), peer("torch-flash", Some("bf16"))];
        assert_eq!(group.outputs(), "outputs in bf16");
        group.entries.push(peer("cudnn-fp8", Some("e4m3")));
        assert_eq!(group.outputs(), "outputs in bf16 (cudnn-fp8 in e4m3)");
        group.problem.output_format = "f16".into();
        group.entries.push(peer("torch-math", Some("bf16")));
        assert_eq!(group.outputs(), "outputs in f16 (torch-flash, torch-math in bf16) (cudnn-fp8 in e4m3)");
    }

    #[test]
    fn a_failed_gate_is_seen_and_an_unavailable_one_is_no_failure() {
        let with = |outcome| {
            let gate = GateReport {
                gate: crate::gates::Gate::Correctness,
                outcome,
                summary: String::new(),
                checks: Vec::new(),
            };
            let problem = Problem::new(Shape::new(1, 1, 8, 8)).unwrap();
            let mut record = Record::new(Kind::Run, Provenance::capture(1));
            let entry = Entry { gates: vec![gate], ..Entry::new("x", "x") };
            let entries = vec![entry];
            record.groups.push(Group { entries, ..Group::new("x", &problem) });
            record.failed()
        };
        assert!(with(Outcome::Fail) && with(Outcome::Invalid));
        assert!(!with(Outcome::Pass) && !with(Outcome::Unavailable));
        assert!(!with(Outcome::Negative) && !with(Outcome::Inconclusive));
    }
}
