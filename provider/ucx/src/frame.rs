//! What peers send each other through the ring.
//!
//! | first byte | what it is | laid out in |
//! |---|---|---|
//! | `AM` | an active message; the second byte is its id | `am` |
//! | `REQUEST`, `REPLY` | a request, and what came of it | `remote` |
//! | `SHARE` | a put or get that both sides copy | `share` |

use crate::attr::SEGMENT;

/// Bytes before the payload of a frame: what it is, an active message's id, and two zeros.
pub(crate) const HEAD: usize = 4;
/// An active message.
pub(crate) const AM: u8 = 0;

/// Longest frame: a request for the longest segment.
pub(crate) const MAX_FRAME: usize = HEAD + FIXED + SEGMENT;

pub(crate) const REQUEST: u8 = 1;
pub(crate) const REPLY: u8 = 2;
pub(crate) const SHARE: u8 = 3;

/// Bytes of a request before what is to be put.
pub(crate) const FIXED: usize = SLOT_AT + 16;
/// Where in a request the key's slot is.
pub(crate) const SLOT_AT: usize = 32;
/// Longest frame of an active message.
pub(crate) const MAX_AM: usize = HEAD + SEGMENT;

/// A word of a frame.
pub(crate) fn word(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(body.get(8 * at..8 * at + 8)?.try_into().ok()?))
}
