//! Polling for frames: each time the rings of peers that sent lately, now and then the others and the sockets.

use std::time::{Duration, Instant};

use link_api::{Event, Frame, PeerId};

use super::link::{HOT, NO_PEER, PACE, ShmLink};
use super::{ring, wake};

/// Hot rings read in one poll that finds nothing, and polls between two reads of a ring that is
/// not hot: so that idle peers cost next to nothing, and get a turn also while the hot ones never stop.
pub(super) const LOOKS: usize = 2;
const REST: u32 = 4;

/// Time between two readings of the sockets.
const GAP: Duration = Duration::from_micros(50);
/// A peer that has sent nothing for so long is not hot any more.
const COOL: Duration = Duration::from_millis(1);
/// The same while no peer has sent anything yet: the first one should not wait.
const EAGER_GAP: Duration = Duration::from_micros(2);

impl ShmLink {
    /// The peer that is next, of those that are polled first.
    #[inline(always)]
    pub(super) fn next_hot(&mut self) -> u32 {
        let id = self.hot[self.hot_next % HOT];
        self.hot_next = if self.hot_next + 1 < self.hot_len { self.hot_next + 1 } else { 0 };
        id
    }

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
        self.held = NO_PEER;
        if let Some(inb) = &mut self.peers[id as usize].inb {
            inb.advance();
        }
    }

    /// The next one of all peers, if it is time for one that is not hot.
    #[inline(always)]
    pub(super) fn next_cold(&mut self) -> Option<u32> {
        if self.ins.len() <= self.hot_len || self.calls % REST != 0 {
            return None;
        }
        let generation = if self.ins_next < self.ins.len() { self.ins_next } else { 0 };
        self.ins_next = generation + 1;
        self.ins.get(generation).copied()
    }

    /// Polls one that is not hot.
    #[inline(never)]
    fn cold(&mut self, id: u32) -> Option<Event> {
        let event = self.next_of(id)?;
        self.warm(id);
        Some(event)
    }

    /// Puts a peer among those that each poll reads.
    #[inline(never)]
    pub(super) fn warm(&mut self, id: u32) {
        if self.hot[..self.hot_len].contains(&id) {
            return;
        }
        if self.hot_len < HOT {
            self.hot_len += 1;
            self.hot[self.hot_len - 1] = id;
        } else {
            self.hot[self.hot_next] = id;
        }
    }

    /// Reads the sockets if it is time to.
    fn tick(&mut self) {
        let gap = if self.ins.is_empty() && !self.patient { EAGER_GAP } else { GAP };
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.clock_read, now));
        let pace = if since > GAP { self.pace / 2 } else { self.pace * 2 };
        self.pace = pace.clamp(*PACE.start(), *PACE.end());
        if self.hot_len > 1 && now.duration_since(self.cooled) >= COOL {
            self.cooled = now;
            self.cool();
        }
        if now.duration_since(self.serviced) >= gap {
            self.serviced = now;
            hmem::registry::check();
            self.service();
        }
    }

    /// The next frame is for [`link_api::Link::poll`] to find.
    pub(crate) fn poll_next(&mut self) {
        self.slow = true;
    }

    /// A frame has come after a poll that found none: it may be answered.
    #[inline(always)]
    pub(super) fn expect_answer(&self, frame: &Frame) {
        if let Some(out) = &self.peers[frame.from.0 as usize].out {
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
        if let Some(event) = self.next_cold().and_then(|id| self.cold(id)) {
            return Some(event);
        }
        for _ in 0..self.hot_len.min(LOOKS) {
            let id = self.next_hot();
            if let Some(event) = self.next_of(id) {
                return Some(event);
            }
        }
        None
    }

    /// What a poll has to do beyond reading hot rings.
    #[cold]
    fn poll_slow(&mut self) -> Option<Event> {
        if self.armed {
            self.armed = false;
            for &id in &self.ins {
                if let Some(inb) = &self.peers[id as usize].inb {
                    wake::promise(inb.rx.mem(), self.barrier);
                }
            }
            self.service();
        } else if self.calls == self.clock_at || self.ins.is_empty() {
            self.tick();
        }
        if self.calls == self.clock_at {
            self.clock_at = self.calls.wrapping_add(self.pace);
        }
        let event = self.reap();
        self.slow = !self.dying.is_empty() || self.ins.is_empty();
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
        for &id in &self.ins {
            if let Some(inb) = &self.peers[id as usize].inb {
                wake::arm(inb.rx.mem(), self.barrier);
            }
        }
        let barred = self.barrier.heavy();
        let frame = |&id: &u32| self.peers[id as usize].inb.as_ref().is_some_and(|i| i.rx.ready());
        if !barred || !self.dying.is_empty() || self.ins.iter().any(frame) {
            return false;
        }
        if self.has_room_again() || std::mem::take(&mut self.connecting) {
            return false;
        }
        self.poller.ready::<1>().is_empty()
    }

    /// Takes a peer off the lists of rings to poll.
    pub(super) fn unlist(&mut self, id: u32) {
        self.ins.retain(|&i| i != id);
        self.keep_hot(|_, i| i != id);
    }

    /// From now on each poll reads only those that have sent something since this was last called;
    /// one at least.
    pub(super) fn cool(&mut self) {
        let last = self.hot_len.saturating_sub(1);
        let busy = self.hot.map(|id| {
            let inb = self.peers.get_mut(id as usize).and_then(|peer| peer.inb.as_mut());
            inb.is_some_and(|inb| std::mem::replace(&mut inb.cooled_at, inb.rx.pos()) != inb.rx.pos())
        });
        let any = busy[..self.hot_len].contains(&true);
        self.keep_hot(|at, _| busy[at] || !any && at == last);
    }

    fn keep_hot(&mut self, keep: impl Fn(usize, u32) -> bool) {
        let mut kept = [NO_PEER; HOT];
        let mut n = 0;
        for (at, &id) in self.hot[..self.hot_len].iter().enumerate() {
            if keep(at, id) {
                kept[n] = id;
                n += 1;
            }
        }
        (self.hot, self.hot_len, self.hot_next) = (kept, n, 0);
    }
}
