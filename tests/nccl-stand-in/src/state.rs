//! What a communicator is, and what calls answer.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use crate::shared::Shared;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: c_int = 1;
pub(crate) const SYSTEM_ERROR: c_int = 2;
pub(crate) const INVALID_ARGUMENT: c_int = 4;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const REMOTE_ERROR: c_int = 6;
pub(crate) const IN_PROGRESS: c_int = 7;

pub(crate) struct Inner {
    pub(crate) shared: OnceLock<Shared>,
    pub(crate) name: String,
    /// As ncclCommGetAsyncError has it.
    pub(crate) state: AtomicI32,
    pub(crate) aborted: AtomicBool,
    /// Pieces of work that are queued or run.
    pub(crate) open: AtomicUsize,
    /// In the thread that does the work.
    pub(crate) step: AtomicU64,
    pub(crate) turn: Mutex<()>,
    pub(crate) splits: AtomicU64,
}

/// `ncclComm_t`.
#[allow(missing_debug_implementations, reason = "a handle")]
pub struct Comm(pub(crate) Arc<Inner>);

/// Stops a call that is to fail.
macro_rules! enter {
    ($name:literal) => {
        stand_in::fault::READY.store(true, std::sync::atomic::Ordering::Release);
        if let Err(code) = stand_in::fault::enter("NCCL", $name, 5) {
            return code;
        }
    };
}
pub(crate) use enter;
