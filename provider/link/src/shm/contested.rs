//! Channels under a name that a living peer has: which of the two is the name's owner.

use std::os::fd::OwnedFd;

use ipc::credentials::{Cred, User};
use ipc::{pidfd, socket};
use wire::Addr;
use wire::channel::{Hello, Packet};

use super::contests::Contested;
use super::hello;
use super::link::ShmLink;
use super::peer::{Inbound, Outbound};

/// Whether a channel is of the peer that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Real,
    Forged,
    /// Not known yet.
    Open,
}

impl ShmLink {
    /// A channel from a peer is there, by its own word.
    pub(super) fn arrive(&mut self, hello: &Hello, inb: Inbound) {
        let id = self.peers.caller(hello);
        self.decide(Contested::new(id, inb));
    }

    pub(super) fn decide(&mut self, c: Contested) {
        let (c, why) = match self.judge(c.id, &c.inb) {
            Verdict::Real => return self.welcome(c.id, c.inb),
            Verdict::Forged => (c, "another process has that name"),
            Verdict::Open => match self.contests.keep(c) {
                Ok(()) => return self.contests.set_timer(self.sleep.poller()),
                Err(c) => {
                    (c, "a living peer has that name, and which of the two owns it is not to be found out")
                }
            },
        };
        let (addr, pid) = (self.peers[c.id].addr, c.inb.pid);
        log::warn!("{}: refused a peer (pid {pid}) that calls itself {addr}: {why}", self.own.addr());
        socket::notify(&c.inb.sock, &Packet::Refused.encode());
    }

    /// Whether a channel is of the peer that it names. Under one name there is one endpoint at a time: if
    /// another lives, as its sockets and its process tell, the one that listens under that name is right.
    fn judge(&self, id: u32, inb: &Inbound) -> Verdict {
        let peer = &self.peers[id];
        if peer.addr == self.own.addr() && inb.incarnation != self.own.incarnation() {
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
}
