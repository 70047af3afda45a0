//! Attention as one call with addresses: made once for a kind of problem and its strides, launched any number of times.
//!
//! [`ValueAttention`] takes f32, f16 or bf16 and quantises them on the way; [`CodeAttention`] takes FP8 with scales. What can
//! be checked without addresses is checked when the call is made. A launch allocates nothing, waits for nothing, asks the
//! driver nothing about the addresses, and may be captured into a graph. Whatever it needs beside them is in one workspace.

mod codes;
mod format;
mod values;

pub use codes::{CodeAttention, Codes, CodesOf};
pub use format::{FormatChoice, best_format};
pub use values::{ValueAttention, ValuesOf};

use super::driver::{ALIGNMENT_BYTES, Device, Stream};
use super::kernel::{Arguments, Kernel, ROLES, Role};
use super::tensor::{DeviceOutput, DeviceTensor, Memory};
use super::tile_list::TileList;
use super::workspace::Workspace;
use crate::error::{Error, Result};
use crate::operands::Operands;
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::{Dims, Layout, Strides};
use crate::variant::Variant;

/// Where everything of a launch lies in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The queries.
    pub q: u64,
    /// The keys.
    pub k: u64,
    /// The values.
    pub v: u64,
    /// The output.
    pub output: u64,
    /// The log-sum-exp, f32 in `[batch, head, row]` order, if the problem asks for it.
    pub lse: Option<u64>,
}

impl Addresses {
    /// Whether kernels can copy from and to them.
    fn check(&self, problem: &Problem) -> Result<()> {
        for (name, address) in [("q", self.q), ("k", self.k), ("v", self.v), ("output", self.output)] {
            if address == 0 || !address.is_multiple_of(ALIGNMENT_BYTES as u64) {
                return Err(Error::invalid(
                    name,
                    format!("address {address:#x} is null or no multiple of {ALIGNMENT_BYTES} bytes"),
                    "allocate it anew, or make it contiguous",
                ));
            }
        }
        if self.lse.is_some() != problem.lse() {
            let rule = if problem.lse() { "the problem asks for it, but it is missing" } else { "no one asked for it" };
            return Err(Error::invalid("lse", rule, "set Problem::with_lse to whether there is room for it"));
        }
        Ok(())
    }
}

/// Stands for an address while there is none.
const PLACEHOLDER: u64 = 1 << 20;

/// The launches of the kernel, whatever is done before them.
#[derive(Debug)]
struct Launches {
    problem: Problem,
    arguments: Arguments,
    kernel: Kernel,
    /// Which block does what, where that is listed.
    _list: Option<TileList>,
}

impl Launches {
    fn new(device: &Device, problem: &Problem, [q, k, v]: [&DeviceTensor; 3], output: Strides) -> Result<Launches> {
        if problem.has_sinks() {
            return Err(Error::invalid(
                "sinks",
                "calls with addresses take none",
                "make a DeviceTensor of q with its sinks, and launch a Kernel",
            ));
        }
        let kernel = Kernel::select(device, problem, &Operands::of(q, k, v))?;
        let output = canonical(problem.output_dims(), output);
        let output = DeviceOutput::unbound(device, problem, output, PLACEHOLDER)?;
        let arguments = kernel.arguments(problem, [q, k, v], &output)?;
        let list = TileList::new(&kernel, problem)?;
        let arguments = match &list {
            Some(list) => list.deal(arguments, problem)?,
            None => arguments,
        };
        Ok(Launches { problem: *problem, arguments, kernel, _list: list })
    }

    fn variant(&self) -> Variant {
        self.kernel.variant()
    }

    fn report(&self) -> RunReport {
        self.arguments.report()
    }

    /// # Safety
    /// As for [`ValueAttention::launch`]; the workspace must have been checked.
    unsafe fn launch(&self, stream: &Stream, roles: &[u64; ROLES], workspace: u64) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.arguments.launch_with(stream, roles, workspace) }
    }

    fn check(&self, addresses: &Addresses, workspace: &Workspace, bytes: usize) -> Result<()> {
        addresses.check(&self.problem)?;
        workspace.check(self.kernel.device().context(), bytes)
    }
}

/// Every role at its address, of which those of the tensors and the scales are still to come.
fn roles(addresses: &Addresses) -> [u64; ROLES] {
    let mut roles = [0; ROLES];
    roles[Role::Output as usize] = addresses.output;
    roles[Role::Lse as usize] = addresses.lse.unwrap_or(0);
    roles
}

/// Memory whose address comes with every launch.
fn unbound(device: &Device) -> Memory {
    Memory::Borrowed { context: device.context().clone(), pointer: PLACEHOLDER }
}

/// Strides as they are, but those of a dimension of size 1, which mean nothing, as if nothing else were there.
fn canonical(dims: Dims, strides: Strides) -> Strides {
    let dense = Layout::Bshd.strides(dims);
    let of = |size, stride, dense| if size == 1 { dense } else { stride };
    Strides {
        batch: of(dims.batch, strides.batch, dense.batch),
        head: of(dims.heads, strides.head, dense.head),
        row: of(dims.len, strides.row, dense.row),
        channel: of(dims.head_dim, strides.channel, dense.channel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn calls_can_be_shared() {
        fn shared<T: Send + Sync>() {}
        shared::<ValueAttention>();
        shared::<CodeAttention>();
    }

    #[test]
    fn addresses_that_kernels_cannot_copy_from_are_refused_by_name() {
        let problem = Problem::new(Shape::new(1, 2, 3, 64)).unwrap();
        let good = Addresses { q: 16, k: 32, v: 48, output: 64, lse: None };
        let refused = |addresses: Addresses| addresses.check(&problem).unwrap_err().to_string();
        assert_eq!(good.check(&problem), Ok(()));
        assert!(refused(Addresses { k: 0, ..good }).starts_with("k: address 0x0 is null"));
        assert!(refused(Addresses { output: 8, ..good }).starts_with("output: address 0x8"));
        assert!(refused(Addresses { lse: Some(4), ..good }).starts_with("lse: no one asked"));
        assert!(good.check(&problem.with_lse(true)).unwrap_err().to_string().starts_with("lse: the problem asks"));
    }

    #[test]
    fn strides_of_a_single_head_mean_nothing() {
        let dims = Dims { batch: 2, heads: 1, len: 5, head_dim: 64 };
        let strides = Strides { batch: 640, head: 1, row: 128, channel: 1 };
        assert_eq!(canonical(dims, strides), Strides { head: 64, ..strides });
    }
}
