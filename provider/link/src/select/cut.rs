//! The end of a peer that has a channel on several links.
//!
//! A peer ends as a whole, since what came by one link may have been answered by another. When one link reports the end,
//! the others cut the peer off, and [`Event::Closed`] follows when each of them has reported it too: not before is the
//! peer inside no memory of this endpoint. A successor that connects by one link meanwhile is cut off as well.

use link_api::{Event, Frame, Gone, Link as _, PeerId};

use super::Links;
use super::ending::Which;

impl Links {
    fn has_channel(&self, by: Which, peer: PeerId) -> bool {
        match by {
            None => self.shm.is_connected(peer),
            Some(at) => self.far[at].id_of(peer).is_some_and(|id| self.far[at].link.is_connected(id)),
        }
    }

    fn cut(&mut self, by: Which, peer: PeerId) {
        match by {
            None => self.shm.disconnect(peer),
            Some(at) => {
                if let Some(id) = self.far[at].id_of(peer) {
                    self.far[at].link.disconnect(id);
                }
            }
        }
    }

    /// Cuts a peer off on all links that have a channel but one: those links.
    fn cut_others(&mut self, peer: PeerId, but: Option<Which>) -> Vec<Which> {
        let all = std::iter::once(None).chain((0..self.far.len()).map(Some));
        let with: Vec<Which> = all.filter(|by| Some(*by) != but && self.has_channel(*by, peer)).collect();
        with.iter().for_each(|by| self.cut(*by, peer));
        with
    }

    /// Cuts a peer off on all links.
    pub(super) fn cut_everywhere(&mut self, peer: PeerId) {
        if self.cut_others(peer, None).is_empty() {
            self.cut(self.far_of(peer).map(|(at, _)| at), peer);
        }
    }

    /// A link reports the end of a peer: the event, if no other link has yet to report it.
    pub(super) fn closed(&mut self, by: Which, peer: PeerId, why: Gone) -> Option<Event> {
        if self.ending.contains(peer) {
            return self.ending.report(by, peer).map(|why| Event::Closed(peer, why));
        }
        let owing = self.cut_others(peer, Some(by));
        if owing.is_empty() {
            return Some(Event::Closed(peer, why));
        }
        self.ending.begin(peer, why, owing);
        None
    }

    /// A frame of a peer that is ending comes by a link that has reported the end: the frame, as that link knows it, is
    /// given back, and the link owes the end of the successor too.
    #[cold]
    pub(super) fn refuse_successor(&mut self, by: Which, peer: PeerId, frame: Frame) {
        match by {
            None => self.shm.release(frame),
            Some(at) => self.far[at].link.release(frame),
        }
        self.cut(by, peer);
        self.ending.owe(by, peer);
    }
}
