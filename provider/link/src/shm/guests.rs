//! Connections that peers make: their hellos, as far as there are descriptors and memory for them.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::credentials::{Cred, UNMAPPED, User};
use ipc::memfd::Unfit;
use ipc::socket;
use wire::channel::{Hello, Packet};

use super::guest::Guest;
use super::lack::{Cure, Lack};
use super::link::ShmLink;
use super::peer::Inbound;
use super::ring::Consumer;
use super::segment::Segment;
use super::token::GUEST;
use crate::space;

/// Most connections taken at a time.
const BATCH: usize = 64;
/// Most hellos taken in at a time: each maps memory, and those that are here already wait meanwhile.
const HELLOS: usize = 4;
/// Most connections that are kept without a hello.
const GUESTS: usize = 64;
/// How long one is, at least.
pub(super) const GRACE: Duration = Duration::from_secs(3);

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

fn is_of_descriptors(no: i32) -> bool {
    matches!(no, libc::EMFILE | libc::ENFILE)
}

impl ShmLink {
    /// Accepts connections; whether there may be more of them.
    pub(super) fn accept(&mut self) -> bool {
        self.many_successors &= !self.dying.is_empty();
        let mut hellos = 0;
        for _ in 0..BATCH {
            // A guest that waits for descriptors is the first to have some.
            if hellos == HELLOS || self.many_successors || self.guests.iter().flatten().any(|g| g.kept) {
                return true;
            }
            let sock = match socket::accept(&self.listener) {
                Ok(sock) => sock,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                // The kernel looks for a descriptor before it looks for a connection. One that came since is for the next
                // call.
                Err(e) if e.kind() == ErrorKind::WouldBlock || !socket::has_caller(&self.listener) => {
                    self.lacks_nothing();
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
                    let since = Instant::now();
                    self.greet(Guest { sock, pid: cred.pid, since, kept: false, said: None }, None);
                }
                user => self.refuse_user("refused a peer of", cred, user),
            }
        }
        true
    }

    /// Says once that a peer is not of our user.
    pub(super) fn refuse_user(&mut self, what: &str, cred: Cred, user: User) {
        let level = if self.warned_uid { log::Level::Debug } else { log::Level::Warn };
        self.warned_uid = true;
        let why = if user == User::Unknown { UNMAPPED } else { "another user" };
        log::log!(level, "{}: {what} uid {} (pid {}): {why}", self.addr, cred.uid, cred.pid);
    }

    /// A peer cannot be met for want of descriptors or memory; for how long that has been so.
    pub(super) fn lack(&mut self, e: &io::Error) -> Duration {
        let level = if self.warned_fds { log::Level::Debug } else { log::Level::Warn };
        self.warned_fds = true;
        log::log!(level, "{}: cannot accept a peer yet: {e}; {}", self.addr, Cure(e, self.options.ring));
        self.lacks[0] = e.raw_os_error();
        self.lacking.get_or_insert_with(Instant::now).elapsed()
    }

    fn lacks_nothing(&mut self) {
        (self.lacking, self.lacks[0]) = (None, None);
    }

    /// What peers wait for here.
    pub(super) fn lacks_now(&self) -> Option<io::Error> {
        let [calls, called] = self.lacks;
        // One that calls takes what is there at once; for one that is called a socket and a segment are made, if not just now.
        let room =
            |n: usize| (0..n).map(|_| self.listener.try_clone()).collect::<Result<Vec<_>, _>>().is_ok();
        let lacks = |no: &i32, n: usize| !is_of_descriptors(*no) || !room(n);
        let (calls, called) = (calls.filter(|no| lacks(no, 1)), called.filter(|no| lacks(no, 2)));
        called.or(calls).map(io::Error::from_raw_os_error)
    }

    /// Refuses the connections that wait, for want of descriptors: without an answer they would wait for ever.
    fn turn_away(&mut self) {
        let since = self.lacking.take().map_or(Duration::ZERO, |since| since.elapsed());
        let lack = Lack(since, self.lacks[0].take(), self.options.ring);
        self.spare.give();
        let mut n = 0;
        while let (Ok(sock), true) = (socket::accept(&self.listener), n < BATCH) {
            socket::notify(&sock, &Packet::Exhausted.encode());
            n += 1;
        }
        log::warn!("{}: refused {n} peers: {lack}", self.addr);
    }

    /// Decides on guests and contested names for which the time has come.
    #[cold]
    pub(super) fn tend(&mut self) {
        for at in 0..self.guests.len() {
            let Some(guest) = &self.guests[at] else { continue };
            let waits = guest.since.elapsed();
            let late =
                waits >= if guest.kept { self.options.patience } else { self.options.patience.max(GRACE) };
            if !guest.kept && !late {
                continue;
            }
            if let Some(guest) = self.guests[at].take() {
                self.greet(guest, Some(at as u32));
            }
            if let Some(guest) = self.guests[at].take_if(|_| late) {
                self.dismiss(guest, waits);
            }
        }
        // No descriptor is readable when there is memory.
        self.connecting |= self.guests.iter().flatten().any(|g| g.said.is_some());
        let used = self.guests.iter().rposition(Option::is_some).map_or(0, |at| at + 1);
        self.guests.truncate(used);
        let now = Instant::now();
        for c in std::mem::take(&mut self.contested) {
            if c.next <= now {
                self.decide(c);
            } else {
                self.contested.push(c);
            }
        }
        self.time_contest();
    }

    fn dismiss(&mut self, guest: Guest, waited: Duration) {
        self.poller.remove(&guest.sock);
        if guest.kept {
            let lack = Lack(waited, self.lacks[0], self.options.ring);
            log::warn!("{}: refused a peer (pid {}): {lack}", self.addr, guest.pid);
            socket::notify(&guest.sock, &Packet::Exhausted.encode());
        } else {
            log::debug!("{}: pid {} connected and says nothing", self.addr, guest.pid);
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
            self.poller.remove(&guest.sock);
        }
        let Guest { sock, pid, .. } = guest;
        match answer {
            None => {}
            Some(Ok((hello, segment))) => {
                self.lacks_nothing();
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
                self.arrive(&hello, inb);
            }
            Some(Err(Declined::Wrong(why))) => {
                log::warn!("{}: refused a peer (pid {pid}): {why}", self.addr);
                socket::notify(&sock, &Packet::Refused.encode());
            }
            Some(Err(Declined::Lack(_))) => {}
        }
    }

    fn receive_hello(&mut self, sock: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = [0; Hello::LEN + 1];
        let (n, fd) = self.spare.recv_fd(sock, &mut bytes)?;
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
        if hello.to != self.addr && !(self.everywhere && hello.to.port() == self.addr.port()) {
            return wrong(format!("{} takes us for {}", hello.from, hello.to));
        }
        let refusal = self.admission.refusal(&self.addr, &hello.from, self.ids.get(&hello.from).copied());
        if let Some(why) = refusal.filter(|_| hello.from != self.addr) {
            return wrong(format!("it calls itself {}: {why}", hello.from));
        }
        Ok((hello, Segment::adopt(fd.as_fd(), hello.ring as usize)?))
    }

    /// Keeps a guest until its hello comes, or there is what it takes.
    fn keep_guest(&mut self, guest: Guest, slot: Option<u32>) {
        let at = match slot {
            Some(at) => at as usize,
            None => {
                if self.guests.iter().flatten().count() >= GUESTS {
                    let waits = |g: &&mut Option<Guest>| g.as_ref().is_some_and(|g| !g.kept);
                    let first = |g: &&mut Option<Guest>| g.as_ref().map(|g| g.since);
                    let oldest =
                        self.guests.iter_mut().filter(waits).min_by_key(first).and_then(Option::take);
                    if let Some(oldest) = oldest {
                        self.dismiss(oldest, Duration::ZERO);
                    }
                }
                let at = self.guests.iter().position(Option::is_none).unwrap_or_else(|| {
                    self.guests.push(None);
                    self.guests.len() - 1
                });
                if self.poller.add(&guest.sock, GUEST | at as u64).is_err() {
                    return;
                }
                at
            }
        };
        self.guests[at] = Some(guest);
    }
}
