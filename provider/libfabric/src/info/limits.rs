//! Limits of what a call takes.

/// Segments of one call.
pub(crate) const IOV_LIMIT: usize = 8;
/// Bytes of an injected message.
pub(crate) const INJECT_SIZE: usize = 4096;
/// Bytes of a message.
pub(crate) const MAX_MSG_SIZE: usize = isize::MAX as usize;
