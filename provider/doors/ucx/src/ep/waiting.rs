//! The endpoints with pending requests, in the order in which they get their turns ([`crate::ep::pending`]).

use link_api::PeerId;

use crate::ep::queue::Queue;

/// The endpoints with pending requests: those that this call of `dispatch` still looks at, and those that
/// wait for the next call.
#[derive(Debug)]
pub(crate) struct Waiting<E> {
    queues: [Queue<E>; 2],
    /// Which of the two is the former.
    now: usize,
    /// The number of this call of `dispatch`, and for each peer that of the last call in which it had no
    /// room.
    call: u64,
    no_room: Vec<u64>,
}

/// One of the two queues, and the ticket there.
pub(crate) type Place = (usize, u64);

impl<E> Default for Waiting<E> {
    fn default() -> Waiting<E> {
        Waiting { queues: Default::default(), now: 0, call: 1, no_room: Vec::new() }
    }
}

impl<E> Waiting<E> {
    /// Whether no endpoint waits, between two calls of `dispatch`.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues[self.now].is_empty()
    }

    pub(crate) fn push(&mut self, ep: E, next_call: bool) -> Place {
        let which = self.now ^ usize::from(next_call);
        (which, self.queues[which].push(ep))
    }

    /// A request found no room in the ring to this peer.
    pub(crate) fn set_no_room(&mut self, peer: PeerId) {
        let at = peer.0 as usize;
        self.no_room.resize(self.no_room.len().max(at + 1), 0);
        self.no_room[at] = self.call;
    }

    /// Whether one has found none in this call.
    pub(crate) fn has_no_room(&self, peer: PeerId) -> bool {
        self.no_room.get(peer.0 as usize) == Some(&self.call)
    }

    pub(crate) fn remove(&mut self, (which, ticket): Place) {
        self.queues[which].remove(ticket);
    }

    /// The next endpoint to look at.
    pub(crate) fn pop(&mut self) -> Option<E> {
        self.queues[self.now].pop()
    }

    /// All endpoints of this round have been served.
    pub(crate) fn next_round(&mut self) {
        self.now ^= 1;
        self.call += 1;
    }
}
