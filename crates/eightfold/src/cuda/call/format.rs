//! Which format values are best quantised to on the way.

use crate::cuda::Arch;
use crate::cuda::driver::Device;
use crate::cuda::hopper;
use crate::error::Result;
use crate::problem::{Accuracy, Problem};
use crate::tensor::Fp8Format;

/// A format for Q and K, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatChoice {
    /// The format, for [`Problem::with_input_format`].
    pub format: Fp8Format,
    /// Why it and not the other.
    pub reason: &'static str,
}

/// Keys from which on attention is most of the time, and kernels that take all keys at once, of FP8 alone, are not the fastest.
const MANY_KEYS: usize = 1024;

/// The most exact format of those within 10 % of the fastest, for values that this device quantises on the way.
///
/// INT8 loses a third of what E4M3 does to rounding Q and K. A rule from head dim and accuracy, not a model of the device: by the
/// prototype, INT8 takes 1.04 to 1.09 times the time of E4M3 with 128 channels a head and accuracy fast, 0.97 to 0.99 times with
/// exact-exp, 1.11 to 1.19 times with precise, and 1.25 times and more with 64 channels.
///
/// ```no_run
/// use eightfold::cuda::{call, driver::Device};
/// use eightfold::{Problem, Shape};
///
/// let device = Device::open(0)?;
/// let problem = Problem::new(Shape::new(2, 16, 4096, 128))?;
/// let problem = problem.with_input_format(call::best_format(&device, &problem)?.format);
/// # Ok::<(), eightfold::Error>(())
/// ```
pub fn best_format(device: &Device, problem: &Problem) -> Result<FormatChoice> {
    Ok(best_format_on(device.arch()?, problem))
}

fn best_format_on(arch: Arch, problem: &Problem) -> FormatChoice {
    let head_dim = problem.shape().head_dim;
    let refused = if hopper::target(arch).is_err() {
        "e4m3: no kernel of this device takes int8"
    } else if problem.softcap().is_some() {
        "e4m3: scores of int8 are not capped"
    } else if problem.most_visible_to(1) < MANY_KEYS {
        "e4m3: few keys, where int8 was not weighed"
    } else if !(65..=128).contains(&head_dim) {
        "e4m3: int8 would take more than 10 % longer with heads of so many channels"
    } else if problem.accuracy() == Accuracy::Precise {
        "e4m3: int8 would take more than 10 % longer with weights in two parts"
    } else {
        let reason = "int8: more exact than e4m3, and no more than 10 % slower";
        return FormatChoice { format: Fp8Format::Int8, reason };
    };
    FormatChoice { format: Fp8Format::E4m3, reason: refused }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Shape, Window};
    use crate::{Layout, Operands, Target, consider};

    #[test]
    fn wherever_int8_is_chosen_a_kernel_takes_it() {
        let mut chosen = 0;
        for accuracy in Accuracy::ALL {
            for head_dim in [8, 72, 80, 96, 120, 128, 192] {
                for (heads, kv_heads, query_len, key_len) in
                    [(8, 8, 1024, 1024), (32, 4, 1, 8192), (6, 1, 9, 70_000), (64, 64, 4096, 4096), (2, 2, 3000, 2000)]
                {
                    let shape = Shape::new(1, heads, query_len, head_dim).with_kv_heads(kv_heads).with_key_len(key_len);
                    let plain = Problem::new(shape).unwrap().with_accuracy(*accuracy);
                    let narrow = plain.with_value_dim(64).unwrap();
                    let wide = plain.causal().with_value_dim(256).unwrap();
                    let seen = plain.causal().with_window(Window::new(Some(2000), Some(0))).with_sinks();
                    for problem in [plain, plain.causal(), plain.batch_invariant(), narrow, wide, seen] {
                        if best_format_on(Arch::Sm90, &problem).format != Fp8Format::Int8 {
                            continue;
                        }
                        let problem = problem.with_input_format(Fp8Format::Int8);
                        let mut operands = Operands::assumed(&problem);
                        operands.v.layout = Layout::Packed;
                        let considered = consider(&problem, &operands, Target::cuda(Arch::Sm90, 132)).unwrap();
                        assert!(considered.iter().any(|one| one.chosen), "{problem}: {considered:?}");
                        chosen += 1;
                    }
                }
            }
        }
        assert!(chosen > 100, "{chosen}");
    }

    #[test]
    fn int8_is_chosen_where_it_is_as_good_as_free() {
        let problem = |len, head_dim| Problem::new(Shape::new(4, 16, len, head_dim)).unwrap();
        let on = |arch, problem: Problem| best_format_on(arch, &problem);
        let usual = problem(4096, 128);
        assert_eq!(on(Arch::Sm90, usual).format, Fp8Format::Int8);
        assert_eq!(on(Arch::Sm90, usual.with_accuracy(Accuracy::ExactExp)).format, Fp8Format::Int8);
        for (refused, why) in [
            (on(Arch::Sm89, usual), "no kernel"),
            (on(Arch::Sm90, usual.with_softcap(30.0).unwrap()), "not capped"),
            (on(Arch::Sm90, problem(512, 128)), "few keys"),
            (on(Arch::Sm90, problem(4096, 64)), "so many channels"),
            (on(Arch::Sm90, usual.with_accuracy(Accuracy::Precise)), "two parts"),
        ] {
            assert_eq!(refused.format, Fp8Format::E4m3);
            assert!(refused.reason.contains(why), "{}", refused.reason);
        }
    }
}
