//! Polling for frames: each time the rings of peers that sent lately, now and then the others and the sockets.

use std::time::{Duration, Instant};

use link_api::{Event, Frame, PeerId};

use super::link::{PACE, ShmLink};
use super::rings::NO_PEER;
use super::{ring, shrink, wake};

/// Polls between two looks at rings that are not hot: so that idle peers cost next to nothing, and get a turn also
/// while the hot ones never stop.
pub(super) const REST: u32 = 4;

/// Of so many polls while one peer is waited for, one looks at the others' rings too. What they have sent is as well off there:
/// it would be taken in as unexpected, and a look at a ring takes its next line away from the sender, which is about to write it.
/// Where polls are rare each of them looks: what others have sent may be more than messages, and so many polls take long.
pub(super) const OTHERS: u32 = 16;

/// Time between two readings of the sockets.
const GAP: Duration = Duration::from_micros(50);
/// A peer that has sent nothing for so long is not hot any more.
const COOL: Duration = Duration::from_millis(1);
/// The same while no peer has sent anything yet: the first one should not wait.
const EAGER_GAP: Duration = Duration::from_micros(2);

impl ShmLink {
    /// The next frame of this peer.
    #[inline]
    fn next_of(&mut self, id: u32) -> Option<Event> {
        let inb = self.peers[id as usize].inb.as_mut()?;
        match inb.rx.peek() {
            Ok(None) => None,
            Ok(Some(len)) => {
                self.held = id;
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
        if let Some(inb) = &mut self.peers[id as usize].inb {
            inb.advance();
        }
        if id != self.rings.sole() {
            self.locate(id);
        }
        self.let_go_of(id);
    }

    /// The frame at hand was of this peer, and is none any more.
    #[inline(always)]
    pub(super) fn let_go_of(&mut self, id: u32) {
        self.held = NO_PEER;
        if id == self.rings.awaited() {
            self.rings.awaits(NO_PEER);
        }
    }

    /// Notes in the list where a ring is read next.
    #[inline(never)]
    pub(super) fn locate(&mut self, id: u32) {
        if let Some(inb) = self.peers.get(id as usize).and_then(|peer| peer.inb.as_ref()) {
            // SAFETY: as where it was listed.
            unsafe { self.rings.moved(id, inb.rx.word()) };
        }
    }

    /// Whether rings that are not hot are looked at now.
    #[inline(always)]
    pub(super) fn is_time_for_cold(&self) -> bool {
        self.calls % REST == 0 && !self.rings.are_hot()
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

    /// The peer that a quick poll reads where not just one ring is looked at; `NO_PEER` if none seems to have sent.
    #[inline(never)]
    pub(super) fn find_of_many(&mut self) -> u32 {
        match self.rings.has_awaited() {
            Some(true) if self.calls % OTHERS != 0 => {
                let id = self.rings.awaited();
                if !self.rings.is_hot(id) {
                    self.warm(id);
                }
                id
            }
            Some(false) if self.calls % OTHERS != 0 && !self.rare => NO_PEER,
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

    /// Whether each poll asks if it is time to read the sockets: nothing else brings anything.
    fn is_eager(&self) -> bool {
        self.rings.is_empty() && !self.patient
    }

    /// Reads the sockets if it is time to.
    fn tick(&mut self) {
        let gap = if self.is_eager() { EAGER_GAP } else { GAP };
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.clock_read, now));
        self.rare = since > GAP * self.pace;
        let pace = if since > GAP { self.pace / 2 } else { self.pace * 2 };
        self.pace = pace.clamp(*PACE.start(), *PACE.end());
        if self.rings.hot() > 1 && now.duration_since(self.cooled) >= COOL {
            self.cooled = now;
            self.cool();
        }
        self.shrink_rings(now);
        if now.duration_since(self.serviced) >= gap {
            self.serviced = now;
            hmem::registry::check();
            self.service();
        }
    }

    /// Looks at the rings of some peers, if it is time to.
    #[inline]
    fn shrink_rings(&mut self, now: Instant) {
        if let Some(first) = self.shrinking.is_due(now, self.peers.len()) {
            self.shrink_those_from(first, now);
        }
    }

    #[cold]
    fn shrink_those_from(&mut self, first: usize, now: Instant) {
        for (at, peer) in self.peers.iter_mut().enumerate().skip(first).take(shrink::TOGETHER) {
            if let Some(inb) = &mut peer.inb {
                // Else the sender never sees that a ring is empty through which little goes.
                inb.publish();
            }
            if peer.out.as_mut().is_some_and(|out| out.tx.shrink()) {
                return self.shrinking.gave(at, now);
            }
        }
    }

    /// A frame has come after a poll that found none: it may be answered.
    #[inline(always)]
    pub(super) fn expect_answer(&self, frame: &Frame) {
        let peer = &self.peers[frame.from.0 as usize];
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
        self.calls = self.calls.wrapping_add(1);
        if self.calls == self.clock_at || self.slow {
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

    /// What a poll has to do beyond reading hot rings.
    #[cold]
    fn poll_slow(&mut self) -> Option<Event> {
        if self.armed {
            self.armed = false;
            for id in self.rings.peers() {
                if let Some(inb) = &self.peers[id as usize].inb {
                    wake::promise(inb.rx.mem(), self.barrier);
                }
            }
            self.service();
        } else if self.calls == self.clock_at || self.is_eager() {
            self.tick();
        }
        if self.calls == self.clock_at {
            self.clock_at = self.calls.wrapping_add(self.pace);
        }
        let event = self.reap();
        self.slow = !self.dying.is_empty() || !self.pending.is_empty() || self.is_eager();
        event
    }

    /// Has the sender of each ring wake this endpoint; whether nothing is there.
    pub(super) fn arm_rings(&mut self) -> bool {
        // No descriptor tells when a copy is over, so as long as one is in flight there is no sleep.
        if self.held != NO_PEER || !self.pending.is_empty() {
            return false;
        }
        self.service();
        // Whatever comes of it, the next poll disarms.
        self.armed = true;
        self.slow = true;
        for id in self.rings.peers() {
            if let Some(inb) = &self.peers[id as usize].inb {
                wake::arm(inb.rx.mem(), self.barrier);
            }
        }
        let barred = self.rings.is_empty() || self.barrier.heavy();
        let frame = |id: u32| self.peers[id as usize].inb.as_ref().is_some_and(|i| i.rx.ready());
        if !barred || !self.dying.is_empty() || self.rings.peers().any(frame) {
            return false;
        }
        if self.has_room_again() || std::mem::take(&mut self.connecting) {
            return false;
        }
        self.poller.ready::<1>().is_empty()
    }

    /// Whether the last [`link_api::Link::arm`] returned true, and no poll followed: the caller may sleep next, also where
    /// something has begun since of whose end no descriptor tells.
    pub fn may_sleep(&self) -> bool {
        self.armed && self.quiet
    }

    /// From now on each poll reads only those that have sent something since this was last called;
    /// one at least.
    pub(super) fn cool(&mut self) {
        let peers = &mut self.peers;
        self.rings.cool(|id| {
            let inb = peers.get_mut(id as usize).and_then(|peer| peer.inb.as_mut());
            inb.is_some_and(|inb| std::mem::replace(&mut inb.cooled_at, inb.rx.pos()) != inb.rx.pos())
        });
    }
}
