//! The gate is itself tested: whatever is known to be wrong must be caught, by the check that is meant to.

mod faults;

use eightfold::quantize::Quantizer;
use eightfold::{Fp8Format, Mask, Problem, Shape, Variant};
use eightfold_lab::gates::standard::{StandardCase, odd_cases};
use eightfold_lab::gates::{
    Case, CorrectnessReport, Outcome, PlannedVariant, ReferencePolicy, Subject, Thoroughness, Thresholds, check,
    checks, standard_cases,
};
use eightfold_lab::inputs::{Family, Inputs};
use eightfold_lab::shapes;
use faults::{FAULTS, Fault, Faulty, Kind, Shows};
use std::collections::BTreeSet;
use std::sync::OnceLock;

fn prepare(cases: Vec<StandardCase>) -> Vec<Case> {
    let policy = Thresholds::embedded().correctness.reference;
    let quantizer = Quantizer::new(Fp8Format::E4m3);
    cases.iter().map(|case| case.prepare(&quantizer, &policy).unwrap()).collect()
}

/// The standard cases of a named shape; on the larger one, for the sake of time, only the families that the main job
/// never leaves out.
fn standard(name: &str, mask: Mask) -> Vec<Case> {
    let problem = Problem::new(shapes::parse(name).unwrap().shape).unwrap().with_mask(mask);
    let mut cases = standard_cases(&problem, Thoroughness::Quick);
    if name != "small" {
        cases.retain(|case| matches!(case.family, Family::Gaussian | Family::BiasedValues) && case.seed == 1);
    }
    prepare(cases)
}

/// A name and cases, made once for all tests.
type CaseSet = (&'static str, Vec<Case>);

fn plain_sets() -> &'static [CaseSet] {
    static SETS: OnceLock<Vec<CaseSet>> = OnceLock::new();
    SETS.get_or_init(|| ["small", "mission"].map(|name| (name, standard(name, Mask::None))).into())
}

fn causal_sets() -> &'static [CaseSet] {
    static SETS: OnceLock<Vec<CaseSet>> = OnceLock::new();
    SETS.get_or_init(|| ["small", "mission"].map(|name| (name, standard(name, Mask::Causal))).into())
}

fn odd_sets() -> &'static [CaseSet] {
    static SETS: OnceLock<Vec<CaseSet>> = OnceLock::new();
    SETS.get_or_init(|| vec![("odd problems", prepare(odd_cases().unwrap()))])
}

/// The variant whose declared tolerance is the loosest: what is caught there is caught under the other.
fn loosest() -> Variant {
    "cpu:numbers=i16".parse().unwrap()
}

fn tightest() -> Variant {
    "cpu:queue".parse().unwrap()
}

#[test]
fn the_loosest_tolerance_is_the_loosest() {
    let thresholds = Thresholds::embedded();
    let (loose, tight) = (thresholds.tolerance(&loosest()), thresholds.tolerance(&tightest()));
    for family in Family::ALL.iter().copied().map(Some).chain([None]) {
        assert!(loose.relative_l2(family, 512) >= tight.relative_l2(family, 512), "{family:?}");
    }
    assert!(loose.lse_nats >= tight.lse_nats && loose.lse_relative >= tight.lse_relative);
}

fn gate(subject: &mut dyn Subject, variant: &Variant, cases: &[Case]) -> CorrectnessReport {
    let thresholds = Thresholds::embedded();
    check(subject, cases, thresholds.tolerance(variant), &thresholds)
}

fn failed(report: &CorrectnessReport) -> BTreeSet<String> {
    report.gate.failed().map(|check| check.name.clone()).collect()
}

fn assert_caught(fault: &Fault, sets: &[CaseSet]) {
    let variant = loosest();
    for (name, cases) in sets {
        let report = gate(&mut Faulty::new(variant, fault.kind), &variant, cases);
        let failed = failed(&report);
        let kind = fault.kind;
        println!("{kind:?} on {name}: {}", report.gate.summary);
        assert_eq!(report.gate.outcome, Outcome::Fail, "{kind:?} passes on {name}");
        for expected in fault.seen_by {
            assert!(failed.contains(*expected), "{kind:?} on {name}: `{expected}` did not see it, only {failed:?}");
        }
    }
}

fn assert_all_caught(shows: Shows, sets: &[CaseSet]) {
    let faults: Vec<_> = FAULTS.iter().filter(|fault| fault.shows == shows).collect();
    assert!(!faults.is_empty());
    for fault in faults {
        assert_caught(fault, sets);
    }
}

#[test]
fn faults_that_show_anywhere_are_caught_on_the_standard_shapes() {
    assert_all_caught(Shows::Anywhere, plain_sets());
}

#[test]
fn faults_of_the_causal_mask_are_caught_on_the_standard_shapes() {
    assert_all_caught(Shows::Causal, causal_sets());
}

#[test]
fn faults_that_need_odd_problems_are_caught_there() {
    assert_all_caught(Shows::OnOddProblems, odd_sets());
}

/// Large problems are compared on a sample of rows: what is wrong with every row, or with the last ones, still shows.
#[test]
fn faults_are_caught_on_a_sample_of_rows() {
    let quantizer = Quantizer::new(Fp8Format::E4m3);
    let policy = ReferencePolicy { max_gflop: 0.005, block_rows: 16 };
    let sampled = |mask| -> Vec<CaseSet> {
        let problem = Problem::new(Shape::new(1, 2, 304, 64)).unwrap().with_mask(mask);
        let cases = standard_cases(&problem, Thoroughness::Quick);
        let cases: Vec<_> = cases.iter().map(|case| case.prepare(&quantizer, &policy).unwrap()).collect();
        assert!(cases.iter().all(|case| case.rows_compared() < 2 * 304 / 2));
        vec![("a sample", cases)]
    };
    // One wrong element in the middle is the one thing that a sample may miss.
    let seen_on_samples = |fault: &&Fault| fault.kind != Kind::OneElementWrong;
    for (shows, mask) in [(Shows::Anywhere, Mask::None), (Shows::Causal, Mask::Causal)] {
        let sets = sampled(mask);
        for fault in FAULTS.iter().filter(|fault| fault.shows == shows).filter(seen_on_samples) {
            assert_caught(fault, &sets);
        }
    }
}

#[test]
fn the_same_variants_without_a_fault_pass() {
    for variant in [loosest(), tightest()] {
        for (name, cases) in [plain_sets(), causal_sets(), odd_sets()].into_iter().flatten() {
            let report = gate(&mut PlannedVariant(variant), &variant, cases);
            assert_eq!(report.gate.outcome, Outcome::Pass, "{variant} on {name}: {}", report.gate.summary);
            assert_eq!(report.cases.len(), cases.len());
            assert!(report.cases.iter().all(|case| case.repeatable), "{variant} on {name} is not repeatable");
        }
    }
}

/// A check that nothing can fail would be a decoration.
#[test]
fn every_check_is_failed_by_some_fault() {
    let by_kernels = FAULTS.iter().flat_map(|fault| fault.seen_by).copied();
    let seen: BTreeSet<_> = by_kernels.chain([SEEN_BY_TAMPERING]).collect();
    for name in checks::ALL {
        assert!(seen.contains(name), "no planted fault fails `{name}`");
    }
}

const SEEN_BY_TAMPERING: &str = checks::INPUTS_CHANGED;

/// Safe Rust cannot write through the references that a subject gets, but a kernel behind a foreign interface can:
/// to the gate it looks as if the tensor had been another one since the case was made.
#[test]
fn inputs_that_change_are_caught() {
    let variant = tightest();
    let mut case = plain_sets()[0].1[0].clone();
    std::mem::swap(&mut case.k, &mut case.v);
    let report = gate(&mut PlannedVariant(variant), &variant, &[case]);
    assert!(failed(&report).contains(SEEN_BY_TAMPERING), "{}", report.gate.summary);
}

/// A kernel cannot be blamed for its inputs: the two references keep the two errors apart.
#[test]
fn a_quantiser_that_loses_the_keys_fails_end_to_end_and_not_the_kernel() {
    let variant = tightest();
    let problem = Problem::new(shapes::parse("small").unwrap().shape).unwrap();
    let head_dim = problem.shape().head_dim;
    let mut inputs = Inputs::generate(problem.shape(), Family::Gaussian, 1);
    // One huge key channel that no query looks at: scores are untouched, but the scale of K leaves nothing of the rest.
    inputs.q.iter_mut().step_by(head_dim).for_each(|value| *value = 0.0);
    inputs.k.iter_mut().step_by(head_dim).for_each(|value| *value *= 1e6);
    let policy = Thresholds::embedded().correctness.reference;
    let case = Case::prepare(&problem, &inputs, &Quantizer::new(Fp8Format::E4m3), &policy).unwrap();
    let report = gate(&mut PlannedVariant(variant), &variant, &[case]);
    let expected = [checks::END_TO_END_COSINE, checks::END_TO_END_L2].map(String::from).into();
    assert_eq!(failed(&report), expected, "{}", report.gate.summary);
    let case = &report.cases[0];
    assert!(case.quantizer.relative_l2 > 0.5 && case.kernel.relative_l2 < 1e-5, "{case:?}");
}
