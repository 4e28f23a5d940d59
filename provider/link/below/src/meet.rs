//! How two endpoints that have a connection agree on a fabric, or not.
//!
//! Each announces to the other where it is on the fabric. Then the side whose name is lower sends a message
//! there, which the other one answers. With the answer it says that frames go by the fabric from now on.
//! Either side may say instead that they go by the connection.
//!
//! The other side sends nothing before it has received: where two endpoints of `tcp` (libfabric 2.1.0)
//! connect to each other at once, one may take the other's request, which is void by then, for a newer
//! connection, and drops the one that both have agreed on with what was sent by it. A connection of the
//! provider's may be lost all the same, with or without an error, though both endpoints live. So the first
//! message is sent again until the answer has come, and the answer as often as that comes; a repeated message
//! is known by its bytes.

use std::time::{Duration, Instant};

use link_api::{Event, Gone, PeerId, RmaLink, Way};
use wire::session::{
    ATOMICS, Announce, Control, DATA, MEETING, NAME, RAILS, READS, REPEATS, RESTS, Role, SECONDS, WRITES,
    fabric_keys,
};

use crate::channel::{Channel, Far, Said};
use crate::net::Net;
use crate::network::{Below, NotSent};
use crate::peer::Stage;
use crate::peer::rest::{Counts, Heard};

/// A provider's name as it is announced.
fn padded(name: &str) -> [u8; NAME] {
    std::array::from_fn(|i| *name.as_bytes().get(i).unwrap_or(&0))
}

/// And for people.
fn plain(name: &[u8; NAME]) -> String {
    let end = name.iter().position(|b| *b == 0).unwrap_or(NAME);
    name[..end].iter().map(|b| if b.is_ascii_graphic() { char::from(*b) } else { '?' }).collect()
}

impl<B: RmaLink, F: Below> Net<B, F> {
    /// Says something by the connection, or as soon as there is room.
    pub(crate) fn say(&mut self, peer: PeerId, what: &Control) {
        self.saying.say(&mut self.base, peer, what.encode());
    }

    /// What [`Announce::can`] says. A network that loses nothing has no first message repeated.
    fn can(&self) -> u16 {
        self.common() | if F::CONNECTS { 0 } else { REPEATS }
    }

    /// What both ends have to be able to do for it to be done.
    fn common(&self) -> u16 {
        let of = |has, flag| if has { flag } else { 0 };
        let about = self.below.as_ref().map(F::about);
        of(self.reading.has(Way::Get), READS)
            | of(self.reading.has(Way::Put), WRITES)
            | of(about.is_some_and(|about| about.data), DATA)
            | of(about.is_some_and(|about| about.atomics), ATOMICS)
            | of(F::CONNECTS, RESTS)
            | of(F::SECONDS, SECONDS)
            | of(about.is_some_and(|about| about.rails), RAILS)
    }

    /// Whether this side decides.
    fn decides(&self, peer: PeerId) -> bool {
        self.base.addr() < self.base.peer_addr(peer)
    }

    /// Announces to a peer where this endpoint is.
    pub(crate) fn announce(&mut self, peer: PeerId) {
        let Ok(nonce) = ipc::random() else { return };
        self.peers.add(peer);
        let can = self.can();
        let Some(below) = &mut self.below else { return };
        let offer = match below.offer() {
            Ok(offer) => offer,
            Err(why) => return self.refuse(peer, &why),
        };
        let about = below.about();
        let (protocol, format) = about.dialect;
        let said = Announce {
            slot: peer.0,
            generation: self.peers[peer].generation,
            most: about.most as u32,
            window: about.window,
            protocol,
            format,
            can,
            name: padded(about.name),
            nonce,
            address: offer.address,
        };
        let bytes = Control::Announce(Box::new(said)).encode();
        let until = Instant::now() + self.options.patience;
        let at = self.peers.at(peer);
        at.meeting.announce(bytes.clone(), until, offer.number);
        at.stage = Stage::Meeting;
        self.saying.say(&mut self.base, peer, bytes);
        self.note_restless(peer);
    }

    /// A peer says something by the connection; a message that came by the fabric before may be taken then.
    pub(crate) fn hear(&mut self, peer: PeerId, said: Control) -> Option<Vec<u8>> {
        match said {
            Control::Announce(said) => return self.hear_announce(peer, said),
            Control::Settle(fabric) => self.hear_settle(peer, fabric),
            // Of a connection that both have closed since.
            Control::Bye(_) if F::CONNECTS && self.is_closed(peer) => self.say(peer, &Control::ByeHeard),
            Control::Bye(sent) => {
                self.peers.at(peer).farewell.hear(sent);
                self.note_restless(peer);
            }
            Control::ByeHeard => self.peers.at(peer).farewell.hear_answer(),
            Control::Rest(sent, came) => self.hear_rest(peer, Counts { sent, came }),
            Control::RestHeard(closes) => self.hear_rest_answer(peer, closes),
            Control::Second(address) => self.hear_second(peer, &address),
            Control::Other(version) => {
                let why = format!(
                    "it has version {version} of the way to agree on a fabric, and this is {MEETING}"
                );
                self.fall_back(peer, &why);
            }
        }
        None
    }

    /// Whether neither end of a connection is known to the other one yet, or any more.
    fn is_closed(&mut self, peer: PeerId) -> bool {
        let at = self.peers.at(peer);
        at.channel.is_none() && matches!(at.stage, Stage::Idle | Stage::Meeting)
    }

    fn hear_announce(&mut self, peer: PeerId, said: Box<Announce>) -> Option<Vec<u8>> {
        let at = self.peers.at(peer);
        let twice = at.stage == Stage::Fabric || at.stage == Stage::Meeting && at.meeting.is_heard();
        if self.below.is_none() || self.provider.has_failed() || at.stage == Stage::Base {
            self.say(peer, &Control::Settle(false));
            return None;
        }
        if twice {
            self.spoil(peer, "it announces itself twice");
            return None;
        }
        if at.stage == Stage::Idle {
            self.announce(peer);
            // Without a place for it there.
            if self.peers[peer].stage == Stage::Base || !self.peers[peer].meeting.is_announced() {
                return None;
            }
        }
        if let Err(why) = self.agree(peer, &said) {
            self.refuse(peer, &why);
            return None;
        }
        let decides = self.decides(peer);
        let early = self.peers.at(peer).meeting.hear(decides, decides && !F::CONNECTS);
        if F::CONNECTS && !decides {
            self.say(peer, &Control::Settle(true));
        }
        self.note_restless(peer);
        if early.is_none() {
            self.tend(peer);
        }
        early
    }

    /// Makes the channel that both announces allow.
    fn agree(&mut self, peer: PeerId, said: &Announce) -> Result<(), String> {
        let (decides, key, can) = (self.decides(peer), self.options.key.clone(), self.common());
        let Some(below) = &mut self.below else { return Err("there is no fabric here".into()) };
        if said.address.is_empty() {
            return Err("it has no fabric".into());
        }
        let about = below.about();
        let ours = (padded(about.name), about.dialect, about.most);
        if ours != (said.name, (said.protocol, said.format), said.most as usize) {
            return Err(format!("it has {}, and this is {}", plain(&said.name), about.name));
        }
        if said.window < 8 {
            return Err("it has no room".into());
        }
        let at = self.peers.at(peer);
        let offer = at.meeting.take_offer().ok_or("it was announced nothing")?;
        let ip = self.base.peer_addr(peer).ip();
        let dest = match below.connect(offer, &said.address, (ip, decides)) {
            Ok(dest) => dest,
            Err(why) => {
                below.withdraw(offer);
                return Err(why);
            }
        };
        let theirs = Control::Announce(Box::new(said.clone())).encode();
        let ours = at.meeting.announced();
        let keys = match decides {
            true => fabric_keys(&key, ours, &theirs, Role::Caller),
            false => fabric_keys(&key, &theirs, ours, Role::Answerer),
        };
        let far = Far { dest, slot: said.slot, generation: said.generation, window: said.window };
        let who = u64::from(peer.0) << 32 | u64::from(at.generation);
        at.channel = Some(Channel::new(far, keys, who));
        at.dealings.set_may(said.can & can);
        at.second.set_may(said.can & can & SECONDS != 0, said.can & can & RAILS != 0);
        // The other end begins, once both are settled, and may say before this hears of it what needs them.
        if !decides && at.second.may_rails() {
            below.begin_rails(dest, false);
        }
        at.first.set_repeatable(said.can & REPEATS != 0);
        Ok(())
    }

    fn hear_settle(&mut self, peer: PeerId, fabric: bool) {
        let decides = self.decides(peer);
        let at = self.peers.at(peer);
        match (fabric, at.stage) {
            (true, Stage::Meeting) if !decides && at.channel.is_some() => self.settled(peer),
            // It has connected.
            (true, Stage::Meeting) if F::CONNECTS && at.meeting.awaits_peer() => {
                at.meeting.owe_ping();
                self.note_restless(peer);
                self.tend(peer);
            }
            (false, Stage::Idle | Stage::Meeting) => self.fall_back(peer, "the peer does not use it"),
            // A frame has said so before; both have said so.
            (true, Stage::Fabric) if !decides => {}
            (false, Stage::Base) => {}
            // It has connected to an end that was refused here.
            (true, Stage::Base) if F::CONNECTS => {}
            _ if self.below.is_none() => {}
            _ => self.spoil(peer, "it settles what was not open"),
        }
    }

    /// An answer came by the fabric.
    pub(crate) fn hear_pong(&mut self, peer: PeerId) {
        if self.peers.at(peer).stage == Stage::Meeting && self.decides(peer) {
            self.say(peer, &Control::Settle(true));
            self.settled(peer);
        }
    }

    /// A frame came by the fabric, which the peer sends only after it was settled.
    pub(crate) fn hear_frame(&mut self, peer: PeerId) {
        if self.decides(peer) {
            self.spoil(peer, "it sends frames before it was told to");
        } else {
            self.settled(peer);
        }
    }

    fn settled(&mut self, peer: PeerId) {
        let decides = self.decides(peer);
        let at = self.peers.at(peer);
        at.meeting.settle();
        at.first.settle();
        self.peers.go_by_fabric(peer);
        if decides {
            self.with_memory(|memory| memory.begin_rails(peer));
        }
        self.set_timer();
        log::debug!("{} -> {}: the fabric leads there", self.base.addr(), self.base.peer_addr(peer));
    }

    /// The first message was sent, for the first time or again. The side that decides repeats it until the
    /// answer has come; the answer is repeated only when the message is.
    pub(crate) fn note_first_sent(&mut self, peer: PeerId) {
        let decides = self.decides(peer);
        let at = self.peers.at(peer);
        if at.stage == Stage::Meeting {
            at.first.note_sent(decides);
        }
    }

    /// The first message failed. That need not be the end: the provider's connection may be lost, and made
    /// again, while both endpoints live. The end of a peer is reported by the connection that the two meet
    /// by.
    #[cold]
    pub(crate) fn first_failed(&mut self, peer: PeerId, why: &str) {
        let (own, name) = (self.base.addr(), self.base.peer_addr(peer));
        let fallback = self.options.fallback;
        if !self.peers.at(peer).first.note_failed(fallback) {
            return self.refuse(peer, why);
        }
        log::debug!("{own} -> {name}: no message gets there yet, and another one is tried: {why}");
        self.note_restless(peer);
    }

    /// Sends the first message again if it is time.
    pub(crate) fn repeat_first(&mut self, peer: PeerId) {
        let at = &mut self.peers[peer];
        let due = at.stage == Stage::Meeting && at.first.is_due();
        let (true, Some(below), Some(channel)) = (due, &mut self.below, &at.channel) else { return };
        match channel.repeat_first(below) {
            Ok(()) => self.note_first_sent(peer),
            Err(NotSent::Busy | NotSent::Fault | NotSent::ByFirst) => {}
            Err(NotSent::Error(why)) => self.first_failed(peer, &why),
        }
    }

    /// This side does not want the fabric, or cannot.
    pub(crate) fn refuse(&mut self, peer: PeerId, why: &str) {
        self.say(peer, &Control::Settle(false));
        self.fall_back(peer, why);
    }

    /// Frames go by the connection, or there is no way.
    pub(crate) fn fall_back(&mut self, peer: PeerId, why: &str) {
        if self.peers.at(peer).stage == Stage::Base {
            return;
        }
        let (own, name) = (self.base.addr(), self.base.peer_addr(peer));
        if !self.options.fallback {
            log::warn!(
                "{own} -> {name}: the fabric does not lead there: {why}; add tcp to FI_STRAIT_LINKS for such peers"
            );
            return self.cut(peer, Some(Gone::Unreachable));
        }
        log::info!("{own} -> {name}: the fabric does not lead there, so that tcp does: {why}");
        self.reset(peer);
        let known = self.below.is_some();
        self.peers.go_by_base(peer, why);
        if known {
            self.inbox.push_event(Event::PathChanged(peer));
        }
    }

    /// Proposes to close connections by which nothing has gone for some time.
    #[inline]
    pub(crate) fn sweep_idle(&mut self) {
        if let (Some(idle), true) = (self.options.idle, F::CONNECTS) {
            self.sweep(idle);
        }
    }

    #[cold]
    fn sweep(&mut self, idle: Duration) {
        let now = Instant::now();
        if !self.turns.is_for_idle(now, idle / 4) {
            return;
        }
        for peer in self.peers.ids() {
            let at = &mut self.peers[peer];
            let Some(channel) = at.channel.as_ref().filter(|_| at.stage == Stage::Fabric) else { continue };
            let is_idle = at.rest.is_idle(channel.counts(), now, idle) && !at.rest.holds();
            let Some(counts) = self.counts_at_rest(peer).filter(|_| is_idle) else { continue };
            if self.peers[peer].dealings.may_rest() {
                self.peers[peer].rest.propose(counts);
                self.say(peer, &Control::Rest(counts.sent, counts.came));
                self.note_restless(peer);
            }
        }
    }

    /// How many messages went each way, if nothing else is under way between the two.
    fn counts_at_rest(&self, peer: PeerId) -> Option<Counts> {
        let at = self.peers.get(peer).filter(|at| at.stage == Stage::Fabric)?;
        let is_busy = at.end.is_broken()
            || at.farewell.is_said()
            || at.upkeep.is_due()
            || at.second.is_due()
            || at.dealings.is_under_way()
            || self.reading.any(|op| op.peer == peer)
            || self.reading.is_leaving(peer);
        let channel = at.channel.as_ref()?;
        let awaits = self.below.as_ref().is_some_and(|below| below.awaits_second(channel.far().dest));
        channel.counts_if_done().filter(|_| !is_busy && !awaits)
    }

    /// A peer proposes to close the connection, or has done so while this side did.
    fn hear_rest(&mut self, peer: PeerId, theirs: Counts) {
        let at = self.peers.at(peer);
        if at.stage != Stage::Fabric || !at.dealings.may_rest() {
            return self.spoil(peer, "it is to close what is not open");
        }
        let ours = self.counts_at_rest(peer);
        let heard = self.peers.at(peer).rest.hear(theirs, ours);
        if let Heard::Close(true) | Heard::Stay(true) = heard {
            self.say(peer, &Control::RestHeard(heard == Heard::Close(true)));
        }
        self.rest(peer, matches!(heard, Heard::Close(_)));
    }

    /// A peer answers a proposal.
    fn hear_rest_answer(&mut self, peer: PeerId, closes: bool) {
        if !self.peers.at(peer).rest.hear_answer() {
            return self.spoil(peer, "it answers what was not proposed");
        }
        self.rest(peer, closes);
    }

    /// The connection is closed until something is to go by it again, or what was held back goes on.
    fn rest(&mut self, peer: PeerId, closes: bool) {
        if closes {
            log::debug!(
                "{} -> {}: nothing goes there, and the connection is closed",
                self.base.addr(),
                self.base.peer_addr(peer)
            );
            self.part(peer);
        }
        self.note_restless(peer);
    }

    /// A peer announces its end of a second connection, or that it has none.
    fn hear_second(&mut self, peer: PeerId, address: &[u8]) {
        let Some(below) = &mut self.below else { return };
        let at = self.peers.at(peer);
        let (Stage::Fabric, Some(channel)) = (at.stage, &at.channel) else {
            return match at.stage {
                Stage::Base => {}
                _ => self.spoil(peer, "it has a second connection to what is not open"),
            };
        };
        if !at.second.may() {
            return self.spoil(peer, "it has a second connection, which was not agreed on");
        }
        if at.end.is_broken() {
            return;
        }
        match below.join_second(channel.far().dest, address) {
            Ok(None) => {}
            Ok(Some(address)) => self.say(peer, &Control::Second(address)),
            Err(why) => self.spoil(peer, &why),
        }
    }

    /// Does for all peers what is due.
    pub(crate) fn tend_all(&mut self) {
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
                    Err(NotSent::Busy | NotSent::Fault | NotSent::ByFirst) => {}
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
        self.with_memory(|memory| memory.send_notes(peer));
        while let Some(address) = self.peers[peer].second.take_due() {
            self.say(peer, &Control::Second(address));
        }
        let at = &mut self.peers[peer];
        if at.farewell.owes_answer() && at.is_complete() {
            at.farewell.answer();
            self.say(peer, &Control::ByeHeard);
        }
        let (now, at) = (Instant::now(), &mut self.peers[peer]);
        if let Some(why) = at.meeting.take_overdue(now) {
            return self.refuse(peer, why);
        }
        // The peer may have closed, which its answer says: then nothing was lost.
        if at.end.is_overdue(now) && !at.rest.holds() {
            self.cut(peer, Some(Gone::Reset));
        }
    }
}
