//! What attention gives back.

use crate::error::{Error, Result};
use crate::problem::{OutputFormat, Problem};
use half::{bf16, f16};

/// The values of an output, in the number format that the problem asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// Half precision.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

impl Values {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::F16(values) => values.len(),
            Values::Bf16(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values widened to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Values::F32(values) => values.clone(),
            Values::F16(values) => values.iter().map(|value| value.to_f32()).collect(),
            Values::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
        }
    }

    /// Overwrites every element.
    pub fn fill(&mut self, value: f32) {
        match self {
            Values::F32(values) => values.fill(value),
            Values::F16(values) => values.fill(f16::from_f32(value)),
            Values::Bf16(values) => values.fill(bf16::from_f32(value)),
        }
    }
}

/// The output of attention: values in the problem's output layout, and the log-sum-exp if it was wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// `[B,Hq,Sq,D]` or `[B,Sq,Hq,D]`, as the problem says.
    pub values: Values,
    /// Natural logarithm of the sum of the exponentials of each row's scaled scores, `[B,Hq,Sq]`;
    /// −∞ for a row that sees no key.
    pub lse: Option<Vec<f32>>,
}

impl Output {
    /// Room for the output of this problem, all zero.
    pub fn zeros(problem: &Problem) -> Self {
        let dims = problem.shape().query_dims();
        let count = dims.count();
        Output {
            values: match problem.output_format() {
                OutputFormat::F32 => Values::F32(vec![0.0; count]),
                OutputFormat::F16 => Values::F16(vec![f16::ZERO; count]),
                OutputFormat::Bf16 => Values::Bf16(vec![bf16::ZERO; count]),
            },
            lse: problem.lse().then(|| vec![0.0; count / dims.head_dim]),
        }
    }

    /// Overwrites everything with NaN, so that a kernel that leaves something out is seen.
    pub fn poison(&mut self) {
        self.values.fill(f32::NAN);
        if let Some(lse) = &mut self.lse {
            lse.fill(f32::NAN);
        }
    }

    /// Whether this is room for that problem's output.
    pub(crate) fn check(&self, problem: &Problem) -> Result<()> {
        let dims = problem.shape().query_dims();
        let format = match &self.values {
            Values::F32(_) => OutputFormat::F32,
            Values::F16(_) => OutputFormat::F16,
            Values::Bf16(_) => OutputFormat::Bf16,
        };
        let rows = dims.count() / dims.head_dim;
        let lse_fits = self.lse.as_ref().map(Vec::len) == problem.lse().then_some(rows);
        if format != problem.output_format() || self.values.len() != dims.count() || !lse_fits {
            return Err(Error::invalid(
                "output",
                format!("does not fit the problem {problem}"),
                "make it with Output::zeros for the same problem",
            ));
        }
        Ok(())
    }
}
