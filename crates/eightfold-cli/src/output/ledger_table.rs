//! The evolution of a ladder: each stage's prediction, measurement and verdict, and whether the prediction was right.

use super::ledger_section::{Details, Section, predicted, tally};
use super::numbers::{NONE, percent, ratio, time};
use super::optimisations_table;
use eightfold_lab::ledger::{Evolution, Floor, Row, Standing};

const HEADER: &[&str] =
    &["stage", "shape", "predicted", "p50", "× before", "× baseline", "verdict", "prediction", "what changed"];

/// Columns of words, which are aligned to the left.
const WORDS: &[usize] = &[1, 2, 6, 7];

/// The tables for a terminal; `long` adds what each stage and each optimisation was about.
pub fn render(evolution: &Evolution, long: bool) -> String {
    sections(evolution).map(|section| section.render(long)).collect::<Vec<_>>().join("\n")
}

/// The same as Markdown, for documents.
pub fn markdown(evolution: &Evolution, long: bool) -> String {
    sections(evolution).map(|section| section.markdown(long)).collect::<Vec<_>>().join("\n")
}

fn sections(evolution: &Evolution) -> impl Iterator<Item = Section> {
    std::iter::once(stages(evolution)).chain(optimisations_table::section(evolution))
}

fn stages(evolution: &Evolution) -> Section {
    let judged = |row: &Row| Some((row.prediction.as_ref()?.origin, row.judgement?));
    let at_length = |row: &Row| Details { name: row.stage.clone(), what: row.what.clone(), lines: details(row) };
    Section {
        title: title(evolution),
        header: HEADER,
        words: WORDS,
        extras: &["shape", "× before", "what changed"],
        rows: evolution.stages.iter().map(cells).collect(),
        tally: tally(&evolution.stages.iter().filter_map(judged).collect::<Vec<_>>()),
        details: evolution.stages.iter().map(at_length).collect(),
    }
}

/// Which ladder, measured where.
fn title(evolution: &Evolution) -> String {
    let kernel = &evolution.kernel;
    let Some(measured) = &evolution.measured else {
        return format!(
            "{kernel}: not measured; there is no ladder record of it in runs or results (`eightfold ladder --kernel {kernel}` makes one)"
        );
    };
    let early =
        measured.ended_early.as_ref().map_or(String::new(), |reason| format!("; the run ended early: {reason}"));
    format!("{kernel}: measured on {} ({}){early}", measured.machine, measured.record)
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.stage.clone(),
        row.shape.clone(),
        predicted(row.prediction.as_ref()),
        time(row.p50_us),
        ratio(row.gain.map(|gain| gain.ratio)),
        ratio(row.over_baseline),
        row.verdict.as_ref().map_or(NONE.into(), |verdict| verdict.outcome.to_string().to_lowercase()),
        row.judgement.map_or(NONE.into(), |judgement| judgement.to_string()),
        row.what.clone(),
    ]
}

/// What a stage was about, line by line.
fn details(row: &Row) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(prediction) = &row.prediction {
        lines.push(("moves", prediction.moves.clone()));
        lines.push(("because", prediction.because.clone()));
    }
    if let Some(verdict) = &row.verdict {
        lines.push(("verdict", format!("{}: {}", verdict.outcome.to_string().to_lowercase(), verdict.summary)));
    }
    lines.push(("risk", row.risk.clone()));
    lines.push(("fallback", row.fallback.clone()));
    if let Some(floor) = &row.floor {
        lines.push(("floor", floor_words(floor)));
        lines.extend(floor.terms.iter().map(|term| ("arithmetic", format!("{}: {}", term.uses, term.arithmetic))));
        lines.push(("bound", bound_words(floor)));
    }
    lines
}

/// What each part of the machine needs at least, and how much of the measured time that explains.
fn floor_words(floor: &Floor) -> String {
    let terms = floor.terms.iter().map(|term| format!("{} {}", term.uses, time(Some(term.time_us))));
    let terms = terms.collect::<Vec<_>>().join(", ");
    let measured = floor.p50_us.zip(floor.share).map_or(String::new(), |(p50_us, share)| {
        format!("; the longest is {} of the measured {}", percent(share), time(Some(p50_us)))
    });
    format!("at {}: {terms}{measured}", floor.shape)
}

fn bound_words(floor: &Floor) -> String {
    let claim = floor.bound.as_ref().map_or("none claimed".into(), |bound| format!("{bound} claimed"));
    let standing = match floor.standing {
        None if floor.bound.is_some() => "; not tested on this machine",
        None => "",
        Some(Standing::Stands) => "; it needs at least half of the measured time: the claim stands",
        Some(Standing::Refuted) => "; it needs less than half of the measured time: the claim is refuted",
        Some(Standing::Impossible) => "; the measured time is below the floor: arithmetic, rates or clock are wrong",
    };
    format!("{claim}{standing}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold_lab::gates::Outcome;
    use eightfold_lab::ledger::{FloorTerm, Gain, Judgement, Measured, Origin, Prediction, StageVerdict};

    fn row(stage: &str, us: f64, range: Option<(f64, f64, Origin)>, verdict: Option<(Outcome, &str)>) -> Row {
        Row {
            stage: stage.into(),
            what: format!("what {stage} changes"),
            shape: "mission".into(),
            prediction: range.map(|(least, most, origin)| Prediction {
                least,
                most,
                origin,
                moves: "what waits".into(),
                because: "The plan: \"+10-15%\".".into(),
            }),
            p50_us: Some(us),
            gain: None,
            over_baseline: Some(400.0 / us),
            verdict: verdict.map(|(outcome, summary)| StageVerdict { outcome, summary: summary.into() }),
            judgement: None,
            risk: "it is slower".into(),
            fallback: "leave it out".into(),
            floor: None,
        }
    }

    fn floor(bound: Option<&str>, share: f64, standing: Option<Standing>) -> Option<Floor> {
        let term = |uses: &str, time_us| FloorTerm {
            uses: uses.into(),
            time_us,
            arithmetic: "64 × 2 FLOP (scores) at 1.000e12 a second (its data sheet)".into(),
        };
        Some(Floor {
            shape: "long".into(),
            terms: vec![term("tensor cores", 16.0), term("memory", 3.0)],
            p50_us: Some(16.0 / share),
            share: Some(share),
            bound: bound.map(String::from),
            standing,
        })
    }

    /// Stages of every kind: the first, right, too high, too low, undecided, not timed.
    fn evolution() -> Evolution {
        let plan = |least, most| Some((least, most, Origin::Plan));
        let judged = |row: Row, ratio, judgement| Row {
            gain: Some(Gain { ratio, interval: None }),
            judgement: Some(judgement),
            ..row
        };
        let first = Row { floor: floor(None, 0.04, None), ..row("baseline", 400.0, None, None) };
        let right = row("copy", 350.0, plan(1.1, 1.15), Some((Outcome::Pass, "1.143× baseline")));
        let high = row("vector", 340.0, plan(1.1, 1.3), Some((Outcome::Negative, "a small gain: 1.029× copy")));
        let low = row("tensor", 34.0, Some((1.2, 1.3, Origin::Arithmetic)), Some((Outcome::Pass, "10.000× vector")));
        let undecided = row("queue", 33.0, plan(1.0, 1.03), Some((Outcome::Inconclusive, "1.10× lies within")));
        let broken = row("broken", 1.0, plan(1.0, 1.03), Some((Outcome::Fail, "does not compile | at all")));
        Evolution {
            kernel: "ladder".into(),
            predicted_for: "NVIDIA H200".into(),
            measured: Some(Measured {
                record: "runs/20260131T235959Z-ladder/record.json".into(),
                machine: "NVIDIA H200".into(),
                machine_matches: true,
                ended_early: None,
            }),
            stages: vec![
                first,
                judged(right, 400.0 / 350.0, Judgement::Right),
                judged(high, 350.0 / 340.0, Judgement::TooHigh),
                Row {
                    floor: floor(Some("tensor cores"), 0.47, Some(Standing::Refuted)),
                    ..judged(low, 10.0, Judgement::TooLow)
                },
                Row {
                    floor: floor(Some("tensor cores"), 0.62, Some(Standing::Stands)),
                    ..judged(undecided, 34.0 / 33.0, Judgement::Undecided)
                },
                Row {
                    p50_us: None,
                    over_baseline: None,
                    floor: floor(None, 1.3, Some(Standing::Impossible)),
                    ..broken
                },
            ],
            optimisations: Vec::new(),
        }
    }

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&evolution(), false));
    }

    #[test]
    fn long() {
        insta::assert_snapshot!(render(&evolution(), true));
    }

    #[test]
    fn as_markdown() {
        insta::assert_snapshot!(markdown(&evolution(), true));
    }

    #[test]
    fn without_a_record() {
        let stages = vec![Row { p50_us: None, over_baseline: None, ..row("baseline", 400.0, None, None) }];
        insta::assert_snapshot!(render(&Evolution { measured: None, stages, ..evolution() }, false));
    }
}
