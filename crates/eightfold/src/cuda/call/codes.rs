//! Attention from FP8 with scales, where they lie.

use super::{Addresses, Launches, canonical, roles, unbound};
use crate::cuda::driver::{Device, Stream};
use crate::cuda::kernel::Role;
use crate::cuda::tensor::{DeviceTensor, Lines};
use crate::cuda::workspace::Workspace;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::{Dims, Granularity, Layout, Strides};
use crate::variant::Variant;

/// How one of Q, K and V lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codes {
    /// Distances in codes. Channels follow each other; the others are multiples of 16.
    pub strides: Strides,
    /// How much of the tensor shares a scale; scales are f32 in `[batch, head, block]` order.
    pub granularity: Granularity,
}

/// How Q, K, V and the output lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodesOf {
    /// The queries.
    pub q: Codes,
    /// The keys.
    pub k: Codes,
    /// The values, in rows of channels.
    pub v: Codes,
    /// Strides of the output, in elements.
    pub output: Strides,
}

/// Attention on FP8 codes in device memory, with their scales there.
#[derive(Debug)]
pub struct CodeAttention {
    launches: Launches,
}

impl CodeAttention {
    /// Checks, compiles or finds, and loads everything that such a call needs. May wait for the device.
    pub fn new(device: &Device, problem: &Problem, codes: CodesOf) -> Result<Self> {
        let shape = problem.shape();
        let tensor = |name: &str, dims: Dims, Codes { strides, granularity }: Codes| {
            if granularity == (Granularity::Block { rows: 0 }) {
                return Err(Error::invalid(
                    format!("scales of {name}"),
                    "a block of 0 rows holds nothing",
                    "give at least 1 row per block",
                ));
            }
            // The order of heads and rows is in the strides; the name of the layout decides nothing for rows of channels.
            let lines =
                Lines::strided(dims, Layout::Bhsd, canonical(dims, strides)).map_err(|error| named(name, error))?;
            let (codes, scales) = (unbound(device), unbound(device));
            let format = if name == "v" { problem.value_format() } else { problem.input_format() };
            Ok(DeviceTensor::from_parts(dims, format, granularity, lines, codes, scales, format.max()))
        };
        let q = tensor("q", shape.query_dims(), codes.q)?;
        let k = tensor("k", shape.key_dims(), codes.k)?;
        let v = tensor("v", problem.value_dims(), codes.v)?;
        Ok(CodeAttention { launches: Launches::new(device, problem, [&q, &k, &v], codes.output)? })
    }

    /// Of the workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.launches.arguments.workspace_bytes()
    }

    /// How much of it, at the front, must be zero before the first launch; every launch leaves it so.
    pub fn zeroed_bytes(&self) -> usize {
        self.launches.arguments.zeroed_bytes()
    }

    /// The kernel that attends.
    pub fn variant(&self) -> Variant {
        self.launches.variant()
    }

    /// How many kernels a launch puts into the stream.
    pub fn kernels(&self) -> usize {
        self.launches.arguments.kernels()
    }

    /// What a launch does.
    pub fn report(&self) -> RunReport {
        self.launches.report()
    }

    /// Puts the work into the stream and returns; `scales` are the addresses of those of Q, K and V.
    ///
    /// # Safety
    /// At the addresses there must be tensors and scales as the call was made for, on its device and in a stream of it; codes
    /// and scales must be finite, and scales positive. They, the workspace and the call must live until the work is done; no
    /// other work may write to Q, K, V or scales meanwhile, or use the output or the workspace.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        addresses: &Addresses,
        scales: [u64; 3],
        workspace: &mut Workspace,
    ) -> Result<()> {
        self.launches.check(addresses, workspace, self.workspace_bytes())?;
        for (name, scales) in ["q", "k", "v"].into_iter().zip(scales) {
            if scales == 0 || !scales.is_multiple_of(4) {
                return Err(Error::invalid(
                    format!("scales of {name}"),
                    format!("address {scales:#x} is null or no multiple of 4 bytes"),
                    "pass the address of f32 scales in device memory",
                ));
            }
        }
        let mut roles = roles(addresses);
        let [q, k, v] = scales;
        for (role, address) in [
            (Role::Q, addresses.q),
            (Role::K, addresses.k),
            (Role::V, addresses.v),
            (Role::QScales, q),
            (Role::KScales, k),
            (Role::VScales, v),
        ] {
            roles[role as usize] = address;
        }
        // SAFETY: the workspace was checked; the rest is the caller's word.
        unsafe { self.launches.launch(stream, &roles, workspace.pointer()) }
    }
}

/// An error about strides, with whose they are.
fn named(name: &str, error: Error) -> Error {
    match error {
        Error::Invalid { argument, rule, fix } if argument == "strides" => {
            Error::Invalid { argument: name.into(), rule, fix }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_told_with_their_tensor() {
        let dims = Dims { batch: 1, heads: 2, len: 4, head_dim: 64 };
        let strides = Strides { row: 72, ..Layout::Bshd.strides(dims) };
        let error = named("v", Lines::strided(dims, Layout::Bhsd, strides).unwrap_err()).to_string();
        assert!(error.starts_with("v: the line stride of 72 bytes"), "{error}");
    }
}
