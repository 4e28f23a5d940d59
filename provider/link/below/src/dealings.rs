//! Memory that is lent to peers, to read or to write it, and taken back; accesses to theirs.
//!
//! Memory is registered for one peer and the time of its requests, so that it is never the memory of
//! something later that is accessed, and for one way: what is lent to be read has a registration that no peer
//! can write. A request that is taken back before its time is over when the peer has said that it accesses
//! the memory no more ([`Sort::Revoke`], [`Sort::Left`]).
//!
//! A read or write that is not to go on is waited for: for a moment where memory of this side is given
//! back, and longer where it is the peer that wants its own. If it is not over then, all are ended, with
//! the endpoint that they were posted to ([`Below::stop`]): frames make up for the others. Since their
//! owners then end what they have lent, and others' reads with that, this is for peers that answer no
//! more: reads from one that lives are over by themselves, also those from an endpoint that it has
//! closed.

use std::time::{Duration, Instant};

use hmem::Span;
use link_api::{Event, OpId, PeerId, Region, RegionVersion, RmaLink, Way};
use wire::Handle;

use crate::channel::{FIRST, Said, Sort, Spoilt};
use crate::network::{Below, Did, Poll, Stop, Usage};
use crate::parts::exposed::Exposed;
use crate::parts::inbox::Inbox;
use crate::parts::peers::Peers;
use crate::parts::provider::Provider;
use crate::parts::reading::{Ended, Op, Reading, number_of};
use crate::peer::{Peer, Stage};
use crate::published::{MOST_SAID, decode, encode};

/// What numbers of accesses have that no operation of the connection's has.
pub(crate) const READ: u64 = 1 << 55;
/// How long an access that is not to go on is waited for.
const MOMENT: Duration = Duration::from_millis(5);

/// Whether an operation is an access by the fabric.
pub(crate) fn is_read(op: OpId) -> bool {
    op.0 & READ != 0
}

/// What of a link is memory: of this side, which is lent, and of peers, which is accessed.
pub(crate) struct Memory<'a, B, F> {
    /// The connections, for names of peers.
    pub(crate) base: &'a B,
    pub(crate) below: &'a mut Option<F>,
    pub(crate) provider: &'a Provider,
    pub(crate) peers: &'a mut Peers,
    pub(crate) reading: &'a mut Reading,
    /// Where the ends of accesses are reported.
    pub(crate) inbox: &'a mut Inbox,
    /// Registrations of the program.
    pub(crate) exposed: &'a mut Exposed,
    /// How long an access may take that a peer which lives wants to be over.
    pub(crate) leave: Duration,
    /// From how many bytes on memory is accessed in parts, by rails.
    pub(crate) stripes: usize,
}

impl<B: RmaLink, F: Below> Memory<'_, B, F> {
    /// How an access ends of which something was posted, and not all is known to be done. One by a connection
    /// fails with that.
    const LOST: Ended = if F::CONNECTS { Ended::Cut } else { Ended::Failed };

    /// Lends memory to a peer, which accesses it this way: the handles that it lacks.
    pub(crate) fn lend(&mut self, to: PeerId, iov: &[Span], way: Way) -> Option<Vec<Handle>> {
        let at = self.peers.get_mut(to)?;
        let below = self.below.as_mut().filter(|_| !self.provider.has_failed())?;
        if at.stage != Stage::Fabric || !at.dealings.may(way) || !at.may_send() {
            return None;
        }
        let dest = at.channel.as_ref()?.far().dest;
        let means = (below, self.provider, dest, self.stripes);
        let lent = at.dealings.lend(means, self.reading.generation(), (iov, way));
        self.note_second(to);
        lent
    }

    /// Has what is to be said of further connections announced.
    #[inline]
    fn note_second(&mut self, peer: PeerId) {
        let (Some(at), Some(below)) = (self.peers.get_mut(peer), &mut *self.below) else { return };
        let Some(channel) = at.channel.as_ref().filter(|_| at.second.may()) else { return };
        while let Some(address) = below.second(channel.far().dest) {
            at.second.owe(address);
        }
        if at.second.is_due() {
            self.peers.note_restless(peer);
        }
    }

    /// The two have agreed on the fabric: this end begins to make rails.
    pub(crate) fn begin_rails(&mut self, peer: PeerId) {
        let (Some(at), Some(below)) = (self.peers.get_mut(peer), &mut *self.below) else { return };
        if let Some(channel) = at.channel.as_ref().filter(|_| at.second.may_rails()) {
            below.begin_rails(channel.far().dest, true);
            self.note_second(peer);
        }
    }

    /// Something is to be said of further connections to the peer whose messages are reported with this.
    pub(crate) fn announce_further(&mut self, who: u64) {
        let peer = PeerId(((who & !FIRST) >> 32) as u32);
        if self.peers.get(peer).is_some_and(|at| u64::from(at.generation) == who & 0xffff_ffff) {
            self.note_second(peer);
        }
    }

    /// A peer needs this memory no more, of which no request under way has a part; or none at all.
    pub(crate) fn end_leases(&mut self, to: PeerId, iov: &[Span]) {
        let (Some(at), Some(below)) = (self.peers.get_mut(to), &mut *self.below) else { return };
        at.dealings.end_leases(below, iov);
    }

    /// A peer is no more: nor is what it was lent, or was being read.
    pub(crate) fn end_dealings(&mut self, peer: PeerId) {
        self.reading.forget_leaving(peer);
        self.exposed.forget(peer);
        self.exposed.finish(self.below, None);
        self.end_reads(|op| op.peer == peer, true);
        if F::CONNECTS {
            self.end_leases(peer, &[]);
        } else if self.peers.get(peer).is_some_and(|at| at.dealings.has_lent()) {
            // It may have been accessing it, and the provider below need not know yet that it does so no
            // more.
            self.stop_lending();
        }
        let (Some(at), Some(below)) = (self.peers.get_mut(peer), &mut *self.below) else { return };
        at.dealings.part(below);
    }

    /// Ends all that is lent. When this returns the provider accesses none of it any more, whatever its
    /// peers do; it is reported to them, and what they have not read or written goes in frames.
    pub(crate) fn stop_lending(&mut self) {
        let Some(below) = self.below else { return };
        let generation = self.reading.end_generation();
        let mut borrowers = Vec::new();
        for peer in self.peers.ids() {
            let dealings = &mut self.peers[peer].dealings;
            if dealings.has_lent() {
                dealings.end_leases(below, &[]);
                borrowers.push(peer);
            }
        }
        let mut said = false;
        while !below.stop(Stop::Leases) {
            if !std::mem::replace(&mut said, true) {
                log::error!("{}: what is lent cannot be ended, and is waited for", self.base.addr());
            }
            match below.poll(Poll::All) {
                Some(did) => self.reading.stash(did),
                None => std::thread::yield_now(),
            }
        }
        for peer in borrowers {
            self.note(peer, Sort::Ended, generation);
        }
    }

    /// Ends what a peer was lent, by a network that needs nothing of the peer for that. A note says so to the
    /// peer, and what it has not read or written goes in frames. An access of its that is under way fails,
    /// and its connection with that.
    pub(crate) fn stop_lending_to(&mut self, peer: PeerId) {
        let generation = self.reading.end_generation();
        self.end_leases(peer, &[]);
        self.note(peer, Sort::Ended, generation);
    }

    /// An access to a peer's memory has ended before its time. Its provider may go on to access that
    /// memory, so that it is to know before anything else.
    pub(crate) fn note_cut(&mut self, peer: PeerId, generation: u64) {
        if !self.peers.at(peer).dealings.has_note(Sort::Cut, generation) {
            self.note(peer, Sort::Cut, generation);
        }
    }

    /// A handle of a peer's memory has arrived.
    pub(crate) fn note_imported(&mut self, from: PeerId, handle: &Handle) {
        let reads = self.reading.any(|op| op.peer == from);
        let (Some(at), Some(below)) = (self.peers.get_mut(from), &mut *self.below) else { return };
        let Some(channel) = &at.channel else { return };
        at.dealings.note_handle(below, handle, (channel.far().dest, reads));
    }

    /// Something is to be said to a peer of memory.
    pub(crate) fn note(&mut self, peer: PeerId, sort: Sort, name: u64) {
        self.peers.at(peer).dealings.push_note(sort, name);
        self.peers.note_restless(peer);
        self.send_notes(peer);
    }

    /// Says what is to be said, as far as there is room.
    pub(crate) fn send_notes(&mut self, peer: PeerId) {
        let (Some(below), Some(at)) = (&mut self.below, self.peers.get_mut(peer)) else { return };
        let may = at.may_send();
        let Some(channel) = at.channel.as_mut().filter(|_| may) else { return };
        while let Some((sort, name)) = at.dealings.next_note() {
            let sent = match sort {
                Sort::Region => {
                    let reaches = |below: &F, span: &Span| {
                        let usages = [Usage::ReadByPeers, Usage::WrittenByPeers];
                        usages.into_iter().all(|usage| self.provider.reaches(below, span, usage))
                    };
                    let to = (peer, channel.far().dest, self.stripes);
                    let entry = self.exposed.answer(below, reaches, to, name);
                    let (said, len) = encode(name, entry.as_ref());
                    channel.send(below, Said::short(sort, &said[..len]))
                }
                _ => channel.send(below, Said::short(sort, &name.to_le_bytes())),
            };
            if sent.is_err() {
                break;
            }
            at.dealings.pop_note();
        }
        self.note_second(peer);
    }

    /// A registration of the program, or a change of it.
    pub(crate) fn expose(&mut self, region: Region, span: Span) {
        let (number, known_to) = self.exposed.add(region, span);
        self.withdraw(number, &known_to);
    }

    /// A registration is published no more.
    pub(crate) fn conceal(&mut self, key: u64) {
        let (number, known_to) = self.exposed.end(key);
        self.withdraw(number, &known_to);
    }

    /// Peers are to leave a version of a registration.
    fn withdraw(&mut self, number: u32, known_to: &[PeerId]) {
        for peer in known_to {
            self.note(*peer, Sort::Revoke, number.into());
        }
        self.exposed.finish(self.below, None);
    }

    /// What a peer publishes under a key; it is asked if that is not known.
    #[inline]
    pub(crate) fn published(&mut self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        let may = |at: &&mut Peer| at.stage == Stage::Fabric && at.may_send();
        let at = self.peers.get_mut(by).filter(may)?;
        let found = at.dealings.published().find(key);
        if found.is_none() && at.dealings.may(Way::Get) && at.dealings.may(Way::Put) {
            self.ask(by, key);
        }
        found
    }

    #[cold]
    fn ask(&mut self, peer: PeerId, key: u64) {
        let publishes = self.below.as_ref().is_some_and(|below| below.about().publishes);
        if publishes && self.peers.at(peer).dealings.published().asks(key) {
            self.note(peer, Sort::Ask, key);
        }
    }

    /// A peer says how a registration of its is accessed.
    pub(crate) fn hear_of_region(&mut self, peer: PeerId, said: &[u8; MOST_SAID]) -> Result<(), Spoilt> {
        let heard = decode(said).ok_or(Spoilt("what it says of a registration makes no sense"))?;
        let is_asked = self.peers.at(peer).dealings.published().take_note(heard.0, heard.1);
        is_asked.then_some(()).ok_or(Spoilt("it says of a registration what was not asked"))
    }

    /// A peer says something of memory.
    pub(crate) fn hear_of_memory(&mut self, peer: PeerId, sort: Sort, name: u64) -> Result<(), Spoilt> {
        let now = self.reading.generation();
        let dealings = &mut self.peers.at(peer).dealings;
        if dealings.is_flooded() {
            return Err(Spoilt("it takes back more than there can be"));
        }
        match sort {
            Sort::Ask => self.note(peer, Sort::Region, name),
            Sort::Revoke => {
                match number_of(name) {
                    Some(number) => dealings.published().forget(number),
                    None => dealings.revoke(name),
                }
                self.leave_reads(peer, name);
            }
            Sort::Left => match number_of(name) {
                Some(number) => {
                    self.exposed.leave(peer, number);
                    self.exposed.finish(self.below, None);
                }
                None => dealings.leave(name),
            },
            Sort::Cut if F::CONNECTS && dealings.has_lent() => self.stop_lending_to(peer),
            // Of one that was ended since nothing is read any more.
            Sort::Cut if name == now && dealings.has_lent() => self.stop_lending(),
            Sort::Cut => {}
            Sort::Ended => {
                dealings.unlearn(name);
                self.let_reads_end(peer, name);
            }
            _ => dealings.renew(name),
        }
        Ok(())
    }

    /// The name of such a request may be used again.
    pub(crate) fn give_again(&mut self, to: PeerId, request: u64) {
        if self.peers.at(to).dealings.give_again(request) {
            self.note(to, Sort::Renew, request);
        }
    }

    /// Posts what can be posted.
    pub(crate) fn post_reads(&mut self) {
        if self.reading.post(self.below) {
            self.report_reads();
        }
        self.end_late_reads();
    }

    /// Ends those that should be over by now.
    fn end_late_reads(&mut self) {
        let late = |op: &Op| op.until.is_some_and(|until| until <= Instant::now());
        if self.reading.any(late) && self.stop_accesses(late) {
            log::info!("{}: accesses that were not over in time are ended", self.base.addr());
            self.report_reads();
        }
    }

    /// Has the network end accesses, and others with them: all, or all by the same connections. Whether those
    /// access no memory any more.
    fn stop_accesses(&mut self, which: impl Fn(&Op) -> bool) -> bool {
        let Some(below) = &mut *self.below else {
            self.cut_reads(|_| true);
            return true;
        };
        if !F::CONNECTS {
            let are_over = below.stop(Stop::Accesses);
            if are_over {
                self.cut_reads(|_| true);
            }
            return are_over;
        }
        let mut are_over = true;
        for peer in self.reading.peers_of(which) {
            let Some(channel) = self.peers.get(peer).and_then(|at| at.channel.as_ref()) else { continue };
            let Some(below) = &mut *self.below else { continue };
            if below.stop(Stop::Connection(channel.far().dest)) {
                // Those that were done before have not ended with the connection.
                while let Some(did) = self.below.as_mut().and_then(|below| below.poll(Poll::Taken)) {
                    self.take(did);
                }
                for op in self.reading.cut(|op| op.peer == peer, Ended::Cut) {
                    log::debug!("an access of generation {} is ended with its connection", op.1);
                }
            } else {
                are_over = false;
            }
        }
        are_over
    }

    /// A piece of an access is over.
    pub(crate) fn read_is_over(&mut self, did: Did) {
        if self.take(did) {
            self.report_reads();
        }
    }

    /// A piece of an access is over; whether the whole one is. What is none is kept for the next poll.
    fn take(&mut self, did: Did) -> bool {
        let (who, how) = match did {
            Did::Over(who, true) => (who, Ended::Whole),
            Did::Over(who, false) => (who, Self::LOST),
            Did::Unwritten(who) => (who, Ended::Failed),
            did => {
                self.reading.stash(did);
                return false;
            }
        };
        let Some((over, peer, generation)) = self.reading.count(who, how) else { return false };
        if matches!(did, Did::Over(_, false)) {
            self.note_cut(peer, generation);
        }
        over
    }

    /// Some accesses under way have ended before their time.
    fn cut_reads(&mut self, which: impl Fn(&Op) -> bool) {
        for (peer, generation) in self.reading.cut(which, Ended::Failed) {
            self.note_cut(peer, generation);
        }
    }

    /// Reports accesses that are over.
    pub(crate) fn report_reads(&mut self) {
        let inbox = &mut *self.inbox;
        self.reading.remove_over(|op, how| {
            inbox.push_event(match how {
                Ended::Cut => Event::Cut(op),
                how => Event::Done(op, how == Ended::Whole),
            });
        });
        for (peer, request) in self.reading.take_left() {
            self.note(peer, Sort::Left, request);
        }
    }

    /// A peer takes a request back: its accesses fail, and it gets an answer when they are over. So it does
    /// where it takes back a registration, whose accesses end as they do.
    pub(crate) fn leave_reads(&mut self, peer: PeerId, request: u64) {
        self.let_end(|op| op.is_of(peer, request), true);
        self.reading.leave(peer, request);
        self.report_reads();
    }

    /// A peer has closed the endpoint that it had lent these generations by: providers that have connections
    /// report the end of accesses to there.
    pub(crate) fn let_reads_end(&mut self, peer: PeerId, last: u64) {
        self.let_end(|op| op.peer == peer && op.generation <= last, false);
        self.report_reads();
    }

    /// Posts no more of some accesses, which have failed then, as have those of requests if `revoked`.
    fn let_end(&mut self, which: impl Fn(&Op) -> bool, revoked: bool) {
        let until = Instant::now() + self.leave;
        self.reading.let_end(which, revoked, until);
    }

    /// Ends accesses: when this returns they access no memory any more. Those that are reported have
    /// failed, unless they were over.
    pub(crate) fn end_reads(&mut self, which: impl Fn(&Op) -> bool, reports: bool) {
        if !self.reading.give_up(&which, Self::LOST, reports) {
            return;
        }
        // Those by a connection end it if they are not over. They are over soon where the peer's device
        // lives; where it is the peer that has ended, the connection is of no use.
        let moment = match (F::CONNECTS, reports) {
            (true, true) => Duration::ZERO,
            (true, false) => self.leave,
            (false, _) => MOMENT,
        };
        let (mut until, mut logged) = (Instant::now() + moment, false);
        while self.reading.any(|op| which(op) && op.flying > 0) {
            let below = self.below.as_mut().filter(|_| !self.provider.has_failed());
            if let Some(did) = below.and_then(|below| below.poll(Poll::All)) {
                self.take(did);
                continue;
            }
            if Instant::now() < until && !self.provider.has_failed() {
                std::thread::yield_now();
            } else if self.stop_accesses(&which) {
                log::info!("{}: accesses that were not over are ended", self.base.addr());
            } else {
                // Its memory is not to be given back until the provider lets go of it.
                if !std::mem::replace(&mut logged, true) {
                    log::error!("{}: accesses cannot be ended, and are waited for", self.base.addr());
                }
                until = Instant::now() + MOMENT;
            }
        }
        self.report_reads();
    }

    /// Ends an access that is not reported any more.
    pub(crate) fn cancel_read(&mut self, op: OpId) {
        self.end_reads(|known| known.id == op, false);
        self.inbox.drop_done(op);
    }
}
