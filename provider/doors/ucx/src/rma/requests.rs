//! Requests to peers that are under way, and frames that wait for room or for answers
//! ([`crate::rma::remote`]).

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::rc::Rc;

use link_api::{PeerId, Refused};
use ucx_sys::{self as ucx, Completion, Status, UnpackFn};

/// Requests to a peer that may wait before more are refused.
const QUEUE: usize = 64;
/// Most requests that a peer has not answered.
pub(crate) const WINDOW: usize = 64;

/// Most bytes of replies that wait for room, of all peers together: from then on a peer may have [`EACH`]
/// replies wait.
const REPLIES: usize = 512 << 20;
const EACH: usize = 8;

/// Where a reply's bytes go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Into_ {
    Nowhere,
    Memory(*mut u8, usize),
    Callback(UnpackFn, *mut c_void, usize),
}

/// An operation made of one or more requests.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) left: Cell<usize>,
    pub(crate) status: Cell<Status>,
    pub(crate) comp: *mut Completion,
}

impl Operation {
    pub(crate) fn new(requests: usize, comp: *mut Completion) -> Rc<Operation> {
        Rc::new(Operation { left: Cell::new(requests), status: Cell::new(ucx::UCS_OK), comp })
    }
}

#[derive(Debug)]
pub(crate) struct Request<E> {
    pub(crate) ep: E,
    pub(crate) to: PeerId,
    pub(crate) into: Into_,
    pub(crate) operation: Rc<Operation>,
}

/// Requests under way, and frames that found no room.
#[derive(Debug)]
pub(crate) struct Requests<E> {
    /// By the lower half of a token; the upper half is the generation of the slot.
    slots: Vec<(u32, Option<Request<E>>)>,
    free: Vec<u32>,
    active: usize,
    flows: HashMap<PeerId, Flow>,
    /// Peers that frames wait for.
    queued: Vec<PeerId>,
    /// Bytes of all replies that wait, and how many may.
    kept: usize,
    most: usize,
}

/// What goes to a peer, and has to wait.
#[derive(Debug, Default)]
struct Flow {
    /// Requests that were sent and are not answered.
    unanswered: usize,
    /// Requests, which wait for room or for answers.
    asks: VecDeque<Vec<u8>>,
    /// Replies, which wait for room.
    replies: VecDeque<Vec<u8>>,
    /// Bytes of these.
    kept: usize,
    /// Whether it is in `queued`.
    queued: bool,
}

impl<E> Default for Requests<E> {
    fn default() -> Requests<E> {
        let (flows, queued) = (HashMap::new(), Vec::new());
        Requests { slots: Vec::new(), free: Vec::new(), active: 0, flows, queued, kept: 0, most: REPLIES }
    }
}

impl Flow {
    /// Sends what can be sent; whether anything is left.
    fn send(&mut self, mut send: impl FnMut(&[u8]) -> Result<(), Refused>) -> bool {
        // What goes to a peer that is gone goes nowhere.
        while let Some(frame) = self.replies.front() {
            if send(frame) == Err(Refused::Busy) {
                return true;
            }
            self.kept -= frame.len();
            self.replies.pop_front();
        }
        while let Some(frame) = self.asks.front().filter(|_| self.unanswered < WINDOW) {
            if send(frame) == Err(Refused::Busy) {
                return true;
            }
            self.unanswered += 1;
            self.asks.pop_front();
        }
        !self.asks.is_empty()
    }
}

impl<E: Copy + PartialEq> Requests<E> {
    /// Whether no request is under way.
    pub(crate) fn idle(&self) -> bool {
        self.active == 0
    }

    /// Whether no frame waits.
    pub(crate) fn sent(&self) -> bool {
        self.queued.is_empty()
    }

    /// Whether the next request to this peer would be refused.
    pub(crate) fn full(&self, to: PeerId) -> bool {
        self.flows.get(&to).is_some_and(|flow| flow.asks.len() >= QUEUE)
    }

    /// Whether a peer has as many unread replies as it may have.
    pub(crate) fn is_greedy(&self, from: PeerId) -> bool {
        let most = if self.kept < self.most { WINDOW } else { EACH };
        self.flows.get(&from).is_some_and(|flow| flow.replies.len() >= most)
    }

    /// A peer has answered a request.
    pub(crate) fn heard(&mut self, from: PeerId) {
        if let Some(flow) = self.flows.get_mut(&from) {
            flow.unanswered = flow.unanswered.saturating_sub(1);
        }
    }

    /// Sends a frame, now or later; whether it has to wait.
    pub(crate) fn post(
        &mut self,
        to: PeerId,
        frame: Vec<u8>,
        reply: bool,
        send: impl FnMut(&[u8]) -> Result<(), Refused>,
    ) -> bool {
        let flow = self.flows.entry(to).or_default();
        if reply {
            self.kept += frame.len();
            flow.kept += frame.len();
            flow.replies.push_back(frame)
        } else {
            flow.asks.push_back(frame)
        }
        // Those before it wait for the next progress.
        if flow.queued {
            return true;
        }
        let before = flow.kept;
        flow.queued = flow.send(send);
        self.kept -= before - flow.kept;
        if flow.queued {
            self.queued.push(to);
        }
        flow.queued
    }

    /// Sends what can be sent of what waits.
    pub(crate) fn flush(&mut self, mut send: impl FnMut(PeerId, &[u8]) -> Result<(), Refused>) {
        let (flows, kept) = (&mut self.flows, &mut self.kept);
        self.queued.retain(|to| {
            let Some(flow) = flows.get_mut(to) else { return false };
            let before = flow.kept;
            flow.queued = flow.send(|frame| send(*to, frame));
            *kept -= before - flow.kept;
            flow.queued
        });
    }

    pub(crate) fn insert(&mut self, request: Request<E>) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *generation = generation.wrapping_add(1);
        *place = Some(request);
        self.active += 1;
        u64::from(*generation) << 32 | u64::from(slot)
    }

    pub(crate) fn take(&mut self, token: u64, from: PeerId) -> Option<Request<E>> {
        let (slot, generation) = (token as u32, (token >> 32) as u32);
        let (known, place) = self.slots.get_mut(slot as usize)?;
        if *known != generation || place.as_ref().is_none_or(|r| r.to != from) {
            return None;
        }
        self.free.push(slot);
        self.active -= 1;
        place.take()
    }

    /// Forgets an endpoint's requests; the completions of its operations.
    pub(crate) fn abandon(&mut self, ep: E) -> Vec<*mut Completion> {
        let mut out = Vec::new();
        for (i, (_, place)) in self.slots.iter_mut().enumerate() {
            if place.as_ref().is_some_and(|r| r.ep == ep) {
                self.free.push(i as u32);
                self.active -= 1;
                let Some(request) = place.take() else { continue };
                let left = request.operation.left.get() - 1;
                request.operation.left.set(left);
                if left == 0 && !request.operation.comp.is_null() {
                    out.push(request.operation.comp);
                }
            }
        }
        out
    }

    /// Whether frames wait that are for this peer, or answers of it.
    pub(crate) fn names(&self, peer: PeerId) -> bool {
        let busy = |flow: &Flow| flow.unanswered > 0 || !flow.asks.is_empty() || !flow.replies.is_empty();
        self.flows.get(&peer).is_some_and(busy)
    }

    /// Drops frames to a peer that is gone.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.kept -= self.flows.remove(&peer).map_or(0, |flow| flow.kept);
        self.queued.retain(|to| *to != peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer whose ring has room for so many frames.
    fn ring(sent: &mut Vec<u8>, room: usize) -> impl FnMut(&[u8]) -> Result<(), Refused> {
        move |frame| {
            if sent.len() >= room {
                return Err(Refused::Busy);
            }
            sent.push(frame[0]);
            Ok(())
        }
    }

    #[test]
    fn no_more_than_a_window_is_unanswered() {
        let (mut remote, peer, mut sent) = (Requests::<u8>::default(), PeerId(3), Vec::new());
        for n in 0..WINDOW + QUEUE {
            assert!(!remote.full(peer));
            assert_eq!(remote.post(peer, vec![n as u8], false, ring(&mut sent, 1000)), n >= WINDOW);
        }
        assert!(remote.full(peer) && !remote.full(PeerId(4)) && !remote.sent());
        remote.flush(|_, frame| ring(&mut sent, 1000)(frame));
        assert_eq!(sent.len(), WINDOW);
        // An answer of a peer, asked for or not, makes room for one of its own.
        remote.heard(PeerId(4));
        remote.heard(peer);
        remote.flush(|_, frame| ring(&mut sent, 1000)(frame));
        assert_eq!(sent.len(), WINDOW + 1);
        assert!(!remote.full(peer));
        (0..1000).for_each(|_| remote.heard(peer));
        remote.flush(|_, frame| ring(&mut sent, 1000)(frame));
        assert!(remote.sent());
        assert!(sent.iter().enumerate().all(|(n, frame)| *frame == n as u8), "out of order");
    }

    #[test]
    fn replies_go_although_requests_wait_for_answers() {
        let (mut remote, peer, mut sent) = (Requests::<u8>::default(), PeerId(3), Vec::new());
        for _ in 0..WINDOW + 1 {
            remote.post(peer, vec![0], false, ring(&mut sent, 1000));
        }
        remote.post(peer, vec![1], true, ring(&mut sent, 1000));
        remote.flush(|_, frame| ring(&mut sent, 1000)(frame));
        assert_eq!(sent[WINDOW..], [1]);
    }

    #[test]
    fn a_peer_that_does_not_read_its_replies_is_greedy() {
        let (mut remote, peer, mut sent) = (Requests::<u8>::default(), PeerId(3), Vec::new());
        for n in 0..2 * WINDOW {
            assert_eq!(remote.is_greedy(peer), n == 2 * WINDOW);
            remote.post(peer, vec![1], true, ring(&mut sent, WINDOW));
        }
        assert!(remote.is_greedy(peer) && !remote.is_greedy(PeerId(4)));
        remote.forget(peer);
        assert!(remote.sent() && !remote.is_greedy(peer));
    }

    #[test]
    fn replies_of_all_peers_together_have_a_limit() {
        let (mut remote, mut sent) = (Requests::<u8>::default(), Vec::new());
        remote.most = 1000;
        // Peers that read none.
        let mut kept = 0;
        for peer in (0..100).map(PeerId) {
            while !remote.is_greedy(peer) {
                remote.post(peer, vec![1; 10], true, ring(&mut Vec::new(), 0));
                kept += 10;
            }
        }
        assert_eq!((remote.kept, kept), (kept, kept));
        assert!(kept <= 1000 + 10 * WINDOW + 100 * 10 * EACH, "{kept}");
        // One that does may go on, and what is read or of a peer that is gone does not count any more.
        assert!(!remote.is_greedy(PeerId(100)));
        remote.forget(PeerId(0));
        assert_eq!(remote.kept, kept - 10 * WINDOW);
        remote.flush(|_, frame| ring(&mut sent, 5)(frame));
        assert_eq!(remote.kept, kept - 10 * WINDOW - 10 * 5);
        remote.flush(|_, _| Ok(()));
        assert_eq!(remote.kept, 0);
        remote.post(PeerId(1), vec![1; 10], true, |_| Ok(()));
        assert!(remote.kept == 0 && !remote.is_greedy(PeerId(1)));
    }
}
