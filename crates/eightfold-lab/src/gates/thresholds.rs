//! The limits of the gates, as data: `gates.toml`.

use super::resource_limits::ResourcePolicy;
use crate::inputs::Family;
use eightfold::cuda::ladder::Pv;
use eightfold::{Accuracy, Error, Fp8Format, Result, Variant, cpu::Numbers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Every limit and policy of the gates.
///
/// A file must hold every section. Records from before a section was known are read with the embedded one, which
/// applied to nothing in them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// The limits of the correctness gate.
    pub correctness: CorrectnessLimits,
    /// How kernels on the CPU are timed.
    pub timing: TimingPolicy,
    /// How kernels on a GPU are timed: by each of two timers.
    #[serde(default = "embedded::cuda_timing")]
    pub cuda_timing: TimingPolicy,
    /// The limits of the resource gate.
    #[serde(default = "embedded::resource")]
    pub resource: ResourcePolicy,
    /// What a stage must gain.
    #[serde(default = "embedded::performance")]
    pub performance: PerformancePolicy,
}

/// The sections that files must have and old records lack.
const LATER_SECTIONS: &[&str] = &[
    "cuda_timing",
    "resource",
    "performance",
    "correctness.tolerance.f16",
    "correctness.tolerance.fp8",
    "correctness.tolerance.bf16",
    "correctness.tolerance.fp8-peer",
    "correctness.tolerance.fast",
    "correctness.tolerance.balanced",
    "correctness.tolerance.exact-exp",
    "correctness.tolerance.precise",
];

/// What old records are read with.
mod embedded {
    use super::{PerformancePolicy, ResourcePolicy, Thresholds, TimingPolicy, Tolerance};

    pub fn cuda_timing() -> TimingPolicy {
        Thresholds::embedded().cuda_timing
    }

    pub fn resource() -> ResourcePolicy {
        Thresholds::embedded().resource
    }

    pub fn performance() -> PerformancePolicy {
        Thresholds::embedded().performance
    }

    pub fn f16() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.f16
    }

    pub fn fp8() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.fp8
    }

    pub fn bf16() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.bf16
    }

    pub fn fp8_peer() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.fp8_peer
    }

    pub fn fast() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.fast
    }

    pub fn balanced() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.balanced
    }

    pub fn exact_exp() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.exact_exp
    }

    pub fn precise() -> Tolerance {
        Thresholds::embedded().correctness.tolerance.precise
    }
}

/// What a stage must gain over the one before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerformancePolicy {
    /// 0.1 asks for a speed-up of 1.1.
    pub required_gain: f64,
}

/// How kernels are timed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingPolicy {
    /// Runs before the first that counts.
    pub warmup_iterations: usize,
    /// Warm-up ends early after this long.
    pub warmup_max_seconds: f64,
    /// Runs that count.
    pub iterations: usize,
    /// Runs that count at the very least, however slow the kernel.
    pub min_iterations: usize,
    /// Beyond this long no further runs are counted.
    pub max_seconds_per_cell: f64,
}

/// The limits of the correctness gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorrectnessLimits {
    /// Limits of the kernel's own error that hold for every variant.
    pub kernel: KernelLimits,
    /// How much is compared with the float64 reference.
    pub reference: ReferencePolicy,
    /// The tolerance that each number path declares.
    pub tolerance: Tolerances,
    /// The limits of the end-to-end error.
    pub end_to_end: EndToEnd,
}

/// Limits of the kernel's own error that hold for every variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelLimits {
    /// The largest error.
    pub max_abs: f64,
    /// The mean magnitude of the errors.
    pub mean_abs: f64,
    /// The share of bad elements.
    pub bad_fraction: f64,
    /// An element is bad above `bad_atol + bad_rtol · |reference|`.
    pub bad_atol: f64,
    /// See `bad_atol`.
    pub bad_rtol: f64,
}

/// How much is compared with the float64 reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferencePolicy {
    /// Problems of more arithmetic than this are compared on a sample of row blocks.
    pub max_gflop: f64,
    /// Rows per block of the sample.
    pub block_rows: usize,
}

/// The tolerance that each number path declares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerances {
    /// The path with f32 products.
    pub f32: Tolerance,
    /// The path with 16-bit fixed-point products.
    pub i16: Tolerance,
    /// GPU kernels whose softmax weights are f16.
    #[serde(default = "embedded::f16")]
    pub f16: Tolerance,
    /// GPU kernels whose softmax weights are FP8.
    #[serde(default = "embedded::fp8")]
    pub fp8: Tolerance,
    /// Peers that compute on bf16 inputs.
    #[serde(default = "embedded::bf16")]
    pub bf16: Tolerance,
    /// Peers that compute on FP8 inputs.
    #[serde(default = "embedded::fp8_peer", rename = "fp8-peer")]
    pub fp8_peer: Tolerance,
    /// The hopper kernel, accuracy `fast`.
    #[serde(default = "embedded::fast")]
    pub fast: Tolerance,
    /// The hopper kernel, accuracy `balanced`.
    #[serde(default = "embedded::balanced")]
    pub balanced: Tolerance,
    /// The hopper kernel, accuracy `exact-exp`.
    #[serde(default = "embedded::exact_exp", rename = "exact-exp")]
    pub exact_exp: Tolerance,
    /// The hopper kernel, accuracy `precise`.
    #[serde(default = "embedded::precise")]
    pub precise: Tolerance,
}

impl Tolerances {
    fn all(&self) -> [(&'static str, &Tolerance); 10] {
        [
            ("f32", &self.f32),
            ("i16", &self.i16),
            ("f16", &self.f16),
            ("fp8", &self.fp8),
            ("bf16", &self.bf16),
            ("fp8-peer", &self.fp8_peer),
            ("fast", &self.fast),
            ("balanced", &self.balanced),
            ("exact-exp", &self.exact_exp),
            ("precise", &self.precise),
        ]
    }
}

/// The error that a number path declares for itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// The relative L2 norm of the kernel's own error, on families that are not named below.
    pub relative_l2: f64,
    /// The largest error of the log-sum-exp, in nats ...
    pub lse_nats: f64,
    /// ... plus this share of the largest log-sum-exp.
    pub lse_relative: f64,
    /// The largest error, if the path's arithmetic is too coarse for the limit of all variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_abs: Option<f64>,
    /// Where an element is bad, if the path's arithmetic is too coarse for the limit of all variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad: Option<BadElement>,
    /// The relative L2 norm on these families.
    pub families: BTreeMap<Family, f64>,
    /// The relative L2 norm on these families where a query sees many keys, and errors of the weights average out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub many_keys: BTreeMap<Family, f64>,
}

/// Keys that are many.
const MANY_KEYS: usize = 512;

/// An element is bad above `atol + rtol · |reference|`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadElement {
    /// The part that does not depend on the reference.
    pub atol: f64,
    /// The part that grows with it.
    pub rtol: f64,
}

impl Tolerance {
    /// The relative L2 norm allowed on a family, or on a user's own inputs, where there are this many keys.
    pub fn relative_l2(&self, family: Option<Family>, key_len: usize) -> f64 {
        let of_many = family.filter(|_| key_len >= MANY_KEYS).and_then(|family| self.many_keys.get(&family));
        let of_family = family.and_then(|family| self.families.get(&family));
        of_many.or(of_family).copied().unwrap_or(self.relative_l2)
    }
}

/// The limits of the end-to-end error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndToEnd {
    /// How much more E5M2 may cost than E4M3: this for the relative L2 norm, its square for 1 − cosine.
    pub e5m2_factor: f64,
    /// On a user's own inputs.
    pub user: EndToEndLimits,
    /// On each family.
    pub families: BTreeMap<Family, EndToEndLimits>,
}

/// The limits of the end-to-end error on one kind of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndToEndLimits {
    /// The largest relative L2 norm.
    pub relative_l2: f64,
    /// The smallest cosine.
    pub cosine: f64,
}

const EMBEDDED: &str = include_str!("../../gates.toml");

impl Thresholds {
    /// The limits that come with this program.
    pub fn embedded() -> Self {
        Thresholds::parse(EMBEDDED, "gates.toml").expect("a test parses the embedded file")
    }

    /// The text of the embedded file, with its comments: where a file of one's own starts from.
    pub fn embedded_text() -> &'static str {
        EMBEDDED
    }

    /// The limits in a file of the user's.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::invalid(
                "gates",
                format!("{} cannot be read: {error}", path.display()),
                "give the path of a TOML file, or leave it out for the embedded limits",
            )
        })?;
        Thresholds::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, name: &str) -> Result<Self> {
        let thresholds: Thresholds = toml::from_str(text).map_err(|error: toml::de::Error| {
            let place = error
                .span()
                .map_or(String::new(), |span| format!(" line {}", text[..span.start].matches('\n').count() + 1));
            // The parser's messages may span lines; errors here are one.
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            Error::invalid("gates", format!("{name}{place}: {message}"), "compare with the embedded gates.toml")
        })?;
        check_sections(text, name)?;
        thresholds.check_ranges(name)?;
        thresholds.resource.check(name)?;
        Ok(thresholds)
    }

    /// The tolerance that a variant declares.
    pub fn tolerance(&self, variant: &Variant) -> &Tolerance {
        let tolerances = &self.correctness.tolerance;
        match variant {
            Variant::Cpu(config) if config.numbers == Numbers::Int16 => &tolerances.i16,
            Variant::Ladder(config) if config.pv == Pv::Fp8 => &tolerances.fp8,
            Variant::Ladder(_) => &tolerances.f16,
            Variant::Hopper(config) => self.tolerance_of(config.accuracy()),
            _ => &tolerances.f32,
        }
    }

    /// The tolerance of a kernel that was picked for this accuracy.
    pub fn tolerance_of(&self, accuracy: Accuracy) -> &Tolerance {
        let tolerances = &self.correctness.tolerance;
        match accuracy {
            Accuracy::Fast => &tolerances.fast,
            Accuracy::Balanced => &tolerances.balanced,
            Accuracy::ExactExp => &tolerances.exact_exp,
            Accuracy::Precise => &tolerances.precise,
        }
    }

    /// The end-to-end limits of a family, or of a user's own inputs, in an input format.
    pub fn end_to_end(&self, family: Option<Family>, format: Fp8Format) -> EndToEndLimits {
        let EndToEnd { user, families, e5m2_factor } = &self.correctness.end_to_end;
        let limits = family.map_or(user, |family| &families[&family]);
        let factor = if format == Fp8Format::E5m2 { *e5m2_factor } else { 1.0 };
        EndToEndLimits {
            relative_l2: limits.relative_l2 * factor,
            cosine: 1.0 - (1.0 - limits.cosine) * factor * factor,
        }
    }

    fn check_ranges(&self, name: &str) -> Result<()> {
        let invalid =
            |key: String, rule: String, fix: &str| Error::invalid("gates", format!("{name}: {key} {rule}"), fix);
        let CorrectnessLimits { kernel, reference, tolerance, end_to_end } = &self.correctness;
        let missing = Family::ALL.iter().find(|family| !end_to_end.families.contains_key(family));
        if let Some(family) = missing {
            return Err(invalid(
                format!("correctness.end_to_end.families.{family}"),
                "is missing".into(),
                "give every family its relative_l2 and cosine",
            ));
        }

        let mut positive = vec![
            ("timing.warmup_max_seconds".to_string(), self.timing.warmup_max_seconds),
            ("timing.max_seconds_per_cell".into(), self.timing.max_seconds_per_cell),
            ("timing.min_iterations".into(), self.timing.min_iterations as f64),
            ("cuda_timing.warmup_max_seconds".into(), self.cuda_timing.warmup_max_seconds),
            ("cuda_timing.max_seconds_per_cell".into(), self.cuda_timing.max_seconds_per_cell),
            ("cuda_timing.min_iterations".into(), self.cuda_timing.min_iterations as f64),
            ("performance.required_gain".into(), self.performance.required_gain),
            ("correctness.kernel.max_abs".into(), kernel.max_abs),
            ("correctness.kernel.mean_abs".into(), kernel.mean_abs),
            ("correctness.kernel.bad_fraction".into(), kernel.bad_fraction),
            ("correctness.kernel.bad_atol".into(), kernel.bad_atol),
            ("correctness.kernel.bad_rtol".into(), kernel.bad_rtol),
            ("correctness.end_to_end.e5m2_factor".into(), end_to_end.e5m2_factor),
            ("correctness.reference.max_gflop".into(), reference.max_gflop),
            ("correctness.reference.block_rows".into(), reference.block_rows as f64),
        ];
        for (path, tolerance) in tolerance.all() {
            let prefix = format!("correctness.tolerance.{path}");
            positive.push((format!("{prefix}.relative_l2"), tolerance.relative_l2));
            positive.push((format!("{prefix}.lse_nats"), tolerance.lse_nats));
            positive.push((format!("{prefix}.lse_relative"), tolerance.lse_relative));
            for (table, families) in [("families", &tolerance.families), ("many_keys", &tolerance.many_keys)] {
                for (family, relative_l2) in families {
                    positive.push((format!("{prefix}.{table}.{family}"), *relative_l2));
                }
            }
            positive.extend(tolerance.max_abs.map(|max_abs| (format!("{prefix}.max_abs"), max_abs)));
            if let Some(BadElement { atol, rtol }) = tolerance.bad {
                positive.push((format!("{prefix}.bad.atol"), atol));
                positive.push((format!("{prefix}.bad.rtol"), rtol));
            }
        }
        let families = end_to_end.families.iter().map(|(family, limits)| (format!("families.{family}"), limits));
        for (key, limits) in families.chain([("user".to_string(), &end_to_end.user)]) {
            let prefix = format!("correctness.end_to_end.{key}");
            positive.push((format!("{prefix}.relative_l2"), limits.relative_l2));
            positive.push((format!("{prefix}.cosine"), limits.cosine));
            if limits.cosine > 1.0 {
                let rule = format!("is {}, but no cosine is above 1", limits.cosine);
                return Err(invalid(format!("{prefix}.cosine"), rule, "give a number from 0 to 1"));
            }
        }
        if let Some((key, value)) = positive.into_iter().find(|(_, value)| !value.is_finite() || *value <= 0.0) {
            return Err(invalid(key, format!("is {value}, but must be finite and above 0"), "give a positive number"));
        }

        if kernel.bad_fraction >= 1.0 {
            let rule = format!("is {}, which nothing can fail", kernel.bad_fraction);
            return Err(invalid("correctness.kernel.bad_fraction".into(), rule, "give a share below 1"));
        }
        let of_paths = tolerance.all().map(|(path, tolerance)| {
            (format!("correctness.tolerance.{path}.bad.atol"), tolerance.bad.map_or(0.0, |bad| bad.atol))
        });
        let of_all = [("correctness.kernel.bad_atol".to_string(), kernel.bad_atol)];
        if let Some((key, atol)) = of_all.into_iter().chain(of_paths).find(|(_, atol)| *atol >= kernel.max_abs) {
            let rule = format!("is {atol}, not below max_abs {}: the check would be implied by it", kernel.max_abs);
            return Err(invalid(key, rule, "give a tighter one"));
        }
        for (section, timing) in [("timing", &self.timing), ("cuda_timing", &self.cuda_timing)] {
            if timing.iterations < timing.min_iterations {
                let rule = format!("is {}, below min_iterations {}", timing.iterations, timing.min_iterations);
                return Err(invalid(format!("{section}.iterations"), rule, "raise the one or lower the other"));
            }
        }
        Ok(())
    }
}

/// An error if a section is missing that serde would fill in for the sake of old records.
fn check_sections(text: &str, name: &str) -> Result<()> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let missing = LATER_SECTIONS.iter().find(|path| {
        let mut keys = path.split('.');
        let first = keys.next().and_then(|key| table.get(key));
        keys.fold(first, |value, key| value.and_then(|value| value.get(key))).is_none()
    });
    match missing {
        Some(section) => Err(Error::invalid(
            "gates",
            format!("{name}: {section} is missing"),
            "copy the section from the embedded gates.toml",
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error after one replacement in the embedded file.
    fn error_after(from: &str, to: &str) -> String {
        assert!(EMBEDDED.contains(from), "gates.toml has no `{from}`");
        Thresholds::parse(&EMBEDDED.replacen(from, to, 1), "mine.toml").unwrap_err().to_string()
    }

    #[test]
    fn the_embedded_file_holds() {
        let thresholds = Thresholds::embedded();
        assert_eq!(thresholds.correctness.kernel.max_abs, 0.06);
        assert_eq!(thresholds.correctness.kernel.mean_abs, 0.02);
        assert_eq!(thresholds.correctness.kernel.bad_fraction, 0.01);
        assert_eq!(thresholds.timing.iterations, 100);
        let again: Thresholds = toml::from_str(&toml::to_string(&thresholds).unwrap()).unwrap();
        assert_eq!(again, thresholds);
    }

    #[test]
    fn every_variant_declares_its_paths_tolerance() {
        let thresholds = Thresholds::embedded();
        let gaussian =
            |variant: &str| thresholds.tolerance(&variant.parse().unwrap()).relative_l2(Some(Family::Gaussian), 512);
        assert_eq!(gaussian("cpu:baseline"), 2e-6);
        assert_eq!(gaussian("cpu:numbers=i16,simd=portable"), 3e-4);
        for family in Family::ALL {
            assert!(thresholds.correctness.tolerance.i16.relative_l2(Some(*family), 512) <= 3e-3);
        }
    }

    #[test]
    fn accuracies_are_held_to_their_word() {
        let thresholds = Thresholds::embedded();
        for accuracy in Accuracy::ALL {
            let tolerance = thresholds.tolerance(&format!("hopper:{accuracy}").parse().unwrap());
            assert_eq!(tolerance.relative_l2(Some(Family::Gaussian), 512), accuracy.within(), "{accuracy}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = error_after("max_abs = 0.06", "max_abz = 0.06");
        let line = EMBEDDED.lines().position(|line| line == "max_abs = 0.06").unwrap() + 1;
        assert!(error.contains("unknown field `max_abz`"), "{error}");
        assert!(error.contains(&format!("mine.toml line {line}:")), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn an_unknown_family_is_named() {
        let error = error_after("families.huge]", "families.hugh]");
        assert!(error.contains("`hugh`"), "{error}");
    }

    #[test]
    fn a_missing_family_is_named() {
        let start = EMBEDDED.find("[correctness.end_to_end.families.huge]").unwrap();
        let end = start + 1 + EMBEDDED[start + 1..].find('[').unwrap();
        let error = error_after(&EMBEDDED[start..end], "");
        assert!(error.contains("correctness.end_to_end.families.huge is missing"), "{error}");
    }

    #[test]
    fn values_out_of_range_are_named_with_the_fix() {
        let cases = [
            ("max_abs = 0.06", "max_abs = -1.0", "correctness.kernel.max_abs is -1"),
            ("mean_abs = 0.02", "mean_abs = nan", "correctness.kernel.mean_abs is NaN"),
            ("bad_fraction = 0.01", "bad_fraction = 1.0", "correctness.kernel.bad_fraction is 1"),
            ("bad_atol = 0.002", "bad_atol = 0.06", "correctness.kernel.bad_atol is 0.06"),
            ("min_iterations = 3", "min_iterations = 0", "timing.min_iterations is 0"),
            ("min_iterations = 3", "min_iterations = 101", "timing.iterations is 100"),
            ("min_iterations = 20", "min_iterations = 201", "cuda_timing.iterations is 200"),
            ("required_gain = 0.10", "required_gain = -0.10", "performance.required_gain is -0.1"),
            ("bad = { atol = 0.03", "bad = { atol = 0.06", "correctness.tolerance.fp8.bad.atol is 0.06"),
            ("[resource.targets.sm_89]", "[resource.targets.sm_88]", "resource.targets.sm_89 is missing"),
            (
                "[resource.targets.sm_89]",
                "[resource.targets.sm_88]\nshared_bytes = 1\n[resource.targets.sm_89]",
                "resource.targets.sm_88 is no architecture",
            ),
            ("cosine = 0.", "cosine = 1.", "but no cosine is above 1"),
            ("block_rows = 32", "block_rows = 0", "correctness.reference.block_rows is 0"),
        ];
        for (from, to, expected) in cases {
            let error = error_after(from, to);
            assert!(error.contains(expected), "{error}");
            assert!(error.starts_with("gates: mine.toml: "), "{error}");
        }
    }

    #[test]
    fn a_file_must_hold_the_sections_that_old_records_lack() {
        let table: toml::Table = EMBEDDED.parse().unwrap();
        for section in ["cuda_timing", "resource", "performance"] {
            let mut partial = table.clone();
            partial.remove(section);
            let error = Thresholds::parse(&partial.to_string(), "mine.toml").unwrap_err().to_string();
            assert!(error.contains(&format!("mine.toml: {section} is missing")), "{error}");
        }
        let mut old = toml::Table::new();
        for section in ["timing", "correctness"] {
            old.insert(section.into(), table[section].clone());
        }
        for path in ["f16", "fp8", "bf16", "fp8-peer", "fast", "balanced", "exact-exp", "precise"] {
            old["correctness"]["tolerance"].as_table_mut().unwrap().remove(path);
        }
        let read: Thresholds = toml::from_str(&old.to_string()).unwrap();
        assert_eq!(read, Thresholds::embedded());
    }

    #[test]
    fn gpu_kernels_declare_what_their_weights_are_rounded_to() {
        let thresholds = Thresholds::embedded();
        for stage in eightfold::cuda::ladder::STAGES {
            let tolerance = thresholds.tolerance(&Variant::Ladder(stage.config));
            let expected = if stage.name == "fp8-mma" {
                &thresholds.correctness.tolerance.fp8
            } else {
                &thresholds.correctness.tolerance.f16
            };
            assert_eq!(tolerance, expected, "{}", stage.name);
        }
    }

    #[test]
    fn every_accuracy_declares_its_limits() {
        let thresholds = Thresholds::embedded();
        for (stage, gaussian) in [("fast", 31e-3), ("balanced", 28.5e-3), ("exact-exp", 26e-3), ("precise", 3e-3)] {
            let tolerance = thresholds.tolerance(&format!("hopper:{stage}").parse().unwrap());
            assert_eq!(tolerance.relative_l2(Some(Family::Gaussian), 512), gaussian, "{stage}");
            assert!(tolerance.relative_l2(Some(Family::BiasedValues), 512) <= 5e-3, "{stage}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_or_not_toml_is_said_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gates.toml");
        let error = Thresholds::load(&path).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
        std::fs::write(&path, "[timing\n").unwrap();
        let error = Thresholds::load(&path).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
        std::fs::write(&path, EMBEDDED).unwrap();
        assert_eq!(Thresholds::load(&path).unwrap(), Thresholds::embedded());
    }
}
