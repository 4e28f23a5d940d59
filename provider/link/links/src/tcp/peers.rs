//! The peers of an endpoint, by number and by name.

use std::ops::{Index, IndexMut};

use link_api::PeerId;
use meet::Book;
use wire::Addr;
use wire::session::{Hello, JobKey, Role};

use crate::tcp::peer::Peer;

#[derive(Debug, Default)]
pub(super) struct Peers(Book<Addr, Peer>);

impl Peers {
    /// The number of the peer of that name, known or new.
    pub(super) fn named(&mut self, addr: &Addr) -> PeerId {
        // It stays among those that may have a frame.
        let ready = |old: Option<&Peer>| old.is_some_and(|old| old.ready);
        let id = self.0.named(*addr, |old| Peer { ready: ready(old), ..Peer::new(*addr) });
        let at = &mut self[PeerId(id)];
        if let Some(further) = addr.further().filter(|ip| at.addr.further() != Some(*ip)) {
            at.addr = at.addr.with_further(further);
        }
        PeerId(id)
    }

    /// The number of a peer that is known.
    #[inline]
    pub(super) fn find(&self, addr: &Addr) -> Option<PeerId> {
        self.0.find(addr).map(PeerId)
    }

    /// What the application knows of the peer of a name.
    pub(super) fn known_by(&self, name: &Addr) -> Option<&Addr> {
        self.find(name).map(|id| &self[id].addr)
    }

    /// This number is free for another peer from now on.
    pub(super) fn free(&mut self, peer: PeerId) {
        let addr = self[peer].addr;
        self.0.free(&addr, peer.0);
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        self.0.ids().map(PeerId)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Peer> {
        self.0.list().iter()
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Peer] {
        self.0.list_mut()
    }

    /// The key that a rail of this hello has to have, by the connection that it belongs to; `None`: there is
    /// none, or no place for it.
    pub(super) fn rail_key(&self, hello: &Hello) -> Option<JobKey> {
        let Role::Rail(number) = hello.role else { return None };
        let channel = self[self.find(&hello.name)?].channel.as_ref().filter(|channel| !channel.ends())?;
        let is_free = channel.rails()?.takes(number) && channel.instance() == hello.instance;
        channel.rails_key().filter(|_| is_free).cloned()
    }
}

impl Index<PeerId> for Peers {
    type Output = Peer;

    #[inline(always)]
    fn index(&self, id: PeerId) -> &Peer {
        &self.0[id.0]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline(always)]
    fn index_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.0[id.0]
    }
}
