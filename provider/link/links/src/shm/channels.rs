//! The channels to and from all peers of this host: frames out, and frames in.

use hmem::Span;
use link_api::{Event, Frame, Gone, PeerId, Refused, Sent};

use crate::shm::channel::ring;
use crate::shm::channel::rings::{NO_PEER, Rings};
use crate::shm::ends::Ends;
use crate::shm::group::offers::Offers;
use crate::shm::meet::looks::Looks;
use crate::shm::meet::own::Own;
use crate::shm::memory::access::Access;
use crate::shm::options::OpenOptions;
use crate::shm::pace::Pace;
use crate::shm::peers::Peers;
use crate::shm::sending::Sending;
use crate::shm::sleep::Sleep;

/// The peers of an endpoint, and what their channels have in common.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Channels {
    /// The rings of all peers with a channel to this endpoint.
    pub(super) rings: Rings,
    pub(super) pace: Pace,
    pub(super) peers: Peers,
    pub(super) sleep: Sleep,
    pub(super) ends: Ends,
    pub(super) sending: Sending,
    pub(super) looks: Looks,
    pub(super) access: Access,
    pub(super) options: OpenOptions,
    /// Memory of groups.
    pub(super) groups: Offers,
    pub(super) own: Own,
}

impl Channels {
    /// Sends on an open channel; `None`: there is none.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Option<Result<Sent, Refused>> {
        let out = self.peers[to.0].out.as_mut()?;
        if out.send_short(head, body, off, len).is_some() {
            return Some(out.notify(self.sleep.is_registered()));
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
        Some(out.notify(self.sleep.is_registered()))
    }

    /// Whether a frame of `len` bytes finds room now on an open channel.
    #[inline]
    pub(super) fn room(&mut self, to: PeerId, len: usize) -> Result<(), Refused> {
        let Some(out) = self.peers[to.0].out.as_mut() else { return Err(Refused::Busy) };
        match out.tx.reserve(len) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.starve(to.0, len)),
            Err(ring::Broken) => Err(self.broke(to.0)),
        }
    }

    /// Sends a frame for which there is room, of `head` and what `pack` writes.
    ///
    /// # Safety
    /// There is room for `head` and `max` bytes, and `pack` must not write more than `max` bytes nor return
    /// another number than it wrote.
    #[inline]
    pub(super) unsafe fn send_packed(
        &mut self,
        to: PeerId,
        head: &[u8],
        max: usize,
        pack: impl FnOnce(*mut u8) -> usize,
    ) -> Result<usize, Refused> {
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
        out.notify(self.sleep.is_registered()).map(|_| n)
    }

    /// The ring to this peer has no room for a frame of that length.
    #[cold]
    pub(super) fn starve(&mut self, id: u32, len: usize) -> Refused {
        self.sending.starve(&mut self.peers, id, len);
        Refused::Busy
    }

    /// The next frame of this peer.
    #[inline]
    fn next_of(&mut self, id: u32) -> Option<Event> {
        let inb = self.peers[id].inb.as_mut()?;
        match inb.rx.peek() {
            Ok(None) => None,
            Ok(Some(len)) => {
                // SAFETY: the ring stays mapped while it is the peer's, and where that ends its frame is
                // lost.
                unsafe { self.rings.hold(id, inb.rx.word(), len) };
                Some(Event::Frame(Frame { from: PeerId(id), len, slot: 0 }))
            }
            Err(ring::Broken) => {
                self.broke(id);
                None
            }
        }
    }

    /// Gives the frame at hand of this peer back.
    #[inline(always)]
    pub(super) fn advance(&mut self, id: u32) {
        if let Some(inb) = &mut self.peers[id].inb {
            inb.advance();
        }
        if id != self.rings.sole() {
            self.locate(id);
        }
        self.rings.let_go_of(id);
    }

    /// Notes in the list where a ring is read next.
    #[inline(never)]
    pub(super) fn locate(&mut self, id: u32) {
        if let Some(inb) = self.peers.get(id).and_then(|peer| peer.inb.as_ref()) {
            // SAFETY: as where it was listed.
            unsafe { self.rings.moved(id, inb.rx.word()) };
        }
    }

    /// Whether rings that are not hot are looked at now.
    #[inline(always)]
    pub(super) fn is_time_for_cold(&self) -> bool {
        self.pace.is_time_for_cold() && !self.rings.are_hot()
    }

    /// A peer that seems to have sent, and is a hot one from now on.
    #[inline(always)]
    fn find(&mut self) -> Option<u32> {
        let cold = if self.is_time_for_cold() { self.rings.find_cold() } else { None };
        let (id, hot) = match cold {
            Some(id) => (id, false),
            None if self.rings.sole() != NO_PEER => return Some(self.rings.sole()),
            None => self.rings.find()?,
        };
        if !hot {
            self.warm(id);
        }
        Some(id)
    }

    /// The peer that a quick poll reads where not just one ring is looked at; `NO_PEER` if none seems to have
    /// sent.
    #[inline(never)]
    pub(super) fn find_of_many(&mut self) -> u32 {
        match self.rings.has_awaited() {
            Some(true) if !self.pace.is_time_for_others() => {
                let id = self.rings.awaited();
                if !self.rings.is_hot(id) {
                    self.warm(id);
                }
                id
            }
            Some(false) if !self.pace.is_time_for_others() && !self.pace.is_rare() => NO_PEER,
            _ => self.find().unwrap_or(NO_PEER),
        }
    }

    /// Puts a peer among those that each poll reads.
    #[inline(never)]
    pub(super) fn warm(&mut self, id: u32) {
        let sole = self.rings.sole();
        self.rings.warm(id);
        if sole != NO_PEER && sole != self.rings.sole() {
            self.locate(sole);
        }
    }

    /// A frame has come after a poll that found none: it may be answered.
    #[inline(always)]
    pub(super) fn expect_answer(&self, frame: &Frame) {
        let peer = &self.peers[frame.from.0];
        if let Some(inb) = &peer.inb {
            inb.rx.will_copy();
        }
        if let Some(out) = &peer.out {
            out.tx.expect(frame.len);
        }
    }

    /// From now on each poll reads only those that have sent something since this was last called;
    /// one at least.
    pub(super) fn cool(&mut self) {
        let peers = &mut self.peers;
        self.rings.cool(|id| {
            let inb = peers.get_mut(id).and_then(|peer| peer.inb.as_mut());
            inb.is_some_and(|inb| std::mem::replace(&mut inb.cooled_at, inb.rx.pos()) != inb.rx.pos())
        });
    }

    /// The next frame of the peers whose rings are polled now.
    #[inline(always)]
    pub(super) fn next_frame(&mut self) -> Option<Event> {
        let id = match self.rings.sole() {
            sole if sole != NO_PEER && !self.is_time_for_cold() => sole,
            _ => self.find()?,
        };
        let event = self.next_of(id);
        if event.is_none() && id != self.rings.sole() {
            self.locate(id);
        }
        event
    }

    /// The next frame of that peer's ring, held.
    #[inline(always)]
    pub(in crate::shm) fn peek_frame(&mut self, from: PeerId) -> Option<Frame> {
        let rx = &mut self.peers.get_mut(from.0)?.inb.as_mut()?.rx;
        match rx.peek() {
            Ok(Some(len)) => {
                // SAFETY: as in `next_of`.
                unsafe { self.rings.hold(from.0, rx.word(), len) };
                Some(Frame { from, len, slot: 0 })
            }
            // Whatever is wrong, the next poll finds it too.
            _ => None,
        }
    }
}
