//! Peer memory: `include/strait_p2pmem.h`, which `ci/check/header` makes of these files.

mod buffers;
mod publish;
mod share;
mod types;

pub use buffers::*;
pub use publish::*;
pub use share::*;
pub use types::*;
