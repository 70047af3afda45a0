//! The CPU backend.

mod config;
mod isa;
mod stages;

pub use config::{Config, Exp, KNOBS, Knob, Numbers, Schedule, Simd};
pub use isa::Features;
pub use stages::{STAGES, Stage, find as find_stage};

/// Interim: a plain loop that serves every config until the tiled kernel stands here.
pub(crate) fn run(
    problem: &crate::Problem,
    q: &crate::Fp8Tensor,
    k: &crate::Fp8Tensor,
    v: &crate::Fp8Tensor,
    output: &mut crate::Output,
) -> crate::RunReport {
    use half::{bf16, f16};
    use rayon::prelude::*;
    let shape = problem.shape();
    let (qd, kd, vd) = (q.dequantize(), k.dequantize(), v.dequantize());
    let d = shape.head_dim;
    let strides = problem.output_layout().strides(shape.query_dims());
    let rows: Vec<(Vec<f32>, f32)> = (0..shape.batch * shape.query_heads * shape.query_len)
        .into_par_iter()
        .map(|row| {
            let (bh, i) = (row / shape.query_len, row % shape.query_len);
            let (b, h) = (bh / shape.query_heads, bh % shape.query_heads);
            let kv = (b * shape.kv_heads + h / shape.group()) * shape.key_len;
            let n = problem.visible_keys(i);
            if n == 0 {
                return (vec![0.0; d], f32::NEG_INFINITY);
            }
            let qr: Vec<f32> = qd[row * d..][..d].iter().map(|x| *x as f32).collect();
            let s: Vec<f32> = (0..n)
                .map(|j| {
                    qr.iter().zip(&kd[(kv + j) * d..][..d]).map(|(a, b)| a * *b as f32).sum::<f32>()
                        * problem.softmax_scale()
                })
                .collect();
            let m = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut o = vec![0.0f32; d];
            let mut l = 0.0;
            for (j, x) in s.iter().enumerate() {
                let p = (x - m).exp();
                l += p;
                for c in 0..d {
                    o[c] += p * vd[(kv + j) * d + c] as f32;
                }
            }
            o.iter_mut().for_each(|x| *x /= l);
            (o, m + l.ln())
        })
        .collect();
    for (row, (o, lse)) in rows.into_iter().enumerate() {
        let (bh, i) = (row / shape.query_len, row % shape.query_len);
        let offset = strides.row_offset(bh / shape.query_heads, bh % shape.query_heads, i);
        for (c, x) in o.into_iter().enumerate() {
            match &mut output.values {
                crate::Values::F32(out) => out[offset + c] = x,
                crate::Values::F16(out) => out[offset + c] = f16::from_f32(x),
                crate::Values::Bf16(out) => out[offset + c] = bf16::from_f32(x),
            }
        }
        if let Some(out) = &mut output.lse {
            out[row] = lse;
        }
    }
    crate::RunReport { tiles: 1, ..Default::default() }
}
