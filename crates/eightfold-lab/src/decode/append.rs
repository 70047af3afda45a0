//! New tokens into the pages of a cache, beside a copy that moves as many bytes.

use super::inputs::Noise;
use super::{Case, Job};
use crate::measure::Work;
use crate::quantizer::Copy;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::paged::{AppendAddresses, PagedAppend, PagedKeys};
use eightfold::lab::driver::{Buffer, download, upload};
use eightfold::serving::{AppendScales, PageLayout, PageScales, PageStrides, PagedTensorMut};
use eightfold::{Error, Fp8Format, OutputFormat, Result, Strides};
use half::bf16;

/// Tokens of a page.
const PAGE_SIZE: usize = 16;

/// The copy, and appending with a scale computed for each token and head.
pub(super) fn jobs(device: &Device, case: &Case) -> Result<Vec<Job>> {
    Ok(vec![
        ("copy of as many bytes".into(), Box::new(Copy::new(device, case.bytes())?)),
        ("append, a scale for each token and head".into(), Box::new(Appending::new(device, case)?)),
    ])
}

/// Codes and scales of K, or of V.
struct Side {
    codes: Buffer,
    scales: Buffer,
    expected: (Vec<u8>, Vec<f32>),
}

struct Appending {
    call: PagedAppend,
    tokens: usize,
    sides: [Side; 2],
    addresses: AppendAddresses,
    _inputs: [Buffer; 3],
}

impl Appending {
    fn new(device: &Device, case: &Case) -> Result<Self> {
        let stream = &device.stream()?;
        let Case { kv_heads, head_dim, sequences: tokens, .. } = *case;
        let pages = tokens.div_ceil(PAGE_SIZE);
        let layout = PageLayout::nhd(pages, PAGE_SIZE, kv_heads, head_dim);
        let strides = PageStrides::new(PAGE_SIZE * kv_heads, kv_heads, 1);
        let noise = &mut Noise(3);
        // Pages in an order that no one expects, each filled from its first token on.
        let mut order: Vec<i64> = (0..pages as i64).collect();
        (1..pages).for_each(|index| order.swap(index, noise.below(index + 1)));
        let slots: Vec<i64> =
            (0..tokens).map(|token| order[token / PAGE_SIZE] * PAGE_SIZE as i64 + (token % PAGE_SIZE) as i64).collect();
        let on_device = |bytes: usize| device.allocate(bytes.max(16));
        let mut side = || -> Result<(Buffer, Side)> {
            let values: Vec<bf16> = (0..tokens * kv_heads * head_dim).map(|_| bf16::from_f32(noise.normal())).collect();
            let mut codes = vec![0u8; layout.pages * layout.strides.page];
            let mut scales = vec![0.0f32; pages * PAGE_SIZE * kv_heads];
            PagedTensorMut::new(layout, Fp8Format::E4m3, &mut codes)?.append(
                &values,
                &slots,
                AppendScales::Computed { scales: &mut scales, strides },
            )?;
            let input = on_device(2 * values.len())?;
            upload(stream, &input, &values)?;
            let side = Side {
                codes: on_device(codes.len())?,
                scales: on_device(4 * scales.len())?,
                expected: (codes, scales),
            };
            Ok((input, side))
        };
        let ((k, k_side), (v, v_side)) = (side()?, side()?);
        let on_device_slots = on_device(8 * tokens)?;
        upload(stream, &on_device_slots, &slots)?;
        let rows = Strides::new(0, head_dim, kv_heads * head_dim, 1);
        let keys = PagedKeys::new(layout, PageScales::Token(strides));
        let call = PagedAppend::new(device, keys, Fp8Format::E4m3, OutputFormat::Bf16, [rows; 2])?;
        stream.synchronize()?;
        let addresses = AppendAddresses {
            k: k.pointer(),
            v: v.pointer(),
            slots: on_device_slots.pointer(),
            k_cache: k_side.codes.pointer(),
            v_cache: v_side.codes.pointer(),
            k_scales: k_side.scales.pointer(),
            v_scales: v_side.scales.pointer(),
        };
        Ok(Appending { call, tokens, sides: [k_side, v_side], addresses, _inputs: [k, v, on_device_slots] })
    }
}

impl Work for Appending {
    fn launch(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: all of it is this value's, which outlives its launches; they follow each other in one stream.
        unsafe { self.call.launch(stream, self.tokens, &self.addresses) }
    }

    /// With zeros, which is what the host left where no token is.
    fn poison(&mut self, stream: &Stream) -> Result<()> {
        self.sides.iter().try_for_each(|side| {
            side.codes.fill(stream, 0)?;
            side.scales.fill(stream, 0)
        })
    }

    fn verify(&mut self, stream: &Stream) -> Result<()> {
        for Side { codes, scales, expected } in &self.sides {
            let mut got = (vec![0u8; expected.0.len()], vec![0.0f32; expected.1.len()]);
            download(stream, codes, &mut got.0)?;
            download(stream, scales, &mut got.1)?;
            if got != *expected {
                return Err(Error::unavailable(
                    "a timing of appending",
                    "the timed runs gave other bits than the host",
                    "look for a fault in kernels/paged/append.cu",
                ));
            }
        }
        Ok(())
    }
}
