//! Frames that interfaces send each other through the ring: how long they are, and why one is dropped. Their
//! layout is [`wire::ucx`]'s; `am`, `remote`, `serve`, `share` and `help` have what they mean.

use wire::ucx::{Head, Request};
use zerocopy::FromBytes;

use crate::iface::attr::SEGMENT;

/// Bytes before the payload of an active message.
pub(crate) const HEAD: usize = Head::LEN;
/// Longest frame: a request for the longest segment.
pub(crate) const MAX_FRAME: usize = HEAD + size_of::<Request>() + SEGMENT;
/// Longest frame of an active message.
pub(crate) const MAX_AM: usize = HEAD + SEGMENT;

/// Why a handler refuses a frame, which has no effect then.
pub(crate) type Refusal = &'static str;

/// The next part of a frame.
pub(crate) fn take<T: FromBytes>(rest: &mut &[u8]) -> Result<T, Refusal> {
    wire::take(rest).ok_or("it is too short")
}
