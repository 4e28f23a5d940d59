//! One endpoint's link, as the parts that it is made of: each owns its state. Opening it, and its end as its
//! peers see it.
//!
//! At its end, a peer may have sent what is not read any more. What it sends once this is over must not be
//! taken for sent: the ring of each channel is marked ([`wake::close`]), also of those that were made to the
//! listener and not met yet. Its socket ends before: a sender that finds the mark finds the end, too, and
//! what listens under the name by then.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use ipc::Poller;
use ipc::credentials::{Cred, User};
use ipc::rights;
use ipc::socket;
use link_api::PeerId;
use meet::Shortage;
use wire::channel::Hello;

use crate::name::Name;
use crate::shm::channel::ring::Consumer;
use crate::shm::channel::rings::Rings;
use crate::shm::channel::wake;
use crate::shm::ends::Ends;
use crate::shm::meet::admission::{Admission, Callers};
use crate::shm::meet::contests::Contests;
use crate::shm::meet::expected::Expected;
use crate::shm::meet::hello;
use crate::shm::meet::listening::Listening;
use crate::shm::meet::looks::Looks;
use crate::shm::meet::own::Own;
use crate::shm::meet::token;
use crate::shm::memory::access::Access;
use crate::shm::memory::copies::Copies;
use crate::shm::memory::mr_table::MrTable;
use crate::shm::options::{OpenOptions, size};
use crate::shm::pace::Pace;
use crate::shm::peers::Peers;
use crate::shm::sending::Sending;
use crate::shm::sleep::Sleep;

/// One endpoint's link to all peers on this host.
#[derive(Debug)]
pub struct ShmLink {
    pub(super) peers: Peers,
    /// The rings of all peers with a channel to this endpoint.
    pub(super) rings: Rings,
    pub(super) pace: Pace,
    pub(super) ends: Ends,
    pub(super) sending: Sending,
    pub(super) listening: Listening,
    /// Under which names callers are let in.
    pub(super) admission: Admission,
    pub(super) contests: Contests,
    pub(super) shortage: Shortage,
    pub(super) expected: Expected,
    pub(super) looks: Looks,
    pub(super) sleep: Sleep,
    pub(super) access: Access,
    pub(super) copies: Copies,
    pub(super) options: OpenOptions,
    /// Dropped last: the name is of others once nothing listens under it any more.
    pub(super) own: Own,
}

impl ShmLink {
    /// Whether devices may copy from and to peers' memory, from now on: by default as it was opened.
    pub fn set_device_direct(&mut self, on: bool) {
        self.options.device_direct = on;
    }

    /// Another link of the endpoint carries frames.
    pub(crate) fn set_patient(&mut self) {
        self.pace.set_patient();
    }

    /// Which peers this link serves: others that call are refused.
    pub(crate) fn admit_callers(&mut self, callers: Callers) {
        self.admission.set_callers(callers);
    }

    /// Another link serves this peer, or does no more. A peer with a channel here is none of another link's.
    pub(crate) fn set_elsewhere(&mut self, peer: PeerId, on: bool) {
        self.admission.set_elsewhere(peer, on);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_patient(&self) -> bool {
        self.pace.is_patient()
    }

    /// Whether no peer of this host has a channel to this endpoint.
    pub(crate) fn has_no_rings(&self) -> bool {
        self.rings.is_empty()
    }

    /// When the clock was read last, which is now and then.
    pub(crate) fn clock(&self) -> std::time::Instant {
        self.pace.clock()
    }

    /// The name, which links of other sorts share.
    pub(crate) fn name(&self) -> &Name {
        self.own.name()
    }

    /// The port of the name listens from now on, for other links.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        self.own.listen()
    }

    /// Opens an endpoint of this name; `AddrInUse` if it is taken.
    pub fn open(options: OpenOptions) -> io::Result<ShmLink> {
        let chosen = options.bind.is_some_and(|bind| bind.port() != 0);
        let (name, listener) = Name::claim(options.bind, options.port, |bound| listen(bound, chosen))?;
        let poller = Poller::new()?;
        poller.add(&listener, token::LISTENER)?;
        let ring = size(options.ring);
        let long_ring = size(options.long_ring).max(ring);
        let access = Access::new(MrTable::create()?);
        let link = ShmLink {
            own: Own::new(name)?,
            peers: Peers::default(),
            rings: Rings::new(),
            pace: Pace::new(),
            ends: Ends::default(),
            sending: Sending::new(ring, long_ring),
            listening: Listening::new(listener, access.mr_table().fd())?,
            admission: Admission::new(),
            contests: Contests::default(),
            shortage: Shortage::default(),
            expected: Expected::default(),
            looks: Looks::new(&poller)?,
            sleep: Sleep::new(poller),
            access,
            copies: Copies::default(),
            options: OpenOptions { ring, long_ring, ..options },
        };
        log::debug!("{}: open, ring {ring}, {:?}", link.own.addr(), link.sleep.barrier());
        Ok(link)
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        // A forked child only closes its copies. The endpoint's own process ends the connections
        // for good, even while a child still holds copies.
        if self.own.is_forked() {
            return;
        }
        // Copies in flight are from or to peers' memory: before these see the end of the connection.
        self.copies.cancel_all();
        if !self.access.is_closed() {
            let _ = self.access.close(&self.own, &self.peers);
        }
        // The listener first: a peer that sees its channel end finds nothing to connect to.
        self.listening.shut_down();
        let mut ins: Vec<_> = self.contests.take().collect();
        for mut peer in self.peers.take() {
            if let Some(out) = &peer.out {
                socket::shutdown(&out.sock);
            }
            ins.extend(peer.inb.take());
            ins.append(&mut peer.waiting);
        }
        for mut inb in ins {
            socket::shutdown(&inb.sock);
            wake::close(&mut inb.rx);
        }
        for guest in self.listening.guests_mut().take_all() {
            self.close_unmet(&guest.sock, guest.said);
        }
        // Those that were not accepted yet, which a child's copy of the listener would keep; each takes two
        // descriptors.
        self.listening.give_reserve();
        while let Ok(sock) = self.listening.accept() {
            self.close_unmet(&sock, None);
        }
    }
}

impl ShmLink {
    /// Ends a connection of which no channel has come to be, and marks the ring that its hello brings, if one
    /// was `said` or waits to be received.
    fn close_unmet(&self, sock: &OwnedFd, said: Option<(Vec<u8>, Option<OwnedFd>)>) {
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

/// Listens under a name. If that is taken and was `chosen`, the log says by what.
fn listen(bound: SocketAddr, chosen: bool) -> io::Result<OwnedFd> {
    let e = match hello::listen(bound) {
        Ok(listener) => return Ok(listener),
        Err(e) => e,
    };
    if chosen && e.kind() == io::ErrorKind::AddrInUse {
        let owner = hello::listener(bound).map_or_else(
            || "a process that does not listen".into(),
            |cred| format!("pid {} of uid {}", cred.pid, cred.uid),
        );
        log::warn!(
            "{bound} cannot be opened: {owner} has its abstract unix socket; end it, or take another port"
        );
    }
    Err(e)
}
