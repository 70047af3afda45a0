//! How a cache lies, as Python says it.

use crate::words;
use eightfold::serving::{PageLayout, PageScales, PageStrides};
use eightfold::{Error, Fp8Format, Result};
use pyo3::prelude::*;

/// Page, token of a page, head: in elements.
pub(crate) type ThreeStrides = (usize, usize, usize);

/// The cache of K and of V, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Cache {
    /// Pages, tokens of a page, heads, channels.
    sizes: (usize, usize, usize, usize),
    k: ThreeStrides,
    v: ThreeStrides,
    dtype: String,
    /// What shares a scale: `tensor`, `head`, `sequence` or `token`.
    scales: String,
    /// Where the scales of tokens lie; those of V on the CPU alone may differ.
    k_scales: ThreeStrides,
    v_scales: ThreeStrides,
}

impl Cache {
    pub(crate) fn format(&self) -> Result<Fp8Format> {
        words::fp8_format(&self.dtype)
    }

    /// Of K and V.
    pub(crate) fn layouts(&self) -> [PageLayout; 2] {
        let (pages, page_size, heads, head_dim) = self.sizes;
        let plain = PageLayout::nhd(pages, page_size, heads, head_dim);
        [self.k, self.v].map(|strides| plain.with_strides(page_strides(strides)))
    }

    /// Of K and V.
    pub(crate) fn scales(&self) -> Result<[PageScales; 2]> {
        Ok(match self.scales.as_str() {
            "tensor" => [PageScales::Tensor; 2],
            "head" => [PageScales::Head; 2],
            "sequence" => [PageScales::Sequence; 2],
            "token" => [self.k_scales, self.v_scales].map(|strides| PageScales::Token(page_strides(strides))),
            other => {
                let rule = format!("{other:?} is nothing that shares a scale");
                return Err(Error::invalid("scales", rule, "say tensor, head, sequence or token"));
            }
        })
    }

    /// Of both alike, as kernels on a device take them.
    pub(crate) fn scales_alike(&self) -> Result<PageScales> {
        let [k, v] = self.scales()?;
        if k != v {
            return Err(Error::invalid(
                "v_descale",
                "its strides are not those of k_descale",
                "let the scales of keys and of values lie alike",
            ));
        }
        Ok(k)
    }
}

fn page_strides((page, token, head): ThreeStrides) -> PageStrides {
    PageStrides::new(page, token, head)
}
