//! The interface of C: `include/strait_rpipe.h` is made from these files by `ci/header`.

mod calls;
mod handles;
mod messages;
mod types;

pub use calls::*;
pub use messages::*;
pub use types::*;
