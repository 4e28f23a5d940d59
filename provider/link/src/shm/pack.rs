//! Sending what a callback writes: for callers whose payload is not in memory yet. And taking in a whole
//! frame in one go.

use link_api::{Frame, Gone, PeerId, Refused};

use super::link::ShmLink;
use super::ring;

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
    /// `to` must be initialized memory, valid for reads and writes of `room` bytes, and not used by anything else.
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
        let peer = &self.peers[peer.0];
        peer.inb.as_ref().map(|i| i.pid).or(peer.out.as_ref().map(|o| o.pid))
    }
}
