//! What a tile of queries shows of its way: scores, weights and sums, of both kernels.

use crate::support::simulator;
use eightfold::{Fp8Tensor, Mask, Problem, Shape, Variant};
use eightfold_lab::dump::{self, Tile, TileDump};
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::{Case, StandardCase, Thresholds, quantizer};
use eightfold_lab::inputs::Family;
use eightfold_lab::simulate::{self, Schedule};
use std::f64::consts::LOG2_E;

fn case(variant: Variant, mask: Mask) -> Case {
    let problem = Problem::new(Shape::new(1, 1, 70, 64).with_key_len(300)).unwrap().with_mask(mask);
    let quantizer = quantizer(&problem, &[Candidate::new("x", variant)]);
    let case = StandardCase { problem, family: Family::Gaussian, seed: 1 };
    case.prepare(&quantizer, &Thresholds::embedded().correctness.reference).unwrap()
}

/// The score of a query and a key in powers of two.
fn score(case: &Case, [q, k]: [&[f64]; 2], query: usize, key: usize) -> f64 {
    let row = |values: &[f64], row: usize| values[row * 64..(row + 1) * 64].to_vec();
    let dot: f64 = row(q, query).iter().zip(row(k, key)).map(|(q, k)| q * k).sum();
    dot * f64::from(case.problem.softmax_scale()) * LOG2_E
}

fn assert_shows(text: &str, mask: Mask) {
    let variant: Variant = text.parse().unwrap();
    let case = case(variant, mask);
    simulate::begin(Schedule::of_seed(0));
    let shown = dump::tiles(&variant.on_device().unwrap(), &case, 0).unwrap();
    assert_eq!(simulate::findings(), [], "{text}");
    let TileDump { tile_queries, tile_keys, head_dim, tiles } = shown;
    assert_eq!((tiles.len(), head_dim), (300usize.div_ceil(tile_keys), 64), "{text}");
    let [q, k, v] = [&case.q, &case.k, &case.v].map(Fp8Tensor::dequantize);
    for query in 0..case.problem.shape().query_len.min(tile_queries) {
        let visible = case.problem.visible(query);
        for (index, Tile { scores, weights, row_maxima, .. }) in tiles.iter().enumerate() {
            for place in 0..tile_keys {
                let (key, at) = (index * tile_keys + place, query * tile_keys + place);
                if !visible.contains(&key) {
                    // A tile that no row of its warps sees is not visited.
                    assert!(scores[at].is_nan() || scores[at] < -1e3, "{text} {mask:?} {query} {key}: {}", scores[at]);
                    continue;
                }
                let exact = score(&case, [&q, &k], query, key);
                assert!((f64::from(scores[at]) - exact).abs() < 0.02, "{text} {query} {key}: {} {exact}", scores[at]);
                let weight = (scores[at] - row_maxima[query]).exp2();
                let off = (weights[at] - weight).abs();
                assert!(off < 0.14 * weight + 2e-5, "{text} {query} {key}: {} {weight}", weights[at]);
            }
        }
        // Tiles come last first on Hopper, and first first on the ladder: the last visited one has all of the sums.
        let done = if text.starts_with("hopper") { tiles.first() } else { tiles.last() }.unwrap();
        let weights: Vec<f64> = visible.clone().map(|key| score(&case, [&q, &k], query, key).exp2()).collect();
        let sum: f64 = weights.iter().sum();
        for channel in 0..head_dim {
            let unit = f64::from(case.v.scales().values()[0]);
            let own = unit * f64::from(done.output[query * head_dim + channel] / done.row_sums[query]);
            let values = visible.clone().map(|key| v[key * head_dim + channel]);
            let exact = weights.iter().zip(values).map(|(weight, value)| weight * value).sum::<f64>() / sum;
            assert!((own - exact).abs() < 0.12, "{text} {query} {channel}: {own} {exact}");
        }
    }
}

#[test]
fn tiles_are_those_of_attention() {
    if !simulator() {
        return;
    }
    for text in ["hopper:fast", "hopper:precise", "hopper:exact-exp,scores=f32,tile_keys=128,warpgroups=2"] {
        for mask in [Mask::None, Mask::Causal] {
            assert_shows(text, mask);
        }
    }
    assert_shows("ladder:unpack", Mask::None);
}

#[test]
fn what_has_no_way_through_all_tiles_is_refused() {
    if !simulator() {
        return;
    }
    let few = "hopper:fast,warpgroups=1,tile_keys=512,stages=1,promote=0,sums=registers,keys=at-once";
    for (text, unit, part) in
        [(few, 0, "keys=streamed"), ("hopper:fast", 9, "unit: 9"), ("ladder:unpack", 9, "unit: 9")]
    {
        let variant: Variant = text.parse().unwrap();
        let error =
            dump::tiles(&variant.on_device().unwrap(), &case(variant, Mask::None), unit).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
