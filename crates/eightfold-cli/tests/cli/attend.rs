//! `attend` against the float64 reference.

use crate::support::{Place, Tensor, numbers, sound_tensors};
use eightfold::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Problem, Scales, Shape, reference};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

const SHAPE: Shape = Shape::new(2, 4, 9, 16).with_kv_heads(2).with_key_len(21);

/// The numbers that a tensor of a file holds, widened.
fn read(file: &SafeTensors, name: &str) -> (Dtype, Vec<usize>, Vec<f64>) {
    let view = file.tensor(name).unwrap();
    let data = view.data();
    let values = match view.dtype() {
        Dtype::F32 => data.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        Dtype::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
        Dtype::BF16 => data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect(),
        other => panic!("unexpected {other}"),
    };
    (view.dtype(), view.shape().to_vec(), values)
}

fn relative_l2(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let error: f64 = found.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = expected.iter().map(|b| b * b).sum();
    (error / norm).sqrt()
}

fn sizes(dims: Dims, layout: Layout) -> [usize; 4] {
    match layout {
        Layout::Bshd => [dims.batch, dims.len, dims.heads, dims.head_dim],
        _ => [dims.batch, dims.heads, dims.len, dims.head_dim],
    }
}

/// `[B,H,S,D]` values in another order.
fn reorder<T: Copy + Default>(values: &[T], dims: Dims, layout: Layout) -> Vec<T> {
    let (from, to) = (Layout::Bhsd.strides(dims), layout.strides(dims));
    let mut ordered = vec![T::default(); values.len()];
    for batch in 0..dims.batch {
        for head in 0..dims.heads {
            for row in 0..dims.len {
                for channel in 0..dims.head_dim {
                    ordered[to.row_offset(batch, head, row) + channel] =
                        values[from.row_offset(batch, head, row) + channel];
                }
            }
        }
    }
    ordered
}

/// f32 tensors that FP8 holds exactly, so that the reference on them is the reference on the codes:
/// multiples of 1/8 up to ±1, with ±1.75 in every head so that every scale is 1.75/448 = 2^-8.
fn exact(dims: Dims, seed: u64) -> Vec<f32> {
    let mut values: Vec<f32> = numbers(dims.count(), seed).iter().map(|value| (value * 8.0).round() / 8.0).collect();
    for head in values.chunks_mut(dims.len * dims.head_dim) {
        head[0] = 1.75;
    }
    values
}

struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn inputs() -> Inputs {
    let (queries, keys) = (SHAPE.query_dims(), SHAPE.key_dims());
    Inputs { q: exact(queries, 1), k: exact(keys, 2), v: exact(keys, 3) }
}

fn expected(problem: &Problem, inputs: &Inputs) -> reference::Reference {
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v]
        .map(|values| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>());
    reference::attention(problem, &q, &k, &v).unwrap()
}

fn check(
    make: fn(&'static str, &[usize], &[f32]) -> Tensor,
    layout: Layout,
    flags: &str,
    problem: &Problem,
    dtype: Dtype,
    tolerance: f64,
) {
    let place = Place::new();
    let inputs = inputs();
    let (queries, keys) = (SHAPE.query_dims(), SHAPE.key_dims());
    place.write(
        "in.safetensors",
        &[
            make("q", &sizes(queries, layout), &reorder(&inputs.q, queries, layout)),
            make("k", &sizes(keys, layout), &reorder(&inputs.k, keys, layout)),
            make("v", &sizes(keys, layout), &reorder(&inputs.v, keys, layout)),
        ],
    );
    place.succeed(&format!("attend --inputs in.safetensors --to out.safetensors --layout {layout} {flags}"));
    assert_eq!(place.contents(), ["in.safetensors", "out.safetensors"]);
    let bytes = std::fs::read(place.file("out.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let reference = expected(problem, &inputs);
    let (found_dtype, found_sizes, values) = read(&file, "o");
    assert_eq!((found_dtype, &found_sizes[..]), (dtype, &sizes(queries, layout)[..]));
    let error = relative_l2(&values, &reorder(&reference.values, queries, layout));
    assert!(error < tolerance, "{flags}: {error}");
    if flags.contains("--lse") {
        let (_, lse_sizes, lse) = read(&file, "lse");
        assert_eq!(lse_sizes, [SHAPE.batch, SHAPE.query_heads, SHAPE.query_len]);
        assert!(relative_l2(&lse, &reference.lse) < tolerance);
    } else {
        assert!(file.tensor("lse").is_err());
    }
}

fn problem() -> Problem {
    Problem::new(SHAPE).unwrap()
}

#[test]
fn every_input_type_and_both_layouts_agree_with_the_reference() {
    for make in [Tensor::f32, Tensor::f16, Tensor::bf16] {
        for layout in [Layout::Bhsd, Layout::Bshd] {
            check(make, layout, "--lse --variant cpu:baseline", &problem(), Dtype::F32, 1e-5);
            check(make, layout, "--lse --causal", &problem().causal(), Dtype::F32, 3e-3);
        }
    }
}

#[test]
fn the_scale_and_the_output_type_are_obeyed() {
    let scaled = problem().with_softmax_scale(0.7).unwrap();
    check(Tensor::f32, Layout::Bhsd, "--scale 0.7", &scaled, Dtype::F32, 3e-3);
    check(Tensor::f32, Layout::Bhsd, "--dtype f16", &problem(), Dtype::F16, 3e-3);
    check(Tensor::f32, Layout::Bshd, "--dtype bf16", &problem(), Dtype::BF16, 1e-2);
}

#[test]
fn fp8_codes_are_used_as_they_come_at_every_granularity() {
    for (dtype, format) in [(Dtype::F8_E4M3, Fp8Format::E4m3), (Dtype::F8_E5M2, Fp8Format::E5m2)] {
        for blocks in [None, Some(0), Some(1), Some(3)] {
            let place = Place::new();
            let (queries, keys) = (SHAPE.query_dims(), SHAPE.key_dims());
            let make = |dims: Dims, seed| {
                // Codes up to 1.875 in magnitude, sign included.
                let codes: Vec<u8> = numbers(dims.count(), seed)
                    .iter()
                    .map(|value| (value.abs() * 63.0) as u8 | if *value < 0.0 { 0x80 } else { 0 })
                    .collect();
                let granularity = match blocks {
                    None => Granularity::Tensor,
                    Some(0) => Granularity::Head,
                    Some(blocks) => Granularity::Block { rows: dims.len.div_ceil(blocks) },
                };
                let scales = numbers(granularity.count(dims), seed + 10).iter().map(|x| x.abs() + 0.5).collect();
                let scales = Scales::new(granularity, scales).unwrap();
                Fp8Tensor::new(dims, Layout::Bhsd, format, codes, scales).unwrap()
            };
            let tensors = [make(queries, 1), make(keys, 2), make(keys, 3)];
            let names = [("q", "q_scale"), ("k", "k_scale"), ("v", "v_scale")];
            let mut stored = Vec::new();
            for (tensor, (name, scale_name)) in tensors.iter().zip(names) {
                let dims = tensor.dims();
                stored.push(Tensor::codes(name, dtype, &sizes(dims, Layout::Bhsd), tensor.codes()));
                let scale_sizes = match blocks {
                    None => vec![1],
                    Some(0) => vec![dims.batch, dims.heads],
                    Some(blocks) => vec![dims.batch, dims.heads, blocks],
                };
                stored.push(Tensor::f32(scale_name, &scale_sizes, tensor.scales().values()));
            }
            place.write("in.safetensors", &stored);
            place.succeed("attend --inputs in.safetensors --to out.safetensors --variant cpu:baseline");
            let bytes = std::fs::read(place.file("out.safetensors")).unwrap();
            let (_, _, values) = read(&SafeTensors::deserialize(&bytes).unwrap(), "o");
            let [q, k, v] = tensors.map(|tensor| tensor.dequantize());
            let problem = problem().with_input_format(format);
            let reference = reference::attention(&problem, &q, &k, &v).unwrap();
            let error = relative_l2(&values, &reference.values);
            assert!(error < 1e-5, "{format} {blocks:?}: {error}");
        }
    }
}

#[test]
fn the_output_says_what_made_it() {
    let place = Place::new();
    place.write("in.safetensors", &sound_tensors(&[1, 2, 8, 16]));
    let text = place.succeed("attend --inputs in.safetensors --to out.safetensors --json");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["to"], "out.safetensors");
    let bytes = std::fs::read(place.file("out.safetensors")).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    assert_eq!(metadata["variant"], answer["variant"].as_str().unwrap());
    assert_eq!(metadata["eightfold"], env!("CARGO_PKG_VERSION"));
    assert_eq!(metadata["problem"], "1,2,8,16");
}

#[test]
fn the_old_output_is_replaced() {
    let place = Place::new();
    place.write("in.safetensors", &sound_tensors(&[1, 1, 8, 8]));
    std::fs::write(place.file("out.safetensors"), "old").unwrap();
    place.succeed("attend --inputs in.safetensors --to out.safetensors");
    assert!(SafeTensors::deserialize(&std::fs::read(place.file("out.safetensors")).unwrap()).is_ok());
}

#[test]
fn a_window_a_softcap_sinks_and_v_of_other_channels_are_obeyed() {
    let place = Place::new();
    let (queries, keys) = (SHAPE.query_dims(), SHAPE.key_dims());
    let wider = Dims::new(keys.batch, keys.heads, keys.len, keys.head_dim + 8);
    let (q, k, v) = (exact(queries, 1), exact(keys, 2), exact(wider, 3));
    let sinks = numbers(SHAPE.query_heads, 4);
    let file = |sinks: &[f32]| {
        let tensor = |name, dims, values: &[f32]| Tensor::f32(name, &sizes(dims, Layout::Bhsd), values);
        let sinks = Tensor::f32("sinks", &[sinks.len()], sinks);
        place
            .write("in.safetensors", &[tensor("q", queries, &q), tensor("k", keys, &k), tensor("v", wider, &v), sinks]);
    };
    file(&sinks);
    let attend = "attend --inputs in.safetensors --to out.safetensors --lse --variant cpu:baseline --causal --window 2,-1 --softcap 0.5";
    let said = place.succeed(attend);
    assert!(said.contains(" causal window=2,-1 softcap=0.5 sinks with"), "{said}");
    let bytes = std::fs::read(place.file("out.safetensors")).unwrap();
    let found = SafeTensors::deserialize(&bytes).unwrap();
    let problem = problem().causal().with_window("2,-1".parse().unwrap()).with_softcap(0.5).unwrap().with_sinks();
    let problem = problem.with_value_dim(wider.head_dim).unwrap();
    let [q, k, v, sinks] =
        [&q, &k, &v, &sinks].map(|values| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>());
    let expected = reference::attention_with_sinks(&problem, &q, &k, &v, &sinks).unwrap();
    let (_, found_sizes, values) = read(&found, "o");
    assert_eq!(found_sizes, sizes(problem.output_dims(), Layout::Bhsd));
    assert!(relative_l2(&values, &expected.values) < 1e-5);
    assert!(relative_l2(&read(&found, "lse").2, &expected.lse) < 1e-5);

    for (wrong, rule) in
        [(vec![0.5; 99], "99 logits for"), (vec![f32::NAN; SHAPE.query_heads], "that of head 0 is NaN")]
    {
        file(&wrong);
        let error = String::from_utf8(place.run(attend).stderr).unwrap();
        assert!(error.contains(&format!("sinks: {rule}")), "{error}");
    }
    place.write("in.safetensors", &sound_tensors(&[1, 2, 8, 16]));
    let error = String::from_utf8(place.run(&format!("{attend} --sinks")).stderr).unwrap();
    assert!(error.contains("sinks: the file holds no tensor of this name"), "{error}");
}

#[test]
fn queries_and_keys_may_be_int8_and_the_rest_may_not() {
    let place = Place::new();
    place.write("in.safetensors", &sound_tensors(&[1, 2, 8, 16]));
    let text = place.succeed("attend --inputs in.safetensors --to out.safetensors --input-format int8 --json");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["problem"]["input_format"], "int8");
    place.succeed("run --input-format int8 --shape 1,2,24,16 --families gaussian --seeds 1 --variant cpu:baseline");
    let refused = crate::support::stderr(&place.run("explain --input-format int8 --variant ladder"));
    assert!(refused.contains("computes no scores of int8"), "{refused}");
}
