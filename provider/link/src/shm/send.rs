//! Sending frames.

use hmem::Span;
use link_api::{PeerId, Refused};

use super::link::ShmLink;
use super::ring;

impl ShmLink {
    /// Sends on an open channel; `None`: there is none.
    #[inline(always)]
    pub(crate) fn send_connected(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Option<Result<(), Refused>> {
        let out = self.peers[to.0].out.as_mut()?;
        if out.send_short(head, body, off, len).is_some() {
            return Some(out.notify(self.sleep.is_registered()));
        }
        self.put_longer(to, head, body, off, len)
    }

    /// Likewise, of any length.
    #[inline(never)]
    fn put_longer(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Option<Result<(), Refused>> {
        let out = self.peers[to.0].out.as_mut()?;
        let total = head.len() + len;
        assert!(total <= self.sending.max_frame(), "frame longer than Path::max_frame");
        match out.tx.reserve(total) {
            Ok(true) => {}
            Ok(false) => return Some(Err(self.starve(to.0, total))),
            Err(ring::Broken) => return Some(Err(self.broke(to.0))),
        }
        // SAFETY: `total` bytes were found to have room, and `head` are the first of them.
        unsafe { out.tx.write(0, head) };
        if len > 0 {
            let done = out.copy_in(head.len(), body, off, len);
            if done != len {
                out.tx.abandon();
                return Some(Err(Refused::Fault));
            }
        }
        out.tx.publish(total);
        Some(out.notify(self.sleep.is_registered()))
    }

    /// Sends to one without a channel to it yet.
    #[cold]
    pub(super) fn send_first(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        self.open_channel(to.0)?;
        self.send_connected(to, head, body, off, len).unwrap_or(Err(Refused::Busy))
    }

    /// The ring to this peer has no room for a frame of that length.
    #[cold]
    pub(super) fn starve(&mut self, id: u32, len: usize) -> Refused {
        self.sending.starve(&mut self.peers, id, len);
        Refused::Busy
    }
}
