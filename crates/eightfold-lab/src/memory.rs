//! Whether inputs and references fit into this machine's memory, asked before they are made.

use eightfold::{Dims, Error, Problem, Result};

/// What each element of Q, K and V takes at its peak: f32 inputs, codes, and their values in f64 twice.
const BYTES_PER_INPUT: f64 = 4.0 + 1.0 + 2.0 * 8.0;
/// What each element of the output takes: two references in f64, an output, and one to compare it with.
const BYTES_PER_OUTPUT: f64 = 2.0 * 8.0 + 2.0 * 4.0;

/// An error if this many cases of a problem do not fit into the memory that is available.
pub fn check(problem: &Problem, cases: usize) -> Result<()> {
    match available_bytes() {
        Some(available) => check_against(problem, cases, available),
        None => Ok(()),
    }
}

fn check_against(problem: &Problem, cases: usize, available: f64) -> Result<()> {
    let shape = problem.shape();
    let count = |dims: Dims| dims.count() as f64;
    let inputs = count(shape.query_dims()) + count(shape.key_dims()) + count(problem.value_dims());
    let needed = cases as f64 * (inputs * BYTES_PER_INPUT + count(problem.output_dims()) * BYTES_PER_OUTPUT);
    if needed <= available {
        return Ok(());
    }
    let gib = |bytes: f64| format!("{:.1} GiB", bytes / f64::from(1 << 30));
    Err(Error::unavailable(
        format!("a check of {problem}"),
        format!("its inputs and references need {} of memory, and {} are available", gib(needed), gib(available)),
        "choose a smaller shape, or fewer --families and --seeds",
    ))
}

/// What the system says that new work may take; none where it does not say.
fn available_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::Shape;

    #[test]
    fn a_problem_that_does_not_fit_is_refused_with_both_sizes() {
        let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
        let gib = f64::from(1 << 30);
        assert_eq!(check_against(&problem, 24, 16.0 * gib), Ok(()));
        let huge = Problem::new(Shape::new(64, 128, 131072, 128)).unwrap();
        let error = check_against(&huge, 1, 16.0 * gib).unwrap_err().to_string();
        assert!(error.contains("GiB of memory, and 16.0 GiB are available; choose a smaller shape"), "{error}");
    }
}
