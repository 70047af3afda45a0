//! Q, K and V to check kernels on: families of numbers that have broken attention kernels before.

use eightfold::lab::suggest;
use eightfold::{Error, Problem, Result, Shape};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of input numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// N(0,1) everywhere.
    Gaussian,
    /// N(0,1) with one element in a thousand scaled by 10, in Q, K and V, as in the FlashAttention-3 paper.
    Outliers,
    /// V with mean 1: a biased accumulator shows, where N(0,1) lets the bias cancel.
    #[serde(rename = "biased-v")]
    BiasedValues,
    /// One channel of K scaled by 100 and another by 20, as trained models have them.
    #[serde(rename = "key-channels")]
    KeyChannelOutliers,
    /// The first key takes most of every row's weight, as the first token of a sequence does in trained models.
    #[serde(rename = "sink")]
    AttentionSink,
    /// All elements equal: every weight is the same, and every error has the same sign.
    Constant,
    /// N(0,1) scaled by a millionth: what is flushed to zero is missed.
    Tiny,
    /// N(0,1) scaled by a hundred in Q and K and by a thousand in V: scores of tens of thousands, so that the
    /// softmax picks one key. Larger ones would ask for what f32 cannot give: at a score of a million its
    /// rounding error is near 1 nat, and which of two close keys wins would be a matter of luck.
    Huge,
}

impl Family {
    /// Every family.
    pub const ALL: &'static [Family] = &[
        Family::Gaussian,
        Family::Outliers,
        Family::BiasedValues,
        Family::KeyChannelOutliers,
        Family::AttentionSink,
        Family::Constant,
        Family::Tiny,
        Family::Huge,
    ];

    /// The name a person types.
    pub fn name(self) -> &'static str {
        match self {
            Family::Gaussian => "gaussian",
            Family::Outliers => "outliers",
            Family::BiasedValues => "biased-v",
            Family::KeyChannelOutliers => "key-channels",
            Family::AttentionSink => "sink",
            Family::Constant => "constant",
            Family::Tiny => "tiny",
            Family::Huge => "huge",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Family {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let names: Vec<_> = Family::ALL.iter().map(|family| family.name()).collect();
        let position = names.iter().position(|name| *name == text);
        position.map(|index| Family::ALL[index]).ok_or_else(|| suggest::unknown("families", text, &names))
    }
}

/// Unquantised Q, K and V in `[B,H,S,D]` order.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// The sizes.
    pub shape: Shape,
    /// Where the numbers come from, for example `gaussian seed 1` or the name of a file.
    pub origin: String,
    /// The family they were generated from; none for a user's own numbers.
    pub family: Option<Family>,
    /// Queries.
    pub q: Vec<f32>,
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
    /// One logit for each query head, where the problem has attention sinks.
    pub sinks: Option<Vec<f32>>,
}

impl Inputs {
    /// The numbers of this family, the same for the same shape and seed on every machine.
    pub fn generate(shape: Shape, family: Family, seed: u64) -> Inputs {
        Inputs::of_sizes(shape, shape.key_dims().count(), family, seed)
    }

    /// The same for a problem, whose V may have other channels, with its sinks: of N(0, 2), and in the family of the sink sharp,
    /// 8 above that, so that they take most of the weight of most rows.
    pub fn of_problem(problem: &Problem, family: Family, seed: u64) -> Inputs {
        let shape = problem.shape();
        let inputs = Inputs::of_sizes(shape, problem.value_dims().count(), family, seed);
        let mean = if family == Family::AttentionSink { SHARP_SINK } else { 0.0 };
        let sinks = problem.has_sinks().then(|| {
            let mut stream = stream(shape, family, seed, Use::Sinks);
            normal(&mut stream, shape.query_heads).map(|value| value * SINK_DEVIATION + mean).collect()
        });
        Inputs { sinks, ..inputs }
    }

    fn of_sizes(shape: Shape, values: usize, family: Family, seed: u64) -> Inputs {
        let (queries, keys) = (shape.query_dims().count(), shape.key_dims().count());
        let stream = |purpose| stream(shape, family, seed, purpose);
        let scaled_normal = |purpose, count, scale: f32| -> Vec<f32> {
            normal(&mut stream(purpose), count).map(|value| value * scale).collect()
        };
        let (score_scale, value_scale) = match family {
            Family::Tiny => (TINY, TINY),
            Family::Huge => (HUGE_SCORES, HUGE_VALUES),
            _ => (1.0, 1.0),
        };
        let (mut q, (mut k, mut v)) = rayon::join(
            || scaled_normal(Use::Q, queries, score_scale),
            || rayon::join(|| scaled_normal(Use::K, keys, score_scale), || scaled_normal(Use::V, values, value_scale)),
        );
        match family {
            Family::Gaussian | Family::Tiny | Family::Huge => {}
            Family::Outliers => {
                for (purpose, values) in [(Use::QOutliers, &mut q), (Use::KOutliers, &mut k), (Use::VOutliers, &mut v)]
                {
                    scale_one_in_a_thousand(&mut stream(purpose), values);
                }
            }
            Family::BiasedValues => v.iter_mut().for_each(|value| *value += 1.0),
            Family::KeyChannelOutliers => {
                // Two different channels; head_dim is at least 8.
                for (channel, factor) in [(shape.head_dim / 3, 100.0), (shape.head_dim - 1, 20.0)] {
                    k.iter_mut().skip(channel).step_by(shape.head_dim).for_each(|value| *value *= factor);
                }
            }
            Family::AttentionSink => add_sink(shape, &mut q, &mut k),
            Family::Constant => {
                // Not a power of two, so that the scale of the quantiser is not one either.
                for values in [&mut q, &mut k, &mut v] {
                    values.fill(0.7);
                }
            }
        }
        Inputs { shape, origin: format!("{family} seed {seed}"), family: Some(family), q, k, v, sinks: None }
    }

    /// A user's own numbers in `[B,H,S,D]` order; they must fill the shape.
    pub fn of_user(shape: Shape, origin: impl Into<String>, q: Vec<f32>, k: Vec<f32>, v: Vec<f32>) -> Result<Inputs> {
        Problem::new(shape)?;
        let (queries, keys) = (shape.query_dims(), shape.key_dims());
        for (name, values, dims) in [("q", &q, queries), ("k", &k, keys), ("v", &v, keys)] {
            if values.len() != dims.count() {
                return Err(Error::invalid(
                    name,
                    format!("{} values, but {dims} holds {}", values.len(), dims.count()),
                    "give one value per element",
                ));
            }
        }
        Ok(Inputs { shape, origin: origin.into(), family: None, q, k, v, sinks: None })
    }
}

const TINY: f32 = 1e-6;
const HUGE_SCORES: f32 = 1e2;
const HUGE_VALUES: f32 = 1e3;
const SINK_DEVIATION: f32 = 2.0;
const SHARP_SINK: f32 = 8.0;

/// What a stream of random bits is for.
#[derive(Clone, Copy)]
enum Use {
    Q,
    K,
    V,
    QOutliers,
    KOutliers,
    VOutliers,
    Sinks,
}

/// A stream of random bits of its own for every seed, family, shape and use.
fn stream(shape: Shape, family: Family, seed: u64, purpose: Use) -> ChaCha8Rng {
    let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim, .. } = shape;
    let sizes = [batch, query_heads, kv_heads, query_len, key_len, head_dim];
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    // A size that four bytes do not hold would only make two shapes share a stream.
    for (index, size) in sizes.iter().enumerate() {
        let at = 8 + index * 4;
        key[at..at + 4].copy_from_slice(&(*size as u32).to_le_bytes());
    }
    let mut generator = ChaCha8Rng::from_seed(key);
    generator.set_stream((family as u64) << 8 | purpose as u64);
    generator
}

fn normal(generator: &mut ChaCha8Rng, count: usize) -> impl Iterator<Item = f32> {
    (0..count).map(|_| StandardNormal.sample(generator))
}

fn scale_one_in_a_thousand(generator: &mut ChaCha8Rng, values: &mut [f32]) {
    for value in values {
        if generator.next_u32() < u32::MAX / 1000 {
            *value *= 10.0;
        }
    }
}

/// Gives the queries and the first key of every head a common direction, so that the key's score lies
/// about 10 nats above the others' at the default softmax scale.
///
/// Every query gets 1 added to each channel, and the first key is `10/√D` in each channel: its score is
/// then (D + noise · √D) · 10/√D / √D = 10 + O(10/√D), while the other keys keep scores of variance 2.
fn add_sink(shape: Shape, q: &mut [f32], k: &mut [f32]) {
    let sink = SINK_NATS / (shape.head_dim as f32).sqrt();
    q.iter_mut().for_each(|value| *value += 1.0);
    for head in k.chunks_exact_mut(shape.key_len * shape.head_dim) {
        head[..shape.head_dim].fill(sink);
    }
}

/// How far the sink's score lies above the mean of the others.
const SINK_NATS: f32 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape::new(2, 4, 64, 64).with_kv_heads(2).with_key_len(96);

    fn mean_and_deviation(values: &[f32]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().copied().map(f64::from).sum::<f64>() / count;
        let square = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / count;
        (mean, square.sqrt())
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers_on_every_machine() {
        let inputs = Inputs::generate(SHAPE, Family::Gaussian, 1);
        assert_eq!(inputs, Inputs::generate(SHAPE, Family::Gaussian, 1));
        // What the first machine drew: a change of generator or of streams makes old records incomparable.
        assert_eq!([inputs.q[0], inputs.k[0], inputs.v[0]], [1.4861759, -0.82320046, 0.9369047]);
    }

    #[test]
    fn seeds_families_shapes_and_tensors_have_streams_of_their_own() {
        let first = |shape, family, seed| Inputs::generate(shape, family, seed).q[..8].to_vec();
        let base = first(SHAPE, Family::Gaussian, 1);
        assert_ne!(base, first(SHAPE, Family::Gaussian, 2));
        assert_ne!(base, first(SHAPE, Family::BiasedValues, 1));
        assert_ne!(base, first(SHAPE.with_key_len(97), Family::Gaussian, 1));
        let inputs = Inputs::generate(SHAPE, Family::Gaussian, 1);
        assert!(inputs.q[..8] != inputs.k[..8] && inputs.k[..8] != inputs.v[..8]);
    }

    #[test]
    fn every_family_fills_its_shape_with_finite_numbers() {
        for &family in Family::ALL {
            let inputs = Inputs::generate(SHAPE, family, 7);
            assert_eq!(inputs.q.len(), SHAPE.query_dims().count());
            assert_eq!((inputs.k.len(), inputs.v.len()), (SHAPE.key_dims().count(), SHAPE.key_dims().count()));
            let all = inputs.q.iter().chain(&inputs.k).chain(&inputs.v);
            assert!(all.into_iter().all(|value| value.is_finite()), "{family}");
            assert_eq!(inputs.origin, format!("{family} seed 7"));
        }
    }

    #[test]
    fn the_families_are_what_they_say() {
        let of = |family| Inputs::generate(SHAPE, family, 1);
        let near = |(mean, deviation): (f64, f64), expected_mean: f64, expected_deviation: f64| {
            assert!((mean - expected_mean).abs() < 0.03 * expected_deviation, "mean {mean}");
            assert!((deviation / expected_deviation - 1.0).abs() < 0.03, "deviation {deviation}");
        };
        near(mean_and_deviation(&of(Family::Gaussian).k), 0.0, 1.0);
        near(mean_and_deviation(&of(Family::BiasedValues).v), 1.0, 1.0);
        near(mean_and_deviation(&of(Family::BiasedValues).k), 0.0, 1.0);
        near(mean_and_deviation(&of(Family::Tiny).v), 0.0, 1e-6);
        near(mean_and_deviation(&of(Family::Huge).q), 0.0, 1e2);
        near(mean_and_deviation(&of(Family::Huge).v), 0.0, 1e3);
        let Inputs { q, k, v, .. } = of(Family::Constant);
        assert!(q.iter().chain(&k).chain(&v).all(|value| *value == q[0]));

        // N(0,1) alone is beyond 5.5 once in 26 million.
        let outliers = of(Family::Outliers);
        for values in [&outliers.q, &outliers.k, &outliers.v] {
            let far = values.iter().filter(|value| value.abs() > 5.5).count() as f64;
            let expected = values.len() as f64 / 1000.0 * 0.582;
            assert!((far - expected).abs() < 4.0 * expected.sqrt(), "{far} outliers, {expected} expected");
        }

        let keys = of(Family::KeyChannelOutliers).k;
        let channel = |index| keys.iter().copied().skip(index).step_by(64).collect::<Vec<_>>();
        let deviations: Vec<_> = (0..64).map(|index| mean_and_deviation(&channel(index)).1).collect();
        assert_eq!(deviations.iter().filter(|deviation| **deviation > 80.0).count(), 1);
        assert_eq!(deviations.iter().filter(|deviation| **deviation > 15.0).count(), 2);
    }

    #[test]
    fn a_problem_has_its_own_values_and_sinks_and_else_the_same_numbers() {
        let plain = Problem::new(SHAPE).unwrap();
        let inputs = Inputs::generate(SHAPE, Family::Outliers, 3);
        assert_eq!(Inputs::of_problem(&plain, Family::Outliers, 3), inputs);
        let problem = plain.with_value_dim(128).unwrap().with_sinks();
        let Inputs { q, k, v, sinks, .. } = Inputs::of_problem(&problem, Family::AttentionSink, 1);
        assert_eq!((q.len(), k.len(), v.len()), (inputs.q.len(), inputs.k.len(), 2 * inputs.v.len()));
        let mean = sinks.as_ref().unwrap().iter().sum::<f32>() / 4.0;
        assert!(sinks.unwrap().len() == 4 && (4.0..12.0).contains(&mean), "{mean}");
    }

    #[test]
    fn the_sink_takes_most_of_the_weight_of_most_rows() {
        let Inputs { q, k, .. } = Inputs::generate(SHAPE, Family::AttentionSink, 1);
        let scores = |row: usize| -> Vec<f64> {
            let dot = |key: &[f32]| q[row * 64..][..64].iter().zip(key).map(|(q, k)| f64::from(q * k)).sum::<f64>();
            k[..96 * 64].chunks(64).map(|key| dot(key) / 8.0).collect()
        };
        // The first 128 rows are the two query heads that share the first key head.
        let lifts: Vec<_> = (0..128)
            .map(|row| {
                let scores = scores(row);
                scores[0] - scores[1..].iter().sum::<f64>() / 95.0
            })
            .collect();
        let mean = lifts.iter().sum::<f64>() / 128.0;
        assert!((mean - 10.0).abs() < 0.5, "{mean} nats above the mean of the others");
        let shares = (0..128).map(|row| {
            let weights: Vec<_> = scores(row).iter().map(|score| score.exp()).collect();
            weights[0] / weights.iter().sum::<f64>()
        });
        let mean_share = shares.sum::<f64>() / 128.0;
        assert!((0.8..0.999).contains(&mean_share), "{mean_share}");
    }

    #[test]
    fn names_parse_back_and_near_misses_are_answered() {
        for family in Family::ALL {
            assert_eq!(family.to_string().parse::<Family>().unwrap(), *family);
            assert_eq!(serde_json::to_string(family).unwrap(), format!("\"{family}\""));
        }
        let error = "gausian".parse::<Family>().unwrap_err().to_string();
        assert!(error.contains("did you mean `gaussian`?"), "{error}");
    }

    #[test]
    fn a_users_numbers_must_fill_the_shape() {
        let Inputs { q, k, v, .. } = Inputs::generate(SHAPE, Family::Gaussian, 1);
        let error = Inputs::of_user(SHAPE, "file", q.clone(), k[1..].to_vec(), v.clone()).unwrap_err().to_string();
        assert!(error.starts_with("k: "), "{error}");
        assert_eq!(Inputs::of_user(SHAPE, "file", q, k, v).unwrap().family, None);
    }
}
