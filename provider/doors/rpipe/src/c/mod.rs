//! The interface of C: `include/strait_rpipe.h` is made from these files by `ci/check/header`.

mod active;
mod borrow;
mod calls;
mod collectives;
mod device;
mod groups;
mod handles;
mod job;
mod kept;
mod lend;
mod many;
mod messages;
#[cfg(all(test, not(loom)))]
mod tests;
mod types;

pub use active::*;
pub use borrow::*;
pub use calls::*;
pub use collectives::*;
pub use groups::*;
pub use job::*;
pub use lend::*;
pub use many::*;
pub use messages::*;
pub use types::*;
