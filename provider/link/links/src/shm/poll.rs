//! Polling for frames: each time the rings of peers that sent lately, now and then the others and the
//! sockets.

use link_api::{Event, OpId};

use crate::shm::channel::wake;
use crate::shm::channels::Channels;
use crate::shm::meet::meeting::Meeting;
use crate::shm::memory::copies::Copies;
use crate::shm::service::Service;

/// Polls what may have something.
pub(super) struct Polls<'a> {
    pub(super) channels: &'a mut Channels,
    pub(super) meeting: &'a mut Meeting,
    pub(super) copies: &'a mut Copies,
}

impl Polls<'_> {
    /// The same in memory of its own, for a call that is seldom made: the parts stay in registers where it is
    /// not.
    #[inline(always)]
    fn apart(&mut self) -> Polls<'_> {
        Polls { channels: self.channels, meeting: self.meeting, copies: self.copies }
    }

    fn service(&mut self) -> Service<'_> {
        Service { channels: self.channels, meeting: self.meeting }
    }

    /// Reads the sockets if it is time to.
    fn tick(&mut self) {
        let due = self.channels.pace.tick(self.channels.rings.is_empty());
        if self.channels.pace.is_time_to_cool(due.now, self.channels.rings.hot()) {
            self.channels.cool();
        }
        self.channels.sending.shrink_rings(&mut self.channels.peers, due.now);
        if due.sockets {
            self.service().run();
        }
    }

    /// The next thing that came by a ring.
    #[inline(always)]
    pub(super) fn frames(&mut self) -> Option<Event> {
        if self.channels.pace.count() {
            if let Some(event) = self.apart().slow() {
                return Some(event);
            }
        }
        self.channels.next_frame()
    }

    /// The next event while copies of devices are in flight. To ask a driver whether one is over takes longer
    /// than a peer's frame, so those come first, and the driver is polled when there is none or it was not
    /// polled for a while.
    #[cold]
    pub(super) fn pending(&mut self) -> Option<Event> {
        if let Some(done) = self.copies.over() {
            self.copy_is_over(done);
            return Some(Event::Done(done, true));
        }
        if self.copies.are_frames_first() {
            let frame = self.frames();
            if frame.is_some() {
                return frame;
            }
        }
        if let Some((done, good)) = self.copies.ask(self.channels.own.addr()) {
            self.copy_is_over(done);
            return Some(Event::Done(done, good));
        }
        self.frames()
    }

    /// A copy is over: its peer may have its memory back.
    pub(super) fn copy_is_over(&mut self, copy: OpId) {
        if let Some(peer) = self.copies.end(copy) {
            self.channels.peers[peer.0].leave_flight();
        }
    }

    /// What a poll has to do beyond reading hot rings.
    #[cold]
    fn slow(&mut self) -> Option<Event> {
        if self.channels.sleep.disarm() {
            for id in self.channels.rings.peers() {
                if let Some(inb) = &self.channels.peers[id].inb {
                    wake::promise(inb.rx.mem(), self.channels.sleep.barrier());
                }
            }
            self.service().run();
        } else if self.channels.pace.reads_clock(self.channels.rings.is_empty()) {
            self.tick();
        }
        let event = self.channels.reap();
        let eager = self.channels.pace.is_eager(self.channels.rings.is_empty());
        self.channels.pace.done(!self.channels.ends.is_empty() || !self.copies.is_empty() || eager);
        event
    }

    /// Has the sender of each ring wake this endpoint; whether nothing is there.
    pub(super) fn arm(&mut self) -> bool {
        // No descriptor shows that a copy is over, so as long as one is in flight there is no sleep.
        if self.channels.rings.is_held() || !self.copies.is_empty() {
            return false;
        }
        self.service().run();
        // Whatever comes of it, the next poll disarms.
        self.channels.sleep.arm();
        self.channels.pace.be_slow();
        for id in self.channels.rings.peers() {
            if let Some(inb) = &self.channels.peers[id].inb {
                wake::arm(inb.rx.mem(), self.channels.sleep.barrier());
            }
        }
        let barred = self.channels.rings.is_empty() || self.channels.sleep.barrier().heavy();
        let frame = |id: u32| self.channels.peers[id].inb.as_ref().is_some_and(|i| i.rx.ready());
        if !barred || !self.channels.ends.is_empty() || self.channels.rings.peers().any(frame) {
            return false;
        }
        if self.channels.sending.has_room_again(&mut self.channels.peers) || self.channels.sleep.take_retry()
        {
            return false;
        }
        self.channels.sleep.poller().ready::<1>().is_empty()
    }
}
