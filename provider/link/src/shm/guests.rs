//! Connections that peers make: their hellos, as far as there are descriptors and memory for them.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ipc::credentials::{Cred, UNMAPPED, User};
use ipc::memfd::Unfit;
use ipc::socket;
use wire::channel::{Hello, Packet};

use crate::shm::channel::ring::Consumer;
use crate::shm::channel::segment::Segment;
use crate::shm::link::ShmLink;
use crate::shm::meet::contests::Contested;
use crate::shm::meet::guest::{GRACE, Guest};
use crate::shm::meet::token::GUEST;
use crate::shm::peer::Inbound;
use crate::space;

/// Most connections taken at a time.
const BATCH: usize = 64;
/// Most hellos taken in at a time: each maps memory, and those that are here already wait meanwhile.
const HELLOS: usize = 4;

/// Why a hello was not taken.
pub(super) enum Declined {
    Wrong(String),
    /// Not now.
    Lack(io::Error),
}

impl From<Unfit> for Declined {
    fn from(why: Unfit) -> Declined {
        match why {
            Unfit::NoRoom(e) => Declined::Lack(e),
            why => Declined::Wrong(why.to_string()),
        }
    }
}

impl ShmLink {
    /// Accepts connections; whether there may be more of them.
    pub(super) fn accept(&mut self) -> bool {
        self.listening.note_ends(!self.ends.is_empty());
        let mut hellos = 0;
        for _ in 0..BATCH {
            // A guest that waits for descriptors is the first to have some.
            if hellos == HELLOS
                || self.listening.has_many_successors()
                || self.listening.guests().iter().any(|g| g.kept)
            {
                return true;
            }
            let sock = match self.listening.accept() {
                Ok(sock) => sock,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                // The kernel looks for a descriptor before it looks for a connection. One that came since is
                // for the next call.
                Err(e) if e.kind() == ErrorKind::WouldBlock || !self.listening.has_caller() => {
                    self.shortage.is_over();
                    return false;
                }
                Err(e) => {
                    if self.lack(&e) >= self.options.patience {
                        self.turn_away();
                    }
                    return true;
                }
            };
            let Ok(cred) = Cred::of(&sock) else { continue };
            match cred.user(&sock) {
                User::Ours => {
                    hellos += 1;
                    self.greet(Guest::new(sock, cred.pid), None);
                }
                user => self.refuse_user("refused a peer of", cred, user),
            }
        }
        true
    }

    /// Says once that a peer is not of our user.
    pub(super) fn refuse_user(&mut self, what: &str, cred: Cred, user: User) {
        let level = if self.admission.warns() { log::Level::Warn } else { log::Level::Debug };
        let why = if user == User::Unknown { UNMAPPED } else { "another user" };
        log::log!(level, "{}: {what} uid {} (pid {}): {why}", self.own.addr(), cred.uid, cred.pid);
    }

    /// A peer cannot be met for want of descriptors or memory; for how long that has been so.
    pub(super) fn lack(&mut self, e: &io::Error) -> Duration {
        self.shortage.of_caller(self.own.addr(), e, self.options.ring)
    }

    /// Refuses the connections that wait, for want of descriptors: without an answer they would wait for
    /// ever.
    fn turn_away(&mut self) {
        let lack = self.shortage.end(self.options.ring);
        self.listening.give_reserve();
        let mut n = 0;
        while let (Ok(sock), true) = (self.listening.accept(), n < BATCH) {
            socket::notify(&sock, &Packet::Exhausted.encode());
            n += 1;
        }
        log::warn!("{}: refused {n} peers: {lack}", self.own.addr());
    }

    /// Decides on guests and contested names for which the time has come.
    #[cold]
    pub(super) fn tend(&mut self) {
        for at in self.listening.guests().places() {
            let Some(guest) = self.listening.guests().get(at) else { continue };
            let waits = guest.waits();
            let late =
                waits >= if guest.kept { self.options.patience } else { self.options.patience.max(GRACE) };
            if !guest.kept && !late {
                continue;
            }
            if let Some(guest) = self.listening.guests_mut().take(at) {
                self.greet(guest, Some(at as u32));
            }
            if late {
                if let Some(guest) = self.listening.guests_mut().take(at) {
                    self.dismiss(guest, waits);
                }
            }
        }
        // No descriptor is readable when there is memory.
        if self.listening.guests().iter().any(|g| g.said.is_some()) {
            self.sleep.retry();
        }
        self.listening.guests_mut().trim();
        for c in self.contests.take_due() {
            self.decide(c);
        }
        self.contests.set_timer(self.sleep.poller());
    }

    fn decide(&mut self, c: Contested) {
        let id = c.id;
        if let Some(inb) = self.contests.decide(&self.own, &self.peers[id], c) {
            self.welcome(id, inb);
        }
        self.contests.set_timer(self.sleep.poller());
    }

    fn dismiss(&mut self, guest: Guest, waited: Duration) {
        self.sleep.unwatch(&guest.sock);
        if guest.kept {
            let lack = self.shortage.of_callers(waited, self.options.ring);
            log::warn!("{}: refused a peer (pid {}): {lack}", self.own.addr(), guest.pid);
            socket::notify(&guest.sock, &Packet::Exhausted.encode());
        } else {
            log::debug!("{}: pid {} connected and says nothing", self.own.addr(), guest.pid);
        }
    }

    /// Reads a guest's hello; `slot` says where among the guests it was.
    pub(super) fn greet(&mut self, mut guest: Guest, slot: Option<u32>) {
        let said = guest.said.take().map_or_else(|| self.receive_hello(&guest.sock), Ok);
        let (bytes, fd) = match said {
            Err(e) if e.kind() == ErrorKind::WouldBlock => return self.keep_guest(guest, slot),
            Err(e) if socket::is_lack(&e) => {
                self.lack(&e);
                guest.kept = true;
                return self.keep_guest(guest, slot);
            }
            Ok(said) => said,
            Err(_) => (Vec::new(), None),
        };
        let answer = if bytes.is_empty() { None } else { Some(self.admit(&bytes, fd.as_ref())) };
        if let Some(Err(Declined::Lack(e))) = &answer {
            self.lack(e);
            guest.kept = true;
            guest.said = Some((bytes, fd));
            return self.keep_guest(guest, slot);
        }
        if slot.is_some() {
            self.sleep.unwatch(&guest.sock);
        }
        let Guest { sock, pid, .. } = guest;
        match answer {
            None => {}
            Some(Ok((hello, segment))) => {
                self.shortage.is_over();
                let mut inb = Inbound {
                    end: 0,
                    rx: Consumer::new(segment),
                    sock,
                    pid,
                    space: space::checked(hello.space, pid),
                    incarnation: hello.incarnation,
                    broken: false,
                    cooled_at: 0,
                };
                inb.ends();
                let id = self.peers.caller(&hello);
                self.decide(Contested::new(id, inb));
            }
            Some(Err(Declined::Wrong(why))) => {
                log::warn!("{}: refused a peer (pid {pid}): {why}", self.own.addr());
                socket::notify(&sock, &Packet::Refused.encode());
            }
            Some(Err(Declined::Lack(_))) => {}
        }
    }

    fn receive_hello(&mut self, sock: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = [0; Hello::LEN + 1];
        let (n, fd) = self.listening.recv_fd(sock, &mut bytes)?;
        Ok((bytes[..n].to_vec(), fd))
    }

    pub(super) fn admit(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(Hello, Segment), Declined> {
        let wrong = |why: String| Err(Declined::Wrong(why));
        let Some(hello) = Hello::decode(bytes) else { return wrong("it does not speak our language".into()) };
        let ours = self.options.version;
        if hello.version != ours {
            return wrong(format!("{} speaks version {}, not {ours}", hello.from, hello.version));
        }
        let Some(fd) = fd else { return wrong("it sent no segment".into()) };
        if !self.own.is_called(&hello.to) {
            return wrong(format!("{} takes us for {}", hello.from, hello.to));
        }
        let refusal = self.admission.refusal(&self.own.addr(), &hello.from, self.peers.find(&hello.from));
        if let Some(why) = refusal.filter(|_| hello.from != self.own.addr()) {
            return wrong(format!("it calls itself {}: {why}", hello.from));
        }
        Ok((hello, Segment::adopt(fd.as_fd(), hello.ring as usize)?))
    }

    /// Keeps a guest until its hello comes, or there is what it takes.
    fn keep_guest(&mut self, guest: Guest, slot: Option<u32>) {
        let at = match slot {
            Some(at) => at as usize,
            None => {
                if let Some(oldest) = self.listening.guests_mut().take_surplus() {
                    self.dismiss(oldest, Duration::ZERO);
                }
                let at = self.listening.guests_mut().free_place();
                if self.sleep.watch(&guest.sock, GUEST | at as u64).is_err() {
                    return;
                }
                at
            }
        };
        self.listening.guests_mut().put(at, guest);
    }
}
