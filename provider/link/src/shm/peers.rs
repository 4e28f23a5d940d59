//! The peers of an endpoint, by number and by name.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use link_api::PeerId;
use wire::Addr;
use wire::channel::Hello;

use crate::shm::peer::Peer;

/// Numbers are used again once the engine has no use of them any more.
#[derive(Debug, Default)]
pub(super) struct Peers {
    list: Vec<Peer>,
    free: Vec<u32>,
    ids: HashMap<Addr, PeerId>,
    /// Peers that call this endpoint by another of its names too, by their name and that one: these count as
    /// peers of their own, so that either has its own channels.
    callers: HashMap<(Addr, Addr), PeerId>,
}

impl Peers {
    #[inline(always)]
    pub(super) fn get(&self, id: u32) -> Option<&Peer> {
        self.list.get(id as usize)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Peer> {
        self.list.get_mut(id as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        0..self.list.len() as u32
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Peer> {
        self.list.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Peer> {
        self.list.iter_mut()
    }

    /// How many names are known, of either sort.
    #[cfg(all(test, not(loom)))]
    pub(super) fn names(&self) -> usize {
        self.ids.len() + self.callers.len()
    }

    /// Takes all of them out, at the end.
    pub(super) fn take(&mut self) -> Vec<Peer> {
        std::mem::take(&mut self.list)
    }

    /// The peer of this name, known or new.
    pub(super) fn named(&mut self, addr: &Addr) -> PeerId {
        let (list, free) = (&mut self.list, &mut self.free);
        *self.ids.entry(*addr).or_insert_with(|| add(list, free, *addr))
    }

    /// The number of a peer that is known.
    pub(super) fn find(&self, addr: &Addr) -> Option<PeerId> {
        self.ids.get(addr).copied()
    }

    /// The peer that says this hello.
    pub(super) fn caller(&mut self, hello: &Hello) -> u32 {
        let id = self.named(&hello.from).0;
        if *self[id].name.get_or_insert(hello.to) == hello.to {
            return id;
        }
        let (list, free) = (&mut self.list, &mut self.free);
        let id = *self.callers.entry((hello.from, hello.to)).or_insert_with(|| add(list, free, hello.from));
        self[id.0].name = Some(hello.to);
        id.0
    }

    /// This number is free for another peer from now on; the peer that had it, or `None` if it was free.
    pub(super) fn free(&mut self, id: u32) -> Option<Peer> {
        let peer = self.list.get_mut(id as usize)?;
        let own = |known: &PeerId| known.0 == id;
        let known = self.ids.get(&peer.addr).is_some_and(own);
        let called =
            peer.name.map(|name| (peer.addr, name)).filter(|key| self.callers.get(key).is_some_and(own));
        if known {
            self.ids.remove(&peer.addr);
        } else {
            self.callers.remove(&called?)?;
        }
        let addr = peer.addr;
        self.free.push(id);
        Some(std::mem::replace(peer, Peer::new(addr)))
    }
}

fn add(list: &mut Vec<Peer>, free: &mut Vec<u32>, addr: Addr) -> PeerId {
    if let Some(id) = free.pop() {
        list[id as usize] = Peer::new(addr);
        return PeerId(id);
    }
    list.push(Peer::new(addr));
    PeerId(list.len() as u32 - 1)
}

impl Index<u32> for Peers {
    type Output = Peer;

    #[inline(always)]
    fn index(&self, id: u32) -> &Peer {
        &self.list[id as usize]
    }
}

impl IndexMut<u32> for Peers {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut Peer {
        &mut self.list[id as usize]
    }
}
