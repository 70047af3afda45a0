//! The float64 reference against the plainest loops, and against cases with a known answer.

use eightfold::reference::{Reference, attention};
use eightfold::{Mask, Problem, Shape};
use proptest::prelude::*;

/// Attention as its definition says, one query at a time.
fn naive(problem: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> Reference {
    let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim } = problem.shape();
    let mut values = vec![0.0; q.len()];
    let mut lse = vec![f64::NEG_INFINITY; q.len() / head_dim];
    for b in 0..batch {
        for h in 0..query_heads {
            let kv = b * kv_heads + h / (query_heads / kv_heads);
            for i in 0..query_len {
                let row = (b * query_heads + h) * query_len + i;
                let sees = |j: usize| match problem.mask() {
                    Mask::None => true,
                    Mask::Causal => j + query_len <= i + key_len,
                };
                let weight = |j: usize| -> f64 {
                    let dot: f64 =
                        (0..head_dim).map(|c| q[row * head_dim + c] * k[(kv * key_len + j) * head_dim + c]).sum();
                    (dot * f64::from(problem.softmax_scale())).exp()
                };
                let keys: Vec<usize> = (0..key_len).filter(|j| sees(*j)).collect();
                if keys.is_empty() {
                    continue;
                }
                let total: f64 = keys.iter().map(|j| weight(*j)).sum();
                lse[row] = total.ln();
                for c in 0..head_dim {
                    let sum: f64 = keys.iter().map(|j| weight(*j) * v[(kv * key_len + j) * head_dim + c]).sum();
                    values[row * head_dim + c] = sum / total;
                }
            }
        }
    }
    Reference { values, lse }
}

/// Numbers in −1 … 1 that look random and are the same in every run.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

fn inputs(shape: Shape) -> [Vec<f64>; 3] {
    let (queries, keys) = (shape.query_dims().count(), shape.key_dims().count());
    [numbers(queries, 1), numbers(keys, 2), numbers(keys, 3)]
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (index, (a, b)) in actual.iter().zip(expected).enumerate() {
        assert!(a == b || (a - b).abs() <= 1e-12, "element {index}: {a} instead of {b}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn agrees_with_the_definition(
        batch in 1usize..3, kv_heads in 1usize..3, group in 1usize..4,
        query_len in 1usize..20, key_len in 1usize..20, eighths in 1usize..4, causal: bool,
        scale in 0.01f32..2.0,
    ) {
        let query_heads = kv_heads * group;
        let head_dim = 8 * eighths;
        let shape = Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim };
        let problem = Problem::new(shape)?.with_mask(Mask::causal_if(causal)).with_softmax_scale(scale)?;
        let [q, k, v] = inputs(shape);
        let (actual, expected) = (attention(&problem, &q, &k, &v)?, naive(&problem, &q, &k, &v));
        assert_close(&actual.values, &expected.values);
        assert_close(&actual.lse, &expected.lse);
    }
}

#[test]
fn equal_scores_give_the_mean_of_the_values() {
    let shape = Shape::new(1, 2, 13, 8);
    let [_, k, v] = inputs(shape);
    let q = vec![0.0; v.len()];
    let result = attention(&Problem::new(shape).unwrap(), &q, &k, &v).unwrap();
    for head in 0..2 {
        let v = &v[head * 13 * 8..][..13 * 8];
        let means: Vec<f64> = (0..8).map(|c| (0..13).map(|j| v[j * 8 + c]).sum::<f64>() / 13.0).collect();
        for row in 0..13 {
            assert_close(&result.values[(head * 13 + row) * 8..][..8], &means);
        }
    }
    assert_close(&result.lse, &[13f64.ln(); 26]);
}

#[test]
fn a_dominant_key_gives_its_own_value_without_overflow() {
    let shape = Shape::new(1, 1, 9, 8);
    let [_, mut k, v] = inputs(shape);
    let q = vec![1e3; 9 * 8];
    k[5 * 8..6 * 8].fill(1e3);
    let result = attention(&Problem::new(shape).unwrap(), &q, &k, &v).unwrap();
    for row in result.values.chunks(8) {
        assert_eq!(row, &v[5 * 8..6 * 8]);
    }
    let largest = 8e6 * f64::from(Problem::new(shape).unwrap().softmax_scale());
    assert_eq!(result.lse, vec![largest; 9]);
}

#[test]
fn adding_one_vector_to_every_key_changes_nothing_but_the_lse() {
    let shape = Shape::new(1, 2, 17, 16);
    let problem = Problem::new(shape).unwrap().causal();
    let [q, k, v] = inputs(shape);
    let offset = numbers(16, 4);
    let shifted: Vec<f64> = k.iter().enumerate().map(|(i, key)| key + offset[i % 16]).collect();
    let before = attention(&problem, &q, &k, &v).unwrap();
    let after = attention(&problem, &q, &shifted, &v).unwrap();
    assert_close(&after.values, &before.values);
    let expected: Vec<f64> = q
        .chunks(16)
        .zip(&before.lse)
        .map(|(row, lse)| {
            let dot: f64 = row.iter().zip(&offset).map(|(a, b)| a * b).sum();
            lse + dot * f64::from(problem.softmax_scale())
        })
        .collect();
    assert_close(&after.lse, &expected);
}

#[test]
fn rows_that_see_nothing_are_zero_with_lse_minus_infinity() {
    let shape = Shape { query_len: 7, key_len: 3, ..Shape::new(1, 1, 1, 8) };
    let [q, k, v] = inputs(shape);
    let result = attention(&Problem::new(shape).unwrap().causal(), &q, &k, &v).unwrap();
    assert!(result.values[..4 * 8].iter().all(|value| *value == 0.0));
    assert!(result.lse[..4].iter().all(|lse| *lse == f64::NEG_INFINITY));
    assert_close(&result.values[4 * 8..5 * 8], &v[..8]);
    assert!(result.lse[4..].iter().all(|lse| lse.is_finite()));
}

#[test]
fn wrong_lengths_name_the_argument() {
    let shape = Shape::new(1, 2, 4, 8);
    let problem = Problem::new(shape).unwrap();
    let inputs = inputs(shape);
    for (index, name) in ["q", "k", "v"].into_iter().enumerate() {
        let mut inputs = inputs.clone();
        inputs[index].pop();
        let error = attention(&problem, &inputs[0], &inputs[1], &inputs[2]).unwrap_err();
        let expected = format!("{name}: has 63 elements, but its dims [1, 2, 4, 8] hold 64; pass one value");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let shape = Shape { kv_heads: 1, ..Shape::new(1, 2, 50, 8) };
    let problem = Problem::new(shape).unwrap().causal();
    let [q, k, v] = inputs(shape);
    let with_threads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| attention(&problem, &q, &k, &v).unwrap())
    };
    assert_eq!(with_threads(1), with_threads(5));
}
