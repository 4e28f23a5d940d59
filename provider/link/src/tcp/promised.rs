//! Callers that were accepted: until they confirm, their connections are not used.

use std::time::Instant;

use ipc::Unshared;
use link_api::PeerId;
use wire::Addr;
use wire::session::{MAC, Proven, Verdict};

use super::agreement::{Answer, CROSSING, Conn};
use super::handshake::{Message, Stage, say};
use super::link::TcpLink;
use super::peer::Peer;
use super::promises::Promise;
use super::sock;
use super::watched::token;

/// Whether a connection that stands is known to have ended. One that follows another, whose end was not told
/// yet, is not replaced before.
fn has_ended(at: &Peer, conn: Conn) -> bool {
    match &at.channel {
        Some(channel) if channel.conn() == conn => channel.ends() || sock::is_finished(channel.fd()),
        _ => at.next.as_ref().is_none_or(|next| next.conn() != conn),
    }
}

/// Whether a caller that was let in has had more than the time in which it confirms.
fn is_late(since: Instant) -> bool {
    since.elapsed() >= CROSSING
}

impl TcpLink {
    /// Answers a caller that has the key, and may have the name.
    pub(super) fn answer(&mut self, fd: Unshared, proven: Box<Proven>) {
        let caller = proven.peer;
        // What a caller before this one has said is there, as a rule, if it has.
        if let Some(at) = self.promises.find(|promise| promise.proven.peer.name == caller.name) {
            self.serve_promise(at);
            // One that says to be this peer and does not go on keeps no other out.
            if self.promises.get(at).is_some_and(|p| p.proven.peer.name == caller.name && is_late(p.since)) {
                self.give_up_promise(at);
            }
        }
        if self.promises.len() >= self.options.guests && !self.make_room_for_promise() {
            let _ = say(&fd, &proven.verdict(Verdict::Full));
            return;
        }
        let (conn, now) = (self.promises.number(), Instant::now());
        let peer = self.ids.get(&caller.name).copied();
        let at = peer.map(|peer| &self.peers[peer.0 as usize]);
        let answer = self.agreed.called(&caller, conn, |conn| at.is_none_or(|at| has_ended(at, conn)), now);
        log::debug!("{}: called by {}: {:?}", self.addr, caller.name, answer.verdict());
        let said = say(&fd, &proven.verdict(answer.verdict()));
        match (answer, peer) {
            (Answer::Promised, peer) => {
                if let Some(peer) = peer {
                    self.wait_for_call_of(peer);
                }
                self.met = true;
                match said {
                    Ok(()) => {
                        self.promise(Promise { fd, proven, conn, since: now, message: Message::default() })
                    }
                    Err(_) => self.promise_over(&caller.name, conn),
                }
            }
            (Answer::Probe, Some(peer)) => self.probe(peer),
            _ => {}
        }
    }

    fn promise(&mut self, promise: Promise) {
        let at = self.promises.find_free();
        if let Err(e) = self.poller.add(&promise.fd, token::promise(at)) {
            log::warn!("{}: a connection cannot be watched: {e}", self.addr);
            return self.promise_over(&promise.proven.peer.name, promise.conn);
        }
        self.promises.put(at, promise);
    }

    /// A caller that was accepted says something, or has ended.
    pub(super) fn serve_promise(&mut self, at: usize) {
        let Some(promise) = self.promises.get(at) else { return };
        let is_confirmed = match promise.message.receive(&promise.fd, MAC) {
            Ok(false) => return,
            Ok(true) => promise.proven.is_confirmation(promise.message.bytes()),
            Err(_) => false,
        };
        let Some(Promise { fd, proven, conn, .. }) = self.take_promise(at) else { return };
        let caller = proven.peer;
        if !is_confirmed || !self.agreed.confirmed(&caller, conn) {
            log::debug!("{}: {} has given up its call", self.addr, caller.name);
            return self.promise_over(&caller.name, conn);
        }
        let peer = self.id_of(&caller.name);
        self.drop_call(peer);
        let channel = self.new_channel(fd, proven.keys(), &caller, conn);
        self.adopt(peer, channel);
        self.met = true;
        // What the caller has sent behind its confirmation is there, as a rule.
        self.serve_channel(peer, true, false);
    }

    /// Ends the promise that waits longest, if that is long. An honest caller of it sees the end before it
    /// uses the connection, and calls again.
    fn make_room_for_promise(&mut self) -> bool {
        let Some((at, _)) = self.promises.oldest().filter(|(_, since)| is_late(*since)) else { return false };
        self.end_promise(at);
        true
    }

    /// Promises whose callers have not gone on for as long as a host may not answer.
    pub(super) fn check_promises(&mut self, now: Instant) {
        while let Some((at, since)) = self.promises.oldest() {
            if now.saturating_duration_since(since) < self.options.timeout {
                return;
            }
            self.end_promise(at);
        }
    }

    /// A promise ends, kept or not: the confirmation may be there.
    fn end_promise(&mut self, at: usize) {
        let conn = self.promises.get(at).map(|promise| promise.conn);
        self.serve_promise(at);
        if self.promises.get(at).map(|promise| promise.conn) == conn {
            self.give_up_promise(at);
        }
    }

    fn give_up_promise(&mut self, at: usize) {
        if let Some(promise) = self.take_promise(at) {
            let name = promise.proven.peer.name;
            log::info!("{}: {name} was let in and does not confirm", self.addr);
            self.promise_over(&name, promise.conn);
        }
    }

    fn take_promise(&mut self, at: usize) -> Option<Promise> {
        let promise = self.promises.take(at)?;
        self.poller.remove(&promise.fd);
        Some(promise)
    }

    /// This side's own call was accepted instead.
    pub(super) fn drop_promise(&mut self, conn: Conn) {
        if let Some(at) = self.promises.find(|promise| promise.conn == conn) {
            self.take_promise(at);
        }
    }

    /// There will be no connection by a promise: what waits for it calls.
    fn promise_over(&mut self, name: &Addr, conn: Conn) {
        self.agreed.ended(name, conn);
        let Some(&peer) = self.ids.get(name) else { return };
        let at = self.at_mut(peer);
        if at.call.as_ref().is_some_and(|call| matches!(call.stage, Stage::Waiting)) {
            at.call = None;
            self.met = true;
        }
    }

    /// Has the kernel find out whether the other end of a connection is there: what it sends is acknowledged,
    /// answered by a reset, or not answered for so long that the connection has ended.
    fn probe(&mut self, peer: PeerId) {
        let Some(channel) = &mut self.peers[peer.0 as usize].channel else { return };
        let was_blocked = channel.is_blocked();
        channel.probe();
        self.watch_room(peer, was_blocked);
        self.set_timer();
    }
}
