//! The attention of a row to all keys, from its attention to parts of them.

use crate::error::{Error, Result};
use crate::output::{Output, Values};
use crate::tensor::{Dims, Layout};
use rayon::prelude::*;

/// Merges attention to parts of the keys, such as a shared prefix and what follows it, or keys on several devices.
///
/// Each part has the output and the log-sum-exp of the same rows; `dims` are those of Q and `layout` is that of the outputs. In
/// which order the parts come makes no difference but in rounding. A row that sees no key in any part is zero.
///
/// ```
/// use eightfold::{Problem, Shape, attention, quantize, serving};
///
/// // Both parts have the same keys, so that together they attend as each does.
/// let problem = Problem::new(Shape::new(1, 2, 16, 64))?.with_lse(true);
/// let values: Vec<f32> = (0..2 * 16 * 64).map(|index| (index as f32).sin()).collect();
/// let [q, k, v] = quantize::for_attention(&problem, [&values[..]; 3])?;
/// let part = attention(&problem, &q, &k, &v)?;
/// let merged = serving::merge(q.dims(), problem.output_layout(), &[&part, &part])?;
/// let lse = [&part, &merged].map(|output| output.lse.as_ref().unwrap()[0]);
/// assert!((lse[1] - lse[0] - 2f32.ln()).abs() < 1e-5);
/// # Ok::<(), eightfold::Error>(())
/// ```
pub fn merge(dims: Dims, layout: Layout, parts: &[&Output]) -> Result<Output> {
    let Some(first) = parts.first() else {
        return Err(Error::invalid("parts", "there are none", "give at least one output"));
    };
    if layout.is_transposed() {
        return Err(Error::invalid("layout", format!("{layout} is for V alone"), "choose bhsd or bshd"));
    }
    let count = dims.checked_count()?;
    let width = dims.head_dim.max(1);
    let rows = count / width;
    let mut logarithms = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let same = part.values.format() == first.values.format() && part.values.len() == count;
        let Some(lse) = part.lse.as_deref().filter(|lse| same && lse.len() == rows) else {
            return Err(Error::invalid(
                "parts",
                format!("part {index} is no output of dims {dims} with a log-sum-exp, in the format of the first"),
                "compute every part with Problem::with_lse and the same output format",
            ));
        };
        if let Some(row) = lse.iter().position(|lse| lse.is_nan() || *lse == f32::INFINITY) {
            return Err(Error::invalid(
                "parts",
                format!("the log-sum-exp of row {row} of part {index} is {}", lse[row]),
                "give natural logarithms; -inf is right for a row without keys",
            ));
        }
        logarithms.push(lse);
    }
    let values: Vec<Vec<f32>> = parts.iter().map(|part| part.values.to_f32()).collect();
    let lse: Vec<f64> = (0..rows).into_par_iter().map(|row| sum_of_exponentials(&logarithms, row)).collect();
    let mut merged = vec![0.0; count];
    merged.par_chunks_mut(width).enumerate().for_each(|(index, merged)| {
        let row = match layout {
            Layout::Bshd => {
                let (token, head) = (index / dims.heads, index % dims.heads);
                (token / dims.len * dims.heads + head) * dims.len + token % dims.len
            }
            _ => index,
        };
        if lse[row] == f64::NEG_INFINITY {
            return;
        }
        let weights = logarithms.iter().map(|part| (f64::from(part[row]) - lse[row]).exp() as f32);
        for (values, weight) in values.iter().zip(weights).filter(|(_, weight)| *weight > 0.0) {
            for (merged, value) in merged.iter_mut().zip(&values[index * width..]) {
                *merged += weight * value;
            }
        }
    });
    let lse = lse.into_iter().map(|lse| lse as f32).collect();
    Ok(Output { values: Values::of_f32(first.values.format(), merged), lse: Some(lse) })
}

/// ln Σ exp of a row's logarithms.
fn sum_of_exponentials(logarithms: &[&[f32]], row: usize) -> f64 {
    let of_row = || logarithms.iter().map(|part| f64::from(part[row]));
    let largest = of_row().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    largest + of_row().map(|logarithm| (logarithm - largest).exp()).sum::<f64>().ln()
}
