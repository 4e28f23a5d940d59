//! Connections that peers make: their hellos, as far as there are descriptors and memory for them.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ipc::credentials::{Cred, User};
use ipc::memfd::Unfit;
use ipc::{rights, socket};
use link_api::Gone;
use wire::channel::{Hello, Packet, Welcome};

use crate::shm::channel::ring::Consumer;
use crate::shm::channel::segment::Segment;
use crate::shm::channel::wake;
use crate::shm::meet::contests::Contested;
use crate::shm::meet::guest::{GRACE, Guest};
use crate::shm::meet::shortage_log::{self, Lack};
use crate::shm::meet::token::GUEST;
use crate::shm::peer::Inbound;
use crate::shm::service::Service;
use crate::space;

/// Most connections taken at a time.
const BATCH: usize = 64;
/// Most hellos taken in at a time: each maps memory, and those that are here already wait meanwhile.
const HELLOS: usize = 4;

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

/// As many successors of one peer wait for its end before no more are met.
const SUCCESSORS: usize = 8;

impl Service<'_> {
    /// Accepts connections; whether there may be more of them.
    pub(in crate::shm) fn accept(&mut self) -> bool {
        self.meeting.listening.note_ends(!self.channels.ends.is_empty());
        let mut hellos = 0;
        for _ in 0..BATCH {
            // A guest that waits for descriptors is the first to have some.
            if hellos == HELLOS
                || self.meeting.listening.has_many_successors()
                || self.meeting.listening.guests().has_any_spoken()
            {
                return true;
            }
            let sock = match self.meeting.listening.accept() {
                Ok(sock) => sock,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                // The kernel looks for a descriptor before it looks for a connection. One that came since is
                // for the next call.
                Err(e) if e.kind() == ErrorKind::WouldBlock || !self.meeting.listening.has_caller() => {
                    self.meeting.shortage.end();
                    return false;
                }
                Err(e) => {
                    if self.lack(&e) >= self.channels.options.patience {
                        self.refuse_waiting();
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
                user => {
                    let (own, what) = (self.channels.own.addr(), format_args!("refused a peer of"));
                    self.meeting.admission.log_other_user(own, what, cred, user);
                }
            }
        }
        true
    }

    /// A peer cannot be met for want of descriptors or memory; for how long that has been so.
    pub(in crate::shm) fn lack(&mut self, e: &io::Error) -> Duration {
        let what = format_args!("cannot accept a peer yet");
        shortage_log::log(
            &mut self.meeting.shortage,
            self.channels.own.addr(),
            what,
            e,
            self.channels.options.ring,
        );
        self.meeting.shortage.of_caller(e)
    }

    /// Refuses the connections that wait, for want of descriptors: without an answer they would wait for
    /// ever.
    fn refuse_waiting(&mut self) {
        let callers = self.meeting.shortage.end();
        let waited = callers.map_or(Duration::ZERO, |callers| callers.since.elapsed());
        let lack = Lack(waited, callers.map(|callers| callers.errno), self.channels.options.ring);
        self.meeting.listening.give_reserve();
        let mut n = 0;
        while let (Ok(sock), true) = (self.meeting.listening.accept(), n < BATCH) {
            socket::notify(&sock, &Packet::Exhausted.encode());
            n += 1;
        }
        log::warn!("{}: refused {n} peers: {lack}", self.channels.own.addr());
    }

    /// Decides on guests and contested names for which the time has come.
    #[cold]
    pub(in crate::shm) fn tend(&mut self) {
        let all: Vec<usize> = self.meeting.listening.guests().iter().map(|(at, _)| at).collect();
        for at in all {
            let Some((waits, kept)) = self.meeting.listening.guests().waits(at) else { continue };
            let late = waits
                >= if kept {
                    self.channels.options.patience
                } else {
                    self.channels.options.patience.max(GRACE)
                };
            if !kept && !late {
                continue;
            }
            if let Some(guest) = self.meeting.listening.guests_mut().lend(at) {
                self.greet(guest, Some(at));
            }
            if late {
                self.dismiss(at, waits);
            }
        }
        // No descriptor is readable when there is memory.
        if self.meeting.listening.guests().iter().any(|(_, guest)| guest.said.is_some()) {
            self.channels.sleep.retry();
        }
        for c in self.meeting.contests.take_due() {
            self.decide(c);
        }
        self.meeting.contests.set_timer(self.channels.sleep.poller());
    }

    fn decide(&mut self, c: Contested) {
        let id = c.id;
        if let Some(inb) = self.meeting.contests.decide(&self.channels.own, &self.channels.peers[id], c) {
            self.welcome(id, inb);
        }
        self.meeting.contests.set_timer(self.channels.sleep.poller());
    }

    /// Ends a connection that has been here for too long.
    fn dismiss(&mut self, at: usize, waited: Duration) {
        let kept = self.meeting.listening.guests().waits(at).is_some_and(|(_, kept)| kept);
        let Some(guest) = self.meeting.listening.guests_mut().take(at) else { return };
        if !kept {
            return self.dismiss_silent(&guest);
        }
        self.channels.sleep.unwatch(&guest.sock);
        let errno = self.meeting.shortage.callers().map(|callers| callers.errno);
        let lack = Lack(waited, errno, self.channels.options.ring);
        if self.meeting.refused.is_logged() {
            log::warn!("{}: refused a peer (pid {}): {lack}", self.channels.own.addr(), guest.pid);
        }
        socket::notify(&guest.sock, &Packet::Exhausted.encode());
    }

    fn dismiss_silent(&self, guest: &Guest) {
        self.channels.sleep.unwatch(&guest.sock);
        log::debug!("{}: pid {} connected and says nothing", self.channels.own.addr(), guest.pid);
    }

    /// Reads a guest's hello; `slot`: its place among the guests, which has lent it.
    pub(in crate::shm) fn greet(&mut self, mut guest: Guest, slot: Option<usize>) {
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
            self.channels.sleep.unwatch(&guest.sock);
            self.meeting.listening.guests_mut().take(at);
        }
        let Guest { sock, pid, .. } = guest;
        match answer {
            None => {}
            Some(Ok((hello, segment))) => {
                self.meeting.shortage.end();
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
                let id = self.channels.peers.caller(&hello);
                self.decide(Contested::new(id, inb));
            }
            Some(Err(Declined::Wrong(why))) => {
                if self.meeting.refused.is_logged() {
                    log::warn!("{}: refused a peer (pid {pid}): {why}", self.channels.own.addr());
                }
                socket::notify(&sock, &Packet::Refused.encode());
            }
            Some(Err(Declined::Lack(_))) => {}
        }
    }

    /// A channel from a peer is there.
    fn welcome(&mut self, id: u32, inb: Inbound) {
        let welcome = Packet::Welcome(Welcome {
            incarnation: self.channels.own.incarnation(),
            space: self.channels.own.space(),
        });
        // Like any other packet: if it cannot be sent, the peer does without.
        let _ = rights::send_fd(&inb.sock, &welcome.encode(), self.channels.access.mr_table().fd());
        if self.channels.peers[id].inb.is_some() {
            self.channels.end(id, Gone::Reset);
        }
        let peer = &mut self.channels.peers[id];
        if peer.dying.is_some() {
            if peer.waiting.len() + 1 >= SUCCESSORS {
                self.meeting.listening.note_many_successors();
            }
            return peer.waiting.push(inb);
        }
        self.channels.adopt(id, inb);
        // Does the channel to that name lead to this very peer? Its welcome may be here by now.
        self.hear_outbound(id);
        self.channels.part(id, false);
    }

    fn receive_hello(&mut self, sock: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = [0; Hello::LEN + 1];
        let (n, fd) = self.meeting.listening.recv_fd(sock, &mut bytes)?;
        Ok((bytes[..n].to_vec(), fd))
    }

    fn admit(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(Hello, Segment), Declined> {
        let wrong = |why: String| Err(Declined::Wrong(why));
        let Some(hello) = Hello::decode(bytes) else { return wrong("it does not speak our language".into()) };
        let ours = self.channels.options.version;
        if hello.version != ours {
            return wrong(format!("{} speaks version {}, not {ours}", hello.from, hello.version));
        }
        let Some(fd) = fd else { return wrong("it sent no segment".into()) };
        if !self.channels.own.is_called(&hello.to) {
            return wrong(format!("{} takes us for {}", hello.from, hello.to));
        }
        let refusal = self.meeting.admission.refusal(
            &self.channels.own.addr(),
            &hello.from,
            self.channels.peers.find(&hello.from),
        );
        if let Some(why) = refusal.filter(|_| hello.from != self.channels.own.addr()) {
            return wrong(format!("it calls itself {}: {why}", hello.from));
        }
        Ok((hello, Segment::adopt(fd.as_fd(), hello.ring as usize)?))
    }

    /// Keeps a guest until its hello comes, or, if it has `spoken`, until there is what it takes.
    fn keep_guest(&mut self, guest: Guest, slot: Option<usize>, spoken: bool) {
        let at = match slot {
            Some(at) => {
                self.meeting.listening.guests_mut().give_back(at, guest);
                at
            }
            None => {
                if let Some(oldest) = self.meeting.listening.guests_mut().give_way(&()) {
                    self.dismiss_silent(&oldest);
                }
                let at = self.meeting.listening.guests_mut().add((), guest);
                let guest = self.meeting.listening.guests().get(at);
                if guest
                    .is_some_and(|guest| self.channels.sleep.watch(&guest.sock, GUEST | at as u64).is_err())
                {
                    self.meeting.listening.guests_mut().take(at);
                    return;
                }
                at
            }
        };
        if spoken {
            self.meeting.listening.guests_mut().has_spoken(at);
        }
    }

    /// Ends a connection of which no channel has come to be, and marks the ring that its hello brings, if one
    /// was `said` or waits to be received.
    pub(in crate::shm) fn close_unmet(&self, sock: &OwnedFd, said: Option<(Vec<u8>, Option<OwnedFd>)>) {
        // From now on no hello can be sent.
        socket::shutdown(sock);
        let ours = || Cred::of(sock).is_ok_and(|cred| cred.user(sock) == User::Ours);
        let (bytes, fd) = match said {
            Some(said) => said,
            None if ours() => {
                let mut bytes = [0; Hello::LEN + 1];
                match rights::recv_fd(sock, &mut bytes) {
                    Ok((n, fd)) => (bytes[..n].to_vec(), fd),
                    Err(_) => return,
                }
            }
            None => return,
        };
        if let Ok((_, segment)) = self.admit(&bytes, fd.as_ref()) {
            wake::close(&mut Consumer::new(segment));
        }
    }
}
