//! What the engine is to hear: events, which peers may have one, and to which a send found no way.

use std::collections::VecDeque;

use link_api::{Event, OpId, PeerId};

use crate::tcp::channel::connection::Channel;
use crate::tcp::peers::Peers;

#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Peers that may have a frame.
    ready: VecDeque<PeerId>,
    events: VecDeque<Event>,
    /// Peers to which a send found no way.
    wanting: Vec<PeerId>,
    /// A send says where something of it is kept.
    reports_kept: bool,
}

impl Reports {
    /// Whether there are no events, and no peer may have one.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.events.is_empty()
    }

    /// Whether a send says where something of it is kept.
    #[inline]
    pub(super) fn reports_kept(&self) -> bool {
        self.reports_kept
    }

    pub(super) fn report_kept(&mut self) {
        self.reports_kept = true;
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the end of a connection to this peer is to be reported.
    pub(super) fn has_end_of(&self, peer: PeerId) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Closed(of, _) if *of == peer))
    }

    /// The end of this operation is not reported.
    pub(super) fn cancel(&mut self, op: OpId) {
        self.events.retain(|event| !matches!(event, Event::Done(done, _) if *done == op));
    }

    /// Nothing is reported of this peer any more.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.wanting.retain(|known| *known != peer);
        self.events.retain(|event| !matches!(event, Event::Closed(known, _) if *known == peer));
    }

    /// This peer may have a frame, or an end.
    #[inline]
    pub(super) fn note_ready(&mut self, peers: &mut Peers, peer: PeerId) {
        if !std::mem::replace(&mut peers[peer].ready, true) {
            self.ready.push_back(peer);
        }
    }

    /// The peer that is looked at first, and stays it.
    #[inline]
    pub(super) fn first_ready(&self) -> Option<PeerId> {
        self.ready.front().copied()
    }

    /// This peer's frame was handed out: it is not looked at first any more, if it was.
    #[inline]
    pub(super) fn take_first(&mut self, peers: &mut Peers, peer: PeerId) {
        if self.ready.front() == Some(&peer) {
            self.next_ready(peers);
        }
    }

    /// The next peer that may have a frame, or an end: not any more, unless that is noted again.
    #[inline]
    pub(super) fn next_ready(&mut self, peers: &mut Peers) -> Option<PeerId> {
        let peer = self.ready.pop_front()?;
        peers[peer].ready = false;
        Some(peer)
    }

    /// Whether a peer has a frame, or an end. Of those that have nothing whole, their descriptors say when
    /// there is more.
    pub(super) fn is_any_ready(&self, peers: &mut Peers) -> bool {
        self.ready.iter().any(|peer| {
            let at = &mut peers[*peer];
            at.cut || at.channel.as_deref_mut().is_some_and(Channel::is_ready)
        })
    }

    /// A send finds no way to this peer.
    #[inline]
    pub(super) fn want(&mut self, peers: &mut Peers, peer: PeerId) {
        if !std::mem::replace(&mut peers[peer].wants, true) {
            self.wanting.push(peer);
        }
    }

    /// Whether there is room for a frame that found none, or the certainty that there will be none: that is
    /// said once, if `once`.
    pub(super) fn is_any_served(&mut self, peers: &mut Peers, once: bool) -> bool {
        let mut served = false;
        self.wanting.retain(|peer| {
            let at = &mut peers[*peer];
            let is_served = at.wants && at.is_served();
            if is_served && once {
                at.wants = false;
                at.answers.set_reported();
            }
            served |= is_served;
            at.wants
        });
        served
    }
}
