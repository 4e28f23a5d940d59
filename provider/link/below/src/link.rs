//! A [`BelowLink`]: what is done with what comes by either way, and its end.

use std::io;
use std::time::{Duration, Instant};

use link_api::{Event, Frame, Gone, InUse, Patience, PeerId, RmaLink};
use wire::session::{Control, MOST_ADDRESS, Mark};

use crate::channel::{Came, Sort, Spoilt, name_in, region_in};
use crate::lent::ALL;
use crate::net::Net;
use crate::network::{Below, Buffer, Dest, Did, Next, Poll};
use crate::options::BelowOptions;
use crate::peer::Stage;
use crate::published::MOST_SAID;

/// Messages taken in one go.
const BATCH: usize = 64;
/// Longest control message.
const CONTROL: usize = 128 + MOST_ADDRESS;

/// One endpoint of a fabric, `F`, and its connections, `B`.
#[derive(Debug)]
pub struct BelowLink<B: RmaLink, F: Below> {
    pub(crate) net: Net<B, F>,
    /// Sends report that a frame is kept.
    pub(crate) reports_kept: bool,
    pid: u32,
}

impl<B: RmaLink, F: Below> BelowLink<B, F> {
    /// An endpoint whose connections are `base`'s, which no peer is known to yet, with a fabric or (and why)
    /// without.
    pub fn new(base: B, below: Result<F, String>, options: BelowOptions) -> io::Result<BelowLink<B, F>> {
        let net = Net::new(base, below, options)?;
        Ok(BelowLink { net, reports_kept: false, pid: std::process::id() })
    }

    /// What was in the way of fabrics that would have been better, for people.
    pub fn note_refused(&mut self, refused: &[String]) {
        if self.net.below.is_some() {
            self.net.provider.set_lacks(refused.join("; "));
        }
    }

    /// The provider below, for tests.
    pub fn below(&mut self) -> Option<&mut F> {
        self.net.below.as_mut()
    }

    /// Where messages to a peer go, and what the next one begins with, for tests.
    pub fn next_mark(&self, peer: PeerId) -> Option<(Dest, Mark)> {
        let channel = self.net.peers.get(peer)?.channel.as_ref()?;
        let (slot, generation) = (channel.far().slot, channel.far().generation);
        Some((channel.far().dest, Mark { slot, generation, number: channel.sent() }))
    }

    /// Does what there is to do in one poll.
    #[inline(always)]
    pub(crate) fn poll_some(&mut self) {
        self.read_soon();
        self.net.turns.count();
        let restless = self.net.peers.has_restless() || !self.net.saying.is_empty();
        if restless {
            self.net.tend_all();
        }
        let peers = &self.net.peers;
        // Without a peer by the fabric, only a connection can come.
        let has_base = self.net.below.is_none() || peers.use_base() || !peers.use_fabric();
        if restless || has_base || self.net.turns.is_for_base() {
            self.poll_base();
        }
    }

    /// Does all that there is to do.
    pub(crate) fn poll_all(&mut self) {
        self.read_below();
        self.net.tend_all();
        self.poll_base();
    }

    /// Takes all that has come by the fabric, or much of it.
    pub(crate) fn read_below(&mut self) {
        self.read(true);
    }

    /// Takes what has come by the fabric until there is something to poll, and what the provider has found
    /// with that.
    #[inline(always)]
    fn read_soon(&mut self) {
        let Some(below) = self.net.below.as_mut().filter(|_| !self.net.provider.has_failed()) else { return };
        let next = if self.net.reading.has_stashed() { Next::Other } else { below.poll_next() };
        let is_all = match next {
            Next::Nothing => true,
            Next::Came(buffer, len, by) => {
                self.came(buffer, len, by);
                !self.net.inbox.is_empty() && self.net.below.as_ref().is_none_or(|below| !below.has_taken())
            }
            Next::Other => false,
        };
        if !is_all {
            self.read(false);
        } else if self.net.reading.is_waiting() {
            self.net.with_memory(|memory| memory.post_reads());
        }
    }

    /// Takes all that has come by the fabric if `all`; else until there is something to poll, which is not to
    /// wait for another call of the provider.
    #[inline(never)]
    fn read(&mut self, all: bool) {
        for _ in 0..BATCH {
            let Some(below) = self.net.below.as_mut().filter(|_| !self.net.provider.has_failed()) else {
                return;
            };
            let next = match self.net.reading.take_stashed() {
                Some(did) => Some(did),
                None if all => below.poll(Poll::All),
                None if self.net.inbox.is_empty() => below.poll(Poll::Soon),
                None => below.poll(Poll::Taken),
            };
            let Some(did) = next else { break };
            self.happened(did);
        }
        if self.net.reading.is_waiting() {
            self.net.with_memory(|memory| memory.post_reads());
        }
    }

    #[inline(always)]
    fn happened(&mut self, did: Did) {
        match did {
            Did::Came(buffer, len, by) => self.came(buffer, len, by),
            Did::Over(..) | Did::Unwritten(_) => self.net.read_is_over(did),
            Did::Written(buffer, who, data, len) => self.net.written(buffer, who, data, len),
            Did::Failed(who, why) => self.net.lost(who, &why),
            Did::Announces(who) => self.net.with_memory(|memory| memory.announce_further(who)),
            Did::Dead(why) => self.net.dead(&why),
        }
    }

    /// A message came, whether or not it is one of a peer's.
    #[inline(always)]
    fn came(&mut self, buffer: Buffer, len: usize, by: Option<Dest>) {
        let Some(below) = &mut self.net.below else { return };
        let bytes = &below.bytes(buffer)[..len];
        let window = self.net.provider.window();
        let mark = bytes.first_chunk().map(Mark::decode);
        let at = mark.and_then(|mark| self.net.peers.get_mut(PeerId(mark.slot)).map(|at| (mark, at)));
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
        if F::CONNECTS && by != Some(channel.far().dest) {
            // By another peer's connection, whatever it says of itself.
            log::debug!("a message under the name of peer {} came by another connection", peer.0);
            return below.give_back(buffer);
        }
        if mark.number == 0 && channel.is_first_again(bytes) {
            // Its answer is sent again, too.
            let answered = at.stage == Stage::Meeting && !at.meeting.owes_pong();
            below.give_back(buffer);
            if answered {
                at.first.repeat_now();
                self.net.note_restless(peer);
                self.net.tend(peer);
            }
            return;
        }
        match channel.is_next(mark.number, bytes, window) {
            Ok(true) => {
                let found = channel.open(bytes);
                let others = channel.has_early();
                self.take(peer, found, Came::Buffer(buffer, len));
                if others {
                    self.take_others(peer);
                }
            }
            Ok(false) => below.give_back(buffer),
            Err(Spoilt(why)) => {
                below.give_back(buffer);
                self.net.spoil(peer, why);
            }
        }
    }

    /// Takes messages that arrived before others that were sent earlier, and have come by now.
    #[cold]
    fn take_others(&mut self, peer: PeerId) {
        while let Some(channel) = self.net.peers[peer].channel.as_mut() {
            let Some(bytes) = channel.next_early() else { return };
            let found = channel.open(&bytes);
            self.take(peer, found, Came::Copy(bytes));
        }
    }

    /// Takes the next message of a peer, which is for that.
    #[inline(always)]
    fn take(&mut self, peer: PeerId, found: Result<Sort, Spoilt>, came: Came) {
        if let Ok(Sort::Frame) = found {
            let at = &self.net.peers[peer];
            let is_meeting = at.stage == Stage::Meeting;
            self.net.inbox.push_frame(peer, at.generation, came);
            // It may be quicker than the word that it can come.
            if is_meeting {
                self.net.hear_frame(peer);
            }
            return;
        }
        self.took_no_frame(peer, found, came);
    }

    fn took_no_frame(&mut self, peer: PeerId, found: Result<Sort, Spoilt>, came: Came) {
        let name = name_in(came.bytes(self.net.below.as_ref()));
        let region = region_in(came.bytes(self.net.below.as_ref())).filter(|_| found == Ok(Sort::Region));
        came.give_back(self.net.below.as_mut());
        match region {
            Some(said) => self.took_region(peer, &said),
            None => self.took(peer, found, name),
        }
    }

    /// A peer has said how a registration of its is accessed.
    fn took_region(&mut self, peer: PeerId, said: &[u8; MOST_SAID]) {
        if let Some(channel) = &mut self.net.peers[peer].channel {
            channel.note_done();
        }
        match self.net.with_memory(|memory| memory.hear_of_region(peer, said)) {
            Ok(()) => self.net.send_room(peer),
            Err(Spoilt(why)) => self.net.spoil(peer, why),
        }
    }

    /// What came before the peer's announce.
    fn take_early(&mut self, peer: PeerId, bytes: &[u8]) {
        let Some(channel) = &mut self.net.peers.at(peer).channel else { return };
        let first = bytes.first_chunk().map(Mark::decode).is_some_and(|mark| mark.number == 0);
        let found = if first { channel.open(bytes) } else { Err(Spoilt("its number is not the first")) };
        match found {
            Ok(Sort::Frame) => self.net.spoil(peer, "it sends frames before it knows that they come"),
            found => self.took(peer, found, name_in(bytes)),
        }
    }

    /// A message that is no frame was taken.
    fn took(&mut self, peer: PeerId, found: Result<Sort, Spoilt>, name: Option<u64>) {
        let at = &mut self.net.peers[peer];
        if let Some(channel) = &mut at.channel {
            channel.note_done();
        }
        match found {
            Ok(Sort::Ping) => {
                at.meeting.owe_pong();
                self.net.note_restless(peer);
                self.net.tend(peer);
            }
            Ok(Sort::Pong) => self.net.hear_pong(peer),
            Ok(Sort::Room | Sort::Frame) => self.net.send_room(peer),
            Ok(sort @ (Sort::Revoke | Sort::Left | Sort::Renew | Sort::Cut | Sort::Ended | Sort::Ask)) => {
                match name {
                    Some(name) => {
                        match self.net.with_memory(|memory| memory.hear_of_memory(peer, sort, name)) {
                            Ok(()) => self.net.send_room(peer),
                            Err(Spoilt(why)) => self.net.spoil(peer, why),
                        }
                    }
                    None => self.net.spoil(peer, "what it says of memory makes no sense"),
                }
            }
            Ok(Sort::Region) => self.net.spoil(peer, "what it says of a registration makes no sense"),
            Err(Spoilt(why)) => self.net.spoil(peer, why),
        }
    }

    /// Takes what has come by connections.
    pub(crate) fn poll_base(&mut self) {
        self.net.sweep_idle();
        if let Some((peer, why, until)) = self.net.turns.awaited() {
            if !self.net.peers.at(peer).is_complete() && Instant::now() < until {
                return;
            }
            self.net.turns.stop_waiting();
            self.net.finish(peer, why);
        }
        for _ in 0..BATCH {
            if self.net.inbox.is_base_busy() || self.net.turns.is_waiting() {
                return;
            }
            match self.net.base.poll() {
                None => return,
                Some(Event::Frame(frame)) => self.came_by_base(frame),
                Some(Event::Closed(peer, why)) => self.closed(peer, why),
                Some(Event::PathChanged(peer)) if !self.net.goes_by_base(peer) => {}
                Some(event) => self.net.inbox.push_event(event),
            }
        }
    }

    fn came_by_base(&mut self, frame: Frame) {
        let (from, mut front) = (frame.from, [0; CONTROL]);
        let n = self.net.base.read(&frame, 0, &mut front[..8]);
        if Control::is_one(&front[..n]) {
            let n = self.net.base.read(&frame, 0, &mut front);
            let said = if frame.len == n { Control::decode(&front[..n]) } else { None };
            self.net.base.release(frame);
            return match said {
                Some(said) => {
                    if let Some(bytes) = self.net.hear(from, said) {
                        self.take_early(from, &bytes);
                        self.net.tend(from);
                    }
                }
                None => self.net.spoil(from, "what it says makes no sense"),
            };
        }
        if !self.net.goes_by_base(from) && self.net.peers.at(from).stage != Stage::Fabric {
            self.net.fall_back(from, "its frames come by tcp");
            if !self.net.goes_by_base(from) {
                return self.net.base.release(frame);
            }
        }
        self.net.inbox.push_base(frame);
    }

    /// A connection has ended.
    fn closed(&mut self, peer: PeerId, why: Gone) {
        // What it sent before is there, or under way.
        self.read_below();
        let at = self.net.peers.at(peer);
        let why = at.end.take_why(why);
        if at.channel.is_some() && !at.is_complete() && why == Gone::Reset {
            self.net.turns.wait_for(peer, why);
            return self.net.set_timer();
        }
        self.net.finish(peer, why);
    }

    /// Does what is to be done without a caller. What comes of it is returned by a later
    /// [`FrameLink::poll`](link_api::FrameLink::poll), and [`WaitFd::All`](link_api::WaitFd::All) wakes a
    /// sleeper if there is something.
    pub fn progress(&mut self) {
        self.poll_all();
        if !self.net.sleep.is_armed() {
            return;
        }
        // What the connections report but once is to be reported by the next `arm`, whatever is polled
        // before.
        let nudged = !self.net.may_sleep();
        if self.net.sleep.nudge(nudged) || self.net.has_something(false) {
            self.net.sleep.wake();
        }
    }

    /// Takes a request back that memory was lent for.
    pub(crate) fn take_back(&mut self, from: PeerId, request: u64) -> Result<(), InUse> {
        if self.net.peers.get(from).is_none_or(|at| !at.dealings.has_lent()) {
            return Ok(());
        }
        if self.net.peers.at(from).dealings.take_back(request) {
            self.net.with_memory(|memory| memory.note(from, Sort::Revoke, request));
        }
        let until = Instant::now() + self.net.reading.patience().time();
        loop {
            let is_late = Instant::now() >= until;
            self.read_below();
            let Some(at) = self.net.peers.get(from) else { return Ok(()) };
            // One that has ended was lent nothing any more.
            if !at.dealings.has_lent() || at.dealings.has_left(request) {
                return Ok(());
            }
            if F::CONNECTS && at.dealings.has_had(request, Patience::Second.time()) {
                let name = self.net.base.peer_addr(from);
                log::warn!("memory is taken from {name}, which does not give it back: its accesses fail");
                self.net.with_memory(|memory| memory.stop_lending_to(from));
                return Ok(());
            }
            self.net.with_memory(|memory| memory.send_notes(from));
            if is_late {
                return Err(InUse);
            }
            std::thread::yield_now();
        }
    }

    /// Waits until no peer accesses versions of this registration, or of any, that have ended.
    pub(crate) fn wait_for_ending(&mut self, key: Option<u64>) -> Result<(), InUse> {
        let until = Instant::now() + self.net.reading.patience().time();
        while self.net.exposed.is_ending(key) {
            let is_late = Instant::now() >= until;
            self.read_below();
            if self.net.peers.iter().any(|at| at.rest.holds()) {
                self.poll_base();
            }
            for (peer, number) in self.net.exposed.finish(&mut self.net.below, Some(Patience::Second.time()))
            {
                let name = self.net.base.peer_addr(peer);
                log::warn!(
                    "version {number} of a registration is taken from {name}, which does not leave it"
                );
            }
            for peer in self.net.exposed.awaited() {
                self.net.with_memory(|memory| memory.send_notes(peer));
            }
            if self.net.exposed.is_ending(key) && is_late {
                return Err(InUse);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Takes back all that was lent, for good. Peers that do not answer, or whose end was not heard of yet,
    /// are not waited for in the end: what they read by is closed.
    pub(crate) fn take_back_all(&mut self) -> Result<(), InUse> {
        let lent: Vec<PeerId> =
            self.net.peers.ids().filter(|p| self.net.peers[*p].dealings.has_lent()).collect();
        for key in self.net.exposed.keys() {
            self.net.with_memory(|memory| memory.conceal(key));
        }
        let mut outcome = self.wait_for_ending(None);
        for peer in lent {
            match self.take_back(peer, ALL) {
                Ok(()) => {
                    let (at, below) = (&mut self.net.peers[peer], &mut self.net.below);
                    let Some(below) = below else { continue };
                    at.dealings.end_leases(below, &[]);
                }
                Err(InUse) => outcome = Err(InUse),
            }
        }
        if outcome.is_err() && self.net.reading.patience() != Patience::Retried {
            self.net.exposed.finish(&mut self.net.below, Some(Duration::ZERO));
            self.net.with_memory(|memory| memory.stop_lending());
            return Ok(());
        }
        outcome
    }

    /// The process exits. What was sent is to come, as where the endpoint is closed; what comes meanwhile is
    /// kept, and all else as it was, for handlers of exit(3) that run later.
    pub(crate) fn settle_at_exit(&mut self, last: bool) -> bool {
        if std::process::id() != self.pid || self.net.below.is_none() || self.net.provider.has_failed() {
            return true;
        }
        for peer in self.net.owed() {
            // Of what is sent meanwhile when the last answer is there, so that each has one.
            if !self.net.peers[peer].farewell.is_unanswered() {
                self.net.say_bye(peer);
            }
        }
        self.poll_all();
        self.net.inbox.set_aside(&self.net.peers, &mut self.net.base, &mut self.net.below);
        let leaving = self.net.owed();
        if last {
            self.net.warn_of_left(&leaving);
        }
        leaving.is_empty() && self.net.saying.is_empty()
    }

    /// Waits a moment until what was sent has come.
    fn farewell(&mut self) {
        self.net.peers.ids().for_each(|peer| self.net.say_bye(peer));
        self.net.inbox.release_held_base(&mut self.net.base);
        let until = Instant::now() + self.net.options.linger;
        loop {
            self.net.inbox.drop_all(&mut self.net.base, &mut self.net.below);
            let leaving = self.net.owed();
            if leaving.is_empty() && self.net.saying.is_empty() {
                return;
            }
            if Instant::now() >= until {
                return self.net.warn_of_left(&leaving);
            }
            self.poll_all();
            if self.net.inbox.is_empty() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
}

impl<B: RmaLink, F: Below> Drop for BelowLink<B, F> {
    fn drop(&mut self) {
        // What a forked child shares with its parent goes on.
        if std::process::id() == self.pid {
            self.farewell();
        }
    }
}
