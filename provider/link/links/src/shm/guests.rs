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
use crate::shm::meet::lack::{self, Lack};
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
                || self.listening.guests().has_any_spoken()
            {
                return true;
            }
            let sock = match self.listening.accept() {
                Ok(sock) => sock,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                // The kernel looks for a descriptor before it looks for a connection. One that came since is
                // for the next call.
                Err(e) if e.kind() == ErrorKind::WouldBlock || !self.listening.has_caller() => {
                    self.shortage.end();
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
                    self.greet(Guest { sock, pid: cred.pid, said: None }, None);
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
        let what = format_args!("cannot accept a peer yet");
        lack::log(&mut self.shortage, self.own.addr(), what, e, self.options.ring);
        self.shortage.of_caller(e)
    }

    /// Refuses the connections that wait, for want of descriptors: without an answer they would wait for
    /// ever.
    fn turn_away(&mut self) {
        let callers = self.shortage.end();
        let waited = callers.map_or(Duration::ZERO, |callers| callers.since.elapsed());
        let lack = Lack(waited, callers.map(|callers| callers.errno), self.options.ring);
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
        let all: Vec<usize> = self.listening.guests().iter().map(|(at, _)| at).collect();
        for at in all {
            let Some((waits, kept)) = self.listening.guests().waits(at) else { continue };
            let late = waits >= if kept { self.options.patience } else { self.options.patience.max(GRACE) };
            if !kept && !late {
                continue;
            }
            if let Some(guest) = self.listening.guests_mut().lend(at) {
                self.greet(guest, Some(at));
            }
            if late {
                self.dismiss(at, waits);
            }
        }
        // No descriptor is readable when there is memory.
        if self.listening.guests().iter().any(|(_, guest)| guest.said.is_some()) {
            self.sleep.retry();
        }
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

    /// Ends a connection that has been here for too long.
    fn dismiss(&mut self, at: usize, waited: Duration) {
        let kept = self.listening.guests().waits(at).is_some_and(|(_, kept)| kept);
        let Some(guest) = self.listening.guests_mut().take(at) else { return };
        if !kept {
            return self.dismiss_silent(&guest);
        }
        self.sleep.unwatch(&guest.sock);
        let errno = self.shortage.callers().map(|callers| callers.errno);
        let lack = Lack(waited, errno, self.options.ring);
        log::warn!("{}: refused a peer (pid {}): {lack}", self.own.addr(), guest.pid);
        socket::notify(&guest.sock, &Packet::Exhausted.encode());
    }

    fn dismiss_silent(&self, guest: &Guest) {
        self.sleep.unwatch(&guest.sock);
        log::debug!("{}: pid {} connected and says nothing", self.own.addr(), guest.pid);
    }

    /// Reads a guest's hello; `slot`: its place among the guests, which has lent it.
    pub(super) fn greet(&mut self, mut guest: Guest, slot: Option<usize>) {
        let said = guest.said.take().map_or_else(|| self.receive_hello(&guest.sock), Ok);
        let (bytes, fd) = match said {
            Err(e) if e.kind() == ErrorKind::WouldBlock => return self.keep_guest(guest, slot, false),
            Err(e) if socket::is_lack(&e) => {
                self.lack(&e);
                return self.keep_guest(guest, slot, true);
            }
            Ok(said) => said,
            Err(_) => (Vec::new(), None),
        };
        let answer = if bytes.is_empty() { None } else { Some(self.admit(&bytes, fd.as_ref())) };
        if let Some(Err(Declined::Lack(e))) = &answer {
            self.lack(e);
            guest.said = Some((bytes, fd));
            return self.keep_guest(guest, slot, true);
        }
        if let Some(at) = slot {
            self.sleep.unwatch(&guest.sock);
            self.listening.guests_mut().take(at);
        }
        let Guest { sock, pid, .. } = guest;
        match answer {
            None => {}
            Some(Ok((hello, segment))) => {
                self.shortage.end();
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

    /// Keeps a guest until its hello comes, or, if it has `spoken`, until there is what it takes.
    fn keep_guest(&mut self, guest: Guest, slot: Option<usize>, spoken: bool) {
        let at = match slot {
            Some(at) => {
                self.listening.guests_mut().give_back(at, guest);
                at
            }
            None => {
                if let Some(oldest) = self.listening.guests_mut().give_way(&()) {
                    self.dismiss_silent(&oldest);
                }
                let at = self.listening.guests_mut().add((), guest);
                let guest = self.listening.guests().get(at);
                if guest.is_some_and(|guest| self.sleep.watch(&guest.sock, GUEST | at as u64).is_err()) {
                    self.listening.guests_mut().take(at);
                    return;
                }
                at
            }
        };
        if spoken {
            self.listening.guests_mut().has_spoken(at);
        }
    }
}
