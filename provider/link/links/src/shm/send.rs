//! Sending frames.

use hmem::Span;
use link_api::{Frame, Gone, PeerId, Refused, Sent};

use crate::shm::channel::ring;
use crate::shm::link::ShmLink;

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
    ) -> Option<Result<Sent, Refused>> {
        let out = self.peers[to.0].out.as_mut()?;
        if out.send_short(head, body, off, len).is_some() {
            return Some(out.notify(self.sleep.is_registered()).map(|()| Sent::Done));
        }
        self.put_longer(to, head, body, off, len)
    }

    /// Sends a frame of any length on an open channel.
    #[inline(never)]
    fn put_longer(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Option<Result<Sent, Refused>> {
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
        Some(out.notify(self.sleep.is_registered()).map(|()| Sent::Done))
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
    ) -> Result<Sent, Refused> {
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

/// Sending what a callback writes, for callers whose payload is not in memory yet; and taking in a whole
/// frame in one go.
impl ShmLink {
    /// Whether a frame of `len` bytes would find room now. Connects if need be.
    #[inline]
    pub fn room(&mut self, to: PeerId, len: usize) -> Result<(), Refused> {
        if self.peers[to.0].out.is_none() {
            self.open_channel(to.0)?;
        }
        let Some(out) = self.peers[to.0].out.as_mut() else { return Err(Refused::Busy) };
        match out.tx.reserve(len) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.starve(to.0, len)),
            Err(ring::Broken) => Err(self.broke(to.0)),
        }
    }

    /// Sends one frame made of `head` and then what `pack` writes: at most `max` bytes at the
    /// address it is given, of which it returns the number. Returns the same. `pack` is called only
    /// if there is room, and it must not read what it has written: the memory may be shared.
    ///
    /// # Safety
    /// `pack` must not write more than `max` bytes nor return another number than it wrote.
    #[inline]
    pub unsafe fn send_packed(
        &mut self,
        to: PeerId,
        head: &[u8],
        max: usize,
        pack: impl FnOnce(*mut u8) -> usize,
    ) -> Result<usize, Refused> {
        assert!(head.len() + max <= self.sending.max_frame(), "frame longer than Path::max_frame");
        self.room(to, head.len() + max)?;
        let out = self.peers[to.0].out.as_mut().ok_or(Refused::Gone(Gone::Reset))?;
        let n = match out.tx.stretches(head.len(), max) {
            [(at, all), (_, 0)] => pack(out.tx.mem().span(at, all).as_ptr()),
            _ => {
                // Over the ring's end: by way of private memory.
                let scratch = self.sending.scratch();
                scratch.resize(max, 0);
                let n = pack(scratch.as_mut_ptr()).min(max);
                // SAFETY: `head.len() + max` bytes were found to have room.
                unsafe { out.tx.write(head.len(), &scratch[..n]) };
                n
            }
        };
        assert!(n <= max, "more was packed than said");
        // SAFETY: as above.
        unsafe { out.tx.write(0, head) };
        out.tx.publish(head.len() + n);
        out.notify(self.sleep.is_registered()).map(|()| n)
    }

    /// Takes a frame in: gives its first `N` bytes, copies the rest to `to`, and releases it. `None` if
    /// it is shorter than that, or the rest longer than `room`.
    ///
    /// # Safety
    /// `to` must be initialized memory, valid for reads and writes of `room` bytes, and not used by anything
    /// else.
    #[inline]
    pub unsafe fn receive<const N: usize>(
        &mut self,
        frame: Frame,
        to: *mut u8,
        room: usize,
    ) -> Option<[u8; N]> {
        if !self.rings.holds(frame.from.0) {
            return None;
        }
        let inb = self.peers[frame.from.0].inb.as_ref()?;
        let rest = frame.len.wrapping_sub(N);
        // A shorter frame has more of a rest than there is room for anywhere.
        let head = if rest <= room { inb.rx.first() } else { None };
        if head.is_some() {
            // SAFETY: the caller's promise.
            inb.rx.read(N, unsafe { std::slice::from_raw_parts_mut(to, rest) });
        }
        self.advance(frame.from.0);
        head
    }

    /// The pid of a peer that is connected, 0 where it is not visible here.
    pub fn peer_pid(&self, peer: PeerId) -> Option<i32> {
        self.peers[peer.0].pid()
    }
}
