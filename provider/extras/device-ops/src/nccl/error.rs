//! Why NCCL does not do what was asked.

use std::fmt;
use std::time::Duration;

/// Why NCCL does not do what was asked. Each is a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NcclError {
    /// The library is not to be had, or lacks a function.
    Library {
        /// Its name, or path.
        name: String,
        /// Why.
        why: String,
    },
    /// A call failed.
    Call {
        /// The function.
        call: &'static str,
        /// `ncclResult_t`.
        code: i32,
        /// The same in NCCL's words.
        text: String,
    },
    /// The communicator failed by itself, as when a peer is gone.
    Async {
        /// `ncclResult_t`.
        code: i32,
        /// The same in NCCL's words.
        text: String,
    },
    /// It took longer than the caller allows.
    TimedOut(&'static str, Duration),
    /// A stream, or the kernels in it, failed.
    Driver(&'static str, hmem::cuda::Error),
    /// Nothing is done with a communicator that has failed.
    Failed,
    /// An argument that no call can be made with.
    Argument(String),
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NcclError::Library { name, why } => {
                write!(f, "{name} cannot be used: {why}; STRAIT_NCCL_LIBRARY may name another file")
            }
            NcclError::Call { call, code, text } => {
                write!(f, "{call} failed: {text} ({code}); NCCL_DEBUG=WARN has NCCL say more")
            }
            NcclError::Async { code, text } => {
                write!(f, "NCCL's communicator failed: {text} ({code}); NCCL_DEBUG=WARN has NCCL say more")
            }
            NcclError::TimedOut(what, limit) => {
                write!(f, "{what} took longer than {limit:?}: a rank is gone, or did not make the same call")
            }
            NcclError::Driver(what, error) => write!(f, "{what} failed: {error}"),
            NcclError::Failed => f.write_str("NCCL's communicator has failed before: free the communicator"),
            NcclError::Argument(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for NcclError {}
