//! What arrives on sockets: hellos, ends, wake-ups. And what follows from an end.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::credentials::{Cred, UNMAPPED, User};
use ipc::memfd::Unfit;
use ipc::pidfd::{self, Ended};
use ipc::{rights, socket};
use link_api::{Event, Frame, Gone, Link, PeerId, Refused};
use wire::Addr;

use super::board::View;
use super::connect::{Cure, Lack};
use super::hello::{self, Hello};
use super::peer::{Inbound, Life, Outbound};
use super::ring::{Consumer, Mem};
use super::segment::Segment;
use super::{NOBODY, ShmLink, wake};
use crate::space::Space;

// What a descriptor is in the epoll set; the lower half says which.
pub(super) const LISTENER: u64 = u64::MAX;
pub(super) const OUT: u64 = 1 << 32;
const IN: u64 = 2 << 32;
const GUEST: u64 = 3 << 32;
const LIFE: u64 = 4 << 32;
pub(super) const TIMER: u64 = 5 << 32;
const KIND: u64 = !0 << 32;

/// Most connections taken, and most packets read from one socket, at a time.
const BATCH: usize = 64;
/// Most hellos taken in at a time: each maps memory, and those that are here already wait meanwhile.
const HELLOS: usize = 4;
/// Most connections that are kept without a hello.
const GUESTS: usize = 64;
/// How long one is, at least.
const GRACE: Duration = Duration::from_secs(3);
/// Most channels kept whose name another peer has.
const CONTESTED: usize = 16;
/// Between two looks whose that name is.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// As many successors of one peer wait for its end before no more are met.
const SUCCESSORS: usize = 8;
/// How long the end of a peer is not taken note of while its own channel may still wait to be accepted.
const BEHIND: Duration = Duration::from_millis(100);

/// A connection whose hello is still to come, or waits for descriptors or memory.
#[derive(Debug)]
pub(super) struct Guest {
    sock: OwnedFd,
    pid: i32,
    since: Instant,
    /// It has said hello, and waits for us.
    kept: bool,
    /// What it said, if it was received.
    said: Option<(Vec<u8>, Option<OwnedFd>)>,
}

impl Guest {
    pub(super) fn sock(&self) -> &OwnedFd {
        &self.sock
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn age(&mut self, by: Duration) {
        self.since -= by;
    }
}

/// A channel under a name that a living peer has.
#[derive(Debug)]
pub(super) struct Contested {
    pub(super) id: u32,
    inb: Inbound,
    since: Instant,
    next: Instant,
}

impl Contested {
    pub(super) fn sock(&self) -> &OwnedFd {
        &self.inb.sock
    }
}

/// Whether a channel is of the peer that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Real,
    Forged,
    /// Not to be told yet.
    Open,
}

/// Why a hello was not taken.
enum Declined {
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
    /// Takes in what is there on the sockets.
    pub(super) fn service(&mut self) {
        let events = self.poller.ready::<BATCH>();
        if !self.guests.is_empty() || !self.contested.is_empty() {
            self.tend();
        }
        if !self.expected.is_empty() {
            self.look_for_expected();
        }
        if events.is_empty() {
            return;
        }
        // First of all hellos: frames of a peer that has since ended must come before its end.
        self.behind = match self.accept() {
            true => self.behind.or_else(|| Some(Instant::now())),
            false => None,
        };
        let behind = self.behind.is_some_and(|since| since.elapsed() < BEHIND);
        for token in events.tokens() {
            // A descriptor may have changed its role since, so each of these asks it anew.
            let which = token as u32;
            match token & KIND {
                OUT | LIFE if behind && self.may_have_called(which) => {}
                OUT => self.hear_outbound(which),
                IN => self.hear_inbound(which),
                LIFE => self.hear_life(which),
                GUEST => {
                    let slot = self.guests.get_mut(which as usize).and_then(Option::take);
                    if let Some(guest) = slot {
                        self.greet(guest, Some(which));
                    }
                }
                _ => {}
            }
        }
        self.spare.renew(self.board.fd());
    }

    /// Whether a peer has ended that may have sent us something before, by a channel that is not accepted yet.
    fn may_have_called(&self, id: u32) -> bool {
        let peer = &self.peers[id as usize];
        let ended = peer.out.as_ref().is_none_or(|out| socket::hung_up(&out.sock));
        peer.inb.is_none() && (ended || peer.life.as_ref().is_some_and(|life| pidfd::has_ended(&life.fd)))
    }

    /// Meets those who call; whether there may be more of them.
    fn accept(&mut self) -> bool {
        self.crowded &= !self.dying.is_empty();
        let mut hellos = 0;
        for _ in 0..BATCH {
            // Who waits for descriptors is the first to have some.
            if hellos == HELLOS || self.crowded || self.guests.iter().flatten().any(|g| g.kept) {
                return true;
            }
            let sock = match socket::accept(&self.listener) {
                Ok(sock) => sock,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                // The kernel looks for a descriptor before it looks for a connection.
                Err(_) if !socket::has_caller(&self.listener) => {
                    self.lacking = None;
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
                user => self.stranger("refused a peer of", cred, user),
            }
        }
        true
    }

    /// Says once that a peer is not of our user.
    pub(super) fn stranger(&mut self, what: &str, cred: Cred, user: User) {
        let level = if self.warned_uid { log::Level::Debug } else { log::Level::Warn };
        self.warned_uid = true;
        let why = if user == User::Unknown { UNMAPPED } else { "another user" };
        log::log!(level, "{}: {what} uid {} (pid {}): {why}", self.addr, cred.uid, cred.pid);
    }

    /// A peer cannot be met for want of descriptors or memory; for how long that has been so.
    fn lack(&mut self, e: &io::Error) -> Duration {
        let level = if self.warned_fds { log::Level::Debug } else { log::Level::Warn };
        self.warned_fds = true;
        log::log!(level, "{}: cannot accept a peer yet: {e}; {Cure}", self.addr);
        self.lacking.get_or_insert_with(Instant::now).elapsed()
    }

    /// Has those who call hear that they cannot be met: without a word they would wait for ever.
    fn turn_away(&mut self) {
        let since = self.lacking.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.spare.give();
        let mut n = 0;
        while let (Ok(sock), true) = (socket::accept(&self.listener), n < BATCH) {
            socket::notify(&sock, &[hello::EXHAUSTED]);
            n += 1;
        }
        log::warn!("{}: refused {n} peers: {}", self.addr, Lack(since));
    }

    /// Looks after those who wait.
    #[cold]
    fn tend(&mut self) {
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
        // No descriptor tells when there is memory.
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
    }

    fn dismiss(&mut self, guest: Guest, waited: Duration) {
        self.poller.remove(&guest.sock);
        if guest.kept {
            log::warn!("{}: refused a peer (pid {}): {}", self.addr, guest.pid, Lack(waited));
            socket::notify(&guest.sock, &[hello::EXHAUSTED]);
        } else {
            log::debug!("{}: pid {} connected and says nothing", self.addr, guest.pid);
        }
    }

    /// Reads a guest's hello; `slot` says where among the guests it was.
    fn greet(&mut self, mut guest: Guest, slot: Option<u32>) {
        let said = guest.said.take().map_or_else(|| self.receive_hello(&guest.sock), Ok);
        let (bytes, fd) = match said {
            Err(e) if e.kind() == ErrorKind::WouldBlock => return self.seat(guest, slot),
            Err(e) if socket::is_lack(&e) => {
                self.lack(&e);
                guest.kept = true;
                return self.seat(guest, slot);
            }
            Ok(said) => said,
            Err(_) => (Vec::new(), None),
        };
        let answer = if bytes.is_empty() { None } else { Some(self.admit(&bytes, fd.as_ref())) };
        if let Some(Err(Declined::Lack(e))) = &answer {
            self.lack(e);
            guest.kept = true;
            guest.said = Some((bytes, fd));
            return self.seat(guest, slot);
        }
        if slot.is_some() {
            self.poller.remove(&guest.sock);
        }
        let Guest { sock, pid, .. } = guest;
        match answer {
            None => {}
            Some(Ok((hello, segment))) => {
                self.lacking = None;
                let inb = Inbound {
                    budget: segment.lines(),
                    rx: Consumer::new(segment),
                    sock,
                    pid,
                    space: hello.space.of(pid),
                    incarnation: hello.incarnation,
                    broken: false,
                    cooled_at: 0,
                };
                self.arrive(&hello, inb);
            }
            Some(Err(Declined::Wrong(why))) => {
                log::warn!("{}: refused a peer (pid {pid}): {why}", self.addr);
                socket::notify(&sock, &[hello::REFUSED]);
            }
            Some(Err(Declined::Lack(_))) => {}
        }
    }

    fn receive_hello(&mut self, sock: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = [0; Hello::LEN + 1];
        let (n, fd) = self.spare.recv_fd(sock, &mut bytes)?;
        Ok((bytes[..n].to_vec(), fd))
    }

    fn admit(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(Hello, Segment), Declined> {
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
        Ok((hello, Segment::adopt(fd.as_fd(), hello.ring as usize)?))
    }

    /// Keeps a guest until its hello comes, or there is what it takes.
    fn seat(&mut self, guest: Guest, slot: Option<u32>) {
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

    /// A channel from a peer is there, by its own word.
    fn arrive(&mut self, hello: &Hello, inb: Inbound) {
        let id = self.caller(hello);
        let now = Instant::now();
        self.decide(Contested { id, inb, since: now, next: now });
    }

    fn decide(&mut self, mut c: Contested) {
        let (addr, pid) = (self.peers[c.id as usize].addr, c.inb.pid);
        let why = match self.judge(c.id, &c.inb) {
            Verdict::Real => return self.welcome(c.id, c.inb),
            Verdict::Open if c.since.elapsed() < GRACE && self.contested.len() < CONTESTED => {
                c.next = Instant::now() + LOOK_AGAIN;
                return self.contested.push(c);
            }
            Verdict::Open => "a living peer has that name, and neither can be told to be its owner",
            Verdict::Forged => "another process has that name",
        };
        log::warn!("{}: refused a peer (pid {pid}) that calls itself {addr}: {why}", self.addr);
        socket::notify(&c.inb.sock, &[hello::REFUSED]);
    }

    /// Whether a channel is of the peer whose name it has. Under one name there is one endpoint at a time: if
    /// another lives, as its sockets and its process tell, the one that listens under that name is right.
    fn judge(&self, id: u32, inb: &Inbound) -> Verdict {
        let peer = &self.peers[id as usize];
        if peer.addr == self.addr && inb.incarnation != self.incarnation {
            return Verdict::Forged;
        }
        if peer.dying.is_some() {
            return Verdict::Real;
        }
        let lives = |sock: &OwnedFd, pid: i32| {
            !socket::hung_up(sock)
                && !peer.life.as_ref().is_some_and(|life| life.pid == pid && pidfd::has_ended(&life.fd))
        };
        let another = |out: &&Outbound| match out.incarnation.or_else(|| hello::peek_welcome(&out.sock)) {
            Some(known) => known != inb.incarnation,
            None => out.pid != inb.pid,
        };
        let before = peer.inb.as_ref().filter(|old| lives(&old.sock, old.pid)).map(|old| old.pid);
        let called =
            peer.out.as_ref().filter(|out| lives(&out.sock, out.pid)).filter(another).map(|out| out.pid);
        if before.is_none() && called.is_none() {
            return Verdict::Real;
        }
        match self.owner(&peer.addr) {
            Some(pid) if pid == inb.pid && before != Some(pid) && called != Some(pid) => Verdict::Real,
            Some(pid) if pid != inb.pid && inb.pid > 0 => Verdict::Forged,
            _ => Verdict::Open,
        }
    }

    /// The process that listens under a name, if it is ours and its pid is visible here.
    fn owner(&self, addr: &Addr) -> Option<i32> {
        let pid = |ip| {
            let sock = hello::connect(ip, addr.port()).ok()?;
            let cred = Cred::of(&sock).ok()?;
            (cred.user(&sock) == User::Ours && cred.pid > 0).then_some(cred.pid)
        };
        pid(Some(addr.ip())).or_else(|| pid(None))
    }

    /// A channel from a peer is there.
    fn welcome(&mut self, id: u32, inb: Inbound) {
        let mut welcome = [hello::WELCOME; hello::WELCOME_LEN];
        welcome[1..9].copy_from_slice(&self.incarnation.to_le_bytes());
        welcome[9..].copy_from_slice(&self.space.encode());
        // Like any other packet: if it cannot be sent, the peer does without.
        let _ = rights::send_fd(&inb.sock, &welcome, self.board.fd());
        if self.peers[id as usize].inb.is_some() {
            self.end(id, Gone::Reset);
        }
        let peer = &mut self.peers[id as usize];
        if peer.dying.is_some() {
            self.crowded |= peer.waiting.len() + 1 >= SUCCESSORS;
            return peer.waiting.push(inb);
        }
        self.adopt(id, inb);
        // Does the channel to that name lead to this very peer? It may have told us by now.
        self.hear_outbound(id);
        self.part(id, false);
    }

    /// The peer that says this hello.
    fn caller(&mut self, hello: &Hello) -> u32 {
        let id = self.peer(&hello.from);
        let name = self.peers[id.0 as usize].name.get_or_insert(hello.to);
        if *name == hello.to {
            return id.0;
        }
        let key = (hello.from, hello.to);
        let (peers, free) = (&mut self.peers, &mut self.free);
        let id = *self.callers.entry(key).or_insert_with(|| super::peer::meet(peers, free, hello.from));
        self.peers[id.0 as usize].name = Some(hello.to);
        id.0
    }

    /// If the channels to and from a peer turn out to be of different endpoints, one after the
    /// other under the same name, the one from it belongs to the successor, and has to wait for the
    /// end of the former. `ended` says that the channel to it has.
    fn part(&mut self, id: u32, ended: bool) {
        let peer = &mut self.peers[id as usize];
        let (Some(out), Some(inb)) = (&peer.out, &peer.inb) else { return };
        let successor = match out.incarnation {
            Some(known) => known != inb.incarnation,
            // It never looked at our channel. If it has ended, whoever lives on is another one.
            None => out.pid != inb.pid || ended && !socket::hung_up(&inb.sock),
        };
        if !successor {
            return;
        }
        // The channel to it leads to the name's owner. Another process that lives is no successor.
        let forged =
            out.pid != inb.pid && !ended && !socket::hung_up(&out.sock) && !socket::hung_up(&inb.sock);
        self.poller.remove(&inb.sock);
        if forged {
            log::warn!("{}: cut off pid {}, which called itself {}", self.addr, inb.pid, peer.addr);
            self.part_inbound(id);
        } else {
            let inb = peer.inb.take();
            peer.waiting.extend(inb);
        }
        self.unlist(id);
        self.end(id, Gone::Reset);
    }

    fn adopt(&mut self, id: u32, inb: Inbound) {
        wake::promise(inb.rx.mem(), self.barrier);
        let lives = self.watch(id, inb.pid, &inb.sock).is_ok();
        let added = self.poller.add(&inb.sock, IN | u64::from(id));
        let peer = &mut self.peers[id as usize];
        log::debug!("{}: connected from {} (pid {})", self.addr, peer.addr, inb.pid);
        peer.inb = Some(inb);
        peer.no_cma = None;
        peer.target = None;
        self.ins.push(id);
        self.warm(id);
        if let Err(e) = added {
            log::warn!("{}: cannot watch a peer: {e}", self.addr);
        } else if lives {
            return;
        }
        self.end(id, Gone::Reset);
    }

    /// Reads what the sender of a channel says: wake-ups, and its end.
    fn hear_inbound(&mut self, id: u32) {
        let Some(inb) = &self.peers[id as usize].inb else { return };
        for _ in 0..BATCH {
            let mut bytes = [0; 32];
            match socket::receive(&inb.sock, &mut bytes) {
                Ok(n) if n > 1 && bytes[0] == super::window::WANT => self.hear_want(id, &bytes[..n]),
                Ok(1..) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => return self.end(id, Gone::Reset),
            }
        }
    }

    /// Reads what the receiver of a channel says: a welcome, a refusal, wake-ups, and its end.
    pub(super) fn hear_outbound(&mut self, id: u32) {
        let mut errors = 0;
        for _ in 0..BATCH {
            let Some(out) = &mut self.peers[id as usize].out else { return };
            let mut bytes = [0; hello::WELCOME_LEN + 1];
            // Only a welcome and a window come with a descriptor.
            let with_fd = out.incarnation.is_none() || self.options.windows.is_some();
            let got = match with_fd {
                true => rights::recv_fd(&out.sock, &mut bytes),
                false => socket::receive(&out.sock, &mut bytes).map(|n| (n, None)),
            };
            let got = match got {
                Err(e) if socket::is_lack(&e) => {
                    if self.spare.give() {
                        continue;
                    }
                    self.lack(&e);
                    let Some(out) = &mut self.peers[id as usize].out else { return };
                    if out.lacks.get_or_insert_with(Instant::now).elapsed() < self.options.patience {
                        return;
                    }
                    socket::receive(&out.sock, &mut bytes).map(|n| (n, None))
                }
                other => other,
            };
            let (n, fd) = match got {
                Ok((n, fd)) => (Ok(n), fd),
                Err(e) => (Err(e), None),
            };
            let Some(out) = &mut self.peers[id as usize].out else { return };
            match n {
                Ok(hello::WELCOME_LEN) if bytes[0] == hello::WELCOME => {
                    let [_, number @ ..] = *bytes.first_chunk::<9>().expect("more than 9 bytes");
                    out.incarnation = Some(u64::from_le_bytes(number));
                    let space = bytes[9..].first_chunk().expect("a space has so many bytes");
                    out.space = Some(Space::decode(space).of(out.pid));
                    // Without it, or with one that is not right, memory is reached by asking.
                    out.board = fd.and_then(|fd| View::adopt(&fd).ok());
                    self.peers[id as usize].target = None;
                    self.part(id, false);
                }
                Ok(1) if bytes[0] == hello::REFUSED => {
                    log::warn!("{}: {} refused us", self.addr, self.peers[id as usize].addr);
                    return self.end(id, Gone::Denied);
                }
                Ok(1) if bytes[0] == hello::EXHAUSTED => {
                    let peer = self.peers[id as usize].addr;
                    log::warn!(
                        "{}: {peer} has no descriptors or no memory for us: raise its RLIMIT_NOFILE (ulimit -n); \
                        what was sent to it and not received is lost",
                        self.addr
                    );
                    return self.end(id, Gone::Exhausted);
                }
                Ok(n @ 1..) => self.hear_window(id, &bytes[..n], fd),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // An error is told before the packets that came earlier; perhaps a refusal.
                Err(_) if errors == 0 => errors = 1,
                Ok(0) | Err(_) => {
                    self.part(id, true);
                    return self.end(id, Gone::Reset);
                }
            }
        }
    }

    /// Watches the process of a peer, which is at the other end of `sock`.
    pub(super) fn watch(&mut self, id: u32, pid: i32, sock: &OwnedFd) -> Result<(), Ended> {
        let peer = &mut self.peers[id as usize];
        if pid > 0 && peer.life.as_ref().is_some_and(|life| life.pid == pid) {
            return Ok(());
        }
        let life = pidfd::watch(sock, pid)?.map(|fd| Life { pid, fd });
        if let Some(old) = std::mem::replace(&mut peer.life, life) {
            self.poller.remove(&old.fd);
        }
        if let Some(life) = &peer.life {
            if let Err(e) = self.poller.add(&life.fd, LIFE | u64::from(id)) {
                log::debug!("{}: cannot watch pid {pid}: {e}", self.addr);
                peer.life = None;
            }
        }
        Ok(())
    }

    /// A peer's process may have ended.
    fn hear_life(&mut self, id: u32) {
        if self.peers[id as usize].life.is_some() {
            self.part(id, false);
            self.end(id, Gone::Reset);
        }
    }

    /// A peer broke the rules.
    #[cold]
    pub(super) fn broke(&mut self, id: u32) -> Refused {
        let peer = &self.peers[id as usize];
        log::warn!("{}: {} wrote nonsense into a ring", self.addr, peer.addr);
        self.refuse(id);
        Refused::Gone(Gone::Reset)
    }

    /// Nothing more is read from a peer.
    pub(super) fn refuse(&mut self, id: u32) {
        if let Some(inb) = &mut self.peers[id as usize].inb {
            inb.broken = true;
        }
        self.end(id, Gone::Denied);
    }

    /// A peer ended: nothing goes to it any more, and once its frames are drained it is closed.
    pub(super) fn end(&mut self, id: u32, why: Gone) {
        let peer = &mut self.peers[id as usize];
        if peer.dying.is_some() {
            return;
        }
        peer.dying = Some(why);
        peer.target = None;
        if let Some(out) = &peer.out {
            self.poller.remove(&out.sock);
        }
        // It tells whether the peer is waited for until its last frames have been read.
        if let Some(life) = &peer.life {
            self.poller.remove(&life.fd);
        }
        self.part_outbound(id);
        let peer = &mut self.peers[id as usize];
        if let Some(inb) = &mut peer.inb {
            self.poller.remove(&inb.sock);
            inb.budget = inb.rx.mem().lines();
        }
        self.dying.push_back(id);
        self.slow = true;
    }

    /// What the peers that ended have left: their last frames, then word of their end.
    pub(super) fn reap(&mut self) -> Option<Event> {
        let id = *self.dying.front()?;
        if self.is_inside_still(id) {
            // What depended on it may only be given up once it has left our memory.
            self.dying.rotate_left(1);
            return None;
        }
        let peer = &mut self.peers[id as usize];
        if let Some(inb) = &mut peer.inb {
            if !inb.broken && inb.budget > 0 {
                if let Ok(Some(len)) = inb.rx.peek() {
                    self.held = id;
                    return Some(Event::Frame(Frame { from: PeerId(id), len, slot: 0 }));
                }
            }
        }
        self.dying.pop_front();
        self.forget_devices(id);
        let peer = &mut self.peers[id as usize];
        let why = peer.dying.take().unwrap_or(Gone::Reset);
        peer.no_cma = None;
        peer.lost = false;
        log::debug!("{}: {} ended: {why:?}", self.addr, peer.addr);
        if self.part_inbound(id) {
            self.unlist(id);
        }
        let peer = &mut self.peers[id as usize];
        peer.life = None;
        if !peer.waiting.is_empty() {
            let next = peer.waiting.remove(0);
            self.adopt(id, next);
            // Another successor after that means that this one has ended too.
            if !self.peers[id as usize].waiting.is_empty() {
                self.end(id, Gone::Reset);
            }
        }
        Some(Event::Closed(PeerId(id), why))
    }

    /// Nobody above has the number of this peer any more: unless it is here again, it is free for another.
    pub(super) fn let_go(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(id as usize) else { return };
        let idle =
            peer.out.is_none() && peer.inb.is_none() && peer.waiting.is_empty() && peer.dying.is_none();
        if !idle
            || self.held == id
            || self.contested.iter().any(|c| c.id == id)
            || self.parted.iter().any(|p| p.peer == id)
        {
            return;
        }
        let own = |known: &PeerId| known.0 == id;
        let known = self.ids.get(&peer.addr).is_some_and(own);
        let called =
            peer.name.map(|name| (peer.addr, name)).filter(|key| self.callers.get(key).is_some_and(own));
        if known {
            self.ids.remove(&peer.addr);
        } else if called.and_then(|key| self.callers.remove(&key)).is_none() {
            // It is free already.
            return;
        }
        self.starved.retain(|&i| i != id);
        self.expected.forget(id);
        if let Some(life) = peer.life.take() {
            self.poller.remove(&life.fd);
        }
        *peer = super::peer::Peer::new(peer.addr);
        self.free.push(id);
    }

    /// Looks at a peer's ring no more.
    fn unlist(&mut self, id: u32) {
        self.ins.retain(|&i| i != id);
        self.keep_hot(|_, i| i != id);
    }

    /// From now on only those are looked at in every poll that have sent something since this was last called;
    /// one at least.
    pub(super) fn cool(&mut self) {
        let last = self.hot_len.saturating_sub(1);
        let busy = self.hot.map(|id| {
            let inb = self.peers.get_mut(id as usize).and_then(|peer| peer.inb.as_mut());
            inb.is_some_and(|inb| std::mem::replace(&mut inb.cooled_at, inb.rx.pos()) != inb.rx.pos())
        });
        let any = busy[..self.hot_len].contains(&true);
        self.keep_hot(|at, _| busy[at] || !any && at == last);
    }

    fn keep_hot(&mut self, keep: impl Fn(usize, u32) -> bool) {
        let mut kept = [NOBODY; super::HOT];
        let mut n = 0;
        for (at, &id) in self.hot[..self.hot_len].iter().enumerate() {
            if keep(at, id) {
                kept[n] = id;
                n += 1;
            }
        }
        (self.hot, self.hot_len, self.hot_turn) = (kept, n, 0);
    }
}
