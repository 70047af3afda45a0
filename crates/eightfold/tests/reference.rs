//! The float64 reference against the plainest loops, and against cases with a known answer.

use eightfold::reference::{Reference, attention, attention_with_sinks};
use eightfold::{Mask, Problem, Shape, Window};
use proptest::prelude::*;

/// Attention as its definition says, one query at a time.
fn naive(problem: &Problem, q: &[f64], k: &[f64], v: &[f64], sinks: &[f64]) -> Reference {
    let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim, .. } = problem.shape();
    let value_dim = problem.value_dims().head_dim;
    let mut values = vec![0.0; problem.output_dims().count()];
    let mut lse = vec![f64::NEG_INFINITY; q.len() / head_dim];
    for b in 0..batch {
        for h in 0..query_heads {
            let kv = b * kv_heads + h / (query_heads / kv_heads);
            for i in 0..query_len {
                let row = (b * query_heads + h) * query_len + i;
                let sees = |j: usize| {
                    // How far the key is behind the query's own.
                    let ahead = j as i64 + query_len as i64 - i as i64 - key_len as i64;
                    let Window { left, right, .. } = problem.window();
                    left.is_none_or(|left| ahead >= -(left as i64))
                        && right.is_none_or(|right| ahead <= right as i64)
                        && (problem.mask() == Mask::None || ahead <= 0)
                };
                let weight = |j: usize| -> f64 {
                    let dot: f64 =
                        (0..head_dim).map(|c| q[row * head_dim + c] * k[(kv * key_len + j) * head_dim + c]).sum();
                    let score = dot * f64::from(problem.softmax_scale());
                    let bound = |softcap: f32| f64::from(softcap) * (score / f64::from(softcap)).tanh();
                    problem.softcap().map_or(score, bound).exp()
                };
                let keys: Vec<usize> = (0..key_len).filter(|j| sees(*j)).collect();
                let sink = sinks.get(h).map_or(0.0, |sink| sink.exp());
                let total = sink + keys.iter().map(|j| weight(*j)).sum::<f64>();
                lse[row] = total.ln();
                if keys.is_empty() {
                    continue;
                }
                for c in 0..value_dim {
                    let sum: f64 = keys.iter().map(|j| weight(*j) * v[(kv * key_len + j) * value_dim + c]).sum();
                    values[row * value_dim + c] = sum / total;
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
        query_len in 1usize..20, key_len in 1usize..20, eighths in 1usize..4, value_eighths in 1usize..4, causal: bool,
        scale in 0.01f32..2.0,
        window in (proptest::option::of(0usize..24), proptest::option::of(0usize..24)),
        softcap in proptest::option::of(0.1f32..5.0),
        with_sinks: bool,
    ) {
        let query_heads = kv_heads * group;
        let head_dim = 8 * eighths;
        let shape = Shape::new(batch, query_heads, query_len, head_dim).with_kv_heads(kv_heads).with_key_len(key_len);
        let mut problem = Problem::new(shape)?.with_mask(Mask::causal_if(causal)).with_softmax_scale(scale)?
            .with_value_dim(8 * value_eighths)?
            .with_window(Window::new(window.0, window.1));
        if let Some(softcap) = softcap {
            problem = problem.with_softcap(softcap)?;
        }
        if with_sinks {
            problem = problem.with_sinks();
        }
        let sinks = numbers(if with_sinks { query_heads } else { 0 }, 5);
        let [q, k, _] = inputs(shape);
        let v = numbers(problem.value_dims().count(), 3);
        let actual = attention_with_sinks(&problem, &q, &k, &v, &sinks)?;
        let expected = naive(&problem, &q, &k, &v, &sinks);
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
    let shape = Shape::new(1, 1, 7, 8).with_key_len(3);
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
    let shape = Shape::new(1, 2, 50, 8).with_kv_heads(1);
    let problem = Problem::new(shape).unwrap().causal();
    let [q, k, v] = inputs(shape);
    let with_threads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| attention(&problem, &q, &k, &v).unwrap())
    };
    assert_eq!(with_threads(1), with_threads(5));
}

#[test]
fn sinks_must_be_those_of_the_problem() {
    let shape = Shape::new(1, 2, 4, 8);
    let problem = Problem::new(shape).unwrap();
    let [q, k, v] = inputs(shape);
    let refused =
        |problem: Problem, sinks: &[f64]| attention_with_sinks(&problem, &q, &k, &v, sinks).unwrap_err().to_string();
    assert!(refused(problem, &[0.0]).starts_with("sinks: 1 logits for 0 query heads"));
    assert!(refused(problem.with_sinks(), &[0.0; 3]).starts_with("sinks: 3 logits for 2 query heads"));
    assert!(refused(problem.with_sinks(), &[0.0, f64::NAN]).starts_with("sinks: that of head 1 is NaN"));
    let error = attention(&problem.with_sinks(), &q, &k, &v).unwrap_err().to_string();
    assert!(error.starts_with("sinks: the problem 1,2,4,8 sinks has them"), "{error}");
}
