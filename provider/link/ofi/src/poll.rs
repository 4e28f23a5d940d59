//! What is done with what comes by either way, and with time.

use std::time::Instant;

use link_api::{Channel, Event, Frame, Gone, PeerId, RmaLink};
use wire::session::{Control, MOST_ADDRESS, Mark};

use crate::below::{Below, Buffer, Did, NotSent};
use crate::channel::{Came, Said, Sort, Spoilt, name_in};
use crate::link::OfiLink;
use crate::peer::Stage;

/// Messages taken in one go.
const BATCH: usize = 64;
/// Longest control message.
const CONTROL: usize = 128 + MOST_ADDRESS;

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    /// Does what there is to do in one poll.
    pub(crate) fn poll_some(&mut self) {
        self.read_some();
        self.turns.count();
        let restless = self.peers.has_restless() || !self.saying.is_empty();
        if restless {
            self.tend_all();
        }
        if restless || self.below.is_none() || self.peers.use_base() || self.turns.is_for_base() {
            self.poll_base();
        }
    }

    /// Does all that there is to do.
    pub(crate) fn poll_all(&mut self) {
        self.read_below();
        self.tend_all();
        self.poll_base();
    }

    /// Takes all that has come by the fabric, or much of it.
    pub(crate) fn read_below(&mut self) {
        self.read(true);
    }

    /// Takes what has come by the fabric until there is something to poll, which is not to wait for another
    /// call of the provider.
    fn read_some(&mut self) {
        self.read(false);
    }

    fn read(&mut self, all: bool) {
        for _ in 0..BATCH {
            let Some(below) = self.below.as_mut().filter(|_| !self.provider.has_failed()) else { return };
            let next = match self.reading.take_stashed() {
                Some(did) => Some(did),
                None if all => below.poll(),
                None if self.inbox.is_empty() => below.poll_soon(),
                None => below.poll_taken(),
            };
            match next {
                None => break,
                Some(Did::Read(who, ok)) => self.read_is_over(who, ok),
                Some(Did::Came(buffer, len)) => self.came(buffer, len),
                Some(Did::Failed(who, why)) => self.lost(who, &why),
                Some(Did::Dead(why)) => return self.dead(&why),
            }
        }
        self.post_reads();
    }

    /// A message came, whether or not it is one of a peer's.
    fn came(&mut self, buffer: Buffer, len: usize) {
        let Some(below) = &mut self.below else { return };
        let bytes = &below.bytes(buffer)[..len];
        let window = self.provider.window();
        let mark = bytes.first_chunk().map(Mark::decode);
        let at = mark.and_then(|mark| self.peers.get_mut(PeerId(mark.slot)).map(|at| (mark, at)));
        let Some((mark, at)) =
            at.filter(|(mark, at)| mark.generation == at.generation && at.meeting.is_announced())
        else {
            // Of one that ended meanwhile, or a stranger's.
            return below.give_back(buffer);
        };
        let peer = PeerId(mark.slot);
        let Some(channel) = &mut at.channel else {
            if at.stage == Stage::Meeting && bytes.len() <= CONTROL {
                at.meeting.keep_early(bytes);
            }
            return below.give_back(buffer);
        };
        if mark.number == 0 && channel.is_first_again(bytes) {
            // Its answer is sent again, too.
            let answered = at.stage == Stage::Meeting && !at.meeting.owes_pong();
            below.give_back(buffer);
            if answered {
                at.first.repeat_now();
                self.note_restless(peer);
                self.tend(peer);
            }
            return;
        }
        match channel.is_next(mark.number, bytes, window) {
            Ok(true) => self.take(peer, Came::Buffer(buffer, len)),
            Ok(false) => return below.give_back(buffer),
            Err(Spoilt(why)) => {
                below.give_back(buffer);
                return self.spoil(peer, why);
            }
        }
        while let Some(bytes) = self.peers[peer].channel.as_mut().and_then(|c| c.next_early()) {
            self.take(peer, Came::Copy(bytes));
        }
    }

    /// Takes the next message of a peer.
    fn take(&mut self, peer: PeerId, came: Came) {
        let at = &mut self.peers[peer];
        let Some(channel) = &mut at.channel else { return came.give_back(self.below.as_mut()) };
        let found = channel.open(came.bytes(self.below.as_ref()));
        if found == Ok(Sort::Frame) {
            self.inbox.push_frame(peer, at.generation, came);
            // It may be quicker than the word that it can come.
            if at.stage == Stage::Meeting {
                self.hear_frame(peer);
            }
            return;
        }
        let name = name_in(came.bytes(self.below.as_ref()));
        came.give_back(self.below.as_mut());
        self.took(peer, found, name);
    }

    /// What came before the peer's announce.
    pub(crate) fn take_early(&mut self, peer: PeerId, bytes: &[u8]) {
        let Some(channel) = &mut self.peers.at(peer).channel else { return };
        let first = bytes.first_chunk().map(Mark::decode).is_some_and(|mark| mark.number == 0);
        let found = if first { channel.open(bytes) } else { Err(Spoilt("its number is not the first")) };
        match found {
            Ok(Sort::Frame) => self.spoil(peer, "it sends frames before it knows that they come"),
            found => self.took(peer, found, name_in(bytes)),
        }
    }

    /// A message that is no frame was taken.
    fn took(&mut self, peer: PeerId, found: Result<Sort, Spoilt>, name: Option<u64>) {
        let at = &mut self.peers[peer];
        if let Some(channel) = &mut at.channel {
            channel.note_done();
        }
        match found {
            Ok(Sort::Ping) => {
                at.meeting.owe_pong();
                self.note_restless(peer);
                self.tend(peer);
            }
            Ok(Sort::Pong) => self.hear_pong(peer),
            Ok(Sort::Room | Sort::Frame) => self.send_room(peer),
            Ok(sort @ (Sort::Revoke | Sort::Left | Sort::Renew | Sort::Cut | Sort::Ended)) => match name {
                Some(name) => self.hear_of_memory(peer, sort, name),
                None => self.spoil(peer, "what it says of memory makes no sense"),
            },
            Err(Spoilt(why)) => self.spoil(peer, why),
        }
    }

    /// Reports room to a peer that may lack it.
    pub(crate) fn send_room(&mut self, peer: PeerId) {
        let window = self.provider.window();
        let (Some(below), Some(at)) = (&mut self.below, self.peers.get_mut(peer)) else { return };
        let Some(channel) = at.channel.as_mut().filter(|c| c.owes_room(window)) else { return };
        let room_due = channel.send(below, Said::short(Sort::Room, &[])).is_err();
        at.upkeep.set_room_due(room_due);
        if room_due {
            self.note_restless(peer);
        }
    }

    fn tend_all(&mut self) {
        self.saying.flush(&mut self.base);
        for peer in self.peers.take_restless() {
            self.tend(peer);
            self.peers.keep_restless(peer);
        }
        self.set_timer();
    }

    /// Does for a peer what is due.
    pub(crate) fn tend(&mut self, peer: PeerId) {
        let at = &mut self.peers[peer];
        at.upkeep.set_full(false);
        // After a failure there is a pause.
        let pauses = at.stage == Stage::Meeting && at.first.pauses();
        let (mut refused, mut first) = (None, false);
        if let (Some(below), Some(channel)) = (&mut self.below, &mut at.channel) {
            for (sort, due) in at.meeting.messages() {
                if !*due || pauses {
                    continue;
                }
                match channel.send(below, Said::short(sort, &[])) {
                    Ok(()) => (*due, first) = (false, first || channel.sent() == 1),
                    Err(NotSent::Busy | NotSent::Fault) => {}
                    Err(NotSent::Error(why)) => refused = Some(why),
                }
            }
        }
        if let Some(why) = refused {
            return if at.stage == Stage::Meeting {
                self.first_failed(peer, &why)
            } else {
                self.cut(peer, Some(Gone::Reset))
            };
        }
        if first {
            self.note_first_sent(peer);
        } else if !at.meeting.owes_message() {
            self.repeat_first(peer);
        }
        let at = &mut self.peers[peer];
        if at.upkeep.take_room_due() {
            self.send_room(peer);
        }
        self.send_notes(peer);
        let at = &mut self.peers[peer];
        if at.farewell.owes_answer() && at.is_complete() {
            at.farewell.answer();
            self.say(peer, &Control::ByeHeard);
        }
        let (now, at) = (Instant::now(), &mut self.peers[peer]);
        if let Some(why) = at.meeting.take_overdue(now) {
            return self.refuse(peer, why);
        }
        if at.end.is_overdue(now) {
            self.cut(peer, Some(Gone::Reset));
        }
    }

    /// Takes what has come by connections.
    pub(crate) fn poll_base(&mut self) {
        if let Some((peer, why, until)) = self.turns.awaited() {
            if !self.peers.at(peer).is_complete() && Instant::now() < until {
                return;
            }
            self.turns.stop_waiting();
            self.finish(peer, why);
        }
        for _ in 0..BATCH {
            if self.inbox.is_base_busy() || self.turns.is_waiting() {
                return;
            }
            match self.base.poll() {
                None => return,
                Some(Event::Frame(frame)) => self.came_by_base(frame),
                Some(Event::Closed(peer, why)) => self.closed(peer, why),
                Some(Event::PathChanged(peer)) if !self.goes_by_base(peer) => {}
                Some(event) => self.inbox.push_event(event),
            }
        }
    }

    fn came_by_base(&mut self, frame: Frame) {
        let (from, mut front) = (frame.from, [0; CONTROL]);
        let n = self.base.read(&frame, 0, &mut front[..8]);
        if Control::is_one(&front[..n]) {
            let n = self.base.read(&frame, 0, &mut front);
            let said = if frame.len == n { Control::decode(&front[..n]) } else { None };
            self.base.release(frame);
            return match said {
                Some(said) => self.hear(from, said),
                None => self.spoil(from, "what it says makes no sense"),
            };
        }
        if !self.goes_by_base(from) && self.peers.at(from).stage != Stage::Fabric {
            self.fall_back(from, "its frames come by tcp");
            if !self.goes_by_base(from) {
                return self.base.release(frame);
            }
        }
        self.inbox.push_base(frame);
    }

    /// A connection has ended.
    fn closed(&mut self, peer: PeerId, why: Gone) {
        // What it sent before is there, or under way.
        self.read_below();
        let at = self.peers.at(peer);
        let why = at.end.take_why(why);
        if at.channel.is_some() && !at.is_complete() && why == Gone::Reset {
            self.turns.wait_for(peer, why);
            return self.set_timer();
        }
        self.finish(peer, why);
    }

    /// The end of a peer is to be reported.
    fn finish(&mut self, peer: PeerId, why: Gone) {
        // What the connection has lost of the way to agree on a fabric is no frame.
        let lost = self.base.keeps(peer);
        let losing = lost && self.peers.at(peer).stage == Stage::Base;
        self.peers.at(peer).end.lose(losing);
        self.reset(peer);
        self.peers.at(peer).end.begin();
        self.inbox.push_event(Event::Closed(peer, why));
    }

    /// Whether there is something to poll for, or room for a frame that found none: that is reported once, if
    /// `once`.
    pub(crate) fn has_something(&mut self, once: bool) -> bool {
        if self.inbox.held().is_some() || !self.inbox.is_empty() || self.reading.has_stashed() {
            return true;
        }
        let mut served = false;
        for peer in self.peers.take_wanting() {
            let is_served = self.is_served(peer);
            served |= is_served;
            self.peers.keep_wanting(peer, is_served && once);
        }
        served
    }

    /// Whether what a send found lacking is there now, or the certainty that it will not be.
    fn is_served(&self, peer: PeerId) -> bool {
        let Some(at) = self.peers.get(peer) else { return true };
        match (at.stage, &at.channel) {
            (Stage::Fabric, Some(channel)) => {
                !at.end.is_broken() && !at.upkeep.is_full() && channel.has_much_room()
            }
            (Stage::Meeting, _) => false,
            // The connection reports it, until it is there.
            (Stage::Idle, _) => self.base.channel(peer) != Channel::None,
            _ => true,
        }
    }

    /// Does what is to be done without a caller. What comes of it is returned by a later
    /// [`Link::poll`](link_api::Link::poll), and [`WaitFd::All`](link_api::WaitFd::All) wakes a sleeper
    /// if there is something.
    pub fn progress(&mut self) {
        self.poll_all();
        if !self.sleep.is_armed() {
            return;
        }
        // What the connections report but once is to be reported by the next `arm`, whatever is polled
        // before.
        let nudged = !self.may_sleep();
        if self.sleep.nudge(nudged) || self.has_something(false) {
            self.sleep.wake();
        }
    }

    /// Whether both ways wake a sleeper for what arrives.
    pub(crate) fn may_sleep(&mut self) -> bool {
        let base = self.base.arm();
        let below = self.sleep.is_unseen()
            || self.provider.has_failed()
            || self.below.as_mut().is_none_or(F::try_wait);
        base && below
    }
}
