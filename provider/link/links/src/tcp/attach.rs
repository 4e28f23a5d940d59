//! How rails come to be and go: where they are made to, which connection they belong to, what they are
//! watched for.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use ipc::{Unshared, Watch};
use link_api::PeerId;
use wire::Addr;
use wire::session::{Caller, Hello, Keys, Next, Proven, RailNote, Role, Verdict};

use crate::net;
use crate::tcp::channel::connection::Channel;
use crate::tcp::channel::rails::{Rail, State};
use crate::tcp::connections::Connections;
use crate::tcp::meet::agreement::Conn;
use crate::tcp::meet::handshake::{Call, Stage, say};
use crate::tcp::meet::sensible;
use crate::tcp::sock;
use crate::tcp::watched::token;

impl Connections {
    /// A connection that was agreed on, with the rails that it may have.
    pub(super) fn new_channel(&self, fd: Unshared, keys: Keys, peer: &Hello, conn: Conn) -> Box<Channel> {
        let mut channel = Box::new(Channel::new(fd, keys, (peer, conn), self.receiving.is_early()));
        if self.options.rails > 1 {
            channel.allow_rails(peer.role == Role::Answerer, self.options.rails - 1, self.options.striped);
        }
        channel
    }

    /// Sends a peer that has called the addresses for rails.
    pub(super) fn offer_rails(&mut self, peer: PeerId) {
        let Some(channel) = &mut self.peers[peer].channel else { return };
        let Some(rails) = channel.rails_mut() else { return };
        self.railed.add(peer);
        if !rails.offer() {
            return;
        }
        let elsewhere = |at: &&SocketAddr| {
            let here = sock::local(channel.fd()).map(|here| here.ip().to_canonical());
            !self.options.rails_at.is_empty() || !here.is_some_and(|here| net::share_interface(here, at.ip()))
        };
        let all: Vec<Addr> = self.railed.addrs().iter().filter(elsewhere).map(|at| Addr::new(*at)).collect();
        if !all.is_empty() {
            let was_blocked = channel.is_blocked();
            channel.say(&RailNote::At(all));
            self.watch_room(peer, was_blocked);
        }
    }

    /// What notes have said is done.
    #[cold]
    pub(super) fn heed_notes(&mut self, peer: PeerId) {
        let Some(channel) = &mut self.peers[peer].channel else { return };
        let Some(rails) = channel.rails_mut() else { return };
        let (addrs, news) = rails.take_heard();
        if let Some(addrs) = addrs {
            self.call_rails(peer, &addrs);
        }
        if let Some(number) = news {
            self.log_rail(peer, number);
        }
        self.sync_rails(peer);
    }

    /// Makes rails to these addresses of a peer, each by an interface of its own.
    fn call_rails(&mut self, peer: PeerId, addrs: &[Addr]) {
        let Some(channel) = &self.peers[peer].channel else { return };
        let mut used: Vec<_> =
            sock::local(channel.fd()).into_iter().map(|at| at.ip().to_canonical()).collect();
        let by_interface = self.options.rails_at.is_empty();
        let Some((_, there)) = sock::ends(channel.fd()) else { return };
        let mut number = 1;
        for to in addrs {
            if let Some(why) = sensible::refuses(to.sock(), there, net::is_local) {
                log::warn!("{} -> {}: no rail to {to}: {why}", self.own.addr(), self.peers[peer].addr);
                continue;
            }
            if by_interface && net::is_local(to.ip()) {
                let name = self.peers[peer].addr;
                log::info!(
                    "{} -> {name}: no rail to {to}: that is an address of this host, too",
                    self.own.addr()
                );
                continue;
            }
            let rail = match self.call_rail(peer, number, to.sock()) {
                Ok(Some(rail)) => rail,
                Ok(None) => break,
                Err(e) => {
                    log::info!("{} -> {}: no rail to {to}: {e}", self.own.addr(), self.peers[peer].addr);
                    continue;
                }
            };
            let here = rail.here().ip().to_canonical();
            if by_interface && used.iter().any(|other| net::share_interface(*other, here)) {
                let name = self.peers[peer].addr;
                log::info!(
                    "{} -> {name}: no rail to {to}: it would go by an interface that has one",
                    self.own.addr()
                );
                continue;
            }
            used.push(here);
            let Some(channel) = &mut self.peers[peer].channel else { return };
            let Some(place) = channel.rails_mut().and_then(|rails| rails.place(number)) else { return };
            if let Some(call) = rail.call() {
                let token = token::rail(peer, number);
                if call.fd().is_some_and(|fd| self.sleep.poller().add_for(fd, token, Watch::Write).is_err()) {
                    return;
                }
            }
            *place = Some(rail);
            number += 1;
        }
        self.watch_again();
        self.sync_rails(peer);
        self.tick_as_needed();
    }

    /// `None`: there is no place for one more.
    fn call_rail(&self, peer: PeerId, number: u8, to: SocketAddr) -> io::Result<Option<Rail<Channel>>> {
        let other = self.peers[peer].addr;
        let Some(channel) = &self.peers[peer].channel else { return Ok(None) };
        let most = channel.rails().map_or(0, |rails| rails.most());
        let Some(key) = channel.rails_key().filter(|_| usize::from(number) <= most) else { return Ok(None) };
        let caller = Caller::of_rail(key, number, self.own.hello(Role::Caller, other)?);
        let fd = sock::connect(to, None)?;
        sock::tune(&fd, self.options.timeout)?;
        let here = sock::local(&fd).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let until = Instant::now() + self.options.timeout;
        let stage = Stage::Connecting(fd);
        let call = Call { stage, caller, until, by_further: false, first: None, late: false };
        Ok(Some(Rail::new(State::Called(Box::new(call)), (here, to), Watch::Write)))
    }

    /// Something happened to a rail; whether it is one that is being made.
    pub(super) fn serve_rail(&mut self, peer: PeerId, number: u8, readable: bool, room: bool) -> bool {
        let name = self.peers[peer].addr;
        let Some(channel) = &mut self.peers[peer].channel else { return false };
        let current = channel.current();
        let Some(rail) = channel.rails_mut().and_then(|rails| rails.get_mut(number)) else { return false };
        let (watch, mut lost) = (rail.watch(), false);
        match rail.state_mut() {
            State::Called(_) => {
                self.hear_rail(peer, number);
                return true;
            }
            State::Attached(there) => {
                if room && there.is_blocked() {
                    there.flush();
                }
                if readable && current != number && matches!(watch, Some(Watch::Ends | Watch::Write)) {
                    // Nothing but an end is watched for.
                    lost = there.keeps();
                    rail.set_ended();
                    log::warn!(
                        "{} -> {name}: rail {number} ({} to {}) has ended: nothing more is sent on it",
                        self.own.addr(),
                        rail.here(),
                        rail.there()
                    );
                }
            }
        }
        // The frames behind those that it kept are not to be delivered.
        if lost {
            channel.set_last();
        }
        self.sync_rails(peer);
        self.serve_channel(peer, readable && current == number, false);
        // Room for a frame that found none.
        if room {
            self.note_ready(peer);
        }
        false
    }

    /// Whether it is a rail's turn, so that the connection itself is not watched for what comes.
    pub(super) fn is_rail_current(&self, peer: PeerId) -> bool {
        self.peers[peer].channel.as_ref().is_some_and(|channel| channel.current() != 0)
    }

    /// Something happened to the connection itself while it is a rail's turn.
    #[cold]
    pub(super) fn serve_beside_rail(&mut self, peer: PeerId, readable: bool, room: bool) {
        self.serve_channel(peer, false, room);
        let Some(channel) = &mut self.peers[peer].channel else { return };
        let watch = channel.rails().map(|rails| rails.watch());
        if readable && matches!(watch, Some(Watch::Ends | Watch::Write)) {
            // It has ended, and what is on the rail counts only as far as it is there.
            channel.set_last();
            self.sleep.poller().remove(channel.fd());
            self.note_ready(peer);
        }
        self.sync_rails(peer);
    }

    /// Reads the answer to the call of a rail.
    fn hear_rail(&mut self, peer: PeerId, number: u8) {
        let early = self.receiving.is_early();
        let Some(channel) = &mut self.peers[peer].channel else { return };
        let conn = channel.conn();
        let Some(rail) = channel.rails_mut().and_then(|rails| rails.get_mut(number)) else { return };
        let State::Called(call) = rail.state_mut() else { return };
        if let Stage::Connecting(_) = call.stage {
            let done = call.connected();
            if let (Ok(()), Some(fd)) = (&done, call.fd()) {
                let _ = self.sleep.poller().change(fd, token::rail(peer, number), Watch::Read);
            }
            return match done {
                Ok(()) => {}
                Err(e) => self.drop_rail(peer, number, &e.to_string()),
            };
        }
        let message = match call.heard() {
            None => return,
            Some(Ok(message)) => message,
            Some(Err(e)) => return self.drop_rail(peer, number, &e.to_string()),
        };
        match call.caller.hear(&message) {
            Ok(Next::Say(bytes)) => {
                if let Some(Err(e)) = call.fd().map(|fd| say(fd, &bytes)) {
                    self.drop_rail(peer, number, &e.to_string());
                }
            }
            Ok(Next::Connected(hello, keys)) => {
                let Stage::Talking(fd, _) = std::mem::replace(&mut call.stage, Stage::Waiting) else {
                    return;
                };
                rail.attach(Channel::new(fd, keys, (&hello, conn), early));
                channel.set_up(number);
                self.log_rail(peer, number);
                self.sync_rails(peer);
            }
            Ok(Next::Declined(_, verdict)) => self.drop_rail(peer, number, &format!("{verdict:?}")),
            Err(_) => self.drop_rail(peer, number, "what answers there is not that peer"),
        }
    }

    /// The call of a rail has come to nothing.
    fn drop_rail(&mut self, peer: PeerId, number: u8, why: &str) {
        let name = self.peers[peer].addr;
        let Some(channel) = &mut self.peers[peer].channel else { return };
        let Some(place) = channel.rails_mut().and_then(|rails| rails.place(number)) else { return };
        let Some(rail) = place.take() else { return };
        let there = rail.there();
        if let Some(call) = rail.into_call() {
            log::info!("{} -> {name}: no rail to {there}: {why}", self.own.addr());
            if let Some(fd) = call.fd() {
                self.sleep.poller().remove(fd);
            }
        }
    }

    /// Calls of rails that take too long.
    pub(super) fn check_rails(&mut self, now: Instant) {
        for peer in self.railed.peers().to_vec() {
            for number in 1..self.options.rails as u8 {
                let channel = self.peers[peer].channel.as_mut();
                let rail = channel.and_then(|channel| channel.rails_mut()?.get_mut(number));
                if rail.and_then(|rail| rail.call()).is_some_and(|call| call.until <= now) {
                    self.drop_rail(peer, number, "it did not answer in time");
                }
            }
        }
    }

    /// Whether a rail is being made.
    pub(super) fn calls_rails(&self) -> bool {
        let called = |peer: &PeerId| {
            let rails = self.peers[*peer].channel.as_ref().and_then(|channel| channel.rails());
            rails.is_some_and(|rails| rails.iter().any(|rail| rail.call().is_some()))
        };
        self.railed.peers().iter().any(called)
    }

    /// Adds a rail to the connection that its caller has shown it to be of.
    pub(super) fn attach(&mut self, fd: Unshared, proven: &Proven, number: u8, surplus: bool) {
        let caller = &proven.peer;
        let peer = self.peers.find(&caller.name);
        let is_of = self.peers.rail_key(caller).is_some_and(|key| proven.is_of(&key));
        let verdict = match (is_of, surplus) {
            (true, false) => Verdict::Accepted,
            (true, true) => Verdict::Full,
            (false, _) => Verdict::Known,
        };
        log::debug!("{}: called by {} for rail {number}: {verdict:?}", self.own.addr(), caller.name);
        let (Some(ends), Some(peer)) = (sock::ends(&fd), peer) else { return };
        if say(&fd, &proven.verdict(verdict)).is_err() || verdict != Verdict::Accepted {
            return;
        }
        if self.sleep.poller().add_for(&fd, token::rail(peer, number), Watch::Ends).is_err() {
            return;
        }
        let Some(channel) = &mut self.peers[peer].channel else { return };
        let rail = Channel::new(fd, proven.keys(), (caller, channel.conn()), self.receiving.is_early());
        if let Some(place) = channel.rails_mut().and_then(|rails| rails.place(number)) {
            *place = Some(Rail::new(State::Attached(Box::new(rail)), ends, Watch::Ends));
        }
        self.watch_again();
        self.sync_rails(peer);
    }

    fn log_rail(&self, peer: PeerId, number: u8) {
        let at = &self.peers[peer];
        let rails = at.channel.as_ref().and_then(|channel| channel.rails());
        let Some(rail) = rails.and_then(|rails| rails.get(usize::from(number))) else {
            return;
        };
        log::info!(
            "{} -> {}: tcp has rail {number}, {} to {}",
            self.own.addr(),
            at.addr,
            rail.here(),
            rail.there()
        );
    }

    /// Watches the connection whose turn it is for what comes, and all that lack room for that.
    pub(super) fn sync_rails(&mut self, peer: PeerId) {
        let Some(channel) = &mut self.peers[peer].channel else { return };
        channel.sync_rails(self.sleep.poller(), peer, self.looks.is_unwatched(peer));
        if channel.current() != 0 && self.ticks.are_off() {
            self.tick_as_needed();
        }
    }
}
