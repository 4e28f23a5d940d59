//! Copies in flight.

mod list;
mod start;

use std::fmt;

pub use list::PendingCopies;
pub use start::start;

use crate::error::Error;

/// Most bytes that are copied, or handed to a driver that copies them itself, before others get
/// their turn.
pub(crate) const PIECE: usize = 1 << 20;

/// The log line for [`PendingCopies::held`].
pub const HELD: &str = "a device copy has not completed for more than 10 s. If it does not end, a kernel that waits for a \
                        transfer may hold it: set CUDA_MODULE_LOADING=EAGER (docs/gpu.md, A kernel that waits for a transfer)";

/// One stretch of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where to.
    pub dst: usize,
    /// Where from.
    pub src: usize,
    /// Bytes.
    pub len: usize,
}

/// A copy in flight. Dropping it waits until no device uses the memory any more.
pub trait PendingCopy: fmt::Debug + Send {
    /// Whether it is done: `Ok(false)` means not yet. An error is final.
    fn poll(&mut self) -> Result<bool, Error>;

    /// The queue that it is in, if there is one: copies of one queue are done in the order in which they were
    /// started. A poll of a driver may take longer than a copy, so of many pending copies only the first and
    /// the last of a queue are polled.
    fn queue(&self) -> Option<usize> {
        None
    }

    /// A copy that was started later in the same queue is done, so the device is done with this one. True if
    /// this one has completed with that; if not, it is polled as before.
    fn on_later_done(&mut self) -> bool {
        true
    }
}
