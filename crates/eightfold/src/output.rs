//! What attention gives back.

use crate::error::{Error, Result};
use crate::problem::{OutputFormat, Problem};
use crate::tensor::Dims;
use half::{bf16, f16};

/// The values of an output, in the number format that the problem asked for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
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

    /// Values in this format.
    pub(crate) fn of_f32(format: OutputFormat, values: Vec<f32>) -> Self {
        match format {
            OutputFormat::F32 => Values::F32(values),
            OutputFormat::F16 => Values::F16(values.into_iter().map(f16::from_f32).collect()),
            OutputFormat::Bf16 => Values::Bf16(values.into_iter().map(bf16::from_f32).collect()),
        }
    }

    /// The number format.
    pub(crate) fn format(&self) -> OutputFormat {
        match self {
            Values::F32(_) => OutputFormat::F32,
            Values::F16(_) => OutputFormat::F16,
            Values::Bf16(_) => OutputFormat::Bf16,
        }
    }

    /// Overwrites every element.
    #[doc(hidden)]
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
#[non_exhaustive]
pub struct Output {
    /// `[B,Hq,Sq,Dv]` or `[B,Sq,Hq,Dv]`, as the problem says.
    pub values: Values,
    /// Natural logarithm of the sum of the exponentials of each row's scores and of its sink, if there is one, `[B,Hq,Sq]`;
    /// −∞ for a row that sees no key and has no sink.
    pub lse: Option<Vec<f32>>,
}

impl Output {
    /// Room for the output of this problem, all zero.
    pub fn zeros(problem: &Problem) -> Self {
        Output::zeros_of(problem, problem.output_dims())
    }

    /// The same for rows of these dimensions.
    #[doc(hidden)]
    pub fn zeros_of(problem: &Problem, dims: Dims) -> Self {
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
    #[doc(hidden)]
    pub fn poison(&mut self) {
        self.values.fill(f32::NAN);
        if let Some(lse) = &mut self.lse {
            lse.fill(f32::NAN);
        }
    }

    /// Whether this is room for that problem's output.
    pub(crate) fn check(&self, problem: &Problem) -> Result<()> {
        self.check_dims(problem, problem.output_dims())
    }

    /// Whether this is room for the output of that problem on rows of these dimensions.
    pub(crate) fn check_dims(&self, problem: &Problem, dims: Dims) -> Result<()> {
        let rows = dims.count() / dims.head_dim;
        let lse_fits = self.lse.as_ref().map(Vec::len) == problem.lse().then_some(rows);
        if self.values.format() != problem.output_format() || self.values.len() != dims.count() || !lse_fits {
            return Err(Error::invalid(
                "output",
                format!("does not fit the problem {problem}"),
                "make it with Output::zeros for the same problem",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    const FORMATS: [OutputFormat; 3] = [OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16];

    fn problem() -> Problem {
        Problem::new(Shape { kv_heads: 1, key_len: 9, ..Shape::new(2, 3, 5, 8) }).unwrap()
    }

    #[test]
    fn there_is_room_for_every_query() {
        for format in FORMATS {
            let problem = problem().with_output_format(format);
            let output = Output::zeros(&problem);
            assert_eq!(output.values.len(), 240);
            assert!(!output.values.is_empty());
            assert_eq!(output.values.to_f32(), vec![0.0; 240]);
            assert_eq!(output.lse, None);
            let with_lse = Output::zeros(&problem.with_lse(true));
            assert_eq!(with_lse.lse, Some(vec![0.0; 30]));
        }
    }

    #[test]
    fn poison_reaches_every_element() {
        for format in FORMATS {
            let mut output = Output::zeros(&problem().with_output_format(format).with_lse(true));
            output.poison();
            assert!(output.values.to_f32().iter().all(|value| value.is_nan()));
            assert!(output.lse.unwrap().iter().all(|lse| lse.is_nan()));
        }
    }

    #[test]
    fn filling_rounds_to_the_format() {
        let third = 1.0f32 / 3.0;
        for (format, expected) in [
            (OutputFormat::F32, third),
            (OutputFormat::F16, f16::from_f32(third).to_f32()),
            (OutputFormat::Bf16, bf16::from_f32(third).to_f32()),
        ] {
            let mut output = Output::zeros(&problem().with_output_format(format));
            output.values.fill(third);
            assert_eq!(output.values.to_f32(), vec![expected; 240]);
        }
    }

    #[test]
    fn an_output_fits_its_own_problem_alone() {
        let shorter = Problem::new(Shape::new(2, 3, 4, 8)).unwrap();
        let mut problems = vec![shorter];
        for format in FORMATS {
            for lse in [false, true] {
                problems.push(problem().with_output_format(format).with_lse(lse));
            }
        }
        for (i, made_for) in problems.iter().enumerate() {
            for (j, used_for) in problems.iter().enumerate() {
                let result = Output::zeros(made_for).check(used_for);
                assert_eq!(result.is_ok(), i == j, "{made_for} in {used_for}");
                if let Err(error) = result {
                    assert!(error.to_string().starts_with("output: does not fit"), "{error}");
                }
            }
        }
        let mut wrong_lse = Output::zeros(&problem().with_lse(true));
        wrong_lse.lse.as_mut().unwrap().pop();
        assert!(wrong_lse.check(&problem().with_lse(true)).is_err());
    }
}
