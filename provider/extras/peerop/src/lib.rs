//! PeerDirect Async: a device that is no adapter commits sends and waits for completions by executing
//! bytecode (gpudirect/libibverbs `peer_ops.h`; Daoud and Romanovsky, OpenFabrics Alliance Workshop 2017).
//!
//! The bytecode ([`op`], [`memory`], [`exec`], [`queue`], [`cq`], [`replay`]) knows no CUDA, no verbs and no
//! libfabric; [`cuda`] executes it in CUDA's streams and graphs.
//!
//! | layer | modules |
//! |---|---|
//! | words | [`place`]; [`error`]; [`op`] |
//! | what places are | [`memory`] |
//! | the trait of executors, and the CPU | [`exec`] |
//! | commits; peeks; words for graphs that are replayed | [`queue`]; [`cq`]; [`replay`] |
//! | what executes it on a device | [`cuda`] |

pub mod cq;
pub mod cuda;
pub mod error;
pub mod exec;
pub mod memory;
pub mod op;
pub mod place;
pub mod queue;
pub mod replay;

pub use cq::{CompletionQueue, PeekId, Whence};
pub use error::Error;
pub use exec::{Cpu, Executor, Failed};
pub use memory::{Memory, Reach, Targets};
pub use op::{Block, List, Op, Until};
pub use place::{Caps, Fence, Place, TargetId};
pub use queue::{CommitId, Rollback, SendQueue};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
mod testing;
