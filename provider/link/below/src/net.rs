//! A fabric and the connections besides: the parts of both, and peers that end or break the rules.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use hmem::{Span, total};
use ipc::random;
use link_api::{Event, Gone, Once, Parting, Path, PeerId, Refused, RmaCaps, RmaLink, WaitFd, Way};
use wire::session::Control;

use crate::channel::{Channel, FIRST, Said, Sort, Spoilt};
use crate::dealings::Memory;
use crate::fds::is_shallow;
use crate::network::{Below, Buffer, Did, NotSent, Usage, Waits};
use crate::options::BelowOptions;
use crate::parts::exposed::Exposed;
use crate::parts::inbox::Inbox;
use crate::parts::peers::Peers;
use crate::parts::provider::Provider;
use crate::parts::reading::Reading;
use crate::parts::saying::Saying;
use crate::parts::sleep::Sleep;
use crate::parts::turns::Turns;
use crate::peer::{Peer, Stage};

/// One endpoint of a fabric, `F`, and its connections, `B`, with what is known of the peers of both.
#[derive(Debug)]
pub(crate) struct Net<B: RmaLink, F: Below> {
    // Closed in this order: the end of a connection is that of the peer, and a fabric that fails before would
    // look like a fault.
    pub(crate) base: B,
    pub(crate) below: Option<F>,
    pub(crate) provider: Provider,
    pub(crate) options: BelowOptions,
    pub(crate) peers: Peers,
    pub(crate) inbox: Inbox,
    pub(crate) saying: Saying,
    pub(crate) turns: Turns,
    /// Accesses to peers' memory.
    pub(crate) reading: Reading,
    pub(crate) sleep: Sleep,
    /// Registrations of the program.
    pub(crate) exposed: Exposed,
}

impl<B: RmaLink, F: Below> Net<B, F> {
    /// Connections are `base`'s, which no peer is known to yet; with a fabric or (and why) without.
    pub(crate) fn new(base: B, below: Result<F, String>, options: BelowOptions) -> io::Result<Net<B, F>> {
        let provider = Provider::new(below.as_ref());
        let below = below.ok();
        let unseen = below.as_ref().is_some_and(|b| b.waits().own.is_none_or(|fd| !is_shallow(fd)));
        let about = below.as_ref().map(F::about);
        let net = Net {
            base,
            provider,
            options,
            peers: Peers::new(u32::from_le_bytes(random()?)),
            inbox: Inbox::default(),
            saying: Saying::default(),
            turns: Turns::default(),
            reading: Reading::new(
                about.and_then(|about| about.reads),
                about.is_some_and(|about| about.writes),
            ),
            sleep: Sleep::new(unseen)?,
            exposed: Exposed::default(),
            below,
        };
        for fd in net.fds() {
            net.sleep.watch(fd)?;
        }
        Ok(net)
    }

    /// What of this is memory of this side's and of peers'.
    pub(crate) fn memory(&mut self) -> Memory<'_, B, F> {
        Memory {
            base: &self.base,
            below: &mut self.below,
            provider: &self.provider,
            peers: &mut self.peers,
            reading: &mut self.reading,
            inbox: &mut self.inbox,
            exposed: &mut self.exposed,
            leave: self.options.leave,
            stripes: self.options.stripes,
        }
    }

    /// Does something with memory, by which what there is to wait for may change.
    pub(crate) fn with_memory<R>(&mut self, call: impl FnOnce(&mut Memory<'_, B, F>) -> R) -> R {
        let found = call(&mut self.memory());
        self.set_timer();
        found
    }

    /// Does something with accesses alone: with most of them, what there is to wait for stays as it is.
    #[inline]
    pub(crate) fn with_accesses<R>(&mut self, call: impl FnOnce(&mut Memory<'_, B, F>) -> R) -> R {
        let waited = self.reading.is_waiting();
        let found = call(&mut self.memory());
        if self.reading.is_waiting() != waited || self.peers.has_restless() {
            self.set_timer();
        }
        found
    }

    /// The descriptors of the fabric, if there is one.
    fn waits(&self) -> Waits {
        self.below.as_ref().map(F::waits).unwrap_or_default()
    }

    /// The descriptor of the fabric, if one is of use.
    pub(crate) fn fabric_fd(&self) -> Option<RawFd> {
        self.waits().own.filter(|_| !self.sleep.is_unseen())
    }

    /// All descriptors that end a sleep.
    pub(crate) fn fds(&self) -> Vec<RawFd> {
        let own = self.sleep.fds();
        let lender = self.waits().lender;
        let base = (0..).map_while(|n| self.base.wait_fd(WaitFd::Each(n)));
        own.into_iter().chain(base).chain(self.fabric_fd()).chain(lender).collect()
    }

    /// Whether a frame is with the provider below still, or was lost there.
    pub(crate) fn keeps_frames(&self, peer: PeerId) -> bool {
        let (Some(below), Some(at)) = (&self.below, self.peers.get(peer)) else { return false };
        at.end.is_broken() || at.channel.as_ref().is_some_and(|channel| channel.keeps(below))
    }

    /// Forgets all of a peer but that it is there: what follows is another one, or another time.
    pub(crate) fn reset(&mut self, peer: PeerId) {
        self.peers.add(peer);
        // One that has said bye wants none of those that are under way.
        let losing = self.keeps_frames(peer) && !self.peers.at(peer).farewell.is_heard();
        self.peers.at(peer).end.lose(losing);
        self.part(peer);
        self.saying.drop_of(peer);
    }

    /// An access of this side is over. What there is to wait for grows with that only by what is to be said
    /// to the peer.
    pub(crate) fn read_is_over(&mut self, did: Did) {
        let waited = self.reading.is_waiting();
        self.memory().read_is_over(did);
        if waited || self.peers.has_restless() {
            self.set_timer();
        }
    }

    /// Ends what there is of a peer by the fabric.
    pub(crate) fn part(&mut self, peer: PeerId) {
        self.with_memory(|memory| memory.end_dealings(peer));
        let mut old = self.peers.renew(peer);
        if let Some(below) = &mut self.below {
            old.channel.into_iter().for_each(|channel| below.part(channel.far().dest));
            old.meeting.take_offer().into_iter().for_each(|offer| below.withdraw(offer));
        }
    }

    pub(crate) fn is_own(&self, peer: PeerId) -> bool {
        self.base.peer_addr(peer) == self.base.addr()
    }

    /// Whether frames to and from this peer go by the connection.
    pub(crate) fn goes_by_base(&self, peer: PeerId) -> bool {
        self.below.is_none()
            || self.peers.get(peer).is_some_and(|p| p.stage == Stage::Base)
            || self.is_own(peer)
    }

    /// What the way by the fabric is like.
    pub(crate) fn fabric_path(&self) -> Path {
        let most = self.provider.max_frame() - wire::EAGER_HEAD;
        let eager = self.options.eager.min(most);
        let in_a_row = self.options.eager_in_a_row.max(eager).min(most);
        Path {
            link: F::LINK,
            max_frame: self.provider.max_frame(),
            eager,
            eager_in_a_row: in_a_row,
            eager_one_way: in_a_row,
            rma: self.rma_caps(),
            least_get: self.options.least_get,
        }
    }

    /// How memory of a peer is accessed by the fabric.
    fn rma_caps(&self) -> RmaCaps {
        let mut caps = RmaCaps::empty();
        caps.set(RmaCaps::HOST_GETS, self.reading.has(Way::Get));
        caps.set(RmaCaps::HOST_PUTS, self.reading.has(Way::Put));
        let about = self.below.as_ref().map(F::about);
        caps.set(RmaCaps::REGIONS, about.is_some_and(|about| about.publishes));
        caps.set(RmaCaps::DATA, about.is_some_and(|about| about.data));
        caps.set(RmaCaps::ATOMICS, about.is_some_and(|about| about.atomics));
        let gets_devices = self.gets_devices(&[Usage::ReadByPeers, Usage::ReadInto]);
        let from_devices = self.gets_devices(&[Usage::ReadInto, Usage::WrittenFrom]);
        caps.set(RmaCaps::FROM_DEVICES, caps.contains(RmaCaps::REGIONS) && from_devices);
        caps.set(RmaCaps::DEVICE_GETS, self.reading.has(Way::Get) && gets_devices);
        caps
    }

    /// Whether memory of some kind of devices is used by the provider below in one of these ways, as far as
    /// is known.
    fn gets_devices(&self, usages: &[Usage]) -> bool {
        let Some(below) = &self.below else { return false };
        usages.iter().any(|usage| self.provider.reaches_devices(below, *usage))
    }

    /// A peer is to be looked after.
    pub(crate) fn note_restless(&mut self, peer: PeerId) {
        self.peers.note_restless(peer);
        self.set_timer();
    }

    /// A sleep begins, for which the fabric has said that it has nothing. One whose descriptor is readable
    /// all the same, time and again with nothing there, is polled from now on like one without.
    pub(crate) fn falls_asleep(&mut self) {
        let fd = self.fabric_fd().filter(|_| !self.provider.has_failed());
        if !self.sleep.finds_worn(fd) {
            return;
        }
        log::info!(
            "{}: the fabric's descriptor is readable all the time, and not watched any more",
            self.base.addr()
        );
        fd.into_iter().for_each(|fd| self.sleep.unwatch(fd));
        if let Some(below) = &mut self.below {
            below.unwatch_lender();
        }
        self.sleep.set_unseen();
        self.set_timer();
    }

    /// Sets the timer, by what there is to wait for.
    pub(crate) fn set_timer(&mut self) {
        let polls = self.sleep.is_unseen() && self.peers.iter().any(|p| p.meeting.is_announced())
            || self.waits().lends_unseen
            || self.reading.is_waiting();
        let (peers, saying, turns) = (&self.peers, &self.saying, &self.turns);
        let idle = self.sweeps_every().filter(|_| peers.use_fabric());
        let tends = || peers.has_restless() || !saying.is_empty() || turns.is_waiting();
        self.sleep.set_timer(polls, tends, idle);
    }

    /// How often idle connections are looked for, if they are.
    pub(crate) fn sweeps_every(&self) -> Option<Duration> {
        self.options.idle.filter(|_| F::CONNECTS && self.below.is_some()).map(|idle| idle / 4)
    }

    /// A peer does what no honest one does.
    #[cold]
    pub(crate) fn spoil(&mut self, peer: PeerId, why: &str) {
        let (own, name) = (self.base.addr(), self.base.peer_addr(peer));
        log::warn!("{own} -> {name}: what it sends is not believed any more: {why}");
        self.cut(peer, Some(Gone::Denied));
    }

    /// Cuts a peer off; its end, which the connection reports, gets this reason. What arrived before is still
    /// polled.
    #[cold]
    pub(crate) fn cut(&mut self, peer: PeerId, why: Option<Gone>) {
        self.reset(peer);
        self.peers.at(peer).end.set_why(why);
        self.base.dismiss(peer, Parting::CutOff);
    }

    /// The fabric has lost a message.
    #[cold]
    pub(crate) fn lost(&mut self, who: u64, why: &str) {
        let (first, who) = (who & FIRST != 0, who & !FIRST);
        let peer = PeerId((who >> 32) as u32);
        let Some(at) = self.peers.get(peer).filter(|at| u64::from(at.generation) == who & 0xffff_ffff) else {
            return;
        };
        match at.stage {
            Stage::Meeting if first => return self.first_failed(peer, why),
            Stage::Meeting => return self.refuse(peer, why),
            // It was sent again, and has come. Where each peer has a connection none is: that has failed.
            _ if first && !F::CONNECTS => return,
            _ => {}
        }
        if at.end.is_broken() {
            return;
        }
        // As a rule its process has ended, which the connection reports.
        log::info!(
            "{} -> {}: the fabric has lost a message: {why}",
            self.base.addr(),
            self.base.peer_addr(peer)
        );
        let until = Instant::now() + self.options.grace;
        self.peers.at(peer).end.break_off(until);
        self.note_restless(peer);
    }

    /// A peer has written memory with data, which has taken a buffer.
    pub(crate) fn written(&mut self, buffer: Buffer, who: u64, data: u32, len: usize) {
        self.below.iter_mut().for_each(|below| below.give_back(buffer));
        let (peer, window) = (PeerId(((who & !FIRST) >> 32) as u32), self.provider.window());
        let is_same = |at: &Peer| u64::from(at.generation) == who & 0xffff_ffff;
        if self.peers.get(peer).is_some_and(|at| is_same(at) && at.stage == Stage::Meeting) {
            // As a frame it may be quicker than the word that it can come.
            self.hear_frame(peer);
        }
        let Some(at) = self.peers.get_mut(peer).filter(|at| is_same(at)) else { return };
        let may = at.stage == Stage::Fabric && at.dealings.may_once(Once::Write(data));
        let noted = match at.channel.as_mut().filter(|_| may) {
            Some(channel) => channel.note_written(window),
            None => Err(Spoilt("it has written with data, which was not agreed on")),
        };
        match noted {
            Ok(()) => self.inbox.push_written(peer, at.generation, (data, len)),
            Err(Spoilt(why)) => self.spoil(peer, why),
        }
    }

    /// The fabric does nothing any more.
    #[cold]
    pub(crate) fn dead(&mut self, why: &str) {
        log::warn!("{}: the fabric has failed: {why}", self.base.addr());
        self.provider.fail();
        if let Some(fd) = self.fabric_fd() {
            self.sleep.unwatch(fd);
        }
        for peer in self.peers.ids() {
            if self.peers[peer].channel.is_some() {
                self.cut(peer, Some(Gone::Reset));
            }
        }
    }

    /// Says to a peer how much was sent to it.
    pub(crate) fn say_bye(&mut self, peer: PeerId) {
        let at = &mut self.peers[peer];
        let Some(sent) = at.channel.as_ref().map(|c| c.sent()) else { return };
        at.farewell.say(sent);
        self.say(peer, &Control::Bye(sent));
    }

    /// The peers that may still say that all that was sent to them has come, and have not.
    pub(crate) fn owed(&self) -> Vec<PeerId> {
        let is_owed = |peer: &PeerId| {
            let at = &self.peers[*peer];
            let has_all = |c: &Channel| c.is_quiet() || at.farewell.is_answered(c.sent());
            let owes = |c: &Channel| !has_all(c);
            at.channel.as_ref().is_some_and(owes) && !at.end.is_broken()
        };
        self.peers.ids().filter(is_owed).collect()
    }

    pub(crate) fn warn_of_left(&self, leaving: &[PeerId]) {
        for peer in leaving {
            log::warn!(
                "{} -> {}: closed after {} ms though not all messages have come, which may be lost",
                self.base.addr(),
                self.base.peer_addr(*peer),
                self.options.linger.as_millis()
            );
        }
    }

    /// Sends a frame by the fabric: a head, and of a body so many bytes from there on. Whether the provider
    /// below keeps frames, if that is reported.
    #[inline]
    pub(crate) fn send_by_fabric(
        &mut self,
        to: PeerId,
        (head, body, off, len): (&[u8], &[Span], usize, usize),
        reports: bool,
    ) -> Result<bool, Refused> {
        assert!(head.len() + len <= self.provider.max_frame(), "frame longer than Path::max_frame");
        debug_assert!(off + len <= total(body), "bytes {off}+{len} of {body:?}");
        let mut at = &mut self.peers[to];
        if at.dealings.has_notes() {
            // Before what follows from it: a frame that asks for what was not read.
            self.with_memory(|memory| memory.send_notes(to));
            at = &mut self.peers[to];
        }
        let may = at.may_send() && !at.dealings.has_notes() && !self.reading.holds(to);
        let found = match (&mut self.below, &mut at.channel) {
            (Some(below), Some(channel)) if may => {
                let sent = channel.send(below, Said { sort: Sort::Frame, head, body, off, len });
                sent.map(|()| reports && channel.keeps(below))
            }
            _ => Err(NotSent::Busy),
        };
        match found {
            Ok(kept) => Ok(kept),
            Err(why) => self.not_sent(to, why),
        }
    }

    /// A frame was not sent by the fabric.
    #[cold]
    fn not_sent<T>(&mut self, to: PeerId, why: NotSent) -> Result<T, Refused> {
        match why {
            NotSent::Fault => Err(Refused::Fault),
            NotSent::Busy | NotSent::ByFirst => {
                self.peers.at(to).upkeep.set_full(true);
                self.note_restless(to);
                self.peers.want(to);
                Err(Refused::Busy)
            }
            NotSent::Error(why) => {
                let who = u64::from(to.0) << 32 | u64::from(self.peers.at(to).generation);
                self.lost(who, &why);
                self.peers.want(to);
                Err(Refused::Busy)
            }
        }
    }

    /// The end of a peer is to be reported.
    pub(crate) fn finish(&mut self, peer: PeerId, why: Gone) {
        // What the connection has lost of the way to agree on a fabric is no frame.
        let lost = self.base.keeps(peer);
        let losing = lost && self.peers.at(peer).stage == Stage::Base;
        self.peers.at(peer).end.lose(losing);
        self.reset(peer);
        self.peers.at(peer).end.begin();
        self.inbox.push_event(Event::Closed(peer, why));
    }

    /// Whether what a send found lacking is there now, or the certainty that it will not be.
    pub(crate) fn is_served(&self, peer: PeerId) -> bool {
        let Some(at) = self.peers.get(peer) else { return true };
        match (at.stage, &at.channel) {
            (Stage::Fabric, Some(_)) => at.has_much_room(),
            (Stage::Meeting, _) => false,
            // The connection reports it, until it is there.
            (Stage::Idle, _) => self.base.channel(peer) != link_api::Channel::None,
            _ => true,
        }
    }

    /// Whether there is something to poll for, or room for a frame that found none: that is reported once, if
    /// `once`.
    pub(crate) fn has_something(&mut self, once: bool) -> bool {
        // What a provider has reported before it failed is not looked at any more.
        let has_stashed = self.reading.has_stashed() && !self.provider.has_failed();
        if self.inbox.held().is_some() || !self.inbox.is_empty() || has_stashed {
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

    /// Whether both ways wake a sleeper for what arrives.
    pub(crate) fn may_sleep(&mut self) -> bool {
        let base = self.base.arm();
        let below = self.sleep.is_unseen()
            || self.provider.has_failed()
            || self.below.as_mut().is_none_or(F::try_wait);
        base && below
    }

    /// Reports room to a peer that may lack it.
    pub(crate) fn send_room(&mut self, peer: PeerId) {
        let window = self.provider.window();
        let (Some(below), Some(at)) = (&mut self.below, self.peers.get_mut(peer)) else { return };
        let Some(channel) = at.channel.as_mut().filter(|c| c.owes_room(window)) else { return };
        let room_due = at.rest.holds() || channel.send(below, Said::short(Sort::Room, &[])).is_err();
        at.upkeep.set_room_due(room_due);
        if room_due {
            self.note_restless(peer);
        }
    }

    /// How payloads get to this peer, and from it, for people.
    pub(crate) fn payloads(&self, peer: PeerId) -> &'static str {
        match (self.reading.most(), self.peers.get(peer).is_some_and(|at| at.dealings.may(Way::Get))) {
            (Some(_), true) if self.gets_devices(&[Usage::ReadInto]) => {
                "long payloads, also from and to memory of devices, read by their receiver"
            }
            (Some(_), true) if self.gets_devices(&[Usage::ReadByPeers]) => {
                "long payloads, also from memory of devices, read by their receiver"
            }
            (Some(_), true) => "long payloads read by their receiver",
            (Some(_), false) => "payloads in frames (the peer does not read)",
            (None, _) => "payloads in frames (the provider does not read, or registers in another way)",
        }
    }
}
