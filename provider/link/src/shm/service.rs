//! What arrives on sockets: hellos, ends, wake-ups. And what follows from an end.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};

use engine::{Event, Gone, Link, PeerId, Refused};

use super::board::View;
use super::control::{self, Cred, Ended, Hello};
use super::peer::{Inbound, Life};
use super::ring::{Consumer, Mem};
use super::segment::Segment;
use super::{NOBODY, ShmFrame, ShmLink, wake};
use crate::space::Space;

// What a descriptor is in the epoll set; the lower half says which.
pub(super) const LISTENER: u64 = u64::MAX;
pub(super) const OUT: u64 = 1 << 32;
const IN: u64 = 2 << 32;
const GUEST: u64 = 3 << 32;
const LIFE: u64 = 4 << 32;
const KIND: u64 = !0 << 32;

/// Most connections taken, and most packets read from one socket, at a time.
const BATCH: usize = 64;

/// A connection whose hello is still to come.
#[derive(Debug)]
pub(super) struct Guest {
    sock: OwnedFd,
    pid: i32,
}

impl ShmLink {
    /// Takes in what is there on the sockets.
    pub(super) fn service(&mut self) {
        let mut room = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let events = self.poller.ready(&mut room);
        if events.is_empty() {
            return;
        }
        // First of all hellos: frames of a peer that has since ended must come before its end.
        self.accept();
        for event in events {
            // A descriptor may have changed its role since, so each of these asks it anew.
            let (token, which) = (event.u64, event.u64 as u32);
            match token & KIND {
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
    }

    fn accept(&mut self) {
        for _ in 0..BATCH {
            let sock = match control::accept(&self.listener) {
                Ok(sock) => sock,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                Err(e) => {
                    if !std::mem::replace(&mut self.warned_fds, true) {
                        log::warn!("{}: cannot accept a peer: {e}", self.addr);
                    }
                    return;
                }
            };
            match Cred::of(&sock) {
                Ok(cred) if cred.ours() => self.greet(Guest { sock, pid: cred.pid }, None),
                Ok(cred) if !self.warned_uid => {
                    self.warned_uid = true;
                    log::warn!("{}: refused a peer of uid {} (pid {})", self.addr, cred.uid, cred.pid);
                }
                _ => {}
            }
        }
    }

    /// Reads a guest's hello; `slot` says where among the guests it was.
    fn greet(&mut self, guest: Guest, slot: Option<u32>) {
        let mut bytes = [0; Hello::LEN + 1];
        let (n, fd) = match control::recv_fd(&guest.sock, &mut bytes) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => return self.seat(guest, slot),
            Ok((n, fd)) if n > 0 => (n, fd),
            _ => (0, None),
        };
        if slot.is_some() {
            self.poller.remove(&guest.sock);
        }
        if n == 0 {
            return;
        }
        let Guest { sock, pid } = guest;
        let inb = match self.admit(&bytes[..n], fd) {
            Ok((hello, segment)) => (
                hello,
                Inbound {
                    budget: segment.lines(),
                    rx: Consumer::new(segment),
                    sock,
                    pid,
                    space: hello.space,
                    incarnation: hello.incarnation,
                    broken: false,
                    cooled_at: 0,
                },
            ),
            Err(why) => {
                log::warn!("{}: refused a peer (pid {pid}): {why}", self.addr);
                return control::notify(&sock, &[control::REFUSED]);
            }
        };
        self.arrive(inb.0, inb.1);
    }

    fn admit(&self, bytes: &[u8], fd: Option<OwnedFd>) -> Result<(Hello, Segment), String> {
        let hello = Hello::decode(bytes).ok_or("it does not speak our language")?;
        let ours = self.options.version;
        if hello.version != ours {
            return Err(format!("{} speaks version {}, not {ours}", hello.from, hello.version));
        }
        let fd = fd.ok_or("it sent no segment")?;
        if hello.to != self.addr && !(self.everywhere && hello.to.port() == self.addr.port()) {
            return Err(format!("{} takes us for {}", hello.from, hello.to));
        }
        Ok((hello, Segment::adopt(fd.as_fd(), hello.ring as usize)?))
    }

    /// Keeps a guest until its hello comes.
    fn seat(&mut self, guest: Guest, slot: Option<u32>) {
        let at = match slot {
            Some(at) => at as usize,
            None => {
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

    /// A channel from a peer is there.
    fn arrive(&mut self, hello: Hello, inb: Inbound) {
        let mut welcome = [control::WELCOME; control::WELCOME_LEN];
        welcome[1..9].copy_from_slice(&self.incarnation.to_le_bytes());
        welcome[9..].copy_from_slice(&self.space.encode());
        // Like any other packet: if it cannot be sent, the peer does without.
        let _ = control::send_fd(&inb.sock, &welcome, self.board.fd());
        let id = self.caller(&hello);
        if self.peers[id as usize].inb.is_some() {
            self.end(id, Gone::Reset);
        }
        let peer = &mut self.peers[id as usize];
        if peer.dying.is_some() {
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
        let id = *self.callers.entry(key).or_insert_with(|| super::peer::meet(&mut self.peers, hello.from));
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
            None => out.pid != inb.pid || ended && !control::hung_up(&inb.sock),
        };
        if !successor {
            return;
        }
        self.poller.remove(&inb.sock);
        peer.waiting.extend(peer.inb.take());
        self.forget(id);
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
            match control::receive(&inb.sock, &mut bytes) {
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
            let mut bytes = [0; control::WELCOME_LEN + 1];
            let (n, fd) = match control::recv_fd(&out.sock, &mut bytes) {
                Ok((n, fd)) => (Ok(n), fd),
                Err(e) => (Err(e), None),
            };
            match n {
                Ok(control::WELCOME_LEN) if bytes[0] == control::WELCOME => {
                    let [_, number @ ..] = *bytes.first_chunk::<9>().expect("more than 9 bytes");
                    out.incarnation = Some(u64::from_le_bytes(number));
                    let space = bytes[9..].first_chunk().expect("a space has so many bytes");
                    out.space = Some(Space::decode(space));
                    // Without it, or with one that is not right, memory is reached by asking.
                    out.board = fd.and_then(|fd| View::adopt(&fd).ok());
                    self.peers[id as usize].target = None;
                }
                Ok(1) if bytes[0] == control::REFUSED => {
                    log::warn!("{}: {} refused us", self.addr, self.peers[id as usize].addr);
                    return self.end(id, Gone::Denied);
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
        let life = control::watch(sock, pid)?.map(|fd| Life { pid, fd });
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
        if let Some(life) = peer.life.take() {
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
    pub(super) fn reap(&mut self) -> Option<Event<ShmFrame>> {
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
                    return Some(Event::Frame(ShmFrame { from: PeerId(id), len }));
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
            self.forget(id);
        }
        let peer = &mut self.peers[id as usize];
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

    /// Looks at a peer's ring no more.
    fn forget(&mut self, id: u32) {
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
