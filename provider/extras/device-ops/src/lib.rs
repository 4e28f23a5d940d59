//! What a device computes on memory of its own: reductions, and the packing of datatypes.
//!
//! The kernels are made here as PTX, which the driver compiles when one is first needed in a context; nothing
//! of CUDA's is needed to build this. Work is queued in a stream, and the caller waits for it there.
//!
//! | layer | modules |
//! |---|---|
//! | words | [`error`], [`memory`], [`types`] |
//! | the text of kernels | `ptx` |
//! | which kernels a context has | `kernels` |
//! | reductions; datatypes | [`mod@reduce`]; [`layout`], [`mod@pack`] |
//! | collectives of all ranks of a communicator | [`collective`] |
//! | the same of two ranks, in one kernel of each | [`pair`] |
//! | NCCL's collectives | [`nccl`] |
//! | whether all ranks pass device memory | [`board`]; of collectives that overlap [`window`] |

pub mod board;
pub mod collective;
pub mod error;
mod kernels;
pub mod layout;
pub mod memory;
pub mod nccl;
pub mod pack;
pub mod pair;
mod ptx;
pub mod reduce;
pub mod types;
pub mod window;
#[cfg(all(test, loom))]
mod words_loom;

pub use error::Error;
pub use layout::{Layout, Level, Piece};
pub use memory::Memory;
pub use pack::{Element, pack, unpack};
pub use reduce::reduce;
pub use types::{Op, Type};
