//! What of Q, K and V decides whether a kernel can take them.

use crate::cuda::Specialisation;
use crate::cuda::tensor::DeviceTensor;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::quantize::SMALL_CODES;
use crate::tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout};

/// A tensor without its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
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
pub struct Operands {
    /// The queries.
    pub q: Operand,
    /// The keys.
    pub k: Operand,
    /// The values.
    pub v: Operand,
}

impl Operands {
    /// Of tensors on the device.
    pub fn of(q: &DeviceTensor, k: &DeviceTensor, v: &DeviceTensor) -> Self {
        let [q, k, v] = [q, k, v].map(|tensor| Operand {
            dims: tensor.dims(),
            format: tensor.format(),
            layout: tensor.layout(),
            granularity: tensor.granularity(),
            centred: tensor.means().is_some(),
            largest_code: tensor.largest_code(),
        });
        Operands { q, k, v }
    }

    /// Of tensors on the host.
    pub fn of_host(q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Self {
        let [q, k, v] = [q, k, v].map(|tensor| Operand {
            dims: tensor.dims(),
            format: tensor.format(),
            layout: tensor.layout(),
            granularity: tensor.scales().granularity(),
            centred: tensor.means().is_some(),
            largest_code: tensor.largest_code(),
        });
        Operands { q, k, v }
    }

    /// What tensors are taken to be while they are not known: in rows, a scale per head, small codes of Q and K, as this
    /// library quantises for a device.
    pub fn assumed(problem: &Problem) -> Self {
        let format = problem.input_format();
        let operand = |dims, largest_code| Operand {
            dims,
            format,
            layout: Layout::Bhsd,
            granularity: Granularity::Head,
            centred: false,
            largest_code,
        };
        let shape = problem.shape();
        Operands {
            q: operand(shape.query_dims(), SMALL_CODES),
            k: operand(shape.key_dims(), SMALL_CODES),
            v: operand(shape.key_dims(), format.max()),
        }
    }

    /// Whether they are those of the problem, whatever the kernel.
    pub(crate) fn check(&self, problem: &Problem) -> Result<()> {
        let shape = problem.shape();
        let expected =
            [("q", self.q, shape.query_dims()), ("k", self.k, shape.key_dims()), ("v", self.v, shape.key_dims())];
        for (name, operand, dims) in expected {
            if operand.dims != dims {
                return Err(Error::invalid(
                    name,
                    format!("has dims {}, but the problem {problem} needs {dims}", operand.dims),
                    "give tensor and problem the same sizes",
                ));
            }
            if operand.format != problem.input_format() {
                return Err(Error::invalid(
                    name,
                    format!("is in {}, but the problem says {}", operand.format, problem.input_format()),
                    "quantise it to the same format, or set Problem::with_input_format",
                ));
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

    /// What a kernel for them is specialised for.
    pub fn specialisation(&self, problem: &Problem) -> Specialisation {
        Specialisation {
            centred: self.v.centred,
            ..Specialisation::new(problem, self.q.granularity, self.k.granularity, self.v.granularity)
        }
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
        let turned = Operand { layout: Layout::Bhds, ..v };
        assert!(refused(q, turned, v).starts_with("k: is laid out transposed, as bhds"));
        assert_eq!(Operands { q, k, v: turned }.check(&problem), Ok(()));
        assert!(refused(Operand { centred: true, ..q }, k, v).starts_with("q: is centred"));
    }
}
