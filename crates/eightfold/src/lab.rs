//! What the lab and the command need of the library, and nobody else: kernels by their knobs, the compiler, events and graphs.
//! It changes without notice. Methods for them alone are hidden where they stand.

pub use crate::cuda::TileList;
pub use crate::cuda::empty::EmptyKernel;
pub use crate::cuda::family::{Config, Reason};
pub use crate::cuda::read::ReadKernel;
pub use crate::cuda::specialisation::Specialisation;
pub use crate::knobs::{Knob, Stage};
pub use crate::operands::Operand;
pub use crate::reference::queries::attention_of_queries;
pub use crate::select::attention_with;
pub use crate::serving::aligned::AlignedCodes;
pub use crate::serving::attention_with as serving_attention_with;
pub use crate::variant::{FAMILIES, Family, NamedVariant};

/// The CPU kernel and its knobs.
pub mod cpu {
    pub use crate::cpu::*;
}

/// The staged CUDA kernel and its knobs.
pub mod ladder {
    pub use crate::cuda::ladder::*;
}

/// The CUDA kernel for Hopper and its knobs.
pub mod hopper {
    pub use crate::cuda::hopper::*;
}

/// The compiler, what it is given and what it makes.
pub mod compile {
    pub use crate::cuda::compile::choice::{FETCH_COMMAND, keep_in, look_in_as, set_nvrtc, set_toolchain};
    pub use crate::cuda::compile::compiler::*;
}

/// What the driver offers beyond devices and streams.
pub mod driver {
    pub use crate::cuda::driver::device::MemoryInfo;
    pub use crate::cuda::driver::memory::{Buffer, Plain};
    use crate::cuda::driver::{Device, Stream};
    use crate::error::Result;
    use cudarc::driver::sys::CUresult;

    /// Copies values to the front of a buffer and waits until they are there.
    pub fn upload<T: Plain>(stream: &Stream, buffer: &Buffer, values: &[T]) -> Result<()> {
        buffer.upload(stream, values)
    }

    /// Copies the front of a buffer to the host.
    pub fn download<T: Plain>(stream: &Stream, buffer: &Buffer, values: &mut [T]) -> Result<()> {
        buffer.download(stream, values)
    }

    /// Makes a call of the driver in the device's context; `name` is the driver's name for it.
    pub fn call(device: &Device, name: &'static str, call: impl FnOnce() -> CUresult) -> Result<()> {
        device.context().call(name, call)
    }
}

/// Errors about unknown names.
pub mod suggest {
    pub use crate::suggest::unknown;
}
