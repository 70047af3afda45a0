//! The numbers by which C names formats, layouts and modes. Zero is the default wherever there is one.

use eightfold::cuda::paged::QueryFormat;
use eightfold::cuda::quantize::ValueFormat;
use eightfold::serving::{PageScales, PageStrides};
use eightfold::{Accuracy, Error, Fp8Format, Granularity, Layout, Mask, OutputFormat, Result};

/// FP8 with 4 exponent bits and 3 mantissa bits; its largest value is 448.
pub const EF_E4M3: i32 = 0;
/// FP8 with 5 exponent bits and 2 mantissa bits; its largest value is 57344.
pub const EF_E5M2: i32 = 1;
/// Integers from -127 to 127, for Q and K.
pub const EF_INT8: i32 = 2;

/// 32-bit float.
pub const EF_F32: i32 = 0;
/// IEEE half precision.
pub const EF_F16: i32 = 1;
/// bfloat16.
pub const EF_BF16: i32 = 2;

/// FP8 codes, in the problem's input format. For queries of calls on pages only.
pub const EF_FP8: i32 = 3;

/// [batch, head, row, channel].
pub const EF_BHSD: i32 = 0;
/// [batch, row, head, channel].
pub const EF_BSHD: i32 = 1;
/// [batch, head, channel, row]: V transposed. For FP8 tensors only.
pub const EF_BHDS: i32 = 2;

/// One scale per (batch, head).
pub const EF_PER_HEAD: i32 = 0;
/// One scale for the whole tensor.
pub const EF_PER_TENSOR: i32 = 1;
/// One scale per `block_rows` consecutive rows of a head.
pub const EF_PER_BLOCK: i32 = 2;

/// One scale for the whole cache.
pub const EF_SCALE_TENSOR: i32 = 0;
/// One scale for each head of K and V.
pub const EF_SCALE_HEAD: i32 = 1;
/// One scale for each sequence of the batch and head, [sequence, head].
pub const EF_SCALE_SEQUENCE: i32 = 2;
/// One scale for each token and head of the cache.
pub const EF_SCALE_TOKEN: i32 = 3;

/// Every query sees every key.
pub const EF_MASK_NONE: i32 = 0;
/// Bottom-right aligned, as in FlashAttention: the last query sees every key.
pub const EF_MASK_CAUSAL: i32 = 1;

/// Kernel error within 31e-3 of float64 attention on the same FP8 tensors, in the mean over inputs of N(0, 1).
pub const EF_FAST: i32 = 0;
/// Kernel error within 28.5e-3.
pub const EF_BALANCED: i32 = 1;
/// Kernel error within 26e-3.
pub const EF_EXACT_EXP: i32 = 2;
/// Kernel error within 3e-3.
pub const EF_PRECISE: i32 = 3;

/// The device of a context that stands for this machine's CPU.
pub const EF_CPU: i32 = -1;

fn one_of<T>(name: &str, value: i32, known: &[(i32, &str, T)]) -> Result<T>
where
    T: Copy,
{
    known.iter().find(|(number, _, _)| *number == value).map(|(_, _, meant)| *meant).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(number, constant, _)| format!("{constant} ({number})")).collect();
        Error::invalid(name, format!("{value} stands for nothing"), format!("choose one of {}", names.join(", ")))
    })
}

pub(crate) fn fp8_format(name: &str, value: i32) -> Result<Fp8Format> {
    one_of(
        name,
        value,
        &[
            (EF_E4M3, "EF_E4M3", Fp8Format::E4m3),
            (EF_E5M2, "EF_E5M2", Fp8Format::E5m2),
            (EF_INT8, "EF_INT8", Fp8Format::Int8),
        ],
    )
}

pub(crate) fn output_format(name: &str, value: i32) -> Result<OutputFormat> {
    one_of(
        name,
        value,
        &[
            (EF_F32, "EF_F32", OutputFormat::F32),
            (EF_F16, "EF_F16", OutputFormat::F16),
            (EF_BF16, "EF_BF16", OutputFormat::Bf16),
        ],
    )
}

pub(crate) fn value_format(name: &str, value: i32) -> Result<ValueFormat> {
    one_of(
        name,
        value,
        &[
            (EF_F32, "EF_F32", ValueFormat::F32),
            (EF_F16, "EF_F16", ValueFormat::F16),
            (EF_BF16, "EF_BF16", ValueFormat::Bf16),
        ],
    )
}

pub(crate) fn query_format(name: &str, value: i32) -> Result<QueryFormat> {
    if value == EF_FP8 {
        return Ok(QueryFormat::Codes);
    }
    output_format(name, value).map(QueryFormat::Values)
}

/// A layout of values: rows of channels.
pub(crate) fn row_layout(name: &str, value: i32) -> Result<Layout> {
    one_of(name, value, &[(EF_BHSD, "EF_BHSD", Layout::Bhsd), (EF_BSHD, "EF_BSHD", Layout::Bshd)])
}

/// A layout of codes.
pub(crate) fn layout(name: &str, value: i32) -> Result<Layout> {
    one_of(
        name,
        value,
        &[(EF_BHSD, "EF_BHSD", Layout::Bhsd), (EF_BSHD, "EF_BSHD", Layout::Bshd), (EF_BHDS, "EF_BHDS", Layout::Bhds)],
    )
}

/// The number of a layout that [`layout`] knows.
pub(crate) fn layout_number(layout: Layout) -> i32 {
    match layout {
        Layout::Bhsd => EF_BHSD,
        Layout::Bshd => EF_BSHD,
        _ => EF_BHDS,
    }
}

pub(crate) fn granularity(name: &str, value: i32, rows: usize) -> Result<Granularity> {
    one_of(
        name,
        value,
        &[
            (EF_PER_HEAD, "EF_PER_HEAD", Granularity::Head),
            (EF_PER_TENSOR, "EF_PER_TENSOR", Granularity::Tensor),
            (EF_PER_BLOCK, "EF_PER_BLOCK", Granularity::Block { rows }),
        ],
    )
}

/// One of the words for what shares a scale in a cache.
pub(crate) fn page_scales(name: &str, value: i32, tokens: PageStrides) -> Result<PageScales> {
    one_of(
        name,
        value,
        &[
            (EF_SCALE_TENSOR, "EF_SCALE_TENSOR", PageScales::Tensor),
            (EF_SCALE_HEAD, "EF_SCALE_HEAD", PageScales::Head),
            (EF_SCALE_SEQUENCE, "EF_SCALE_SEQUENCE", PageScales::Sequence),
            (EF_SCALE_TOKEN, "EF_SCALE_TOKEN", PageScales::Token(tokens)),
        ],
    )
}

pub(crate) fn mask(name: &str, value: i32) -> Result<Mask> {
    one_of(name, value, &[(EF_MASK_NONE, "EF_MASK_NONE", Mask::None), (EF_MASK_CAUSAL, "EF_MASK_CAUSAL", Mask::Causal)])
}

pub(crate) fn accuracy(name: &str, value: i32) -> Result<Accuracy> {
    one_of(
        name,
        value,
        &[
            (EF_FAST, "EF_FAST", Accuracy::Fast),
            (EF_BALANCED, "EF_BALANCED", Accuracy::Balanced),
            (EF_EXACT_EXP, "EF_EXACT_EXP", Accuracy::ExactExp),
            (EF_PRECISE, "EF_PRECISE", Accuracy::Precise),
        ],
    )
}

pub(crate) fn flag(name: &str, value: i32) -> Result<bool> {
    one_of(name, value, &[(0, "no", false), (1, "yes", true)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_stands_for_nothing_is_refused_with_those_that_do() {
        let error = layout("layout", 7).unwrap_err().to_string();
        assert_eq!(error, "layout: 7 stands for nothing; choose one of EF_BHSD (0), EF_BSHD (1), EF_BHDS (2)");
        assert!(row_layout("layout", EF_BHDS).is_err());
        assert!(flag("lse", 2).is_err() && mask("mask", -1).is_err() && accuracy("accuracy", i32::MAX).is_err());
    }

    #[test]
    fn a_layout_keeps_its_number() {
        for number in [EF_BHSD, EF_BSHD, EF_BHDS] {
            assert_eq!(layout_number(layout("layout", number).unwrap()), number);
        }
    }
}
