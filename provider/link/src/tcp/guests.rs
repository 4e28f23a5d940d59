//! Connections that others make.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ipc::Unshared;
use wire::Addr;
use wire::session::{Answerer, Hello, Proven, Role, Verdict};

use super::handshake::{Guest, Visit, say};
use super::link::TcpLink;
use super::names::Claim;
use super::sock;
use super::table;
use super::watched::token;

/// Most connections taken in one go. TCP_DEFER_ACCEPT (tcp(7)) would keep those that are silent in the
/// kernel, in a queue that is short: once it is full, callers come by SYN cookies, or not at all where the
/// host has these off.
const BATCH: usize = 64;
/// For how long it is said that callers wait for a descriptor.
const LACKING: Duration = Duration::from_secs(1);

impl TcpLink {
    /// Takes in connections that were made to this endpoint.
    pub(super) fn accept(&mut self) {
        self.keep_spare();
        for _ in 0..BATCH {
            let surplus = self.spare.is_none();
            let fd = match self.accept_one() {
                Ok(fd) => fd,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                // What a connection holds that has said nothing is there for others.
                Err(e) if ipc::socket::is_lack(&e) && self.dismiss_silent() => continue,
                // One caller at a time is told so.
                Err(e) if ipc::socket::is_lack(&e) && self.spare.take().is_some() => {
                    self.lacks_for_callers(&e);
                    continue;
                }
                Err(e) if ipc::socket::is_lack(&e) => {
                    self.lacks_for_callers(&e);
                    if !std::mem::replace(&mut self.warned, true) {
                        log::warn!("{}: a connection cannot be taken in: {e}; raise ulimit -n", self.addr);
                    }
                    return self.set_listening(false);
                }
                // Of that one connection.
                Err(_) => continue,
            };
            table::make_room(&fd);
            self.receive_guest(fd, surplus);
            self.keep_spare();
        }
    }

    fn lacks_for_callers(&mut self, e: &std::io::Error) {
        self.lacks.1 = e.raw_os_error().map(|no| (no, Instant::now()));
    }

    /// What peers wait for here. Those that were turned away call again.
    pub(super) fn lacks_now(&self) -> Option<std::io::Error> {
        let waits = |(no, since): (i32, Instant)| {
            (since.elapsed() < LACKING && self.listener.try_clone().is_err()).then_some(no)
        };
        self.lacks.0.or_else(|| self.lacks.1.and_then(waits)).map(std::io::Error::from_raw_os_error)
    }

    /// The next one, of either listener.
    fn accept_one(&self) -> std::io::Result<Unshared> {
        // A fork by another thread finds it with the others.
        let accept = |listener: &Unshared| Unshared::make(|| ipc::socket::accept(listener));
        let mut found = accept(&self.listener);
        for further in &self.further {
            match found {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => found = accept(further),
                found => return found,
            }
        }
        found
    }

    /// Has a descriptor to give up, if there are any.
    pub(super) fn keep_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = self.listener.try_clone().ok();
        }
    }

    /// Connections that have not shown yet that they have the key, for diagnosis.
    pub fn guests(&self) -> usize {
        self.guests.len()
    }

    fn dismiss_silent(&mut self) -> bool {
        let silent = self.guests.give_silent();
        silent.map(|guest| self.dismiss(guest)).is_some()
    }

    /// Ends a connection in whose place another one comes. A caller that has the key calls again.
    fn dismiss(&mut self, guest: Guest) {
        log::debug!("{}: a connection that was made to it makes room for another one", self.addr);
        self.poller.remove(&guest.fd);
        sock::abort(&guest.fd);
    }

    /// Watches the listener, or leaves new connections with the kernel for now.
    pub(super) fn set_listening(&mut self, on: bool) {
        if self.listens == on {
            return;
        }
        self.listens = {
            let further = self.further.iter().map(|fd| (fd, token::FURTHER));
            let all = [(&self.listener, token::LISTENER)].into_iter().chain(further);
            let added = on && all.clone().all(|(fd, token)| self.poller.add(fd, token).is_ok());
            if !added {
                all.for_each(|(fd, _)| self.poller.remove(fd));
            }
            added
        };
        self.set_timer();
    }

    fn receive_guest(&mut self, fd: Unshared, surplus: bool) {
        let own = match self.hello(Role::Answerer, self.addr) {
            Ok(own) => own,
            Err(e) => return log::warn!("{}: a connection cannot be taken in: {e}", self.addr),
        };
        let origin = sock::origin(&fd);
        if let Some(guest) = self.guests.give_way(&origin) {
            self.dismiss(guest);
        }
        let at = self.guests.add(origin, Guest::new(fd, Answerer::new(&self.options.key, own), surplus));
        let watched = self.guests.get_mut(at).map(|guest| self.poller.add(&guest.fd, token::guest(at)));
        if let Some(Err(e)) = watched {
            log::warn!("{}: a connection cannot be taken in: {e}", self.addr);
            return drop(self.guests.take(at));
        }
        self.set_timer();
        // What it says is there already, as a rule.
        self.serve_guest(at);
    }

    /// Reads what a caller that is not known yet has sent.
    pub(super) fn serve_guest(&mut self, at: usize) {
        let Some(guest) = self.guests.get_mut(at) else { return };
        let (peers, ids) = (&self.peers, &self.ids);
        let rail = |hello: &Hello| TcpLink::rail_of(peers, ids.get(&hello.name).copied(), hello);
        match guest.hear(rail) {
            Visit::Goes => {
                self.met = true;
                if guest.is_answered() {
                    self.guests.has_spoken(at);
                }
            }
            Visit::Over(why) => self.send_away(at, &why),
            Visit::Proven(proven) => {
                if let Some(guest) = self.guests.take(at) {
                    self.poller.remove(&guest.fd);
                    // What it takes to find out which user it is of.
                    self.spare = None;
                    self.decide(guest.fd, proven, guest.surplus);
                    self.keep_spare();
                }
            }
        }
    }

    pub(super) fn send_away(&mut self, at: usize, why: &str) {
        if let Some(guest) = self.guests.take(at) {
            log::info!("{}: a connection that was made to it is closed: {why}", self.addr);
            self.poller.remove(&guest.fd);
            drop(guest);
            self.keep_spare();
        }
    }

    /// Answers a caller that has the key.
    fn decide(&mut self, fd: Unshared, proven: Box<Proven>, surplus: bool) {
        let caller = proven.peer;
        if let Role::Rail(number) = caller.role {
            return self.attach(fd, &proven, number, surplus);
        }
        let verdict = if !self.is_called(&caller.other, &fd) {
            log::warn!(
                "{}: {} means to call {}, which is no name of this endpoint",
                self.addr,
                caller.name,
                caller.other
            );
            Verdict::Other
        } else if surplus {
            Verdict::Full
        } else if caller.name == self.addr {
            Verdict::Known
        } else {
            match self.names.claim(&caller.name, self.known_by(&caller.name), &fd) {
                Claim::Granted => return self.answer(fd, proven),
                Claim::CallBack => self.call_back(&caller.name),
                Claim::Unknown => {
                    let (own, level) = (self.addr, self.names.level());
                    log::log!(
                        level,
                        "{own}: {} calls from an address that is not its own, and is to call again until it is known here",
                        caller.name
                    );
                    Verdict::Busy
                }
                Claim::Later(errno) => {
                    self.lacks_for_callers(&std::io::Error::from_raw_os_error(errno));
                    Verdict::Full
                }
                Claim::Refused(why) => {
                    let (own, level) = (self.addr, self.names.level());
                    log::log!(level, "{own}: refused a caller under the name {}: {why}", caller.name);
                    Verdict::Denied
                }
            }
        };
        log::debug!("{}: called by {}: {verdict:?}", self.addr, caller.name);
        // One that has ended meanwhile misses nothing.
        let _ = say(&fd, &proven.verdict(verdict));
    }

    /// Whether an endpoint that calls by this name means this one: by its own name, or the address that the
    /// connection came to.
    fn is_called(&self, name: &Addr, fd: &Unshared) -> bool {
        let here = |local: SocketAddr| (local.ip().to_canonical(), local.port()) == (name.ip(), name.port());
        *name == self.addr || sock::local(fd).is_some_and(here)
    }

    /// Guests that take too long.
    pub(super) fn check_guests(&mut self, now: Instant) {
        let most = self.options.guest_timeout;
        let late = |guest: &Guest| now.saturating_duration_since(guest.since) >= most;
        let all: Vec<usize> = self.guests.iter().filter(|(_, guest)| late(guest)).map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.send_away(at, "it took too long"));
    }
}
