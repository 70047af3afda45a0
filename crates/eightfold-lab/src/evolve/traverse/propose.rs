//! The proposal layer: guidance becomes a candidate that was not tried before.

use super::{Guidance, View};
use crate::evolve::genome::Genome;
use crate::evolve::population::Member;
use crate::evolve::space::{Point, below};
use crate::evolve::trial::Operator;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// Tries before an operator gives up on finding something new near its parents.
const TRIES: usize = 64;

/// Random points of which the one farthest from everything tried is taken.
const FARTHEST_OF: usize = 8;

/// One that was not tried, and the operator that made it; none where the whole space was tried.
pub fn propose(view: &View, guidance: &Guidance, generator: &mut ChaCha8Rng) -> Option<(Genome, Operator)> {
    let fresh = |genome: &Genome| view.space.contains(&genome.point) && !view.tried.contains(genome);
    let made = match (guidance.operator, &guidance.parents[..]) {
        (Operator::Mutation, [parent]) => {
            let followed = guidance.insight.as_ref().map(|(_, step)| {
                let mut point = parent.genome.point.clone();
                point.0[step.knob] = step.to;
                parent.genome.with(point)
            });
            followed
                .into_iter()
                .chain((0..TRIES).map(|_| mutate(view, parent, generator)))
                .find(fresh)
                .map(|genome| (genome, Operator::Mutation))
        }
        (Operator::Crossover, [first, second]) => {
            let crossed = (0..TRIES / 2).map(|_| cross(first, second, generator)).find(fresh);
            crossed.map(|genome| (genome, Operator::Crossover)).or_else(|| {
                // The two have nothing new to say to each other.
                let mutated = (0..TRIES).map(|_| mutate(view, first, generator)).find(fresh);
                mutated.map(|genome| (genome, Operator::Mutation))
            })
        }
        _ => None,
    };
    made.or_else(|| {
        let spread = if guidance.used.is_empty() { 1 } else { FARTHEST_OF };
        sample(view, spread, generator).map(|point| (Genome::shipped(point), Operator::Sample))
    })
}

/// One knob set anew, sometimes two or three.
fn mutate(view: &View, parent: &Member, generator: &mut ChaCha8Rng) -> Genome {
    let knobs = view.space.family().knobs;
    let mut point = parent.genome.point.clone();
    let changes = match generator.next_u64() % 10 {
        0..6 => 1,
        6..9 => 2,
        _ => 3,
    };
    for _ in 0..changes {
        let knob = below(generator, knobs.len());
        point.0[knob] = below(generator, knobs[knob].values.len()) as u8;
    }
    parent.genome.with(point)
}

/// Each knob from one of two, and the source.
fn cross(first: &Member, second: &Member, generator: &mut ChaCha8Rng) -> Genome {
    let (one, other) = (&first.genome, &second.genome);
    let knobs = one.point.0.iter().zip(&other.point.0);
    let mut first = || generator.next_u64().is_multiple_of(2);
    let point = Point(knobs.map(|(one, other)| if first() { *one } else { *other }).collect());
    // Where there is no choice nothing is drawn.
    if one.source == other.source || first() { one.with(point) } else { other.with(point) }
}

/// Of this many points that were not tried, the one farthest from all that were.
fn sample(view: &View, count: usize, generator: &mut ChaCha8Rng) -> Option<Point> {
    let mut drawn: Vec<Point> = Vec::new();
    for _ in 0..TRIES {
        let point = view.space.sample(generator);
        if is_new(view, point) {
            drawn.push(point.clone());
        }
        if drawn.len() == count {
            break;
        }
    }
    if drawn.is_empty() {
        let left: Vec<&Point> = view.space.points().iter().filter(|point| is_new(view, point)).collect();
        if left.is_empty() {
            return None;
        }
        drawn.push(left[below(generator, left.len())].clone());
    }
    let distance = |point: &Point| view.order.iter().map(|tried| tried.distance(point)).min().unwrap_or(0);
    // The first of those that are equally far, so that a single draw stays as it fell.
    let farthest = drawn.iter().map(distance).max()?;
    drawn.into_iter().find(|point| distance(point) == farthest)
}

fn is_new(view: &View, point: &Point) -> bool {
    !view.tried.contains(&Genome::shipped(point.clone()))
}
