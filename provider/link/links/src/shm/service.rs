//! What arrives on sockets: connections, ends, wake-ups, and what the receiver of a channel says.

use std::io::ErrorKind;
use std::time::Instant;

use ipc::{rights, socket};
use link_api::Gone;
use meet::Life;
use wire::channel::Packet;

use crate::shm::channels::Channels;
use crate::shm::meet::calls::Calls;
use crate::shm::meet::guest::GRACE;
use crate::shm::meet::meeting::Meeting;
use crate::shm::meet::token::{EXECUTED, GUEST, IN, KIND, LIFE, OUT};
use crate::shm::memory::mr_table::PeerMrTable;
use crate::space;

/// Most events taken, and most packets read from one socket, at a time.
const BATCH: usize = 64;

/// Does what the sockets ask for.
pub(super) struct Service<'a> {
    pub(super) channels: &'a mut Channels,
    pub(super) meeting: &'a mut Meeting,
}

impl Service<'_> {
    /// Takes in what is there on the sockets.
    pub(super) fn run(&mut self) {
        let events = self.channels.sleep.poller().ready::<BATCH>();
        if !self.meeting.listening.guests().is_empty() || !self.meeting.contests.is_empty() {
            self.tend();
        }
        if !self.meeting.expected.is_empty() {
            Calls { channels: self.channels, meeting: self.meeting }.call_expected();
        }
        if events.is_empty() {
            return;
        }
        // First of all hellos: frames of a peer that has since ended must come before its end.
        let behind = self.is_behind();
        for token in events.tokens() {
            // A descriptor may have changed its role since, so each of these asks it anew.
            let which = token as u32;
            match token & KIND {
                OUT | LIFE if behind && self.may_have_called(which) => {}
                OUT => self.hear_outbound(which),
                IN => self.hear_inbound(which),
                LIFE => self.hear_life(which),
                EXECUTED => self.end_executed(),
                GUEST => {
                    if let Some(guest) = self.meeting.listening.guests_mut().lend(which as usize) {
                        self.greet(guest, Some(which as usize));
                    }
                }
                _ => {}
            }
        }
        self.meeting.listening.renew_reserve(self.channels.access.mr_table().fd());
    }

    /// Ends the peers that are another program by now.
    #[cold]
    fn end_executed(&mut self) {
        for id in self.channels.looks.find_executed(&mut self.channels.peers) {
            log::info!(
                "{}: the process of {} executes another program, and a process that it forked holds its sockets",
                self.channels.own.addr(),
                self.channels.peers[id].addr
            );
            self.channels.part(id, false);
            self.channels.end(id, Gone::Reset);
        }
    }

    /// Accepts connections; whether there may be more of them, and ends wait for these.
    fn is_behind(&mut self) -> bool {
        let wait = self.accept();
        self.meeting.listening.note_waiting(wait)
    }

    /// Whether the end of a peer, which has just been found, is to be taken note of later: what it sent
    /// before may be in a channel that it made since connections were last accepted.
    fn is_to_be_met(&mut self, id: u32) -> bool {
        self.channels.peers[id].inb.is_none() && self.is_behind() && self.channels.peers[id].inb.is_none()
    }

    /// Whether a peer has ended that may have sent something before, by a channel that is not accepted yet.
    fn may_have_called(&self, id: u32) -> bool {
        let peer = &self.channels.peers[id];
        let ended = peer.out.as_ref().is_none_or(|out| socket::hung_up(&out.sock));
        peer.inb.is_none() && (ended || peer.life.as_ref().is_some_and(Life::has_ended))
    }

    /// Reads what the sender of a channel says: wake-ups, and its end.
    fn hear_inbound(&mut self, id: u32) {
        let Some(inb) = &self.channels.peers[id].inb else { return };
        for _ in 0..BATCH {
            let mut bytes = [0; Packet::BUFFER];
            match socket::receive(&inb.sock, &mut bytes) {
                Ok(n @ 1..) => {
                    if let Some(Packet::Want(window)) = Packet::decode(&bytes[..n]) {
                        match &self.channels.options.windows {
                            _ if self.channels.groups.grant(id, &inb.sock, window) => {}
                            Some(windows) => windows.grant(&inb.sock, window, self.channels.own.addr()),
                            None => socket::notify(&inb.sock, &Packet::Deny(window).encode()),
                        }
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => return self.channels.end(id, Gone::Reset),
            }
        }
    }

    /// Reads what the receiver of a channel says: a welcome, a refusal, wake-ups, and its end.
    pub(super) fn hear_outbound(&mut self, id: u32) {
        let mut errors = 0;
        for _ in 0..BATCH {
            let Some(out) = &mut self.channels.peers[id].out else { return };
            let mut bytes = [0; Packet::BUFFER];
            // Only a welcome and a window come with a descriptor.
            let with_fd = out.incarnation.is_none()
                || self.channels.options.windows.is_some()
                || self.channels.groups.awaits(id);
            let got = match with_fd {
                true => rights::recv_fd(&out.sock, &mut bytes),
                false => socket::receive(&out.sock, &mut bytes).map(|n| (n, None)),
            };
            let got = match got {
                Err(e) if socket::is_lack(&e) => {
                    if self.meeting.listening.give_reserve() {
                        continue;
                    }
                    self.lack(&e);
                    let Some(out) = &mut self.channels.peers[id].out else { return };
                    if out.lacks.get_or_insert_with(Instant::now).elapsed()
                        < self.channels.options.patience.min(GRACE)
                    {
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
            let Some(out) = &mut self.channels.peers[id].out else { return };
            match n.map(|n| (n, Packet::decode(&bytes[..n]))) {
                Ok((_, Some(Packet::Welcome(welcome)))) => {
                    out.incarnation = Some(welcome.incarnation);
                    out.space = Some(space::checked(welcome.space, out.pid));
                    // Without it, or with one that is not right, memory is reached by asking.
                    out.mr_table = fd.and_then(|fd| PeerMrTable::adopt(&fd).ok());
                    self.channels.peers[id].target = None;
                    self.channels.part(id, false);
                }
                Ok((_, Some(Packet::Refused))) => {
                    log::warn!("{}: {} refused us", self.channels.own.addr(), self.channels.peers[id].addr);
                    return self.channels.end(id, Gone::Denied);
                }
                Ok((_, Some(Packet::Exhausted))) => {
                    let peer = self.channels.peers[id].addr;
                    log::warn!(
                        "{}: {peer} has no descriptors or no memory for us: raise its RLIMIT_NOFILE (ulimit -n); \
                        what was sent to it and not received is lost",
                        self.channels.own.addr()
                    );
                    return self.channels.end(id, Gone::Exhausted);
                }
                Ok((_, Some(Packet::Grant(window)))) if self.channels.groups.is_of(window) => {
                    self.channels.groups.answered(id, window, fd, true);
                }
                Ok((_, Some(Packet::Deny(window)))) if self.channels.groups.is_of(window) => {
                    self.channels.groups.answered(id, window, None, false);
                }
                Ok((_, Some(Packet::Grant(window)))) => {
                    if let Some(windows) = &self.channels.options.windows {
                        windows.granted(window, fd, self.channels.own.addr(), self.channels.peers[id].addr);
                    }
                }
                Ok((_, Some(Packet::Deny(window)))) => {
                    if let Some(windows) = &self.channels.options.windows {
                        windows.deny(window);
                    }
                }
                Ok((1.., _)) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // An error comes before the packets that were sent earlier; perhaps a refusal.
                Err(_) if errors == 0 => errors = 1,
                Ok((0, _)) | Err(_) => {
                    if self.is_to_be_met(id) {
                        return;
                    }
                    self.channels.part(id, true);
                    return self.channels.end(id, Gone::Reset);
                }
            }
        }
    }

    /// A peer's process may have ended.
    fn hear_life(&mut self, id: u32) {
        if self.channels.peers[id].life.is_some() && !self.is_to_be_met(id) {
            self.channels.part(id, false);
            self.channels.end(id, Gone::Reset);
        }
    }
}
