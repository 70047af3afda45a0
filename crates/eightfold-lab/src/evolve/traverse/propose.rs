//! The proposal layer: guidance becomes a point that was not tried before.

use super::{Guidance, View};
use crate::evolve::population::Member;
use crate::evolve::space::{Point, below};
use crate::evolve::trial::Operator;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// Tries before an operator gives up on finding something new near its parents.
const TRIES: usize = 64;

/// Random points of which the one farthest from everything tried is taken.
const FARTHEST_OF: usize = 8;

/// A point that was not tried, and the operator that made it; none where the whole space was tried.
pub fn propose(view: &View, guidance: &Guidance, generator: &mut ChaCha8Rng) -> Option<(Point, Operator)> {
    let fresh = |point: &Point| view.space.contains(point) && !view.tried.contains(point);
    let made = match (guidance.operator, &guidance.parents[..]) {
        (Operator::Mutation, [parent]) => {
            let followed = guidance.insight.as_ref().map(|(_, step)| {
                let mut point = parent.point.clone();
                point.0[step.knob] = step.to;
                point
            });
            followed
                .into_iter()
                .chain((0..TRIES).map(|_| mutate(view, parent, generator)))
                .find(|point| fresh(point))
                .map(|point| (point, Operator::Mutation))
        }
        (Operator::Crossover, [first, second]) => {
            let crossed = (0..TRIES / 2).map(|_| cross(first, second, generator)).find(|point| fresh(point));
            crossed.map(|point| (point, Operator::Crossover)).or_else(|| {
                // The two have nothing new to say to each other.
                let mutated = (0..TRIES).map(|_| mutate(view, first, generator)).find(|point| fresh(point));
                mutated.map(|point| (point, Operator::Mutation))
            })
        }
        _ => None,
    };
    made.or_else(|| {
        let spread = if guidance.used.is_empty() { 1 } else { FARTHEST_OF };
        sample(view, spread, generator).map(|point| (point, Operator::Sample))
    })
}

/// One knob set anew, sometimes two or three.
fn mutate(view: &View, parent: &Member, generator: &mut ChaCha8Rng) -> Point {
    let knobs = view.space.family().knobs;
    let mut point = parent.point.clone();
    let changes = match generator.next_u64() % 10 {
        0..6 => 1,
        6..9 => 2,
        _ => 3,
    };
    for _ in 0..changes {
        let knob = below(generator, knobs.len());
        point.0[knob] = below(generator, knobs[knob].values.len()) as u8;
    }
    point
}

/// Each knob from one of two.
fn cross(first: &Member, second: &Member, generator: &mut ChaCha8Rng) -> Point {
    let knobs = first.point.0.iter().zip(&second.point.0);
    Point(knobs.map(|(one, other)| if generator.next_u64().is_multiple_of(2) { *one } else { *other }).collect())
}

/// Of this many points that were not tried, the one farthest from all that were.
fn sample(view: &View, count: usize, generator: &mut ChaCha8Rng) -> Option<Point> {
    let mut drawn: Vec<Point> = Vec::new();
    for _ in 0..TRIES {
        let point = view.space.sample(generator);
        if !view.tried.contains(point) {
            drawn.push(point.clone());
        }
        if drawn.len() == count {
            break;
        }
    }
    if drawn.is_empty() {
        let left: Vec<&Point> = view.space.points().iter().filter(|point| !view.tried.contains(*point)).collect();
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
