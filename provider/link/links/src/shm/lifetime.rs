//! Peers that come, end, and have successors.

use std::os::fd::OwnedFd;

use ipc::socket;
use link_api::{Event, Frame, Gone, PeerId, Refused};
use meet::{Ended, Life};

use crate::shm::channel::wake;
use crate::shm::channels::Channels;
use crate::shm::meet::token::{IN, LIFE};
use crate::shm::peer::Inbound;
use crate::turns;

impl Channels {
    /// If the channels to and from a peer turn out to be of different endpoints, one after the
    /// other under the same name, the one from it belongs to the successor, and has to wait for the
    /// end of the former. `ended` says that the channel to it has.
    pub(super) fn part(&mut self, id: u32, ended: bool) {
        let peer = &mut self.peers[id];
        let (Some(out), Some(inb)) = (&peer.out, &peer.inb) else { return };
        let successor = match out.incarnation {
            Some(known) => known != inb.incarnation,
            // It never accepted our channel. If it has ended, a process that lives is another one.
            None => out.pid != inb.pid || ended && !socket::hung_up(&inb.sock),
        };
        if !successor {
            return;
        }
        // The channel to it leads to the name's owner. Another process that lives is no successor.
        let forged =
            out.pid != inb.pid && !ended && !socket::hung_up(&out.sock) && !socket::hung_up(&inb.sock);
        self.sleep.unwatch(&inb.sock);
        if forged {
            log::warn!("{}: cut off pid {}, which called itself {}", self.own.addr(), inb.pid, peer.addr);
            self.part_inbound(id);
        } else {
            let inb = peer.inb.take();
            peer.waiting.extend(inb);
            self.rings.unlist(id);
            self.rings.lose(id);
        }
        self.end(id, Gone::Reset);
    }

    pub(super) fn adopt(&mut self, id: u32, inb: Inbound) {
        wake::promise(inb.rx.mem(), self.sleep.barrier());
        let lives = self.watch(id, inb.pid, &inb.sock).is_ok();
        let added = self.sleep.watch(&inb.sock, IN | u64::from(id));
        let peer = &mut self.peers[id];
        log::debug!("{}: connected from {} (pid {})", self.own.addr(), peer.addr, inb.pid);
        // SAFETY: the ring stays mapped while it is the peer's, and where that ends it is taken off the list.
        unsafe { self.rings.list(id, inb.rx.word()) };
        peer.inb = Some(inb);
        peer.no_cma = None;
        peer.target = None;
        self.warm(id);
        self.looks.set(true);
        if let Err(e) = added {
            log::warn!("{}: cannot watch a peer: {e}", self.own.addr());
        } else if lives {
            return;
        }
        self.end(id, Gone::Reset);
    }

    /// A peer broke the rules.
    #[cold]
    pub(super) fn broke(&mut self, id: u32) -> Refused {
        let peer = &self.peers[id];
        log::warn!("{}: {} wrote nonsense into a ring", self.own.addr(), peer.addr);
        self.refuse(id);
        Refused::Gone(Gone::Reset)
    }

    /// Nothing more is read from a peer.
    pub(super) fn refuse(&mut self, id: u32) {
        if let Some(inb) = &mut self.peers[id].inb {
            inb.broken = true;
            inb.rx.spoil();
        }
        self.end(id, Gone::Denied);
    }

    /// A peer ended: nothing goes to it any more, and once its frames are drained it is closed.
    pub(super) fn end(&mut self, id: u32, why: Gone) {
        let peer = &mut self.peers[id];
        if peer.dying.is_some() {
            return;
        }
        peer.dying = Some(why);
        peer.target = None;
        if let Some(out) = &peer.out {
            self.sleep.unwatch(&out.sock);
        }
        // Its descriptor stays: the peer is waited for until its last frames have been read.
        if let Some(life) = &peer.life {
            self.sleep.unwatch(life.fd());
        }
        self.part_outbound(id);
        let peer = &mut self.peers[id];
        if let Some(inb) = &mut peer.inb {
            self.sleep.unwatch(&inb.sock);
            inb.ends();
        }
        // Its frames are read as one that ended.
        self.rings.unlist(id);
        self.ends.add(id);
        self.pace.be_slow();
    }

    /// What the peers that ended have left: their last frames, then word of their end.
    pub(super) fn reap(&mut self) -> Option<Event> {
        let id = self.ends.next()?;
        if self.access.is_inside_still(id) {
            // What depended on it may only be given up once it has left our memory.
            self.ends.rotate();
            return None;
        }
        let peer = &mut self.peers[id];
        if let Some(inb) = &mut peer.inb {
            if inb.has_unread() {
                if let Ok(Some(len)) = inb.rx.peek() {
                    // SAFETY: the ring stays mapped while it is the peer's, and where that ends its frame is
                    // lost.
                    unsafe { self.rings.hold(id, inb.rx.word(), len) };
                    return Some(Event::Frame(Frame { from: PeerId(id), len, slot: 0 }));
                }
            }
        }
        self.ends.remove_first();
        self.peers[id].devices.forget();
        let peer = &mut self.peers[id];
        let why = peer.dying.take().unwrap_or(Gone::Reset);
        peer.no_cma = None;
        peer.lost = false;
        log::debug!("{}: {} ended: {why:?}", self.own.addr(), peer.addr);
        self.part_inbound(id);
        let peer = &mut self.peers[id];
        peer.life = None;
        if !peer.waiting.is_empty() {
            let next = peer.waiting.remove(0);
            self.adopt(id, next);
            // Another successor after that means that this one has ended too.
            if !self.peers[id].waiting.is_empty() {
                self.end(id, Gone::Reset);
            }
        }
        Some(Event::Closed(PeerId(id), why))
    }

    /// Watches the process of a peer, which is at the other end of `sock`.
    pub(super) fn watch(&mut self, id: u32, pid: i32, sock: &OwnedFd) -> Result<(), Ended> {
        let peer = &mut self.peers[id];
        if pid > 0 && peer.life.as_ref().is_some_and(|life| life.pid() == pid) {
            return Ok(());
        }
        turns::meets(pid);
        let life = Life::watch(sock, pid)?;
        if let Some(old) = std::mem::replace(&mut peer.life, life) {
            self.sleep.unwatch(old.fd());
        }
        if let Some(life) = &peer.life {
            if let Err(e) = self.sleep.watch(life.fd(), LIFE | u64::from(id)) {
                log::debug!("{}: cannot watch pid {pid}: {e}", self.own.addr());
                peer.life = None;
            }
        }
        Ok(())
    }

    /// Gives up the channel to a peer, for which it may access nothing any more.
    fn part_outbound(&mut self, id: u32) {
        self.access.part_outbound(&mut self.peers[id], id);
    }

    /// Gives up the channel from a peer.
    fn part_inbound(&mut self, id: u32) {
        self.rings.unlist(id);
        self.rings.lose(id);
        self.access.part_inbound(&mut self.peers[id], id);
    }

    /// The engine has no use of this number any more: unless the peer is here again, it is free for another.
    /// Whether it is.
    pub(super) fn let_go(&mut self, id: u32) -> bool {
        let Some(peer) = self.peers.get(id) else { return false };
        let idle =
            peer.out.is_none() && peer.inb.is_none() && peer.waiting.is_empty() && peer.dying.is_none();
        if !idle || self.rings.holds(id) || self.access.waits_for(id) {
            return false;
        }
        let Some(peer) = self.peers.free(id) else { return false };
        self.sending.forget(id);
        if let Some(life) = peer.life {
            self.sleep.unwatch(life.fd());
        }
        true
    }
}
