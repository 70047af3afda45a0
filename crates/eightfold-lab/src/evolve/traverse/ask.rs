//! The guiding layer of the mutator: what it is asked to do next, and with whom.

use super::View;
use crate::evolve::population::Member;
use crate::evolve::space::below;
use crate::evolve::trial::{Asked, Operator};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// Of the turns in which two could be crossed, in percent, those in which they are.
const CROSSINGS: u64 = 30;

/// Of the turns after one that failed, in percent, those in which it is to be explained.
const EXPLANATIONS: u64 = 50;

/// What the mutator is asked, and the trials that it is about: the first is what its answer is a change of.
pub fn ask(view: &View, generator: &mut ChaCha8Rng) -> (Asked, Vec<usize>) {
    let draw = generator.next_u64();
    let made = view.history.iter().filter(|trial| trial.origin.operator == Operator::Mutator);
    let asked: Vec<_> = made.collect();
    let is_explained = |index: usize| asked.iter().any(|trial| trial.origin.parents.get(1) == Some(&index));
    let base = view.history.iter().find(|trial| trial.origin.operator == Operator::Baseline);
    // The last one that failed after it was tried: what cannot be tried is told among the failures.
    let failed = asked.iter().rev().find(|trial| trial.fate.failure().is_some() && trial.origin.source.is_some());
    if let Some(failed) = failed
        && !is_explained(failed.index)
        && draw % 100 < EXPLANATIONS
    {
        let parent = failed.origin.parents.first().copied().or(base.map(|trial| trial.index));
        return (Asked::Explain, parent.into_iter().chain([failed.index]).collect());
    }
    let with_source = |member: &&Member| member.genome.source.is_some();
    if !view.parents.iter().any(|member| with_source(&member)) || draw >> 32 & 7 == 0 {
        // Where nothing of the mutator's has held, and now and then afterwards, it begins anew from the shipped source with
        // the best knobs.
        let shipped = view.parents.iter().find(|member| !with_source(member)).map(|member| member.trial);
        return (Asked::Initial, shipped.or(base.map(|trial| trial.index)).into_iter().collect());
    }
    if view.parents.len() > 1 && (draw >> 8) % 100 < CROSSINGS {
        let first = below(generator, view.parents.len());
        let second = (first + 1 + below(generator, view.parents.len() - 1)) % view.parents.len();
        if view.parents[first].genome.source != view.parents[second].genome.source {
            return (Asked::Cross, [first, second].map(|place| view.parents[place].trial).to_vec());
        }
    }
    let place = super::guide::rank(view.parents.len(), generator);
    (Asked::Mutate, vec![view.parents[place].trial])
}
