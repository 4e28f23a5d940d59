//! Frames from an endpoint to itself.

use std::collections::VecDeque;

use hmem::Span;
use link_api::Refused;

/// Most bytes on their way from an endpoint to itself.
const OWN: usize = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct ToSelf {
    frames: VecDeque<Vec<u8>>,
    /// Their bytes, and one for each.
    bytes: usize,
}

impl ToSelf {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether there is room for much more.
    pub(super) fn has_room_to_spare(&self) -> bool {
        2 * self.bytes < OWN
    }

    pub(super) fn send(&mut self, head: &[u8], body: &[Span], off: usize, len: usize) -> Result<(), Refused> {
        if self.bytes > OWN {
            return Err(Refused::Busy);
        }
        let mut bytes = vec![0; head.len() + len];
        bytes[..head.len()].copy_from_slice(head);
        if hmem::read(body, off, &mut bytes[head.len()..]) != len {
            return Err(Refused::Fault);
        }
        self.bytes += bytes.len() + 1;
        self.frames.push_back(bytes);
        Ok(())
    }

    /// The next one.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let bytes = self.frames.pop_front()?;
        self.bytes -= bytes.len() + 1;
        Some(bytes)
    }

    /// One that was taken is the next one again.
    #[cold]
    pub(super) fn put_back(&mut self, bytes: Vec<u8>) {
        self.bytes += bytes.len() + 1;
        self.frames.push_front(bytes);
    }
}
