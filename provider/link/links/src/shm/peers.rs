//! The peers of an endpoint, by number and by name.

use std::ops::{Deref, DerefMut};

use link_api::PeerId;
use meet::Book;
use wire::Addr;
use wire::channel::Hello;

use crate::shm::peer::Peer;

/// A peer that calls this endpoint by another of its names too counts as a peer of its own, by its name and
/// that one, so that either has its own channels.
#[derive(Debug, Default)]
pub(super) struct Peers(Book<(Addr, Option<Addr>), Peer>);

impl Peers {
    /// The peer of this name, known or new.
    pub(super) fn named(&mut self, addr: &Addr) -> PeerId {
        PeerId(self.0.named((*addr, None), |_| Peer::new(*addr)))
    }

    /// The number of a peer that is known.
    pub(super) fn find(&self, addr: &Addr) -> Option<PeerId> {
        self.0.find(&(*addr, None)).map(PeerId)
    }

    /// The peer that says this hello.
    pub(super) fn caller(&mut self, hello: &Hello) -> u32 {
        let id = self.named(&hello.from).0;
        if *self[id].name.get_or_insert(hello.to) == hello.to {
            return id;
        }
        let id = self.0.named((hello.from, Some(hello.to)), |_| Peer::new(hello.from));
        self[id].name = Some(hello.to);
        id
    }

    /// This number is free for another peer from now on; the peer that had it, or `None` if it was free.
    pub(super) fn free(&mut self, id: u32) -> Option<Peer> {
        let (addr, name) = self.get(id).map(|peer| (peer.addr, peer.name))?;
        let is_free = self.0.free(&(addr, None), id) || name.is_some() && self.0.free(&(addr, name), id);
        is_free.then(|| std::mem::replace(&mut self[id], Peer::new(addr)))
    }
}

impl Deref for Peers {
    type Target = Book<(Addr, Option<Addr>), Peer>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Peers {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
