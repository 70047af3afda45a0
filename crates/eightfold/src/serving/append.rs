//! New tokens into the pages of a cache.

use super::layout::{PageLayout, PageStrides, SCALE_FIX, is_scale};
use crate::error::{Error, Result};
use crate::fp8::Element;
use crate::quantize::{Shift, encode, largest_magnitude, scale_of};
use crate::tensor::Fp8Format;

/// The memory of K, or of V, to write new tokens to.
#[derive(Debug)]
pub struct PagedTensorMut<'a> {
    layout: PageLayout,
    format: Fp8Format,
    codes: &'a mut [u8],
}

/// The scales of appended tokens.
#[derive(Debug)]
#[non_exhaustive]
pub enum AppendScales<'a> {
    /// One for all, or one per head of K and V. What is too large for it saturates.
    Given(&'a [f32]),
    /// One per token and head, from its largest magnitude, written beside the tokens.
    Computed {
        /// The memory of the scales.
        scales: &'a mut [f32],
        /// Where they lie, as in [`PageScales::Token`](super::PageScales::Token).
        strides: PageStrides,
    },
}

impl<'a> PagedTensorMut<'a> {
    /// Wraps a cache's memory, as [`PagedTensor::new`](super::PagedTensor::new) does.
    pub fn new(layout: PageLayout, format: Fp8Format, codes: &'a mut [u8]) -> Result<Self> {
        format.check_fp8("a cache in pages")?;
        layout.check_codes(codes.len())?;
        Ok(PagedTensorMut { layout, format, codes })
    }

    /// Quantises tokens, `[token, head, channel]`, each into its slot: page · page size + token of the page. A token with slot −1
    /// is left out. Of two tokens with the same slot the later one stays. Where anything is wrong nothing is written.
    ///
    /// ```
    /// use eightfold::serving::{AppendScales, PageLayout, PagedTensorMut};
    /// use eightfold::Fp8Format;
    ///
    /// // Two tokens of one head of 8 channels, into the third slot of page 1 and nowhere.
    /// let layout = PageLayout::nhd(2, 4, 1, 8);
    /// let mut codes = vec![0; 2 * 4 * 8];
    /// let mut cache = PagedTensorMut::new(layout, Fp8Format::E4m3, &mut codes)?;
    /// cache.append(&[1.0f32; 16], &[6, -1], AppendScales::Given(&[0.5]))?;
    /// assert_eq!(eightfold::fp8::decode(Fp8Format::E4m3, codes[6 * 8]), 2.0);
    /// # Ok::<(), eightfold::Error>(())
    /// ```
    pub fn append<T: Element>(&mut self, values: &[T], slots: &[i64], mut scales: AppendScales) -> Result<()> {
        self.check(values, slots, &scales)?;
        let PageLayout { page_size, heads, head_dim, strides, .. } = self.layout;
        for (token, slot) in slots.iter().enumerate() {
            let Ok(slot) = usize::try_from(*slot) else { continue };
            let (page, place) = (slot / page_size, slot % page_size);
            for head in 0..heads {
                let values = &values[(token * heads + head) * head_dim..][..head_dim];
                let scale = match &mut scales {
                    AppendScales::Given(scales) => scales[if scales.len() == 1 { 0 } else { head }],
                    AppendScales::Computed { scales, strides } => {
                        let scale = scale_of(self.format.max(), largest_magnitude(values, Shift::None));
                        scales[strides.offset(page, place, head)] = scale;
                        scale
                    }
                };
                let codes = &mut self.codes[strides.offset(page, place, head)..][..head_dim];
                encode(self.format, values, Shift::None, scale, codes);
            }
        }
        Ok(())
    }

    fn check<T: Element>(&self, values: &[T], slots: &[i64], scales: &AppendScales) -> Result<()> {
        let PageLayout { heads, head_dim, .. } = self.layout;
        let expected = slots.len().saturating_mul(heads * head_dim);
        if values.len() != expected {
            return Err(Error::invalid(
                "values",
                format!("{} values for {} slots of {heads} heads of {head_dim}", values.len(), slots.len()),
                "give [token, head, channel] values, and a slot for each token",
            ));
        }
        let outside = |slot: &i64| *slot < -1 || usize::try_from(*slot).is_ok_and(|slot| slot >= self.layout.slots());
        if let Some(token) = slots.iter().position(outside) {
            return Err(Error::invalid(
                "slots",
                format!(
                    "token {token} has slot {}, but the cache has slots 0 to {}",
                    slots[token],
                    self.layout.slots() - 1
                ),
                "give page · page size + token of the page, or -1 to leave the token out",
            ));
        }
        match scales {
            AppendScales::Given(scales) => {
                if scales.len() != 1 && scales.len() != heads {
                    return Err(Error::invalid(
                        "scales",
                        format!("{} scales for {heads} heads", scales.len()),
                        "give one for all, or one per head",
                    ));
                }
                if let Some(index) = scales.iter().position(|scale| !is_scale(*scale)) {
                    return Err(Error::invalid(
                        "scales",
                        format!("scale {index} is {}, not a finite positive number", scales[index]),
                        SCALE_FIX,
                    ));
                }
            }
            AppendScales::Computed { scales, strides } => {
                let needed = super::PageScales::Token(*strides).count(&self.layout, 0)?;
                if scales.len() < needed {
                    return Err(Error::invalid(
                        "scales",
                        format!("{} do not hold the {needed} that pages and strides reach", scales.len()),
                        "give one for each token and head of the cache",
                    ));
                }
            }
        }
        let token_values = (heads * head_dim).max(1);
        for (token, (values, slot)) in values.chunks(token_values).zip(slots).enumerate() {
            if *slot >= 0
                && let Some(at) = values.iter().position(|value| !value.to_f32().is_finite())
            {
                return Err(Error::invalid(
                    "values",
                    format!(
                        "{} at token {token}, head {}, channel {}",
                        values[at].to_f32(),
                        at / head_dim,
                        at % head_dim
                    ),
                    "append finite values only",
                ));
            }
        }
        Ok(())
    }
}
