//! Executors for CUDA: streams, streams that are being captured, and graphs that are made node by node.
//!
//! | module | what it holds |
//! |---|---|
//! | `lower` | operations as batches of the driver's |
//! | `kit` | what a device has, and the kernel that adds |
//! | `stream`, `graph` | the executors |

mod graph;
mod kit;
mod lower;
mod stream;

pub use graph::{CudaGraph, CudaInstance};
pub use kit::means;
pub use stream::CudaStream;

#[cfg(all(test, not(loom)))]
#[path = "lower_tests.rs"]
mod lower_tests;
