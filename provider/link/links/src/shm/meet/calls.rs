//! Reaching a peer: at the first send, again after it ended, and where a receive names it.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::Instant;

use ipc::credentials::{Cred, User};
use ipc::pieces::Counters;
use ipc::rights;
use link_api::{Gone, PeerId, Refused};
use wire::channel::Hello;

use crate::net;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::segment::Segment;
use crate::shm::channels::Channels;
use crate::shm::meet::executed::{is_deserted, may_be_deserted};
use crate::shm::meet::expected::GRACE;
use crate::shm::meet::hello;
use crate::shm::meet::looks::Ask;
use crate::shm::meet::meeting::Meeting;
use crate::shm::meet::reach::Purpose;
use crate::shm::meet::served::is_served;
use crate::shm::meet::shortage_log::{self, Lack};
use crate::shm::meet::token;
use crate::shm::options::{FEW, MIDDLE_RING, NEAR};
use crate::shm::peer::Outbound;

/// How an attempt failed.
enum Failed {
    /// Nothing listens.
    NotThere,
    /// A process does, and its queue of connections is full.
    Full,
    /// This side lacks something for now.
    Lack,
    /// For good.
    Gone(Gone),
}

/// Opens channels to peers.
pub(in crate::shm) struct Calls<'a> {
    pub(in crate::shm) channels: &'a mut Channels,
    pub(in crate::shm) meeting: &'a mut Meeting,
}

impl Calls<'_> {
    /// Makes a channel to this peer, which has none, to send something.
    pub(in crate::shm) fn open_channel(&mut self, id: u32) -> Result<(), Refused> {
        self.open_channel_for(id, Purpose::Send)
    }

    /// The same for a purpose.
    #[cold]
    pub(in crate::shm) fn open_channel_for(&mut self, id: u32, purpose: Purpose) -> Result<(), Refused> {
        let peer = &mut self.channels.peers[id];
        if peer.dying.is_some() {
            return Err(Refused::Gone(Gone::Reset));
        }
        let now = Instant::now();
        if peer.reach.is_too_early(now) {
            self.channels.sleep.retry();
            return Err(Refused::Busy);
        }
        self.meeting.shortage.calls_again();
        let failed = match self.attempt(id) {
            Ok(out) => {
                let peer = &mut self.channels.peers[id];
                log::debug!("{}: connected to {} (pid {})", self.channels.own.addr(), peer.addr, out.pid);
                peer.out = Some(out);
                peer.reach.is_reached();
                self.channels.looks.set(true);
                return Ok(());
            }
            Err(failed) => failed,
        };
        let peer = &mut self.channels.peers[id];
        let since = peer.reach.failed(now, purpose);
        let gone = match failed {
            Failed::Gone(gone) => Some(gone),
            Failed::NotThere
                if peer.reach.was_reached() || since >= self.channels.options.connect_timeout =>
            {
                Some(Gone::Refused)
            }
            Failed::Lack if since >= self.channels.options.patience => {
                let lack = Lack(since, self.meeting.shortage.called(), self.channels.options.ring);
                log::warn!("{}: gave up {}: {lack}", self.channels.own.addr(), peer.addr);
                Some(Gone::Exhausted)
            }
            // No descriptor shows its end, as it was never reached.
            Failed::Full if since >= self.channels.options.connect_timeout => match is_served(&peer.addr) {
                true => {
                    peer.reach.begin_anew(now, purpose);
                    None
                }
                false => Some(Gone::Refused),
            },
            Failed::NotThere | Failed::Full | Failed::Lack => None,
        };
        if let Some(gone) = gone {
            peer.reach.give_up(purpose);
            return Err(Refused::Gone(gone));
        }
        peer.reach.pause(now);
        self.channels.sleep.retry();
        Err(Refused::Busy)
    }

    fn attempt(&mut self, id: u32) -> Result<Outbound, Failed> {
        let suspect = may_be_deserted(&mut self.channels.peers[id].reach);
        let addr = self.channels.peers[id].addr;
        let sock = match hello::connect(Some(addr.ip()), addr.port()) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                if !net::is_local(addr.ip()) {
                    self.log_far(id);
                    return Err(Failed::Gone(Gone::Unreachable));
                }
                hello::connect(None, addr.port())
            }
            other => other,
        };
        let sock = sock.map_err(|e| match e.kind() {
            ErrorKind::ConnectionRefused => {
                self.channels.peers[id].reach.set_orphaned(false);
                Failed::NotThere
            }
            // What would be accepted is not waited for where nothing may ever accept it.
            ErrorKind::WouldBlock if suspect || self.channels.peers[id].reach.is_orphaned() => {
                Failed::NotThere
            }
            ErrorKind::WouldBlock => Failed::Full,
            ErrorKind::PermissionDenied => Failed::Gone(Gone::Denied),
            _ => self.lacking("a socket", &e),
        })?;
        let cred = Cred::of(&sock).map_err(|_| Failed::NotThere)?;
        let (sock, cred) = match cred.user(&sock) {
            User::Ours => (sock, cred),
            user => {
                // Another user may have taken the name of one address, of an endpoint that serves all.
                let wide = hello::connect(None, addr.port()).and_then(|sock| {
                    let cred = Cred::of(&sock)?;
                    Ok((cred.user(&sock) == User::Ours).then_some((sock, cred)))
                });
                let Ok(Some(ours)) = wide else {
                    self.meeting.admission.log_other_user(
                        self.channels.own.addr(),
                        format_args!("{addr} belongs to"),
                        cred,
                        user,
                    );
                    return Err(Failed::Gone(Gone::Denied));
                };
                ours
            }
        };
        if suspect && is_deserted(&mut self.channels.peers[id].reach, &sock, cred.pid) {
            return Err(Failed::NotThere);
        }
        let ring = self.ring_size();
        let (segment, fd) = Segment::create(ring).map_err(|e| self.lacking("a segment", &e))?;
        // The peer learns from the ring where in it to begin.
        let tx = Producer::new(
            segment,
            (self.channels.own.incarnation() as u32).wrapping_add(id),
            self.channels.sending.longer_laps(),
        );
        // A process forked from one that was killed may hold its listener, and never take anything. This
        // may take the last descriptor, and can do without.
        let ended = self.channels.watch(id, cred.pid, &sock).is_err();
        self.channels.peers[id].reach.set_orphaned(ended);
        if ended {
            return Err(Failed::NotThere);
        }
        self.channels
            .sleep
            .watch(&sock, token::OUT | u64::from(id))
            .map_err(|e| self.lacking("a place in epoll", &e))?;
        let hello = Hello {
            version: self.channels.options.version,
            ring: ring as u32,
            incarnation: self.channels.own.incarnation(),
            from: *self.channels.peers[id].name.get_or_insert(self.channels.own.addr()),
            to: addr,
            space: self.channels.own.space(),
        };
        if let Err(e) = rights::send_fd(&sock, &hello.encode(), fd.as_fd()) {
            self.channels.sleep.unwatch(&sock);
            return Err(match e.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Failed::NotThere,
                ErrorKind::WouldBlock => Failed::Full,
                _ => self.lacking("a place for a descriptor in flight", &e),
            });
        }
        Ok(Outbound {
            tx,
            sock,
            pid: cred.pid,
            space: None,
            incarnation: None,
            lacks: None,
            starved: None,
            mr_table: None,
            pieces: Counters::default(),
            ask: Ask::new(),
        })
    }

    /// A peer's address is not this host's: said once, since each operation to it fails.
    fn log_far(&mut self, id: u32) {
        let peer = &mut self.channels.peers[id];
        if peer.reach.is_far() {
            log::warn!(
                "{}: peer {} is on another host, or in another network namespace (no interface here has its address); \
                 strait connects processes of one host, so operations to this peer fail: run all processes on one \
                 host, or choose a transport that reaches both, such as tcp",
                self.channels.own.addr(),
                peer.addr
            );
        }
    }

    /// Bytes of the ring to one more peer.
    fn ring_size(&self) -> usize {
        let (short, long) = (self.channels.options.ring, self.channels.options.long_ring);
        let middle = MIDDLE_RING.clamp(short, long.max(short));
        let rings = || {
            self.channels
                .peers
                .list()
                .iter()
                .filter_map(|p| p.out.as_ref())
                .map(|out| out.tx.mem().ring_bytes())
        };
        // `long` may be no longer than what lies between: then it is the longest that are few.
        match () {
            () if rings().filter(|bytes| *bytes >= long).count() < NEAR => long,
            () if rings().filter(|bytes| *bytes > short).count() < FEW => middle,
            () => short,
        }
    }

    fn lacking(&mut self, what: &str, e: &std::io::Error) -> Failed {
        shortage_log::log(
            &mut self.meeting.shortage,
            self.channels.own.addr(),
            format_args!("could not make {what} to reach a peer"),
            e,
            self.channels.options.ring,
        );
        self.meeting.shortage.of_called(e);
        Failed::Lack
    }

    /// A receive names a peer that may never have been met.
    pub(in crate::shm) fn expect_peer(&mut self, id: PeerId) {
        self.meeting.expected.add(id.0, self.channels.sleep.poller());
    }

    /// Calls those that have not come.
    #[cold]
    pub(in crate::shm) fn call_expected(&mut self) {
        let now = Instant::now();
        let mut peers = self.meeting.expected.take();
        peers.retain(|&(id, since)| {
            if self.channels.peers[id].is_connected() {
                return false;
            }
            if now.duration_since(since) < GRACE {
                return true;
            }
            match self.open_channel(id) {
                Ok(()) => false,
                Err(Refused::Gone(why)) => {
                    self.channels.end(id, why);
                    false
                }
                Err(_) => true,
            }
        });
        self.meeting.expected.put_back(peers, self.channels.sleep.poller());
    }
}
