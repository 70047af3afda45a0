//! What of Q, K and V decides whether a kernel can take them.

use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::quantize::Quantizer;
use crate::tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout};

/// A tensor without its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Operand {
    /// The logical dimensions.
    pub dims: Dims,
    /// The number format of the codes.
    pub format: Fp8Format,
    /// The order of the dimensions in memory.
    pub layout: Layout,
    /// How much of the tensor shares a scale.
    pub granularity: Granularity,
    /// Whether the channel means were taken from it.
    pub centred: bool,
    /// No code is larger in magnitude.
    pub largest_code: f32,
}

/// Q, K and V without their numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Operands {
    /// The queries.
    #[doc(hidden)]
    pub q: Operand,
    /// The keys.
    #[doc(hidden)]
    pub k: Operand,
    /// The values.
    #[doc(hidden)]
    pub v: Operand,
}

impl Operands {
    /// Of tensors on the host, whose codes are all looked at.
    pub fn of_host(q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Self {
        Operands::with_largest_codes(q, k, v, |tensor| tensor.largest_code())
    }

    /// The same for a kernel that takes codes of any size: they are not looked at.
    pub(crate) fn of_any_codes(q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Self {
        Operands::with_largest_codes(q, k, v, |tensor| tensor.format().max())
    }

    fn with_largest_codes(
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        largest_code: impl Fn(&Fp8Tensor) -> f32,
    ) -> Self {
        let [q, k, v] = [q, k, v].map(|tensor| Operand {
            dims: tensor.dims(),
            format: tensor.format(),
            layout: tensor.layout(),
            granularity: tensor.scales().granularity(),
            centred: tensor.means().is_some(),
            largest_code: largest_code(tensor),
        });
        Operands { q, k, v }
    }

    /// What tensors are taken to be while they are not known: in rows, as this library quantises for a device.
    pub fn assumed(problem: &Problem) -> Self {
        let [q, k, v] = Quantizer::for_attention(problem);
        let shape = problem.shape();
        Operands {
            q: q.operand(shape.query_dims()),
            k: k.operand(shape.key_dims()),
            v: v.operand(problem.value_dims()),
        }
    }

    /// Whether they are those of the problem, whatever the kernel.
    pub(crate) fn check(&self, problem: &Problem) -> Result<()> {
        let shape = problem.shape();
        let (of_scores, of_values) = (problem.input_format(), problem.value_format());
        let expected = [
            ("q", self.q, shape.query_dims(), of_scores),
            ("k", self.k, shape.key_dims(), of_scores),
            ("v", self.v, problem.value_dims(), of_values),
        ];
        for (name, operand, dims, format) in expected {
            if operand.dims != dims {
                return Err(Error::invalid(
                    name,
                    format!("has dims {}, but the problem {problem} needs {dims}", operand.dims),
                    "give tensor and problem the same sizes",
                ));
            }
            if operand.format != format {
                let (rule, fix) = match (of_scores, name) {
                    (Fp8Format::Int8, "v") => {
                        (format!("is in {}, but beside int8 it is in {format}", operand.format), "quantise v to e4m3")
                    }
                    _ => (
                        format!("is in {}, but the problem says {format}", operand.format),
                        "quantise it to the same format, or set Problem::with_input_format",
                    ),
                };
                return Err(Error::invalid(name, rule, fix));
            }
            if name != "v" && operand.layout.is_transposed() {
                return Err(Error::invalid(
                    name,
                    format!("is laid out transposed, as {}, which is for V alone", operand.layout),
                    "lay it out as Layout::Bhsd or Layout::Bshd",
                ));
            }
        }
        if self.q.centred {
            return Err(Error::invalid(
                "q",
                "is centred, which softmax does not forgive in Q",
                "quantise it without centring; K and V may be centred",
            ));
        }
        Ok(())
    }
}

/// Whether Q, and it alone, carries sinks where the problem has them: which of Q, K and V carry some.
pub(crate) fn check_sinks(problem: &Problem, [q, k, v]: [bool; 3]) -> Result<()> {
    if let Some((name, _)) = [("k", k), ("v", v)].into_iter().find(|(_, carries)| *carries) {
        return Err(Error::invalid(name, "carries sinks, which belong to the heads of Q", "give them to q alone"));
    }
    match (problem.has_sinks(), q) {
        (true, false) => Err(Error::invalid(
            "sinks",
            format!("the problem {problem} has them, but q carries none"),
            "give q one logit for each head by Fp8Tensor::with_sinks",
        )),
        (false, true) => Err(Error::invalid(
            "sinks",
            format!("q carries them, but the problem {problem} has none"),
            "set Problem::with_sinks, or leave them out of q",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn tensors_of_another_kind_are_refused_by_name() {
        let problem = Problem::new(Shape { query_len: 33, ..Shape::new(1, 2, 70, 64) }).unwrap();
        let Operands { q, k, v } = Operands::assumed(&problem);
        let refused = |q, k, v| Operands { q, k, v }.check(&problem).unwrap_err().to_string();
        assert_eq!(Operands { q, k, v }.check(&problem), Ok(()));
        assert!(refused(k, k, v).starts_with("q: has dims [1, 2, 70, 64], but"));
        let e5m2 = Operand { format: Fp8Format::E5m2, ..k };
        assert!(refused(q, e5m2, v).starts_with("k: is in e5m2, but the problem says e4m3"));
        let transposed = Operand { layout: Layout::Bhds, ..v };
        assert!(refused(q, transposed, v).starts_with("k: is laid out transposed, as bhds"));
        assert_eq!(Operands { q, k, v: transposed }.check(&problem), Ok(()));
        assert!(refused(Operand { centred: true, ..q }, k, v).starts_with("q: is centred"));
    }

    #[test]
    fn values_stay_in_fp8_beside_int8() {
        let problem = Problem::new(Shape::new(1, 2, 70, 64)).unwrap().with_input_format(Fp8Format::Int8);
        let operands = Operands::assumed(&problem);
        assert_eq!(
            [operands.q, operands.k, operands.v].map(|operand| operand.format.to_string()),
            ["int8", "int8", "e4m3"]
        );
        assert_eq!(operands.check(&problem), Ok(()));
        let refused = |operands: Operands| operands.check(&problem).unwrap_err().to_string();
        let in_int8 = Operand { format: Fp8Format::Int8, ..operands.v };
        assert!(
            refused(Operands { v: in_int8, ..operands }).starts_with("v: is in int8, but beside int8 it is in e4m3")
        );
        let in_fp8 = Operand { format: Fp8Format::E4m3, ..operands.k };
        assert!(refused(Operands { k: in_fp8, ..operands }).starts_with("k: is in e4m3, but the problem says int8"));
    }
}
