//! Limits of what a call takes.

/// Segments of one call.
pub(crate) const IOV_LIMIT: usize = 8;
/// Default inject size in bytes: each frame of each ring has room for them.
pub(crate) const INJECT_SIZE: usize = 4096;
/// Most bytes of one.
pub(crate) const MOST_INJECT: usize = 16 << 10;
/// Bytes of a message.
pub(crate) const MAX_MSG_SIZE: usize = isize::MAX as usize;
