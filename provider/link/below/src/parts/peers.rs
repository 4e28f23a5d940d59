//! The peers that an endpoint knows, and those for which something is to be done.

use std::ops::{Index, IndexMut};

use link_api::PeerId;

use crate::peer::{Peer, Stage};

/// All peers, by the numbers that the connections give them.
#[derive(Debug)]
pub(crate) struct Peers {
    all: Vec<Peer>,
    /// That of the slot used last.
    generation: u32,
    /// Peers that are met, or lost, or have said bye.
    restless: Vec<PeerId>,
    /// Peers to which a send found no way.
    wanting: Vec<PeerId>,
    /// How many have their frames go by the connection.
    by_base: usize,
    /// And how many by the fabric.
    by_fabric: usize,
}

impl Peers {
    /// None yet; generations begin behind this one.
    pub(crate) fn new(generation: u32) -> Peers {
        let (restless, wanting) = (Vec::new(), Vec::new());
        Peers { all: Vec::new(), generation, restless, wanting, by_base: 0, by_fabric: 0 }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.all.len() as u32).map(PeerId)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.all.iter()
    }

    /// A peer, if it is known.
    #[inline]
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.all.get(peer.0 as usize)
    }

    /// A peer, if it is known.
    #[inline]
    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.all.get_mut(peer.0 as usize)
    }

    /// A peer, which is known from now on.
    #[inline]
    pub(crate) fn at(&mut self, peer: PeerId) -> &mut Peer {
        self.add(peer);
        &mut self[peer]
    }

    /// A peer is known from now on.
    pub(crate) fn add(&mut self, peer: PeerId) {
        while self.all.len() <= peer.0 as usize {
            self.generation = self.generation.wrapping_add(1);
            self.all.push(Peer::new(self.generation));
        }
    }

    /// Puts another generation of a peer in its place; returns what it was.
    pub(crate) fn renew(&mut self, peer: PeerId) -> Peer {
        self.generation = self.generation.wrapping_add(1);
        let at = &mut self.all[peer.0 as usize];
        let fresh = at.renewed(self.generation);
        let old = std::mem::replace(at, fresh);
        self.by_base -= usize::from(old.stage == Stage::Base);
        self.by_fabric -= usize::from(old.stage == Stage::Fabric);
        old
    }

    /// Frames of a peer whose frames did not go by the connection do from now on, and why.
    pub(crate) fn go_by_base(&mut self, peer: PeerId, why: &str) {
        let at = self.at(peer);
        at.stage = Stage::Base;
        at.meeting.refuse(why);
        self.by_base += 1;
    }

    /// Frames of a peer go by the fabric from now on, if they did not before.
    pub(crate) fn go_by_fabric(&mut self, peer: PeerId) {
        let before = std::mem::replace(&mut self[peer].stage, Stage::Fabric);
        self.by_fabric += usize::from(before != Stage::Fabric);
    }

    /// Whether frames of any peer go by the fabric.
    pub(crate) fn use_fabric(&self) -> bool {
        self.by_fabric > 0
    }

    /// Whether frames of any peer go by the connection.
    #[inline]
    pub(crate) fn use_base(&self) -> bool {
        self.by_base > 0
    }

    /// Something is to be done for a peer, now or later.
    pub(crate) fn note_restless(&mut self, peer: PeerId) {
        if self.at(peer).upkeep.list() {
            self.restless.push(peer);
        }
    }

    #[inline]
    pub(crate) fn has_restless(&self) -> bool {
        !self.restless.is_empty()
    }

    /// The restless ones, each of which [`Peers::keep_restless`] has to follow for.
    pub(crate) fn take_restless(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.restless)
    }

    /// Keeps a peer that was taken among the restless ones, if it still is one.
    pub(crate) fn keep_restless(&mut self, peer: PeerId) {
        let at = &mut self[peer];
        let restless = at.is_restless();
        at.upkeep.set_listed(restless);
        // Those that are listed already are not listed again.
        if restless {
            self.restless.push(peer);
        }
    }

    /// A send finds no way, or no room.
    pub(crate) fn want(&mut self, peer: PeerId) {
        if self.at(peer).upkeep.want() {
            self.wanting.push(peer);
        }
    }

    /// Those to which a send found no way or no room, each of which [`Peers::keep_wanting`] has to follow
    /// for.
    pub(crate) fn take_wanting(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.wanting)
    }

    /// Keeps a peer that was taken among the wanting ones, unless what was lacking is there.
    pub(crate) fn keep_wanting(&mut self, peer: PeerId, served: bool) {
        if self.at(peer).upkeep.serve(served) {
            self.wanting.push(peer);
        }
    }

    /// Nothing is sent to a peer any more: no lack and no loss is reported.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        let at = self.at(peer);
        at.upkeep.serve(true);
        at.end.forget_losses();
        self.wanting.retain(|known| *known != peer);
    }
}

impl Index<PeerId> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, peer: PeerId) -> &Peer {
        &self.all[peer.0 as usize]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline]
    fn index_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.all[peer.0 as usize]
    }
}
