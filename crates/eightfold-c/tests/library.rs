//! What comes back through the border is what the library gives in Rust, bit for bit.

use eightfold::{Layout, Problem, Shape, Values};
use eightfold_c::constants::*;
use eightfold_c::*;
use std::ptr;

#[test]
fn results_are_those_of_the_library() {
    let shape = Shape::new(2, 2, 13, 24).with_kv_heads(1).with_key_len(21);
    let values = |count: usize, step: f32| (0..count).map(|index| (index as f32 * step).sin()).collect::<Vec<f32>>();
    let [q, k, v] = [(shape.query_dims(), 0.3), (shape.key_dims(), 0.7), (shape.key_dims(), 0.9)]
        .map(|(dims, step)| (dims, values(dims.count(), step)));
    let problem = Problem::new(shape).unwrap().causal().with_lse(true).with_output_layout(Layout::Bshd).unwrap();
    let expected = {
        let quantizer = eightfold::quantize::Quantizer::new(eightfold::Fp8Format::E4m3);
        let q = quantizer.quantize(&q.1, q.0, Layout::Bhsd).unwrap();
        let k = quantizer.centered().quantize(&k.1, k.0, Layout::Bhsd).unwrap();
        let v = quantizer.quantize(&v.1, v.0, Layout::Bhsd).unwrap();
        eightfold::attention(&problem, &q, &k, &v).unwrap()
    };

    let args = ef_problem_args {
        struct_size: size_of::<ef_problem_args>() as u32,
        input_format: EF_E4M3,
        batch: 2,
        query_heads: 2,
        kv_heads: 1,
        query_len: 13,
        key_len: 21,
        head_dim: 24,
        softmax_scale: 0.0,
        mask: EF_MASK_CAUSAL,
        output_format: EF_F32,
        output_layout: EF_BSHD,
        accuracy: EF_FAST,
        lse: 1,
        batch_invariant: 0,
        reserved: 0,
    };
    let lend = |(dims, values): &(eightfold::Dims, Vec<f32>)| ef_values {
        struct_size: size_of::<ef_values>() as u32,
        format: EF_F32,
        batch: dims.batch as u64,
        heads: dims.heads as u64,
        len: dims.len as u64,
        head_dim: dims.head_dim as u64,
        data: values.as_ptr().cast(),
        count: values.len() as u64,
        layout: EF_BHSD,
        reserved: 0,
    };
    let (mut values, mut lse) = (vec![0f32; q.1.len()], vec![0f32; q.1.len() / 24]);
    let output = ef_output {
        struct_size: size_of::<ef_output>() as u32,
        reserved: 0,
        values: values.as_mut_ptr().cast(),
        value_count: values.len() as u64,
        lse: lse.as_mut_ptr(),
        lse_count: lse.len() as u64,
    };
    let mut handle = ptr::null_mut();
    // SAFETY: addresses and counts are those of vectors that live on.
    unsafe {
        assert_eq!(ef_problem_new(&args, &mut handle), EF_OK);
        assert_eq!(ef_attention_values(handle, &lend(&q), &lend(&k), &lend(&v), &output), EF_OK);
        ef_problem_free(handle);
    }
    assert_eq!(Values::F32(values), expected.values);
    assert_eq!(Some(lse), expected.lse);
}

#[test]
fn a_kernel_is_explained() {
    let args = ef_context_args { struct_size: 24, device: EF_CPU, nvrtc: ptr::null(), cache: ptr::null() };
    let shape = ef_problem_args {
        batch: 1,
        query_heads: 1,
        kv_heads: 1,
        query_len: 8,
        key_len: 8,
        head_dim: 64,
        struct_size: 56,
        // SAFETY: zero is a value of every field.
        ..unsafe { std::mem::zeroed() }
    };
    let (mut context, mut problem, mut needed, mut text) = (ptr::null_mut(), ptr::null_mut(), 0, [0; 4000]);
    // SAFETY: the handles are null or were just made, and the buffer is as large as it is said to be.
    let text = unsafe {
        assert_eq!(ef_context_open(&args, &mut context), EF_OK);
        assert_eq!(ef_problem_new(&shape, &mut problem), EF_OK);
        assert_eq!(ef_explain(context, problem, text.as_mut_ptr(), 4000, &mut needed), EF_OK);
        ef_problem_free(problem);
        ef_context_close(context);
        std::ffi::CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_string()
    };
    assert_eq!(text.len() as u64 + 1, needed);
    assert!(text.starts_with("cpu:") && text.contains(" runs: "), "{text}");
}
