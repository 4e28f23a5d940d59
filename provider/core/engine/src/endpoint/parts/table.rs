//! The peers of an endpoint, and which of them something is to be done for.

use std::ops::{Index, IndexMut};

use link_api::PeerId;

use crate::endpoint::parts::peer::Peer;
use crate::types::*;

/// No peer has this number.
const NOWHERE: PeerId = PeerId(u32::MAX);

/// By the link's numbers.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Table {
    list: Vec<Peer>,
    /// From an index in the address vector to the link's peer, or `NOWHERE`.
    route: Vec<PeerId>,
    /// Peers with a backlog, and those that it is tried to reach.
    with_backlog: Vec<PeerId>,
    /// Peers whose accesses are to take effect in order, and have something to wait for.
    in_order: Vec<PeerId>,
    /// Peers with writes that no answer was requested for.
    with_tail: Vec<PeerId>,
    /// A peer whose path is to be logged.
    unlogged: Option<PeerId>,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(in crate::endpoint) fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.list.len() as u32).map(PeerId)
    }

    #[inline(always)]
    pub(in crate::endpoint) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.list.get(peer.0 as usize)
    }

    #[inline(always)]
    pub(in crate::endpoint) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.list.get_mut(peer.0 as usize)
    }

    pub(in crate::endpoint) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Peer> {
        self.list.iter_mut()
    }

    pub(in crate::endpoint) fn push(&mut self, peer: Peer) {
        self.list.push(peer);
    }

    /// The peer at an index of the address vector.
    #[inline(always)]
    pub(in crate::endpoint) fn routed(&self, at: FiAddr) -> Option<PeerId> {
        let peer = usize::try_from(at).ok().and_then(|at| self.route.get(at).copied());
        peer.filter(|peer| *peer != NOWHERE)
    }

    pub(in crate::endpoint) fn set_route(&mut self, at: FiAddr, peer: PeerId) {
        let slot = at as usize;
        if self.route.len() <= slot {
            self.route.resize(slot + 1, NOWHERE);
        }
        self.route[slot] = peer;
    }

    pub(in crate::endpoint) fn take_route(&mut self, at: FiAddr) -> Option<PeerId> {
        let slot = self.route.get_mut(usize::try_from(at).ok()?)?;
        Some(std::mem::replace(slot, NOWHERE)).filter(|peer| *peer != NOWHERE)
    }

    /// How many peers have a backlog, or are to be reached.
    #[inline(always)]
    pub(in crate::endpoint) fn backlogs(&self) -> usize {
        self.with_backlog.len()
    }

    /// Whether frames wait for room, or peers are to be reached.
    #[inline(always)]
    pub(in crate::endpoint) fn has_backlog(&self) -> bool {
        !self.with_backlog.is_empty()
    }

    pub(in crate::endpoint) fn add_backlog(&mut self, peer: PeerId) {
        self.with_backlog.push(peer);
    }

    pub(in crate::endpoint) fn take_backlog(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.with_backlog)
    }

    /// Puts back those that wait still, behind those that were added meanwhile.
    pub(in crate::endpoint) fn put_back_backlog(&mut self, mut peers: Vec<PeerId>) {
        self.with_backlog.append(&mut peers);
    }

    /// Those that it is tried to reach.
    pub(in crate::endpoint) fn connecting(&self) -> Vec<PeerId> {
        self.with_backlog.iter().copied().filter(|p| self[*p].connecting).collect()
    }

    #[inline(always)]
    pub(in crate::endpoint) fn has_in_order(&self) -> bool {
        !self.in_order.is_empty()
    }

    pub(in crate::endpoint) fn add_in_order(&mut self, peer: PeerId) {
        if !self.in_order.contains(&peer) {
            self.in_order.push(peer);
        }
    }

    pub(in crate::endpoint) fn take_in_order(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.in_order)
    }

    pub(in crate::endpoint) fn set_in_order(&mut self, peers: Vec<PeerId>) {
        self.in_order = peers;
    }

    pub(in crate::endpoint) fn add_tail(&mut self, peer: PeerId) {
        self.with_tail.push(peer);
    }

    pub(in crate::endpoint) fn take_tails(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.with_tail)
    }

    pub(in crate::endpoint) fn set_tails(&mut self, peers: Vec<PeerId>) {
        self.with_tail = peers;
    }

    /// Nothing is to be done for this peer any more.
    pub(in crate::endpoint) fn drop_work_of(&mut self, peer: PeerId) {
        self.drop_backlog_of(peer);
        self.in_order.retain(|p| *p != peer);
        self.with_tail.retain(|p| *p != peer);
    }

    pub(in crate::endpoint) fn drop_backlog_of(&mut self, peer: PeerId) {
        self.with_backlog.retain(|p| *p != peer);
    }

    /// The path to this peer is to be logged.
    pub(in crate::endpoint) fn note_unlogged(&mut self, peer: PeerId) {
        self.unlogged = Some(peer);
    }

    #[inline(always)]
    pub(in crate::endpoint) fn take_unlogged(&mut self) -> Option<PeerId> {
        if self.unlogged.is_none() { None } else { self.unlogged.take() }
    }
}

impl Index<PeerId> for Table {
    type Output = Peer;

    #[inline(always)]
    fn index(&self, peer: PeerId) -> &Peer {
        &self.list[peer.0 as usize]
    }
}

impl IndexMut<PeerId> for Table {
    #[inline(always)]
    fn index_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.list[peer.0 as usize]
    }
}
