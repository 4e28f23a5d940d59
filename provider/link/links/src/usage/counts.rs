//! What is counted, and under which names.

use link_api::How;

/// Rows of sums: the ways through shared memory, and two for all other links.
pub const ROWS: usize = How::ALL.len() + 2;
/// Frames of a link that is not shared memory.
const NETWORK: usize = How::ALL.len();
/// Which side began an operation: this one, or the peer.
pub const SIDES: usize = 2;

/// The row of an operation by shared memory, or by another link. There one that is no frame is RMA of the
/// provider below.
pub(super) fn row_of(shared_memory: bool, how: How) -> usize {
    match how {
        how if shared_memory => how as usize,
        How::Eager | How::Frames => NETWORK,
        How::Direct | How::Cooperative | How::Device | How::Mapped => NETWORK + 1,
    }
}

/// What to call a row.
pub fn row_name(row: usize) -> &'static str {
    match How::ALL.get(row) {
        Some(How::Eager) => "ring",
        Some(How::Direct) => "direct copy",
        Some(How::Cooperative) => "cooperative copy",
        Some(How::Device) => "device copy",
        Some(How::Frames) => "frames",
        Some(How::Mapped) => "mapped memory",
        None if row == NETWORK => "network",
        None => "network RMA",
    }
}

/// How many, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub messages: u64,
    pub bytes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, bytes: u64) {
        self.messages = self.messages.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
