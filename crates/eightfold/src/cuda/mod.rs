//! The CUDA backend: kernels in CUDA C++, compiled at run time by NVRTC, launched through the driver.
//!
//! Nothing of CUDA is needed to build this crate, and nothing but NVRTC to compile its kernels: [`compile`] says where that is
//! taken from. [`driver`] is the thin layer over the driver; [`tensor`] holds FP8 tensors and outputs in device memory;
//! [`quantize`](mod@quantize) fills them there.
//!
//! The shortest program is on the [front page](crate).
//!
//! Whoever launches the same kernel many times, from several threads or in graphs, splits that call into its parts: a
//! [`Kernel`] is compiled once for a kind of problem, its [`Arguments`] are checked once, and a launch with a [`Workspace`]
//! allocates nothing and waits for nothing. Where every launch has other addresses, as those of a framework's tensors, it is a
//! [`call`].

mod arch;
mod argument;
mod attend;
pub mod call;
pub mod compile;
mod counts;
pub mod driver;
pub(crate) mod empty;
pub(crate) mod family;
pub(crate) mod hopper;
mod kernel;
pub(crate) mod ladder;
mod loaded;
pub mod paged;
pub mod quantize;
pub mod ragged;
pub(crate) mod read;
mod select;
pub(crate) mod specialisation;
pub mod tensor;
mod tile_list;
mod workspace;

#[doc(no_inline)]
pub use crate::operands::Operands;
pub use arch::Arch;
pub use attend::attention;
pub(crate) use family::{Config, REGISTRY};
pub use kernel::{Arguments, Kernel};
pub(crate) use select::{consider, select};
pub(crate) use specialisation::Specialisation;
pub use tile_list::TileList;
pub use workspace::Workspace;
