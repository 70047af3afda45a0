//! One variant in a process of its own, timed by another: one request per line, one answer per line.

use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{Case, Outcome, Thresholds};
use crate::measure::{Manner, Rotation, Timer, contestants};
use crate::provenance::Provenance;
use crate::record::{Entry, ProblemRecord};
use eightfold::{Error, Problem, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{BufRead, Write};

/// What the process says of itself before it is timed: what it runs, on what, and whether that passed its gates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The variant with the gates that it met.
    pub entry: Entry,
    /// What it computes.
    pub problem: ProblemRecord,
    /// Code, machine, compiler.
    pub provenance: Provenance,
    /// What its times are taken with; none if it did not pass.
    pub timer: Option<Timer>,
    /// How many different inputs its rounds go around.
    pub inputs: usize,
}

/// What it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(super) enum Request {
    /// Get ready, and say how many launches a run stands for.
    Prepare,
    /// Take up the inputs of this round.
    BeginRound {
        /// The round.
        round: usize,
    },
    /// Run so often, and say how long each run took.
    Run {
        /// How often.
        iterations: usize,
    },
    /// Say whether the runs computed what they should.
    Verify,
}

/// What is served.
pub struct Serving<'a> {
    /// What a person calls the shape.
    pub shape: &'a str,
    /// The variant.
    pub candidate: Candidate,
    /// The inputs, which rounds go around.
    pub cases: &'a [Case],
    /// The limits.
    pub thresholds: &'a Thresholds,
    /// How times are taken.
    pub manner: Manner,
    /// Where everything comes from.
    pub provenance: Provenance,
}

impl Serving<'_> {
    /// Gates the variant, says hello, and answers until there are no more requests.
    pub fn serve(&self, problem: &Problem, requests: impl BufRead, mut answers: impl Write) -> Result<()> {
        let examination = Examination {
            shape: self.shape,
            cases: self.cases,
            candidates: std::slice::from_ref(&self.candidate),
            thresholds: self.thresholds,
            timed: None,
            ladder: false,
            sweep: false,
            max_gate_seconds: f64::INFINITY,
        };
        let Examined { group, lost } = examination.run(problem, None, &mut ());
        lost.map_or(Ok(()), Err)?;
        let entry = group.entries.into_iter().next();
        let entry = entry.ok_or_else(|| Error::invalid("variant", "nothing was gated", "name one variant"))?;
        let passed = entry.correctness().is_some_and(|gate| gate.outcome == Outcome::Pass);
        let inputs = Rotation::of(self.cases, &entry).filter(|_| passed);
        let count = inputs.as_ref().map_or(1, Rotation::len);
        let lane = match inputs {
            Some(inputs) => contestants(&self.candidate, inputs, self.manner.cache, None)?.into_iter().next(),
            None => None,
        };
        let hello = Hello {
            entry,
            problem: problem.into(),
            provenance: self.provenance.clone(),
            timer: lane.as_ref().map(|(timer, _)| *timer),
            inputs: count,
        };
        say(&mut answers, &json!(hello))?;
        let Some((_, mut contestant)) = lane else { return Ok(()) };
        for line in requests.lines().map_while(std::result::Result::ok) {
            let answer = match serde_json::from_str(&line) {
                Ok(Request::Prepare) => {
                    contestant.prepare().map(|()| json!({ "launches_per_run": contestant.launches_per_run() }))
                }
                Ok(Request::BeginRound { round }) => contestant.begin_round(round).map(|()| json!({})),
                Ok(Request::Run { iterations }) => contestant.run_block(iterations).map(|ns| json!({ "ns": ns })),
                Ok(Request::Verify) => contestant.verify().map(|()| json!({})),
                Err(error) => Err(Error::invalid("request", error.to_string(), "ask as compare does")),
            };
            say(&mut answers, &answer.unwrap_or_else(|error| json!({ "error": error.to_string() })))?;
        }
        Ok(())
    }
}

fn say(answers: &mut impl Write, answer: &Value) -> Result<()> {
    writeln!(answers, "{answer}")
        .and_then(|()| answers.flush())
        .map_err(|error| Error::unavailable("the process that compares", error.to_string(), "start it again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::StandardCase;
    use crate::inputs::Family;
    use eightfold::Shape;
    use eightfold::quantize::Quantizer;

    fn answers(requests: &str, thresholds: &Thresholds) -> Vec<Value> {
        let problem = Problem::new(Shape::new(1, 1, 24, 16)).unwrap();
        let case = |seed| StandardCase { problem, family: Family::Gaussian, seed };
        let prepare =
            |seed| case(seed).prepare(&Quantizer::new(problem.input_format()), &thresholds.correctness.reference);
        let cases = [prepare(1).unwrap(), prepare(2).unwrap()];
        let serving = Serving {
            shape: "x",
            candidate: Candidate::new("cpu:lanes", "cpu:lanes".parse().unwrap()),
            cases: &cases,
            thresholds,
            manner: Manner::default(),
            provenance: Provenance::capture(1),
        };
        let mut said = Vec::new();
        serving.serve(&problem, requests.as_bytes(), &mut said).unwrap();
        String::from_utf8(said).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn it_says_hello_and_answers_in_turn() {
        let requests = [
            json!(Request::Prepare),
            json!(Request::BeginRound { round: 3 }),
            json!(Request::Run { iterations: 4 }),
            json!(Request::Verify),
            json!({"command": "dance"}),
        ];
        let requests: String = requests.iter().map(|request| format!("{request}\n")).collect();
        let answers = answers(&requests, &Thresholds::embedded());
        let hello: Hello = serde_json::from_value(answers[0].clone()).unwrap();
        assert_eq!((hello.timer, hello.inputs), (Some(Timer::HostClock), 2));
        assert_eq!(answers[1], json!({"launches_per_run": 1}));
        assert_eq!(answers[2], json!({}));
        assert_eq!(answers[3]["ns"].as_array().unwrap().len(), 4);
        assert_eq!(answers[4], json!({}));
        assert!(answers[5]["error"].as_str().unwrap().contains("unknown variant `dance`"));
    }

    #[test]
    fn what_is_wrong_is_not_timed() {
        // No other row has these: the limit of f32 on Gaussian inputs, and what it is judged by.
        let [limit, measured] = ["relative_l2 = 1.7e-6", "relative_l2 = 5.85e-7"];
        let text = Thresholds::embedded_text();
        assert!(
            [limit, measured].iter().all(|number| text.matches(number).count() == 1),
            "gates.toml has other numbers"
        );
        let text = text.replace(limit, "relative_l2 = 1e-12").replace(measured, "relative_l2 = 1e-12");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let answers = answers("{\"command\": \"prepare\"}\n", &Thresholds::load(file.path()).unwrap());
        let hello: Hello = serde_json::from_value(answers[0].clone()).unwrap();
        assert_eq!((answers.len(), hello.timer), (1, None));
    }
}
