//! Connections that others make: until it is known who has made them, and then until that one confirms.

use std::net::SocketAddr;
use std::time::Instant;

use ipc::Unshared;
use link_api::PeerId;
use meet::Message;
use wire::Addr;
use wire::session::{Answerer, Hello, MAC, Proven, Role, Verdict};

use crate::tcp::connections::Connections;
use crate::tcp::meet::agreement::{Answer, CROSSING, Conn};
use crate::tcp::meet::calls::Calls;
use crate::tcp::meet::handshake::{Guest, Stage, Visit, receive, say};
use crate::tcp::meet::meeting::Meeting;
use crate::tcp::meet::names::Claim;
use crate::tcp::meet::promises::Promise;
use crate::tcp::peer::Peer;
use crate::tcp::sock;
use crate::tcp::table;
use crate::tcp::ticks::TICK;
use crate::tcp::watched::token;

/// Most connections taken in one go. TCP_DEFER_ACCEPT (tcp(7)) would keep those that are silent in the
/// kernel, in a queue that is short: once it is full, callers come by SYN cookies, or not at all where the
/// host has these off.
const BATCH: usize = 64;
/// Whether a connection that stands is known to have ended. One that follows another, whose end was not
/// reported yet, is not replaced before.
fn has_ended(at: &Peer, conn: Conn) -> bool {
    match &at.channel {
        Some(channel) if channel.conn() == conn => channel.ends() || sock::is_finished(channel.fd()),
        _ => at.next.as_ref().is_none_or(|next| next.conn() != conn),
    }
}

/// Takes in connections that others make.
pub(in crate::tcp) struct Callers<'a> {
    pub(in crate::tcp) conns: &'a mut Connections,
    pub(in crate::tcp) meeting: &'a mut Meeting,
}

impl Callers<'_> {
    fn calls(&mut self) -> Calls<'_> {
        Calls { conns: self.conns, meeting: self.meeting }
    }

    /// Takes in connections that were made to this endpoint.
    pub(in crate::tcp) fn accept(&mut self) {
        self.meeting.listening.keep_spare();
        for _ in 0..BATCH {
            let surplus = !self.meeting.listening.has_spare();
            let fd = match self.meeting.listening.accept() {
                Ok(fd) => fd,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                // What a connection holds that has said nothing is there for others.
                Err(e) if ipc::socket::is_lack(&e) && self.dismiss_silent() => continue,
                // One caller at a time has that answer.
                Err(e) if ipc::socket::is_lack(&e) && self.meeting.listening.give_spare() => {
                    self.meeting.listening.shortage_mut().of_caller(&e);
                    continue;
                }
                Err(e) if ipc::socket::is_lack(&e) => {
                    self.meeting.listening.shortage_mut().of_caller(&e);
                    if self.meeting.listening.shortage_mut().warns() {
                        log::warn!(
                            "{}: a connection cannot be taken in: {e}; raise ulimit -n",
                            self.conns.own.addr()
                        );
                    }
                    return self.set_listening(false);
                }
                // Of that one connection.
                Err(_) => continue,
            };
            table::make_room(&fd);
            self.receive_guest(fd, surplus);
            self.meeting.listening.keep_spare();
        }
    }

    fn dismiss_silent(&mut self) -> bool {
        let silent = self.meeting.guests.give_silent();
        silent.map(|guest| self.dismiss(guest)).is_some()
    }

    /// Ends a connection in whose place another one comes. A caller that has the key calls again.
    fn dismiss(&mut self, guest: Guest) {
        log::debug!("{}: a connection that was made to it makes room for another one", self.conns.own.addr());
        self.conns.sleep.poller().remove(&guest.fd);
        sock::abort(&guest.fd);
    }

    /// Watches the listener, or leaves new connections with the kernel for now.
    pub(in crate::tcp) fn set_listening(&mut self, on: bool) {
        if self.meeting.listening.is_on() != on {
            self.meeting.listening.set(on, self.conns.sleep.poller());
            self.conns.ticks.at_least(TICK);
        }
    }

    fn receive_guest(&mut self, fd: Unshared, surplus: bool) {
        let own = match self.conns.own.hello(Role::Answerer, self.conns.own.addr()) {
            Ok(own) => own,
            Err(e) => return log::warn!("{}: a connection cannot be taken in: {e}", self.conns.own.addr()),
        };
        let origin = sock::origin(&fd);
        if let Some(guest) = self.meeting.guests.give_way(&origin) {
            self.dismiss(guest);
        }
        let at = self
            .meeting
            .guests
            .add(origin, Guest::new(fd, Answerer::new(&self.conns.options.key, own), surplus));
        let watched = self
            .meeting
            .guests
            .get_mut(at)
            .map(|guest| self.conns.sleep.poller().add(&guest.fd, token::guest(at)));
        if let Some(Err(e)) = watched {
            log::warn!("{}: a connection cannot be taken in: {e}", self.conns.own.addr());
            return drop(self.meeting.guests.take(at));
        }
        self.conns.ticks.at_least(TICK);
        // What it says is there already, as a rule.
        self.serve_guest(at);
    }

    /// Reads what a caller that is not known yet has sent.
    pub(in crate::tcp) fn serve_guest(&mut self, at: usize) {
        let Some(guest) = self.meeting.guests.get_mut(at) else { return };
        let peers = &self.conns.peers;
        let rail = |hello: &Hello| peers.rail_key(hello);
        match guest.hear(rail) {
            Visit::Goes => {
                let is_answered = guest.is_answered();
                self.meeting.set_met();
                if is_answered {
                    self.meeting.guests.has_spoken(at);
                }
            }
            Visit::Over(why) => self.send_away(at, &why, log::Level::Info),
            Visit::Refused(why) => {
                let level = self.meeting.names.level();
                self.send_away(at, &why, level);
            }
            Visit::Proven(proven) => {
                if let Some(guest) = self.meeting.guests.take(at) {
                    self.conns.sleep.poller().remove(&guest.fd);
                    // What it takes to find out which user it is of.
                    self.meeting.listening.give_spare();
                    self.decide(guest.fd, proven, guest.surplus);
                    self.meeting.listening.keep_spare();
                }
            }
        }
    }

    pub(in crate::tcp) fn send_away(&mut self, at: usize, why: &str, level: log::Level) {
        if let Some(guest) = self.meeting.guests.take(at) {
            let (own, from) = (self.conns.own.addr(), sock::ends(&guest.fd));
            let from =
                from.map_or_else(|| "elsewhere".into(), |(_, there)| there.ip().to_canonical().to_string());
            log::log!(level, "{own}: a connection from {from} is closed: {why}");
            self.conns.sleep.poller().remove(&guest.fd);
            drop(guest);
            self.meeting.listening.keep_spare();
        }
    }

    /// Answers a caller that has the key.
    fn decide(&mut self, fd: Unshared, proven: Box<Proven>, surplus: bool) {
        let caller = proven.peer;
        if let Role::Rail(number) = caller.role {
            return self.conns.attach(fd, &proven, number, surplus);
        }
        let verdict = if !self.is_called(&caller.other, &fd) {
            log::warn!(
                "{}: {} means to call {}, which is no name of this endpoint",
                self.conns.own.addr(),
                caller.name,
                caller.other
            );
            Verdict::Other
        } else if surplus {
            Verdict::Full
        } else if caller.name == self.conns.own.addr() {
            Verdict::Known
        } else {
            match self.meeting.names.claim(&caller.name, self.conns.peers.known_by(&caller.name), &fd) {
                Claim::Granted => return self.answer(fd, proven),
                Claim::CallBack => self.calls().call_back(&caller.name),
                Claim::Unknown => {
                    let (own, level) = (self.conns.own.addr(), self.meeting.names.level());
                    log::log!(
                        level,
                        "{own}: {} calls from an address that is not its own, and is to call again until it is known here",
                        caller.name
                    );
                    Verdict::Busy
                }
                Claim::Later(errno) => {
                    self.meeting
                        .listening
                        .shortage_mut()
                        .of_caller(&std::io::Error::from_raw_os_error(errno));
                    Verdict::Full
                }
                Claim::Refused(why) => {
                    // One that has hung up may have called at the same time as this side.
                    let has_hung_up = sock::is_finished(&fd);
                    let level = if has_hung_up { log::Level::Debug } else { self.meeting.names.level() };
                    let own = self.conns.own.addr();
                    log::log!(level, "{own}: refused a caller under the name {}: {why}", caller.name);
                    Verdict::Denied
                }
            }
        };
        log::debug!("{}: called by {}: {verdict:?}", self.conns.own.addr(), caller.name);
        // One that has ended meanwhile misses nothing.
        let _ = say(&fd, &proven.verdict(verdict));
    }

    /// Whether an endpoint that calls by this name means this one: by its own name, or the address that the
    /// connection came to.
    fn is_called(&self, name: &Addr, fd: &Unshared) -> bool {
        let here = |local: SocketAddr| (local.ip().to_canonical(), local.port()) == (name.ip(), name.port());
        *name == self.conns.own.addr() || sock::local(fd).is_some_and(here)
    }

    /// Guests that take too long.
    pub(in crate::tcp) fn check_guests(&mut self, now: Instant) {
        let late = self.meeting.guests.late(now, self.conns.options.guest_timeout);
        late.into_iter().for_each(|at| self.send_away(at, "it took too long", log::Level::Info));
    }

    /// Answers a caller that has the key, and may have the name.
    pub(in crate::tcp) fn answer(&mut self, fd: Unshared, proven: Box<Proven>) {
        let caller = proven.peer;
        // What a caller before this one has said is there, as a rule, if it has.
        let is_its = |promise: &Promise| promise.proven.peer.name == caller.name;
        if let Some(at) = self.meeting.find_promise(is_its) {
            self.serve_promise(at);
            // One that says to be this peer and does not go on keeps no other out.
            let waits = self
                .meeting
                .promises
                .get(at)
                .filter(|promise| is_its(promise))
                .and(self.meeting.promises.waits(at));
            if waits.is_some_and(|(waited, _)| waited >= CROSSING) {
                self.give_up_promise(at);
            }
        }
        if self.meeting.promises.len() >= self.conns.options.guests && !self.make_room_for_promise() {
            let _ = say(&fd, &proven.verdict(Verdict::Full));
            return;
        }
        let (conn, now) = (self.meeting.number(), Instant::now());
        let peer = self.conns.peers.find(&caller.name);
        let at = peer.map(|peer| &self.conns.peers[peer]);
        let answer =
            self.conns.agreed.called(&caller, conn, |conn| at.is_none_or(|at| has_ended(at, conn)), now);
        log::debug!("{}: called by {}: {:?}", self.conns.own.addr(), caller.name, answer.verdict());
        let said = say(&fd, &proven.verdict(answer.verdict()));
        match (answer, peer) {
            (Answer::Promised, peer) => {
                if let Some(peer) = peer {
                    self.calls().wait_for_call_of(peer);
                }
                self.meeting.set_met();
                match said {
                    Ok(()) => self.promise(Promise { fd, proven, conn, message: Message::default() }),
                    Err(_) => self.promise_over(&caller.name, conn),
                }
            }
            (Answer::Probe, Some(peer)) => self.probe(peer),
            _ => {}
        }
    }

    fn promise(&mut self, promise: Promise) {
        let at = self.meeting.promises.add((), promise);
        let added = self
            .meeting
            .promises
            .get(at)
            .map(|promise| self.conns.sleep.poller().add(&promise.fd, token::promise(at)));
        let Some(Err(e)) = added else { return };
        log::warn!("{}: a connection cannot be watched: {e}", self.conns.own.addr());
        if let Some(promise) = self.meeting.promises.take(at) {
            self.promise_over(&promise.proven.peer.name, promise.conn);
        }
    }

    /// A caller that was accepted says something, or has ended.
    pub(in crate::tcp) fn serve_promise(&mut self, at: usize) {
        let Some(promise) = self.meeting.promises.get_mut(at) else { return };
        let is_confirmed = match receive(&mut promise.message, &promise.fd, MAC) {
            Ok(false) => return,
            Ok(true) => promise.proven.is_confirmation(promise.message.bytes()),
            Err(_) => false,
        };
        let Some(Promise { fd, proven, conn, .. }) = self.meeting.take_promise(at, self.conns.sleep.poller())
        else {
            return;
        };
        let caller = proven.peer;
        if !is_confirmed || !self.conns.agreed.confirmed(&caller, conn) {
            log::debug!("{}: {} has given up its call", self.conns.own.addr(), caller.name);
            return self.promise_over(&caller.name, conn);
        }
        let peer = self.conns.peers.named(&caller.name);
        self.calls().drop_call(peer);
        let channel = self.conns.new_channel(fd, proven.keys(), &caller, conn);
        self.conns.adopt(peer, channel);
        self.meeting.set_met();
        // What the caller has sent behind its confirmation is there, as a rule.
        self.conns.serve_channel(peer, true, false);
    }

    /// Ends the promise that waits longest, if that is long. An honest caller of it sees the end before it
    /// uses the connection, and calls again.
    fn make_room_for_promise(&mut self) -> bool {
        let Some((at, _)) = self.meeting.promises.oldest().filter(|(_, since)| since.elapsed() >= CROSSING)
        else {
            return false;
        };
        self.end_promise(at);
        true
    }

    /// Promises whose callers have not gone on for as long as a host may not answer.
    pub(in crate::tcp) fn check_promises(&mut self, now: Instant) {
        while let Some((at, since)) = self.meeting.promises.oldest() {
            if now.saturating_duration_since(since) < self.conns.options.timeout {
                return;
            }
            self.end_promise(at);
        }
    }

    /// A promise ends, kept or not: the confirmation may be there.
    fn end_promise(&mut self, at: usize) {
        let conn = self.meeting.promises.get(at).map(|promise| promise.conn);
        self.serve_promise(at);
        if self.meeting.promises.get(at).map(|promise| promise.conn) == conn {
            self.give_up_promise(at);
        }
    }

    fn give_up_promise(&mut self, at: usize) {
        if let Some(promise) = self.meeting.take_promise(at, self.conns.sleep.poller()) {
            let name = promise.proven.peer.name;
            log::info!("{}: {name} was let in and does not confirm", self.conns.own.addr());
            self.promise_over(&name, promise.conn);
        }
    }

    /// There will be no connection by a promise: what waits for it calls.
    fn promise_over(&mut self, name: &Addr, conn: Conn) {
        self.conns.agreed.ended(name, conn);
        let Some(peer) = self.conns.peers.find(name) else { return };
        let at = &mut self.conns.peers[peer];
        if at.call.as_ref().is_some_and(|call| matches!(call.stage, Stage::Waiting)) {
            at.call = None;
            self.meeting.set_met();
        }
    }

    /// Has the kernel find out whether the other end of a connection is there: what it sends is acknowledged,
    /// answered by a reset, or not answered for so long that the connection has ended.
    fn probe(&mut self, peer: PeerId) {
        let Some(channel) = &mut self.conns.peers[peer].channel else { return };
        let was_blocked = channel.is_blocked();
        channel.probe();
        self.conns.watch_room(peer, was_blocked);
        self.conns.tick_as_needed();
    }
}
