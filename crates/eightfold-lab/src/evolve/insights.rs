//! What a search learns: rules that evidence calls for, and steps of single knobs that outcomes speak for.
//!
//! Steps come from an additive model of the logarithm of the speed-up, fitted to everything that was tried: each value of
//! each knob has an effect, whatever the others are. That is never quite true, so a step is a suggestion with a record.
//! Each is kept with how often it was followed and how often that helped, so that a reader sees which to believe.

use super::fate::{Evidence, Fate};
use super::genome::Genome;
use super::space::{Point, Space};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A rule or a step, with its record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Insight {
    /// What it says: the evidence and what follows from it, a step of one knob, or what a mutator noted.
    pub name: String,
    /// For a step, the candidates that it was learned from: those with the old value or the new one, the fewer.
    pub seen: usize,
    /// For a step, the speed-up that it is thought to bring.
    pub speed_up: Option<f64>,
    /// Candidates that were made by following it.
    pub followed: usize,
    /// Of those, how often the candidate beat its parent.
    pub hits: usize,
}

/// A rule: when this evidence is seen, these settings are worth a try.
struct Rule {
    name: &'static str,
    applies: fn(&Fate, &Evidence) -> bool,
    /// Knobs and the values to try, for whichever of them the kernel has.
    steps: &'static [(&'static str, &'static [&'static str])],
}

/// Registers per thread from which a block of four warps leaves no room for a third.
const MANY_REGISTERS: u32 = 168;

/// Beyond this share of the time the unit of the exponentials is what others wait for.
const EXP_BOUND: f64 = 0.4;

/// Beyond this share fixed point is two paths instead of one.
const F32_TILES: f64 = 0.2;

const RULES: &[Rule] = &[
    Rule {
        name: "registers spill → fewer rows and keys per warp",
        applies: |_, evidence| evidence.spill_bytes.is_some_and(|bytes| bytes > 0),
        steps: &[
            ("tile_keys", &["32", "64"]),
            ("warps", &["8", "4"]),
            ("tile_queries", &["64", "32", "16"]),
            ("warpgroups", &["2", "1"]),
            ("flight", &["2", "1"]),
            ("sums", &["shared"]),
        ],
    },
    Rule {
        name: "many registers, few blocks → smaller tiles",
        applies: |_, evidence| {
            evidence.registers.is_some_and(|count| count > MANY_REGISTERS)
                && evidence.blocks_per_multiprocessor.is_some_and(|blocks| blocks <= 2)
        },
        steps: &[("tile_keys", &["32", "64"]), ("tile_queries", &["64", "32"])],
    },
    Rule {
        name: "too much for the resource gate → smaller tiles, fewer stages",
        applies: |fate, _| matches!(fate, Fate::OverResources { .. }),
        steps: &[
            ("tile_keys", &["32", "64"]),
            ("copy", &["async2", "sync"]),
            ("tile_queries", &["64", "32"]),
            ("stages", &["2", "1"]),
        ],
    },
    Rule {
        // Rows whose length is a multiple of 128 bytes begin in the same bank.
        name: "rows begin in the same banks → swizzle or pad",
        applies: |_, evidence| evidence.shared_bytes.is_some_and(|bytes| bytes > 0),
        steps: &[("banks", &["swizzled", "padded"])],
    },
    Rule {
        name: "bound by exponentials → polynomial",
        applies: |_, evidence| evidence.exp_share.is_some_and(|share| share > EXP_BOUND),
        steps: &[("exp", &["poly"])],
    },
    Rule {
        name: "wrong numbers → wider weights and sums",
        applies: |fate, _| matches!(fate, Fate::Wrong { .. }),
        steps: &[
            ("pv", &["unpack", "mma"]),
            ("numbers", &["f32"]),
            ("exp", &["exact", "hardware"]),
            ("promote", &["512"]),
        ],
    },
    Rule {
        name: "fixed point falls back to f32 → f32",
        applies: |_, evidence| evidence.f32_tiles.is_some_and(|share| share > F32_TILES),
        steps: &[("numbers", &["f32"])],
    },
];

/// A knob and the place of the value to set it to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// The knob's place in the family.
    pub knob: usize,
    /// The place of the new value.
    pub to: u8,
}

/// How often something was followed, and how often that helped.
#[derive(Debug, Clone, Copy, Default)]
struct Followed {
    count: usize,
    hits: usize,
}

/// Everything that was learned so far.
#[derive(Debug, Clone, Default)]
pub struct Insights {
    followed: BTreeMap<String, Followed>,
    /// What mutators noted.
    notes: BTreeSet<String>,
    /// Sources in the order in which they came.
    sources: Vec<Arc<str>>,
    /// Every point, its source as one knob more, with the logarithm of its speed-up.
    known: Vec<(Point, f64)>,
    /// For every knob, the source among them, and value, the candidates that had it and its effect; fitted when someone asks.
    effects: OnceCell<Vec<Vec<(usize, f64)>>>,
}

/// What a candidate that failed counts as, and the least that any counts as: one that is a hundred times slower teaches
/// no more than one that is ten times slower.
const FAILED: f64 = 0.1;

/// A gain below this is not told from noise.
const NOISE: f64 = 1.01;

/// Rounds of the fit, after which the effects hardly change.
const FITS: usize = 6;

/// Candidates without effect that each value is thought to have had before, so that one outcome is not believed.
const DOUBT: f64 = 1.0;

impl Insights {
    /// Learns from an outcome; one that failed is none.
    pub fn learn(&mut self, genome: &Genome, speed_up: Option<f64>) {
        let source = genome.source.as_ref().map_or(0, |source| {
            let known = self.sources.iter().position(|known| known == source);
            1 + known.unwrap_or_else(|| {
                self.sources.push(source.clone());
                self.sources.len() - 1
            })
        });
        let mut point = genome.point.clone();
        // Beyond that many sources the rest count as one.
        point.0.push(source.min(usize::from(u8::MAX)) as u8);
        self.known.push((point, speed_up.unwrap_or(FAILED).max(FAILED).ln()));
        self.effects = OnceCell::new();
    }

    /// Fits the effects, one knob after the other to what the others leave unexplained.
    fn fit(&self) -> Vec<Vec<(usize, f64)>> {
        // With one source alone there is nothing to tell apart.
        let knobs = self.known.first().map_or(0, |(point, _)| point.0.len() - usize::from(self.sources.is_empty()));
        let mean = self.known.iter().map(|(_, log)| log).sum::<f64>() / self.known.len() as f64;
        let values = |knob: usize| self.known.iter().map(|(point, _)| point.0[knob] as usize + 1).max().unwrap_or(0);
        let mut effects: Vec<Vec<(usize, f64)>> = (0..knobs).map(|knob| vec![(0, 0.0); values(knob)]).collect();
        let mut left: Vec<f64> = self.known.iter().map(|(_, log)| log - mean).collect();
        for _ in 0..FITS {
            for (knob, effects) in effects.iter_mut().enumerate() {
                let mut sums = vec![(0, 0.0); effects.len()];
                for ((point, _), left) in self.known.iter().zip(&mut left) {
                    let value = point.0[knob] as usize;
                    *left += effects[value].1;
                    sums[value].0 += 1;
                    sums[value].1 += *left;
                }
                *effects = sums.iter().map(|(count, sum)| (*count, sum / (*count as f64 + DOUBT))).collect();
                for ((point, _), left) in self.known.iter().zip(&mut left) {
                    *left -= effects[point.0[knob] as usize].1;
                }
            }
        }
        effects
    }

    fn effects(&self) -> &[Vec<(usize, f64)>] {
        self.effects.get_or_init(|| self.fit())
    }

    /// What setting a knob from one value to another is thought to bring: the candidates that tell, and the logarithm.
    fn gain(&self, knob: usize, from: u8, to: u8) -> Option<(usize, f64)> {
        let effects = self.effects().get(knob)?;
        let (with, after) = effects.get(to as usize).copied()?;
        let (without, before) = effects.get(from as usize).copied()?;
        (with > 0 && without > 0).then_some((with.min(without), after - before))
    }

    /// Takes in what a mutator noted: an insight like any other, whose record shows whether to believe it.
    pub fn note(&mut self, text: &str) {
        self.notes.insert(text.to_string());
    }

    /// Notes what following an insight brought.
    pub fn judge(&mut self, name: &str, speed_up: Option<f64>, parent: Option<f64>) {
        let followed = self.followed.entry(name.to_string()).or_default();
        followed.count += 1;
        let hit = match (speed_up, parent) {
            (Some(speed_up), Some(parent)) => speed_up > NOISE * parent,
            (Some(_), None) => true,
            _ => false,
        };
        followed.hits += usize::from(hit);
    }

    /// The steps from a point that evidence or experience speaks for, each with its name and its weight.
    pub fn steps(&self, space: &Space, point: &Point, fate: &Fate, evidence: &Evidence) -> Vec<(String, Step, f64)> {
        let mut found = Vec::new();
        for rule in RULES.iter().filter(|rule| (rule.applies)(fate, evidence)) {
            let rate = self.followed.get(rule.name).copied().unwrap_or_default();
            // Half at first, then its hit rate.
            let weight = (rate.hits as f64 + 1.0) / (rate.count as f64 + 2.0);
            for (name, values) in rule.steps {
                let Some(knob) = space.knob(name) else { continue };
                let listed = space.family().knobs[knob].values;
                let places = values.iter().filter_map(|value| listed.iter().position(|one| one == value));
                for to in places.map(|place| place as u8).filter(|to| *to != point.0[knob]) {
                    found.push((rule.name.to_string(), Step { knob, to }, 0.1 * weight));
                }
            }
        }
        for (knob, &from) in point.0.iter().enumerate() {
            for to in 0..space.family().knobs[knob].values.len() as u8 {
                if let Some((_, gain)) = self.gain(knob, from, to).filter(|(_, gain)| *gain > 0.0) {
                    found.push((name(space, knob, from, to), Step { knob, to }, gain));
                }
            }
        }
        found
    }

    /// All that was learned and matters, what was followed most first.
    pub fn list(&self, space: &Space) -> Vec<Insight> {
        let insight = |name: String, seen: usize, speed_up: Option<f64>| {
            let Followed { count, hits } = self.followed.get(&name).copied().unwrap_or_default();
            Insight { seen, speed_up, followed: count, hits, name }
        };
        let rules = RULES.iter().filter(|rule| self.followed.contains_key(rule.name));
        let mut all: Vec<Insight> = rules.map(|rule| insight(rule.name.into(), 0, None)).collect();
        all.extend(self.notes.iter().map(|note| insight(note.clone(), 0, None)));
        let knobs = space.family().knobs.len();
        for (place, source) in self.sources.iter().enumerate().take(usize::from(u8::MAX) - 1) {
            let Some((seen, gain)) = self.gain(knobs, 0, place as u8 + 1) else { continue };
            all.push(insight(format!("source shipped → {}", &source[..8.min(source.len())]), seen, Some(gain.exp())));
        }
        for (knob, values) in self.effects().iter().enumerate().take(knobs) {
            let places = 0..values.len() as u8;
            for (from, to) in places.clone().flat_map(|from| places.clone().map(move |to| (from, to))) {
                let Some((seen, gain)) = self.gain(knob, from, to) else { continue };
                let name = name(space, knob, from, to);
                if gain > NOISE.ln() || self.followed.contains_key(&name) {
                    all.push(insight(name, seen, Some(gain.exp())));
                }
            }
        }
        all.sort_by_key(|insight| Reverse((insight.followed, insight.seen)));
        all
    }
}

fn name(space: &Space, knob: usize, from: u8, to: u8) -> String {
    let knob = &space.family().knobs[knob];
    format!("{} {} → {}", knob.name, knob.values[from as usize], knob.values[to as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evolve::fate::Depth;
    use crate::evolve::space::Restriction;
    use eightfold::Variant;
    use eightfold::lab::Family;

    fn ladder() -> Space {
        let family = Family::find("ladder").unwrap();
        let restriction = Restriction::parse(family, "softmax=fused,qk=unpack,pv=unpack,pv=fp8,copy=async2").unwrap();
        Space::new(family, &restriction, &|_| Ok(())).unwrap()
    }

    fn point(space: &Space, text: &str) -> Genome {
        Genome::shipped(space.point(&text.parse::<Variant>().unwrap()).unwrap())
    }

    fn measured(speed_up: f64) -> Fate {
        Fate::Measured { speed_up, p50_us: 1.0, timing: Depth::Quick }
    }

    fn names(insights: &Insights, space: &Space, fate: &Fate, evidence: &Evidence) -> Vec<String> {
        let point = point(space, "ladder:unpack,banks=plain");
        insights.steps(space, &point.point, fate, evidence).into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn each_kind_of_evidence_calls_for_its_rule() {
        let space = ladder();
        let insights = Insights::default();
        let told = |fate: &Fate, evidence: Evidence| names(&insights, &space, fate, &evidence);
        assert!(told(&measured(1.0), Evidence::default()).is_empty());
        let spills = Evidence { spill_bytes: Some(8), ..Evidence::default() };
        assert!(told(&measured(1.0), spills).iter().all(|name| name.starts_with("registers spill")));
        let exp = Evidence { exp_share: Some(0.6), ..Evidence::default() };
        assert_eq!(told(&measured(1.0), exp), ["bound by exponentials → polynomial"]);
        let shared = Evidence { shared_bytes: Some(1024), ..Evidence::default() };
        assert_eq!(told(&measured(1.0), shared), ["rows begin in the same banks → swizzle or pad"; 2]);
        let wrong = told(&Fate::Wrong { reason: String::new() }, Evidence::default());
        assert!(wrong.contains(&"wrong numbers → wider weights and sums".to_string()), "{wrong:?}");
    }

    #[test]
    fn outcomes_teach_what_a_knob_does_and_a_failure_teaches_to_stay_away() {
        let space = ladder();
        let mut insights = Insights::default();
        let (hardware, poly) = (point(&space, "ladder:unpack"), point(&space, "ladder:unpack,exp=poly"));
        insights.learn(&poly, Some(1.0));
        insights.learn(&hardware, Some(1.5));
        let evidence = Evidence::default();
        let steps = insights.steps(&space, &poly.point, &measured(1.0), &evidence);
        assert_eq!(steps.len(), 1);
        assert_eq!((steps[0].0.as_str(), steps[0].1.to), ("exp poly → hardware", 0));
        assert!(insights.steps(&space, &hardware.point, &measured(1.5), &evidence).is_empty());
        insights.learn(&point(&space, "ladder:unpack,pv=fp8"), None);
        let away = insights.list(&space);
        assert!(
            away.iter().any(|insight| insight.name == "pv fp8 → unpack" && insight.speed_up > Some(2.0)),
            "{away:?}"
        );
    }

    #[test]
    fn the_fit_finds_effects_that_are_really_added() {
        let space = ladder();
        let knob = |name: &str| space.knob(name).unwrap();
        let (exp, banks) = (knob("exp"), knob("banks"));
        let mut insights = Insights::default();
        for point in space.points().iter().step_by(11) {
            let log = 0.4 * f64::from(point.0[exp]) - 0.3 * f64::from(point.0[banks]);
            insights.learn(&Genome::shipped(point.clone()), Some(f64::exp(log)));
        }
        let (_, gain) = insights.gain(exp, 0, 1).unwrap();
        assert!((gain - 0.4).abs() < 0.03, "{gain}");
        let (_, gain) = insights.gain(banks, 2, 0).unwrap();
        assert!((gain - 0.6).abs() < 0.05, "{gain}");
        assert!(insights.gain(knob("warps"), 0, 2).unwrap().1.abs() < 0.03);
    }

    #[test]
    fn hit_rates_count_what_was_followed() {
        let space = ladder();
        let mut insights = Insights::default();
        insights.learn(&point(&space, "ladder:unpack,exp=poly"), Some(1.0));
        insights.learn(&point(&space, "ladder:unpack"), Some(1.5));
        for (speed_up, parent) in [(Some(1.2), Some(1.0)), (Some(0.9), Some(1.0)), (None, Some(1.0)), (Some(1.0), None)]
        {
            insights.judge("exp poly → hardware", speed_up, parent);
        }
        let list = insights.list(&space);
        let Insight { seen, followed, hits, .. } = list[0];
        assert_eq!((list.len(), seen, followed, hits), (1, 1, 4, 2));
    }

    #[test]
    fn notes_are_insights_with_a_record_and_sources_have_effects_of_their_own() {
        let space = ladder();
        let mut insights = Insights::default();
        let shipped = point(&space, "ladder:unpack");
        let changed = Genome { source: Some("0123456789abcdef".into()), ..shipped.clone() };
        insights.learn(&shipped, Some(1.0));
        insights.learn(&changed, Some(1.5));
        for (speed_up, parent) in [(Some(1.5), Some(1.0)), (None, Some(1.0))] {
            insights.note("loads may be hoisted");
            insights.judge("loads may be hoisted", speed_up, parent);
        }
        let list = insights.list(&space);
        let names: Vec<_> = list.iter().map(|insight| insight.name.as_str()).collect();
        assert_eq!(names, ["loads may be hoisted", "source shipped → 01234567"]);
        assert_eq!((list[0].followed, list[0].hits), (2, 1));
        assert!(list[1].speed_up > Some(1.1), "{list:?}");
        // Knobs are not credited with what the source did.
        assert!(insights.steps(&space, &shipped.point, &measured(1.0), &Evidence::default()).is_empty());
    }
}
