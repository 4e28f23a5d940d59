//! Polling for frames: each time the rings of peers that sent lately, now and then the others and the
//! sockets.

use link_api::{Event, Frame, OpId, PeerId};

use crate::shm::channel::ring;
use crate::shm::channel::rings::NO_PEER;
use crate::shm::channel::wake;
use crate::shm::link::ShmLink;

impl ShmLink {
    /// The next frame of this peer.
    #[inline]
    fn next_of(&mut self, id: u32) -> Option<Event> {
        let inb = self.peers[id].inb.as_mut()?;
        match inb.rx.peek() {
            Ok(None) => None,
            Ok(Some(len)) => {
                self.rings.hold(id);
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

    /// Reads the sockets if it is time to.
    fn tick(&mut self) {
        let due = self.pace.tick(self.rings.is_empty());
        if self.pace.is_time_to_cool(due.now, self.rings.hot()) {
            self.cool();
        }
        self.sending.shrink_rings(&mut self.peers, due.now);
        if due.sockets {
            self.service();
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

    /// The next thing that came by a ring.
    #[inline(always)]
    pub(super) fn poll_frames(&mut self) -> Option<Event> {
        if self.pace.count() {
            if let Some(event) = self.poll_slow() {
                return Some(event);
            }
        }
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

    /// The next event while copies of devices are in flight. To ask a driver whether one is over takes longer
    /// than a peer's frame, so those come first, and the driver is asked when there is none or it was not
    /// asked for a while.
    #[cold]
    pub(super) fn poll_pending(&mut self) -> Option<Event> {
        if let Some(done) = self.copies.over() {
            self.copy_is_over(done);
            return Some(Event::Done(done, true));
        }
        if self.copies.are_frames_first() {
            let frame = self.poll_frames();
            if frame.is_some() {
                return frame;
            }
        }
        if let Some((done, good)) = self.copies.ask(self.own.addr()) {
            self.copy_is_over(done);
            return Some(Event::Done(done, good));
        }
        self.poll_frames()
    }

    /// A copy is over: its peer may have its memory back.
    pub(super) fn copy_is_over(&mut self, copy: OpId) {
        if let Some(peer) = self.copies.end(copy) {
            self.peers[peer.0].leave_flight();
        }
    }

    /// What a poll has to do beyond reading hot rings.
    #[cold]
    fn poll_slow(&mut self) -> Option<Event> {
        if self.sleep.disarm() {
            for id in self.rings.peers() {
                if let Some(inb) = &self.peers[id].inb {
                    wake::promise(inb.rx.mem(), self.sleep.barrier());
                }
            }
            self.service();
        } else if self.pace.reads_clock(self.rings.is_empty()) {
            self.tick();
        }
        let event = self.reap();
        let eager = self.pace.is_eager(self.rings.is_empty());
        self.pace.done(!self.ends.is_empty() || !self.copies.is_empty() || eager);
        event
    }

    /// Has the sender of each ring wake this endpoint; whether nothing is there.
    pub(super) fn arm_rings(&mut self) -> bool {
        // No descriptor tells when a copy is over, so as long as one is in flight there is no sleep.
        if self.rings.is_held() || !self.copies.is_empty() {
            return false;
        }
        self.service();
        // Whatever comes of it, the next poll disarms.
        self.sleep.arm();
        self.pace.be_slow();
        for id in self.rings.peers() {
            if let Some(inb) = &self.peers[id].inb {
                wake::arm(inb.rx.mem(), self.sleep.barrier());
            }
        }
        let barred = self.rings.is_empty() || self.sleep.barrier().heavy();
        let frame = |id: u32| self.peers[id].inb.as_ref().is_some_and(|i| i.rx.ready());
        if !barred || !self.ends.is_empty() || self.rings.peers().any(frame) {
            return false;
        }
        if self.sending.has_room_again(&mut self.peers) || self.sleep.take_retry() {
            return false;
        }
        self.sleep.poller().ready::<1>().is_empty()
    }

    /// Whether the last [`link_api::Link::arm`] returned true, and no poll followed: the caller may sleep
    /// next, also where something has begun since of whose end no descriptor tells.
    pub fn may_sleep(&self) -> bool {
        self.sleep.may_sleep()
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
}
