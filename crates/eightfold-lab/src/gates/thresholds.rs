//! The limits of the gates, as data: `gates.toml`.

use super::resource_limits::ResourcePolicy;
use super::speed::{PerformancePolicy, ProfilePolicy};
use crate::inputs::Family;
use eightfold::lab::Config;
use eightfold::lab::cpu::Numbers;
use eightfold::lab::hopper::Scores;
use eightfold::lab::ladder::Pv;
use eightfold::{Accuracy, Error, Fp8Format, Result, Variant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Every limit and policy of the gates. A file must hold every section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// The limits of the correctness gate.
    pub correctness: CorrectnessLimits,
    /// How kernels on the CPU are timed.
    pub timing: TimingPolicy,
    /// How kernels on a GPU are timed: by each of two timers.
    pub cuda_timing: TimingPolicy,
    /// The limits of the resource gate.
    pub resource: ResourcePolicy,
    /// What a stage must gain.
    pub performance: PerformancePolicy,
    /// What a profile must show.
    pub profile: ProfilePolicy,
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
    /// The path with products of bf16, whose weights are each one bf16.
    #[serde(rename = "bf16-weights")]
    pub bf16_weights: Tolerance,
    /// The same with weights of two bf16.
    #[serde(rename = "bf16x2-weights")]
    pub bf16x2_weights: Tolerance,
    /// GPU kernels whose softmax weights are f16.
    pub f16: Tolerance,
    /// GPU kernels whose softmax weights are FP8.
    pub fp8: Tolerance,
    /// Peers that compute on bf16 inputs.
    pub bf16: Tolerance,
    /// Peers that compute on FP8 inputs.
    #[serde(rename = "fp8-peer")]
    pub fp8_peer: Tolerance,
    /// The hopper kernel, accuracy `fast`.
    pub fast: Tolerance,
    /// The hopper kernel, accuracy `balanced`.
    pub balanced: Tolerance,
    /// The hopper kernel, accuracy `exact-exp`.
    #[serde(rename = "exact-exp")]
    pub exact_exp: Tolerance,
    /// The hopper kernel, accuracy `precise`.
    pub precise: Tolerance,
    /// The same four with scores of INT8.
    #[serde(rename = "int8-fast")]
    pub int8_fast: Tolerance,
    /// See `int8_fast`.
    #[serde(rename = "int8-balanced")]
    pub int8_balanced: Tolerance,
    /// See `int8_fast`.
    #[serde(rename = "int8-exact-exp")]
    pub int8_exact_exp: Tolerance,
    /// See `int8_fast`.
    #[serde(rename = "int8-precise")]
    pub int8_precise: Tolerance,
}

impl Tolerances {
    /// The name of one of these.
    pub fn name_of(&self, tolerance: &Tolerance) -> &'static str {
        self.all().into_iter().find(|(_, one)| std::ptr::eq(*one, tolerance)).map_or("own", |(name, _)| name)
    }

    /// Every path by its name in the file.
    pub fn all(&self) -> [(&'static str, &Tolerance); 16] {
        [
            ("f32", &self.f32),
            ("i16", &self.i16),
            ("bf16-weights", &self.bf16_weights),
            ("bf16x2-weights", &self.bf16x2_weights),
            ("f16", &self.f16),
            ("fp8", &self.fp8),
            ("bf16", &self.bf16),
            ("fp8-peer", &self.fp8_peer),
            ("fast", &self.fast),
            ("balanced", &self.balanced),
            ("exact-exp", &self.exact_exp),
            ("precise", &self.precise),
            ("int8-fast", &self.int8_fast),
            ("int8-balanced", &self.int8_balanced),
            ("int8-exact-exp", &self.int8_exact_exp),
            ("int8-precise", &self.int8_precise),
        ]
    }
}

/// The error that a number path declares for itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// The largest error of the log-sum-exp, in nats ...
    pub lse_nats: f64,
    /// ... plus this share of the largest log-sum-exp.
    pub lse_relative: f64,
    /// The largest error of the log-sum-exp that records hold, but for families of large scores; none where none is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lse_measured: Option<f64>,
    /// Where an element is bad, if the path's arithmetic is too coarse for the limit of all variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad: Option<BadElement>,
    /// On a user's own inputs, and on families that are not named below.
    pub user: ErrorLimits,
    /// On each family of inputs.
    pub families: BTreeMap<Family, ErrorLimits>,
    /// On these families where a query sees many keys, and errors of the weights average out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub many_keys: BTreeMap<Family, ErrorLimits>,
}

/// How wrong a path may be on one kind of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorLimits {
    /// The relative L2 norm of the error over all rows.
    pub relative_l2: f64,
    /// The relative L2 norm of the worst row; none in records from before there was such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_row: Option<f64>,
    /// The largest error of one element.
    pub max_abs: f64,
    /// The largest values that records hold; none for a user's own inputs, which nobody has measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// The largest errors that were measured, of which a limit is at most three times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// See [`ErrorLimits`].
    pub relative_l2: f64,
    /// See [`ErrorLimits`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_row: Option<f64>,
    /// See [`ErrorLimits`].
    pub max_abs: f64,
}

/// How many times the largest measured error a limit may be.
const MOST_ROOM: f64 = 3.0;

impl ErrorLimits {
    /// What was measured and each limit beside it, where both are known.
    fn pairs(&self) -> impl Iterator<Item = (&'static str, f64, f64)> {
        let measured = self.measured.unwrap_or_default();
        let all = [
            ("relative_l2", Some(self.relative_l2), Some(measured.relative_l2)),
            ("worst_row", self.worst_row, measured.worst_row),
            ("max_abs", Some(self.max_abs), Some(measured.max_abs)),
        ];
        let is_measured = self.measured.is_some();
        all.into_iter()
            .filter_map(move |(name, limit, measured)| Some((name, limit?, measured?)))
            .filter(move |_| is_measured)
    }

    fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all =
            [("relative_l2", Some(self.relative_l2)), ("worst_row", self.worst_row), ("max_abs", Some(self.max_abs))];
        all.into_iter().filter_map(|(name, limit)| Some((name, limit?)))
    }
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
    /// What is allowed on a family, or on a user's own inputs, where there are this many keys.
    pub fn of(&self, family: Option<Family>, key_len: usize) -> &ErrorLimits {
        self.row(family, key_len).1
    }

    /// The same with the name of its row.
    pub fn row(&self, family: Option<Family>, key_len: usize) -> (String, &ErrorLimits) {
        let Some(family) = family else { return ("user".into(), &self.user) };
        let of_many = self.many_keys.get(&family).filter(|_| key_len >= MANY_KEYS);
        match (of_many, self.families.get(&family)) {
            (Some(limits), _) => (format!("many_keys.{family}"), limits),
            (None, Some(limits)) => (format!("families.{family}"), limits),
            (None, None) => ("user".into(), &self.user),
        }
    }

    /// The first row of a family that lacks a limit of its rows, or what was measured.
    fn unmeasured(&self) -> Option<(String, &'static str)> {
        let of_families = self.rows().filter(|(row, _)| row != "user");
        of_families.into_iter().find_map(|(row, limits)| match (limits.worst_row, limits.measured) {
            (None, _) => Some((row, "worst_row")),
            (_, None) => Some((row, "measured")),
            (_, Some(Measured { worst_row: None, .. })) => Some((row, "measured.worst_row")),
            _ => None,
        })
    }

    /// A limit for a user's own inputs that is wider than that of every family.
    fn user_beyond_families(&self) -> Option<(&'static str, f64, f64)> {
        self.user.numbers().find_map(|(name, limit)| {
            let of_families = self.families.values().flat_map(ErrorLimits::numbers);
            let loosest = of_families.filter(|(other, _)| *other == name).map(|(_, limit)| limit).fold(0.0, f64::max);
            // Of max_abs the units differ.
            (name != "max_abs" && limit > loosest).then_some((name, limit, loosest))
        })
    }

    /// Every row with its key in the file.
    pub fn rows(&self) -> impl Iterator<Item = (String, &ErrorLimits)> {
        let named = [("families", &self.families), ("many_keys", &self.many_keys)];
        let rows = named
            .into_iter()
            .flat_map(|(table, rows)| rows.iter().map(move |(family, row)| (format!("{table}.{family}"), row)));
        rows.chain([("user".to_string(), &self.user)])
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
    /// On those that Q and K in INT8 are judged by in another way: those of E4M3 are for the rest.
    #[serde(default)]
    pub int8: BTreeMap<Family, EndToEndLimits>,
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

/// Whether a variant's scores are of INT8.
pub(crate) fn is_int8(variant: &Variant) -> bool {
    matches!(variant, Variant::Cuda(Config::Hopper(config)) if config.scores == Scores::S32)
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
        thresholds.check_ranges(name)?;
        thresholds.performance.check(name)?;
        thresholds.resource.check(name)?;
        Ok(thresholds)
    }

    /// The tolerance that a variant declares.
    pub fn tolerance(&self, variant: &Variant) -> &Tolerance {
        let tolerances = &self.correctness.tolerance;
        match variant {
            Variant::Cpu(config) => match config.numbers {
                Numbers::F32 => &tolerances.f32,
                Numbers::Int16 => &tolerances.i16,
                Numbers::Bf16 => &tolerances.bf16_weights,
                Numbers::Bf16x2 => &tolerances.bf16x2_weights,
            },
            Variant::Cuda(Config::Ladder(config)) if config.pv == Pv::Fp8 => &tolerances.fp8,
            Variant::Cuda(Config::Ladder(_)) => &tolerances.f16,
            Variant::Cuda(Config::Hopper(config)) => self.tolerance_of(config.accuracy(), is_int8(variant)),
            _ => &tolerances.f32,
        }
    }

    /// The tolerance of a kernel that was picked for this accuracy, with scores of INT8 or of FP8.
    pub fn tolerance_of(&self, accuracy: Accuracy, int8: bool) -> &Tolerance {
        let tolerances = &self.correctness.tolerance;
        match accuracy {
            Accuracy::Fast if int8 => &tolerances.int8_fast,
            Accuracy::Balanced if int8 => &tolerances.int8_balanced,
            Accuracy::ExactExp if int8 => &tolerances.int8_exact_exp,
            _ if int8 => &tolerances.int8_precise,
            Accuracy::Fast => &tolerances.fast,
            Accuracy::Balanced => &tolerances.balanced,
            Accuracy::ExactExp => &tolerances.exact_exp,
            // The strictest is for whatever else there may be.
            _ => &tolerances.precise,
        }
    }

    /// The end-to-end limits of a family, or of a user's own inputs, in an input format.
    pub fn end_to_end(&self, family: Option<Family>, format: Fp8Format) -> EndToEndLimits {
        let EndToEnd { user, families, e5m2_factor, int8 } = &self.correctness.end_to_end;
        let of_int8 = |family: Family| int8.get(&family).filter(|_| format == Fp8Format::Int8);
        let limits = family.map_or(user, |family| of_int8(family).unwrap_or(&families[&family]));
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
            ("correctness.kernel.max_abs".into(), kernel.max_abs),
            ("correctness.kernel.mean_abs".into(), kernel.mean_abs),
            ("correctness.kernel.bad_fraction".into(), kernel.bad_fraction),
            ("correctness.kernel.bad_atol".into(), kernel.bad_atol),
            ("correctness.kernel.bad_rtol".into(), kernel.bad_rtol),
            ("correctness.end_to_end.e5m2_factor".into(), end_to_end.e5m2_factor),
            ("correctness.reference.max_gflop".into(), reference.max_gflop),
            ("correctness.reference.block_rows".into(), reference.block_rows as f64),
        ];
        positive.extend(self.performance.numbers().chain(self.profile.positive()));
        for (path, tolerance) in tolerance.all() {
            let prefix = format!("correctness.tolerance.{path}");
            positive.push((format!("{prefix}.lse_nats"), tolerance.lse_nats));
            positive.push((format!("{prefix}.lse_relative"), tolerance.lse_relative));
            if let Some((row, what)) = tolerance.unmeasured() {
                let rule = "is missing: a limit is judged by what was measured";
                let fix = "give every family's row its worst_row and its measured values";
                return Err(invalid(format!("{prefix}.{row}.{what}"), rule.into(), fix));
            }
            if let Some((name, limit, loosest)) = tolerance.user_beyond_families() {
                let rule = format!("is {limit}, and no family may be further off than {loosest}");
                let fix = "give a user's own inputs no more than the loosest family";
                return Err(invalid(format!("{prefix}.user.{name}"), rule, fix));
            }
            for (row, limits) in tolerance.rows() {
                positive.extend(limits.numbers().map(|(name, limit)| (format!("{prefix}.{row}.{name}"), limit)));
                for (name, limit, measured) in limits.pairs() {
                    if !(measured..=MOST_ROOM * measured).contains(&limit) {
                        let rule = format!("is {limit}, where {measured} was measured");
                        let fix = "give a limit from what was measured to three times that";
                        return Err(invalid(format!("{prefix}.{row}.{name}"), rule, fix));
                    }
                }
            }
            if let Some(measured) = tolerance.lse_measured.filter(|measured| tolerance.lse_nats > MOST_ROOM * measured)
            {
                let rule = format!("is {}, where {measured} was measured", tolerance.lse_nats);
                return Err(invalid(format!("{prefix}.lse_nats"), rule, "give at most three times what was measured"));
            }
            if let Some(BadElement { atol, rtol }) = tolerance.bad {
                positive.push((format!("{prefix}.bad.atol"), atol));
                positive.push((format!("{prefix}.bad.rtol"), rtol));
            }
        }
        let named = [("families", &end_to_end.families), ("int8", &end_to_end.int8)];
        let families = named
            .into_iter()
            .flat_map(|(table, rows)| rows.iter().map(move |(family, limits)| (format!("{table}.{family}"), limits)));
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
            |variant: &str| thresholds.tolerance(&variant.parse().unwrap()).of(Some(Family::Gaussian), 512).relative_l2;
        assert_eq!(gaussian("cpu:baseline"), 1.7e-6);
        assert_eq!(gaussian("cpu:numbers=i16,simd=portable"), 3e-4);
        assert!(gaussian("cpu:amx") <= 6e-3 && gaussian("cpu:amx,numbers=bf16x2") <= 2e-5);
        for family in Family::ALL {
            assert!(thresholds.correctness.tolerance.i16.of(Some(*family), 512).relative_l2 <= 3e-3);
        }
    }

    #[test]
    fn accuracies_are_held_to_their_word() {
        let thresholds = Thresholds::embedded();
        for accuracy in Accuracy::ALL {
            let tolerance = thresholds.tolerance(&format!("hopper:{accuracy}").parse().unwrap());
            assert_eq!(tolerance.of(Some(Family::Gaussian), 512).relative_l2, accuracy.within(), "{accuracy}");
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
            ("mma-pv\" = 0.15", "mma-pw\" = 0.15", "performance.stages.ladder:mma-pw is no stage"),
            ("mma-pv\" = 0.15", "mma-pv\" = 0.0", "performance.stages.ladder:mma-pv is 0"),
            ("tensor_least_percent = 50", "tensor_least_percent = 0", "profile.tensor_least_percent is 0"),
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
    fn a_limit_beyond_what_was_measured_is_refused() {
        let row = |path: &str| format!("correctness.tolerance.{path}");
        let cases = [
            // Three times 0.0301 is 0.0903.
            (
                "gaussian = { relative_l2 = 0.031,",
                "gaussian = { relative_l2 = 0.0904,",
                row("fast.families.gaussian.relative_l2 is 0.0904"),
            ),
            (
                "gaussian = { relative_l2 = 0.031,",
                "gaussian = { relative_l2 = 0.03,",
                row("fast.families.gaussian.relative_l2 is 0.03"),
            ),
            (
                "worst_row = 0.1, max_abs = 0.12",
                "worst_row = 0.2, max_abs = 0.12",
                row("fast.families.gaussian.worst_row is 0.2"),
            ),
            (
                "worst_row = 0.1, max_abs = 0.12",
                "worst_row = 0.1, max_abs = 12",
                row("fast.families.gaussian.max_abs is 12"),
            ),
            ("worst_row = 0.1, max_abs = 0.12", "max_abs = 0.12", row("fast.families.gaussian.worst_row is missing")),
            (
                "measured = { relative_l2 = 0.0301, worst_row = 0.0626,",
                "measured = { relative_l2 = 0.0301,",
                row("fast.families.gaussian.measured.worst_row is missing"),
            ),
            (
                ", measured = { relative_l2 = 0.0301, worst_row = 0.0626, max_abs = 0.0686 }",
                "",
                row("fast.families.gaussian.measured is missing"),
            ),
            ("lse_nats = 2e-4", "lse_nats = 3e-4", row("f16.lse_nats is 0.0003")),
            ("user = { relative_l2 = 0.012", "user = { relative_l2 = 0.12", row("precise.user.relative_l2 is 0.12")),
            (
                "worst_row = 0.24, max_abs = 3 }",
                "worst_row = 0.25, max_abs = 3 }",
                row("fp8-peer.user.worst_row is 0.25"),
            ),
        ];
        for (from, to, expected) in cases {
            let error = error_after(from, to);
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn a_file_must_hold_every_section() {
        let table: toml::Table = EMBEDDED.parse().unwrap();
        for section in ["cuda_timing", "resource", "performance", "correctness", "timing"] {
            let mut partial = table.clone();
            partial.remove(section);
            let error = Thresholds::parse(&partial.to_string(), "mine.toml").unwrap_err().to_string();
            assert!(error.contains(&format!("missing field `{section}`")), "{error}");
        }
    }

    #[test]
    fn gpu_kernels_declare_what_their_weights_are_rounded_to() {
        let thresholds = Thresholds::embedded();
        for stage in eightfold::lab::ladder::STAGES {
            let tolerance = thresholds.tolerance(&stage.config.into());
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
            assert_eq!(tolerance.of(Some(Family::Gaussian), 512).relative_l2, gaussian, "{stage}");
            assert!(tolerance.of(Some(Family::BiasedValues), 512).relative_l2 <= 5e-3, "{stage}");
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
