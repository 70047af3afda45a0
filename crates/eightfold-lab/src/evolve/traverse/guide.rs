//! The guiding layer: which information the next candidate is made from.

use super::View;
use crate::evolve::genome::Genome;
use crate::evolve::insights::Step;
use crate::evolve::population::{Member, Policy};
use crate::evolve::space::below;
use crate::evolve::trial::{Information, Operator};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// What the proposal is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Guidance {
    /// By which operator.
    pub operator: Operator,
    /// What it was decided from.
    pub used: Vec<Information>,
    /// From whom.
    pub parents: Vec<Member>,
    /// The insight to follow, and what it says.
    pub insight: Option<(String, Step)>,
}

/// Samples before anything else is tried: with twice as many, the best is found sooner in no recorded space.
const FIRST_SAMPLES: usize = 4;

/// Of later candidates, in percent: new places, crossovers, insights; the rest are plain mutations.
const SAMPLES: u64 = 5;
const CROSSOVERS: u64 = 20;
const INSIGHTS: u64 = 45;

/// Decides what the next candidate is made from.
pub fn decide(view: &View, generator: &mut ChaCha8Rng) -> Guidance {
    let sample = |used: &[Information]| Guidance {
        operator: Operator::Sample,
        used: used.to_vec(),
        parents: Vec::new(),
        insight: None,
    };
    if view.policy == Policy::Random {
        return sample(&[]);
    }
    if view.trial < FIRST_SAMPLES || view.parents.is_empty() {
        return sample(&[Information::Context, Information::Territory]);
    }
    let draw = generator.next_u64() % 100;
    if draw < SAMPLES {
        return sample(&[Information::Territory]);
    }
    if draw < SAMPLES + CROSSOVERS && view.parents.len() > 1 {
        let first = below(generator, view.parents.len());
        let second = (first + 1 + below(generator, view.parents.len() - 1)) % view.parents.len();
        return Guidance {
            operator: Operator::Crossover,
            used: vec![Information::Solutions],
            parents: [first, second].map(|place| view.parents[place].clone()).to_vec(),
            insight: None,
        };
    }
    let parent = view.parents[rank(view.parents.len(), generator)].clone();
    let insight = (draw < SAMPLES + CROSSOVERS + INSIGHTS).then(|| insight(view, &parent, generator)).flatten();
    let mut used = vec![Information::Solutions];
    used.extend(insight.is_some().then_some(Information::Insights));
    Guidance { operator: Operator::Mutation, used, parents: vec![parent], insight }
}

/// A place in a list, the first twice as likely as the second, and so on.
pub(super) fn rank(count: usize, generator: &mut ChaCha8Rng) -> usize {
    let mut place = 0;
    while place + 1 < count && generator.next_u64().is_multiple_of(3) {
        place += 1;
    }
    place
}

/// An insight that leads from the parent to a point that was not tried, by its weight.
fn insight(view: &View, parent: &Member, generator: &mut ChaCha8Rng) -> Option<(String, Step)> {
    let trial = view.history.get(parent.trial)?;
    let Genome { point, .. } = &parent.genome;
    let mut steps = view.insights.steps(view.space, point, &trial.fate, &trial.evidence);
    steps.retain(|(_, step, _)| {
        let mut point = point.clone();
        point.0[step.knob] = step.to;
        view.space.contains(&point) && !view.tried.contains(&parent.genome.with(point))
    });
    let total: f64 = steps.iter().map(|(.., weight)| weight).sum();
    let mut left = total * (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    for (name, step, weight) in steps {
        left -= weight;
        if left <= 0.0 {
            return Some((name, step));
        }
    }
    None
}
