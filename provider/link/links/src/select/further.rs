//! The links beside shared memory, their frames, and which peers each of them serves.

use std::fmt;
use std::ops::{Index, IndexMut};

use hmem::Span;
use link_api::{Frame, LandAt, Landing, PeerId, RmaLink};

use super::route;

/// A link that is held beside the one of shared memory.
pub type BoxedLink = Box<dyn RmaLink + Send>;

/// A peer that a further link serves, as that link's event names it. Only [`Further::served`] makes one: what
/// a link says of a peer that it does not serve, a frame, an end or another path, cannot be handed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Served(PeerId);

impl Served {
    /// The endpoint's number of the peer.
    pub(super) fn peer(self) -> PeerId {
        self.0
    }
}

/// A link beside shared memory.
struct Far {
    link: BoxedLink,
    /// What its peers are called here, and the other way round, by their numbers.
    peers: Vec<Option<PeerId>>,
    ids: Vec<Option<PeerId>>,
}

impl Far {
    /// The link's name, whatever the path to any peer.
    fn own_name(&self) -> &'static str {
        self.link.standing().first().map_or("link", |standing| standing.link)
    }
}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers = self.peers.iter().flatten().count();
        write!(f, "{} with {peers} peers", self.own_name())
    }
}

/// All links beside shared memory, in the order in which they are considered.
#[derive(Debug, Default)]
pub(super) struct Further {
    links: Vec<Far>,
    /// Counts polls that include these links: which of them, and whether shared memory, is polled first.
    polls: usize,
}

impl Further {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn add(&mut self, link: BoxedLink) {
        self.links.push(Far { link, peers: Vec::new(), ids: Vec::new() });
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &BoxedLink> {
        self.links.iter().map(|far| &far.link)
    }

    pub(super) fn each_mut(&mut self) -> impl Iterator<Item = &mut BoxedLink> {
        self.links.iter_mut().map(|far| &mut far.link)
    }

    /// Of the next poll of all links: whether shared memory is polled first, and with which further link the
    /// others begin.
    pub(super) fn next_poll(&self) -> (bool, usize) {
        (self.polls % 2 == 0, self.polls / 2)
    }

    /// That poll has been made.
    pub(super) fn note_polled(&mut self) {
        self.polls = if self.polls + 1 < 2 * self.len() { self.polls + 1 } else { 0 };
    }

    /// The peer of this number of a link, if the link serves it.
    pub(super) fn served(&self, at: usize, id: PeerId) -> Option<Served> {
        self.links[at].peers.get(id.0 as usize).copied().flatten().map(Served)
    }

    /// A link serves a peer from now on.
    pub(super) fn set(&mut self, at: usize, id: PeerId, peer: PeerId) {
        let far = &mut self.links[at];
        put(&mut far.peers, id, peer);
        put(&mut far.ids, peer, id);
    }

    /// A link serves the peer of this number no more.
    pub(super) fn unset(&mut self, at: usize, id: PeerId) {
        let far = &mut self.links[at];
        if let Some(peer) = far.peers.get_mut(id.0 as usize).and_then(Option::take) {
            far.ids[peer.0 as usize] = None;
        }
    }

    /// The name of a link, as the path to one of its peers has it.
    pub(super) fn name(&self, at: usize, id: PeerId) -> &'static str {
        self[at].path(id).link
    }

    /// The name of a link, whatever the path to any peer.
    pub(super) fn own_name(&self, at: usize) -> &'static str {
        self.links[at].own_name()
    }

    /// The link that a frame came by, if it is not shared memory; and the frame as that link knows it.
    fn frame(&self, from: PeerId, len: usize, slot: u32) -> Option<(usize, Frame)> {
        let at = route::of_slot(slot)?;
        let from = self.links.get(at)?.ids.get(from.0 as usize).copied().flatten()?;
        Some((at, Frame { from, len, slot: route::slot(slot) }))
    }

    /// By its parts, as with the following three: the address of a frame of shared memory, whose number is
    /// known where it is polled, is then taken nowhere, and nothing is asked of it.
    #[cold]
    #[inline(never)]
    pub(super) fn read(
        &self,
        from: PeerId,
        frame_len: usize,
        slot: u32,
        off: usize,
        dst: &mut [u8],
    ) -> usize {
        let far = self.frame(from, frame_len, slot);
        far.map_or(0, |(at, frame)| self[at].read(&frame, off, dst))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn copy_out(
        &self,
        (from, frame_len, slot): (PeerId, usize, u32),
        off: usize,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        let far = self.frame(from, frame_len, slot);
        far.map_or(0, |(at, frame)| self[at].copy_out(&frame, off, dst, doff, len))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn copy_last(
        &mut self,
        (from, frame_len, slot): (PeerId, usize, u32),
        off: usize,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        let far = self.frame(from, frame_len, slot);
        far.map_or(0, |(at, frame)| self[at].copy_last(&frame, off, dst, doff, len))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn release(&mut self, from: PeerId, len: usize, slot: u32) {
        if let Some((at, frame)) = self.frame(from, len, slot) {
            self[at].release(frame);
        }
    }

    pub(super) fn take(&mut self, frame: &Frame, off: usize, dst: Span) -> bool {
        let far = self.frame(frame.from, frame.len, frame.slot);
        far.is_some_and(|(at, frame)| self[at].take(&frame, off, dst, true))
    }

    pub(super) fn land(&mut self, frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        let Some((at, frame)) = self.frame(frame.from, frame.len, frame.slot) else {
            return if to.is_some() { Landing::Over(false) } else { Landing::Left };
        };
        match self[at].land(frame, to) {
            Landing::InFlight(op) => Landing::InFlight(route::tag_op(at, op)),
            other => other,
        }
    }
}

impl Index<usize> for Further {
    type Output = BoxedLink;

    fn index(&self, at: usize) -> &BoxedLink {
        &self.links[at].link
    }
}

impl IndexMut<usize> for Further {
    fn index_mut(&mut self, at: usize) -> &mut BoxedLink {
        &mut self.links[at].link
    }
}

fn put(map: &mut Vec<Option<PeerId>>, key: PeerId, value: PeerId) {
    let at = key.0 as usize;
    if map.len() <= at {
        map.resize(at + 1, None);
    }
    map[at] = Some(value);
}
