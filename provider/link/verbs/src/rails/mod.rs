//! Rails: further ports of this host, by which long accesses to a peer's memory go in parts.
//!
//! Each peer gets a queue pair of each, as it gets a second one (`seconds`): each alone in a domain of its
//! own, in which memory is registered for that peer. The two ends announce them to each other while the first
//! one goes on; one by which no packet gets there and back is left out. One that was in use, and fails, ends
//! the connection. The n-th rail of one end is connected with the n-th of the other.

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

use below::{Did, Keys, NotSent, Piece, RAILS, RailsWith};
use hmem::{Caps, Span};
use ipc::Poller;
use rdma_sys::ibv_sge;

use crate::address::Address;
use crate::joining::Joining;
use crate::pair::{Access, Posted, State, Verb};
use crate::registered::{may_be_apart, ways};
use crate::remote::Accesses;
use crate::state::Verbs;

mod ports;
mod stages;

pub(crate) use ports::{Found, Rails, first_of, rail_of};
use ports::{Rail, Striped, key_of};
use stages::{Heard, Said, Stage, Stages};

/// The end of a write of no bytes is reported with this, and the number of its queue pair.
const PROOF: u64 = 1 << 63;
/// What is said of a rail begins with its number, and is that alone where there is none.
const PROVEN: u8 = 1;

impl Rail<Verbs> {
    fn name(&self) -> String {
        format!("{} port {}", self.port.objects.context.device().name(), self.port.route.port.number)
    }

    /// Whether something is under way.
    fn is_busy(&self) -> bool {
        let pairs = &self.port.objects.pairs;
        self.port.credits + pairs.len() < self.all || pairs.has_closing()
    }

    /// The queue pair of a peer, if this side posts accesses to it.
    fn made(&self, first: u32) -> Option<u32> {
        self.connected(first).filter(|number| self.stages.get(first) == Some(Stage::Made(*number)))
    }

    /// The queue pair of a peer, by which that accesses memory of this side.
    fn connected(&self, first: u32) -> Option<u32> {
        let number = self.stages.get(first).and_then(Stage::in_use)?;
        let pair = self.port.objects.pairs.get(number);
        pair.is_some_and(|pair| pair.state == State::Connected).then_some(number)
    }

    /// Makes a queue pair with a peer: its number, and its address.
    fn make(&mut self) -> Result<(u32, Vec<u8>), String> {
        if let Some(why) = &self.is_off {
            return Err(why.clone());
        }
        if !self.port.route.port.is_active() {
            return Err("its port is not active".into());
        }
        let mut made = Joining(&mut self.port).make_apart(None);
        if made.is_err() && self.port.end_closing() {
            made = Joining(&mut self.port).make_apart(None);
        }
        let number = made.map_err(|(call, errno)| format!("{call}: errno {errno}"))?;
        let pair = self.port.objects.pairs.get_mut(number).ok_or("no queue pair")?;
        pair.report_with(number.into());
        let pair = self.port.objects.pairs.get(number).ok_or("no queue pair")?;
        Ok((number, self.port.own_address(pair).encode()))
    }

    fn connect(&mut self, number: u32, address: &Address) -> Result<(), String> {
        self.port.join(number, address).map_err(|e| e.to_string())
    }

    /// Posts a write of no bytes, whose end says whether packets get there and back.
    fn prove(&mut self, number: u32) -> Result<(), String> {
        let access = Access { op: PROOF | u64::from(number), ..Access::default() };
        let posted = Posted { access: Some(access), ..Posted::default() };
        let (pair, id) = self.port.objects.pairs.with_id(number).ok_or("no queue pair")?;
        let (verb, how) = (Verb::Write((0, 0)), (false, true));
        if self.port.credits == 0 {
            return Err("its completion queue is full".into());
        }
        // SAFETY: no bytes.
        unsafe { pair.post(id, verb, ibv_sge::default(), how, posted) }.map_err(|why| format!("{why:?}"))?;
        self.port.credits -= 1;
        Ok(())
    }
}

impl Rails<Verbs> {
    /// Ports that were opened for it, beside the first one, which sleeps by these descriptors: for
    /// completions, and for events.
    pub(crate) fn new(ports: Vec<Verbs>, (own, events): (RawFd, RawFd)) -> io::Result<Rails<Verbs>> {
        if ports.is_empty() {
            return Ok(Rails::default());
        }
        let (completions, all_events) = (Poller::new()?, Poller::new()?);
        completions.add(&below::Fd(own), 0)?;
        all_events.add(&below::Fd(events), 0)?;
        for port in &ports {
            completions.add(&below::Fd(port.objects.channel.fd().as_raw_fd()), 0)?;
            all_events.add(&below::Fd(port.objects.context.async_fd().as_raw_fd()), 0)?;
        }
        let rail = |port: Verbs| Rail { all: port.credits, port, stages: Stages::default(), is_off: None };
        let all = ports.into_iter().take(RAILS).map(rail).collect();
        Ok(Rails { all, waits: Some((completions, all_events)), ..Rails::default() })
    }

    pub(crate) fn has_closing(&self) -> bool {
        self.all.iter().any(|rail| rail.port.objects.pairs.has_closing())
    }

    /// Which ports they are, for people.
    pub(crate) fn describe(&self) -> Vec<String> {
        let of = |rail: &Rail<Verbs>| match &rail.is_off {
            Some(why) => format!("rail {} is left out: {why}", rail.name()),
            None => {
                let ways = Some(ways(&rail.port.objects.registered)).filter(|text| !text.is_empty());
                let ways = ways.map_or_else(String::new, |ways| format!(", {ways}"));
                format!("rail {}: peers {}{ways}", rail.name(), rail.stages.made())
            }
        };
        self.all.iter().map(of).collect()
    }

    /// Begins to make those with a peer, or awaits what the peer says of each.
    pub(crate) fn begin(&mut self, first: u32, begins: bool) {
        for at in 0..RAILS {
            if !begins {
                self.all.get_mut(at).into_iter().for_each(|rail| rail.stages.set(first, Stage::Expected));
                continue;
            }
            match self.all.get_mut(at).map(|rail| rail.make()) {
                Some(Ok((number, address))) => {
                    self.all[at].stages.set(first, Stage::Offered(number));
                    self.say(first, at, &address);
                }
                Some(Err(why)) => {
                    self.leave_out(first, at, &why);
                    self.say(first, at, &[]);
                }
                None => self.say(first, at, &[]),
            }
        }
    }

    /// There is none with this peer.
    fn leave_out(&mut self, first: u32, at: usize, why: &str) {
        log::info!("rail {}: a peer is not reached by it: {why}", self.all[at].name());
        self.all[at].stages.set(first, Stage::Refused);
    }

    /// The peer says something of a rail: an error is why it makes no sense, or what ends the connection.
    pub(crate) fn hear(&mut self, first: u32, said: &[u8]) -> Result<(), String> {
        let (&number, rest) = said.split_first().ok_or("it says nothing of a rail")?;
        let at = usize::from(number).checked_sub(1).filter(|at| *at < RAILS);
        let at = at.ok_or("it names a rail that there cannot be")?;
        let what = match rest {
            [] => Said::None,
            [PROVEN] => Said::Proven,
            _ => Said::Address,
        };
        if self.all.is_empty() {
            return Err("it says something of rails, which were not agreed on".into());
        }
        let Some(rail) = self.all.get_mut(at) else {
            // It has more of them.
            if what == Said::Address {
                self.say(first, at, &[]);
            }
            return Ok(());
        };
        let far = match what {
            Said::Address => Some(rail.port.far(rest)?),
            _ => None,
        };
        match rail.stages.hear(first, what) {
            Heard::Make => {
                let far = far.ok_or("no address")?;
                let made = rail.make().and_then(|(number, own)| {
                    let joined = rail.connect(number, &far).map(|()| (number, own));
                    joined.inspect_err(|_| rail.port.part_one(number))
                });
                match made {
                    Ok((number, own)) => {
                        rail.stages.set(first, Stage::Joined(number));
                        self.say(first, at, &own);
                    }
                    Err(why) => {
                        self.leave_out(first, at, &why);
                        self.say(first, at, &[]);
                    }
                }
            }
            Heard::Prove(number) => {
                let far = far.ok_or("no address")?;
                if let Err(why) = rail.connect(number, &far).and_then(|()| rail.prove(number)) {
                    self.give_up(first, at, number, &why);
                }
            }
            Heard::Drop(number) => {
                number.into_iter().for_each(|number| rail.port.part_one(number));
                log::info!("rail {}: the peer does not use it", rail.name());
            }
            Heard::Made => log::debug!("rail {}: a peer is reached by it", rail.name()),
            Heard::Lost => {
                let why = format!("rail {}: the peer's has failed", rail.name());
                self.did.push_back(Found::Failed(first, why));
            }
            Heard::Nonsense => return Err("what it says of a rail makes no sense".into()),
        }
        Ok(())
    }

    /// One that was not proven, and will not be.
    fn give_up(&mut self, first: u32, at: usize, number: u32, why: &str) {
        self.leave_out(first, at, why);
        self.all[at].port.part_one(number);
        self.say(first, at, &[]);
        self.did.push_back(Found::Says(first));
    }

    /// Which can be used with a peer now: not by a port that is down.
    pub(crate) fn with(&self, first: u32) -> RailsWith {
        if self.is_awaited(first) {
            return RailsWith::Awaited;
        }
        let is_up = |rail: &&Rail<Verbs>| rail.port.route.port.is_active();
        let made = |at: usize| self.all.get(at).filter(is_up).is_some_and(|rail| rail.made(first).is_some());
        RailsWith::Made(std::array::from_fn(made))
    }

    /// Registers memory that a peer accesses under this address by its lease, for each rail. What one refuses
    /// is not accessed by that. A rail whose port is down gives a key of what is `published` alone, which
    /// the peer hears of once: a request is done at once, by each rail that it has a key of.
    pub(crate) fn stripe(
        &mut self,
        to: (u64, u32),
        base: u64,
        span: Span,
        may: (bool, bool),
        published: bool,
    ) -> Keys {
        let first = to.1;
        if let Some(striped) = self.striped.get(&to) {
            return striped.keys;
        }
        if span.can(Caps::DEVICE) || may_be_apart(&span) {
            return [0; RAILS];
        }
        let mut striped = Striped::default();
        for (at, rail) in self.all.iter_mut().enumerate() {
            let is_up = rail.port.route.port.is_active();
            let domain = rail
                .connected(first)
                .filter(|_| is_up || published)
                .and_then(|number| rail.port.objects.seconds.domain(number))
                .map(|d| d.id);
            let Some(domain) = domain else { continue };
            let Some((number, rkey, found)) = Accesses(&mut rail.port).lease_in(domain, span, may) else {
                continue;
            };
            if found == base {
                striped.registrations.push((at, number));
                striped.keys[at] = key_of(at, rkey);
            } else {
                Accesses(&mut rail.port).end_lease(number, false);
            }
        }
        let keys = striped.keys;
        if !striped.registrations.is_empty() {
            self.striped.insert(to, striped);
        }
        keys
    }

    /// Registrations end: when this returns peers access none of them. An error says that they may.
    fn end_striped(&mut self, which: impl Fn(&(u64, u32)) -> bool) -> Result<(), (&'static str, i32)> {
        let mut outcome = Ok(());
        let ended: Vec<(u64, u32)> = self.striped.keys().filter(|key| which(key)).copied().collect();
        for striped in ended.into_iter().filter_map(|key| self.striped.remove(&key)) {
            for (at, number) in striped.registrations {
                outcome = outcome.and(self.all[at].port.objects.registered.close(number).map(drop));
            }
        }
        outcome
    }

    /// A lease ends, for all peers.
    #[inline]
    pub(crate) fn end_lease(&mut self, lease: u64) -> Result<(), (&'static str, i32)> {
        if self.striped.is_empty() { Ok(()) } else { self.end_striped(|key| key.0 == lease) }
    }

    /// Accesses memory of a peer by a key of this rail, from 1.
    pub(crate) fn access(&mut self, rail: usize, op: u64, piece: &Piece) -> Result<(), NotSent> {
        let first = first_of(piece.at);
        // What takes a receive, or is atomic, goes by the first port alone; so does what was planned before
        // the rail's port went down, which may stay down for long.
        let may = |rail: &&mut Rail<Verbs>| piece.once.is_none() && rail.port.route.port.is_active();
        let rail = self.all.get_mut(rail - 1).filter(may).ok_or(NotSent::ByFirst)?;
        let number = rail.made(first).ok_or(NotSent::ByFirst)?;
        let domain = rail.port.objects.seconds.domain(number).cloned();
        let mut by = Accesses(&mut rail.port);
        let local = match by.has_room(number).and_then(|_| by.find(number, domain, op, piece)) {
            // It says nothing of other memory, nor of this memory at another time.
            Err(NotSent::Error(why)) => {
                log::debug!("rail {}: an access goes without it: {why}", rail.name());
                return Err(NotSent::ByFirst);
            }
            found => found?,
        };
        match by.post(number, piece, local) {
            Err(NotSent::Error(why)) => {
                log::warn!("rail {}: accesses to a peer go without it from now on: {why}", rail.name());
                rail.stages.leave(first);
                Err(NotSent::ByFirst)
            }
            outcome => outcome,
        }
    }

    /// The first queue pair of a peer has failed: so do these.
    pub(crate) fn fail(&mut self, first: u32, why: &str) {
        for rail in &mut self.all {
            if let Some(number) = rail.stages.get(first).and_then(Stage::number) {
                let pair = rail.port.objects.pairs.get_mut(number);
                pair.into_iter().for_each(|pair| _ = pair.fail(why));
            }
        }
    }

    /// Whether accesses by the queue pairs of a peer are under way.
    pub(crate) fn is_used(&self, first: u32) -> bool {
        self.all.iter().any(|rail| {
            let number = rail.stages.get(first).and_then(Stage::number);
            let pair = number.and_then(|number| rail.port.objects.pairs.get(number));
            pair.is_some_and(|pair| pair.has_accesses())
        })
    }

    /// Destroys the queue pairs of a peer, which have failed: they access nothing then.
    pub(crate) fn stop(&mut self, first: u32) {
        for at in 0..self.all.len() {
            let rail = &mut self.all[at];
            if let Some(number) = rail.stages.get(first).and_then(Stage::number) {
                rail.port.stop_pair(number);
                self.take(at);
            }
        }
    }

    /// A peer is not needed any more.
    pub(crate) fn part(&mut self, first: u32) -> Result<(), (&'static str, i32)> {
        if self.all.is_empty() {
            return Ok(());
        }
        let outcome = self.end_striped(|key| key.1 == first);
        self.said.remove(&first);
        for rail in &mut self.all {
            if let Some(number) = rail.stages.end(first).and_then(Stage::number) {
                rail.port.part_one(number);
            }
        }
        outcome
    }

    /// Takes completions off the queues of those by which something is under way; how many there were.
    pub(crate) fn read(&mut self) -> usize {
        let mut n = 0;
        for at in 0..self.all.len() {
            if self.all[at].is_busy() {
                n += self.all[at].port.read();
                self.take(at);
            }
        }
        n
    }

    /// Takes events of the devices.
    pub(crate) fn read_events(&mut self) {
        for at in 0..self.all.len() {
            if self.all[at].is_off.is_none() {
                self.all[at].port.read_events();
                self.take(at);
            }
        }
    }

    /// Asks for events at the next completions. Whether it is safe to sleep.
    pub(crate) fn arm_to_sleep(&mut self) -> bool {
        let mut all = true;
        for at in 0..self.all.len() {
            if self.all[at].is_off.is_none() {
                let is_armed = self.all[at].port.arm_to_sleep();
                self.take(at);
                all &= is_armed || self.all[at].is_off.is_some();
            }
        }
        all
    }

    /// Takes what a rail reports.
    fn take(&mut self, at: usize) {
        while let Some(did) = self.all[at].port.did.pop_front() {
            match did {
                Did::Over(op, is_done) if op & PROOF != 0 => self.proven(op as u32, at, is_done),
                Did::Failed(number, why) => {
                    // Of one that is closed meanwhile: nothing.
                    let first = self.all[at].stages.peer_of(number as u32);
                    first.into_iter().for_each(|first| self.failed(first, at, &why));
                }
                did => self.did.push_back(Found::Did(did)),
            }
        }
        let rail = &mut self.all[at];
        if let Some(why) = rail.port.dead.clone().filter(|_| rail.is_off.is_none()) {
            log::warn!("rail {} is left out: {why}", rail.name());
            rail.is_off = Some(why.clone());
            // Events that are read no more would wake for ever.
            if let Some((completions, events)) = &self.waits {
                completions.remove(&below::Fd(rail.port.objects.channel.fd().as_raw_fd()));
                events.remove(&below::Fd(rail.port.objects.context.async_fd().as_raw_fd()));
            }
            for first in rail.stages.peers() {
                self.failed(first, at, &why);
            }
        }
    }

    fn proven(&mut self, number: u32, at: usize, is_done: bool) {
        let Some(first) = self.all[at].stages.peer_of(number) else { return };
        match self.all[at].stages.note_proven(first, is_done) {
            Some(Ok(())) => {
                log::debug!("rail {}: a peer is reached by it", self.all[at].name());
                self.say(first, at, &[PROVEN]);
                self.did.push_back(Found::Says(first));
            }
            Some(Err(number)) => self.give_up(first, at, number, "no packet gets there and back"),
            None => {}
        }
    }

    fn failed(&mut self, first: u32, at: usize, why: &str) {
        match self.all[at].stages.note_failed(first) {
            Some(Ok(())) => {
                let why = format!("rail {}: {why}", self.all[at].name());
                self.did.push_back(Found::Failed(first, why));
            }
            Some(Err(number)) => self.give_up(first, at, number, why),
            None => {}
        }
    }
}
