//! Memory to receive into.

use std::ops::{Deref, DerefMut};

use link_api::{Budget, Reservation};
use wire::session::RECORD;

/// Longest frame.
pub(in crate::tcp) const MAX_FRAME: usize = (256 << 10) + wire::EAGER_HEAD;
/// Most bytes that are received at a time where short frames come.
pub(in crate::tcp) const STRETCH: usize = 32 << 10;
/// Bytes of a buffer: a frame and what else one look finds.
const BUFFER: usize = MAX_FRAME + RECORD + STRETCH;

/// How many buffers an endpoint keeps to spare.
pub(in crate::tcp) const SPARE: usize = 8;

/// Memory to receive into. It counts for as long as it is not in the pool.
#[derive(Debug)]
pub(in crate::tcp) struct Buffer {
    bytes: Box<[u8]>,
    share: Reservation,
}

/// Buffers to spare, and what all others count for.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Pool {
    spare: Vec<Buffer>,
    budget: Budget,
    /// A peer found none since this was asked last.
    short: bool,
}

impl Pool {
    /// From now on buffers count here.
    pub(in crate::tcp) fn set_budget(&mut self, budget: &Budget) {
        (self.spare, self.budget) = (Vec::new(), budget.clone());
    }

    /// A buffer; `None`: parts of frames of all peers take up what they may. `needed`: there is no waiting
    /// for another one.
    #[inline]
    pub(in crate::tcp) fn take(&mut self, needed: bool) -> Option<Buffer> {
        if self.spare.is_empty() {
            self.make();
        }
        let mut buffer = self.spare.pop()?;
        if buffer.share.try_add(BUFFER) {
            return Some(buffer);
        }
        if needed {
            buffer.share.add(BUFFER);
            return Some(buffer);
        }
        self.spare.push(buffer);
        self.short = true;
        None
    }

    /// The buffer that [`Pool::take_first`] takes, if that may be.
    #[inline]
    pub(in crate::tcp) fn first(&mut self) -> Option<&mut Buffer> {
        if self.spare.is_empty() {
            self.make();
        }
        self.spare.last_mut().filter(|buffer| buffer.share.has_room(BUFFER))
    }

    /// Takes that buffer, which something was received into.
    #[inline]
    pub(in crate::tcp) fn take_first(&mut self) -> Option<Buffer> {
        let mut buffer = self.spare.pop()?;
        buffer.share.add(BUFFER);
        Some(buffer)
    }

    #[cold]
    fn make(&mut self) {
        let buffer = Buffer { bytes: vec![0; BUFFER].into_boxed_slice(), share: self.budget.share() };
        self.spare.push(buffer);
    }

    /// Whether a peer has found no buffer.
    pub(in crate::tcp) fn is_short(&self) -> bool {
        self.short
    }

    /// Whether a peer has found no buffer since the last call.
    pub(in crate::tcp) fn was_short(&mut self) -> bool {
        std::mem::take(&mut self.short)
    }

    /// Takes a buffer back with nothing in it.
    #[inline]
    pub(in crate::tcp) fn give(&mut self, mut buffer: Buffer) {
        if self.spare.len() < SPARE {
            buffer.share.sub(BUFFER);
            self.spare.push(buffer);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
