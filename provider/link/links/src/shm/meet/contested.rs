//! Channels under a name that a living peer has: which of the two is the name's owner.

use std::os::fd::OwnedFd;

use ipc::credentials::{Cred, User};
use ipc::socket;
use wire::Addr;
use wire::channel::Packet;

use crate::shm::meet::contests::{Contested, Contests};
use crate::shm::meet::hello;
use crate::shm::meet::own::Own;
use crate::shm::peer::{Inbound, Outbound, Peer};

/// Whether a channel is of the peer that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Real,
    Forged,
    /// Not known yet.
    Open,
}

impl Contests {
    /// Whether a channel is let in, as far as that is known: else it is kept, or refused.
    pub(in crate::shm) fn decide(&mut self, own: &Own, peer: &Peer, c: Contested) -> Option<Inbound> {
        let (c, why) = match judge(own, peer, &c.inb) {
            Verdict::Real => return Some(c.inb),
            Verdict::Forged => (c, "another process has that name"),
            Verdict::Open => (
                self.keep(c)?,
                "a living peer has that name, and which of the two owns it is not to be found out",
            ),
        };
        let pid = c.inb.pid;
        if self.refuse() {
            log::warn!("{}: refused a peer (pid {pid}) that calls itself {}: {why}", own.addr(), peer.addr);
        }
        socket::notify(&c.inb.sock, &Packet::Refused.encode());
        None
    }
}

/// Whether a channel is of the peer that it names. Under one name there is one endpoint at a time: if
/// another lives, as its sockets and its process show, the one that listens under that name is right.
fn judge(own: &Own, peer: &Peer, inb: &Inbound) -> Verdict {
    if peer.addr == own.addr() && inb.incarnation != own.incarnation() {
        return Verdict::Forged;
    }
    if peer.dying.is_some() {
        return Verdict::Real;
    }
    let lives = |sock: &OwnedFd, pid: i32| {
        !socket::hung_up(sock)
            && !peer.life.as_ref().is_some_and(|life| life.pid() == pid && life.has_ended())
    };
    let another = |out: &&Outbound| match out.incarnation.or_else(|| hello::peek_welcome(&out.sock)) {
        Some(known) => known != inb.incarnation,
        None => out.pid != inb.pid,
    };
    let before = peer.inb.as_ref().filter(|old| lives(&old.sock, old.pid)).map(|old| old.pid);
    let called = peer.out.as_ref().filter(|out| lives(&out.sock, out.pid)).filter(another).map(|out| out.pid);
    if before.is_none() && called.is_none() {
        return Verdict::Real;
    }
    match owner(&peer.addr) {
        Some(pid) if pid == inb.pid && before != Some(pid) && called != Some(pid) => Verdict::Real,
        Some(pid) if pid != inb.pid && inb.pid > 0 => Verdict::Forged,
        _ => Verdict::Open,
    }
}

/// The process that listens under a name, if it is ours and its pid is visible here.
fn owner(addr: &Addr) -> Option<i32> {
    let pid = |ip| {
        let sock = hello::connect(ip, addr.port()).ok()?;
        let cred = Cred::of(&sock).ok()?;
        (cred.user(&sock) == User::Ours && cred.pid > 0).then_some(cred.pid)
    };
    pid(Some(addr.ip())).or_else(|| pid(None))
}
