//! Channels under a name that a living peer has: which of the two is the name's owner.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ipc::credentials::{Cred, User};
use ipc::{Timer, pidfd, socket};
use link_api::Link as _;
use wire::Addr;
use wire::channel::{Hello, Packet};

use super::guest::Contested;
use super::guests::GRACE;
use super::hello;
use super::link::ShmLink;
use super::peer::{Inbound, Outbound};
use super::token;

/// Most channels kept under a name that another peer has.
const CONTESTED: usize = 16;
/// Between two questions which process has that name.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
        let id = self.caller(hello);
        let now = Instant::now();
        self.decide(Contested { id, inb, since: now, next: now });
    }

    pub(super) fn decide(&mut self, mut c: Contested) {
        let (addr, pid) = (self.peers[c.id as usize].addr, c.inb.pid);
        let why = match self.judge(c.id, &c.inb) {
            Verdict::Real => return self.welcome(c.id, c.inb),
            Verdict::Open if c.since.elapsed() < GRACE && self.contested.len() < CONTESTED => {
                c.next = Instant::now() + LOOK_AGAIN;
                self.contested.push(c);
                return self.time_contest();
            }
            Verdict::Open => {
                "a living peer has that name, and which of the two owns it is not to be found out"
            }
            Verdict::Forged => "another process has that name",
        };
        log::warn!("{}: refused a peer (pid {pid}) that calls itself {addr}: {why}", self.addr);
        socket::notify(&c.inb.sock, &Packet::Refused.encode());
    }

    /// Has a sleeper wake while there are such channels: nothing else says when they can be told apart.
    pub(super) fn time_contest(&mut self) {
        match &self.contest {
            Some(timer) if self.contested.is_empty() => {
                self.poller.remove(timer);
                self.contest = None;
            }
            Some(timer) => timer.clear(),
            None if self.contested.is_empty() => {}
            // Without one they are decided on when something else wakes the sleeper.
            None => {
                let timer = Timer::new(LOOK_AGAIN).ok();
                self.contest = timer.filter(|fd| self.poller.add(fd, token::TIMER).is_ok());
            }
        }
    }

    /// Whether a channel is of the peer that it names. Under one name there is one endpoint at a time: if
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
}
