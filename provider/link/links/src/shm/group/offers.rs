//! Memory of groups that this endpoint offers, and what it has requested.
//!
//! Requests of windows are apart ([`crate::shm::memory::windows`]): a window is offered by a process to any
//! peer of any of its links, and stays imported, where this is one endpoint's, for the members of a group
//! alone, answered by the maker alone, and over with the join.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::{rights, socket};
use wire::channel::{Packet, WindowId};

/// Between two packets that request the same: one may find no room on the socket.
const ASK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Offer {
    number: u64,
    fd: OwnedFd,
    /// The peers that may have it.
    to: Vec<u32>,
}

#[derive(Debug)]
struct Request {
    id: WindowId,
    from: u32,
    asked: Option<Instant>,
    came: Option<Result<OwnedFd, String>>,
}

/// See the module.
#[derive(Debug)]
pub(in crate::shm) struct Offers {
    maker: u64,
    next: u64,
    offers: Vec<Offer>,
    requests: Vec<Request>,
}

impl Offers {
    /// Of an endpoint of this number, which no other has.
    pub(in crate::shm) fn new(maker: u64) -> Offers {
        Offers { maker, next: 0, offers: Vec::new(), requests: Vec::new() }
    }

    pub(super) fn offer(&mut self, fd: OwnedFd, to: Vec<u32>) -> WindowId {
        let number = self.next;
        self.next += 1;
        self.offers.push(Offer { number, fd, to });
        WindowId { maker: self.maker, number }
    }

    pub(super) fn withdraw(&mut self, id: WindowId) {
        self.offers.retain(|offer| (self.maker, offer.number) != (id.maker, id.number));
        self.requests.retain(|request| request.id != id);
    }

    /// A peer requests something, by this socket. `false`: it is no group's that this endpoint offers it.
    pub(in crate::shm) fn grant(&self, peer: u32, sock: &OwnedFd, id: WindowId) -> bool {
        let is_offered = |o: &&Offer| (self.maker, o.number) == (id.maker, id.number) && o.to.contains(&peer);
        let Some(offer) = self.offers.iter().find(is_offered) else { return false };
        match rights::send_fd(sock, &Packet::Grant(id).encode(), offer.fd.as_fd()) {
            // It asks again.
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => socket::notify(sock, &Packet::Deny(id).encode()),
            Ok(()) => {}
        }
        true
    }

    /// Whether something is requested of this peer, which comes with a descriptor.
    pub(in crate::shm) fn awaits(&self, peer: u32) -> bool {
        self.requests.iter().any(|request| request.from == peer && request.came.is_none())
    }

    /// Whether that is requested.
    pub(in crate::shm) fn is_of(&self, id: WindowId) -> bool {
        self.requests.iter().any(|request| request.id == id)
    }

    /// What a peer answers; of another peer than the one that was asked it counts for nothing.
    pub(in crate::shm) fn answered(&mut self, peer: u32, id: WindowId, fd: Option<OwnedFd>, granted: bool) {
        let Some(request) = self.requests.iter_mut().find(|r| r.id == id && r.from == peer) else { return };
        request.came.get_or_insert_with(|| match (fd, granted) {
            (Some(fd), true) => Ok(fd),
            (None, true) => Err("no descriptor came: raise the limit of descriptors (ulimit -n)".into()),
            (_, false) => Err("the peer does not offer it".into()),
        });
    }

    /// What has come of a request, which is over then.
    pub(super) fn take(&mut self, id: WindowId) -> Option<Result<OwnedFd, String>> {
        let at = self.requests.iter().position(|request| request.id == id && request.came.is_some())?;
        self.requests.swap_remove(at).came
    }

    /// Whether it is time to ask that peer for it, which is so noted.
    pub(super) fn is_to_ask(&mut self, id: WindowId, from: u32) -> bool {
        let at = self.requests.iter().position(|request| request.id == id).unwrap_or_else(|| {
            self.requests.push(Request { id, from, asked: None, came: None });
            self.requests.len() - 1
        });
        let request = &mut self.requests[at];
        let now = Instant::now();
        let due = request.asked.is_none_or(|when| now.duration_since(when) >= ASK_AGAIN);
        if due {
            request.asked = Some(now);
        }
        due
    }
}
