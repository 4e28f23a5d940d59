//! A stand-in for NCCL's library, over the stand-in for CUDA's driver: for processes of one host that have no
//! GPU. It is slow. Names and signatures are NCCL's (user guide, nccl.h's public interface).
//!
//! Work is queued in the stream as a host function, and done there, through memory that the ranks share.
//!
//! | variable | |
//! |---|---|
//! | `NCCL_STAND_IN_FAIL` | `name=code` or `name@n=code`, with commas: calls that fail, always or the n-th time |
//! | `NCCL_STAND_IN_ASYNC` | `code@n`: with the n-th piece of work the communicator fails, and the work hangs until it is aborted |
//! | `NCCL_STAND_IN_VERSION` | what ncclGetVersion answers (22005) |
//!
//! A rank whose process is gone makes the communicators of the others fail with ncclRemoteError.
#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "NCCL's names; its manual is the documentation"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a test's library: every function trusts its caller as NCCL does"
)]

mod comm;
mod cuda;
mod meet;
mod number;
mod shared;
mod state;
mod work;

pub use comm::*;
pub use state::Comm;
pub use work::*;
