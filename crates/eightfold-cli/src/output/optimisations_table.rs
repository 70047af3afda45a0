//! What each optimisation was expected to bring, and what it brought, negative results included.

use super::compare_table::outcome_word;
use super::ledger_section::{Details, Section, predicted, tally};
use super::numbers::{NONE, ratio, time};
use eightfold_lab::ledger::{Evolution, Gain, Optimisation};

const HEADER: &[&str] =
    &["optimisation", "shape", "predicted", "without", "with", "speed-up", "95 % interval", "verdict", "prediction"];

/// Columns of words, which are aligned to the left.
const WORDS: &[usize] = &[1, 2, 7];

/// The optimisations of a kernel; none for one that has only stages.
pub fn section(evolution: &Evolution) -> Option<Section> {
    let all = &evolution.optimisations;
    let judged = |one: &Optimisation| Some((one.entry.prediction.origin, one.judgement?));
    (!all.is_empty()).then(|| Section {
        title: title(evolution),
        header: HEADER,
        words: WORDS,
        extras: &["without", "95 % interval"],
        rows: all.iter().map(cells).collect(),
        tally: tally(&all.iter().filter_map(judged).collect::<Vec<_>>()),
        details: all.iter().map(at_length).collect(),
    })
}

/// Whose optimisations, measured where.
fn title(evolution: &Evolution) -> String {
    let kernel = &evolution.kernel;
    let mut machines: Vec<&str> = Vec::new();
    for measured in evolution.optimisations.iter().filter_map(|one| one.measured.as_ref()) {
        if !machines.contains(&measured.machine.as_str()) {
            machines.push(&measured.machine);
        }
    }
    if machines.is_empty() {
        return format!(
            "{kernel}, optimisations: not measured; `eightfold ledger --kernel {kernel} --measure` compares each without and with it"
        );
    }
    format!("{kernel}, optimisations: each without and with it, measured on {}", machines.join(" and "))
}

fn cells(one: &Optimisation) -> Vec<String> {
    let measured = one.measured.as_ref();
    let gain = measured.and_then(|measured| measured.gain);
    vec![
        one.entry.name.clone(),
        problem(one),
        predicted(Some(&one.entry.prediction)),
        time(measured.and_then(|measured| measured.without_us)),
        time(measured.and_then(|measured| measured.with_us)),
        ratio(gain.map(|gain| gain.ratio)),
        gain.and_then(interval).unwrap_or(NONE.into()),
        measured.map_or(NONE.into(), |measured| outcome_word(measured.verdict.outcome).to_lowercase()),
        one.judgement.map_or(NONE.into(), |judgement| judgement.to_string()),
    ]
}

fn problem(one: &Optimisation) -> String {
    format!("{}{}", one.entry.shape, if one.entry.causal { ", causal" } else { "" })
}

fn interval(gain: Gain) -> Option<String> {
    gain.interval.map(|(lower, upper)| format!("{lower:.3} to {upper:.3}"))
}

/// What an optimisation was about, line by line.
fn at_length(one: &Optimisation) -> Details {
    let entry = &one.entry;
    let mut lines = vec![
        ("without", entry.without.clone()),
        ("with", entry.with.clone()),
        ("moves", entry.prediction.moves.clone()),
        ("because", entry.prediction.because.clone()),
    ];
    if let Some(measured) = &one.measured {
        let word = outcome_word(measured.verdict.outcome).to_lowercase();
        lines.push(("verdict", format!("{word}: {} ({})", measured.verdict.summary, measured.record)));
    }
    lines.extend(entry.lesson.iter().map(|lesson| ("lesson", lesson.clone())));
    Details { name: entry.name.clone(), what: format!("at {}", problem(one)), lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold_lab::gates::Outcome;
    use eightfold_lab::ledger::{Judgement, OptimisationEntry, Origin, Prediction, StageVerdict, Tested};

    fn optimisation(
        name: &str,
        measured: Option<(Outcome, Option<f64>)>,
        judgement: Option<Judgement>,
    ) -> Optimisation {
        let prediction = Prediction {
            least: 1.05,
            most: 1.1,
            origin: Origin::Plan,
            moves: "what waits".into(),
            because: "The prototype: 505 us became 476.".into(),
        };
        let entry = OptimisationEntry {
            name: name.into(),
            shape: "mission".into(),
            causal: name == "turns",
            without: "hopper:fast".into(),
            with: format!("hopper:fast,{name}=on"),
            prediction,
            lesson: (judgement == Some(Judgement::TooHigh)).then(|| "What waits has nothing else to do.".into()),
            retired: false,
        };
        let measured = measured.map(|(outcome, ratio)| Tested {
            record: "runs/20260131T235959Z-compare/record.json".into(),
            machine: "NVIDIA H200".into(),
            without_us: ratio.map(|ratio| 100.0 * ratio),
            with_us: ratio.map(|_| 100.0),
            gain: ratio.map(|ratio| Gain { ratio, interval: Some((ratio - 0.004, ratio + 0.006)) }),
            verdict: StageVerdict { outcome, summary: format!("what the comparison says of {name}") },
        });
        Optimisation { entry, measured, judgement }
    }

    fn shown(optimisations: Vec<Optimisation>) -> Option<Section> {
        section(&Evolution {
            kernel: "hopper".into(),
            predicted_for: "NVIDIA H200".into(),
            measured: None,
            stages: Vec::new(),
            optimisations,
        })
    }

    /// One of every kind: right, negative, unsound, failed, not measured.
    fn every_kind() -> Section {
        shown(vec![
            optimisation("flight", Some((Outcome::Pass, Some(1.072))), Some(Judgement::Right)),
            optimisation("turns", Some((Outcome::Negative, Some(0.981))), Some(Judgement::TooHigh)),
            optimisation("ring", Some((Outcome::Invalid, Some(1.2))), None),
            optimisation("wrong", Some((Outcome::Fail, None)), None),
            optimisation("later", None, None),
        ])
        .unwrap()
    }

    #[test]
    fn layout() {
        insta::assert_snapshot!(every_kind().render(false));
    }

    #[test]
    fn long() {
        insta::assert_snapshot!(every_kind().render(true));
    }

    #[test]
    fn as_markdown() {
        insta::assert_snapshot!(every_kind().markdown(true));
    }

    #[test]
    fn what_would_measure_them_is_said_and_nothing_of_a_kernel_without_any() {
        let unmeasured = shown(vec![optimisation("later", None, None)]).unwrap();
        assert!(unmeasured.title.contains("not measured; `eightfold ledger --kernel hopper --measure`"));
        assert!(shown(Vec::new()).is_none());
    }
}
