//! The peers of an endpoint, by number and by name.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use link_api::PeerId;
use wire::Addr;
use wire::session::{Hello, JobKey, Role};

use crate::tcp::peer::Peer;

/// Numbers are used again once the engine has no use of them any more.
#[derive(Debug, Default)]
pub(super) struct Peers {
    list: Vec<Peer>,
    ids: HashMap<Addr, PeerId>,
    free: Vec<PeerId>,
}

impl Peers {
    /// The number of the peer of that name, known or new.
    pub(super) fn named(&mut self, addr: &Addr) -> PeerId {
        if let Some(known) = self.find(addr) {
            let at = &mut self[known];
            if let Some(further) = addr.further().filter(|ip| at.addr.further() != Some(*ip)) {
                at.addr = at.addr.with_further(further);
            }
            return known;
        }
        let id = self.free.pop().unwrap_or(PeerId(self.list.len() as u32));
        match self.list.get_mut(id.0 as usize) {
            Some(old) => {
                let ready = old.ready;
                *old = Peer::new(*addr);
                old.ready = ready;
            }
            None => self.list.push(Peer::new(*addr)),
        }
        self.ids.insert(*addr, id);
        id
    }

    /// The number of a peer that is known.
    #[inline]
    pub(super) fn find(&self, addr: &Addr) -> Option<PeerId> {
        self.ids.get(addr).copied()
    }

    /// What the application knows of the peer of a name.
    pub(super) fn known_by(&self, name: &Addr) -> Option<&Addr> {
        self.find(name).map(|id| &self[id].addr)
    }

    /// This number is free for another peer from now on.
    pub(super) fn free(&mut self, peer: PeerId) {
        self.ids.remove(&self.list[peer.0 as usize].addr);
        self.free.push(peer);
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.list.len() as u32).map(PeerId)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Peer> {
        self.list.iter()
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Peer] {
        &mut self.list
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
        &self.list[id.0 as usize]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline(always)]
    fn index_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.list[id.0 as usize]
    }
}
