//! Requests that the peer's progress carries out: put, get and atomics on memory that is neither
//! mapped here nor within CMA's reach. And the same for peers.
//!
//! A request has the slot of the key, if it has one: other memory may be registered at the address by now.
//!
//! An interface has at most [`WINDOW`] requests unanswered by a peer; further ones wait here. So for a peer that does not
//! read its replies, because it is stopped, say, no more than that many are kept. A peer that asks for more is cut off:
//! not to read its frames any more would do as well against one, but two that wait for each other's replies would
//! then wait for ever.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::rc::Rc;

use link_api::{Link, PeerId, Refused};
use ucx_sys::{self as ucx, Completion, Status, UnpackFn};
use wire::put;
pub(crate) use wire::ucx::What;
use wire::ucx::{Head, Kind, Reply};

use crate::ep::{self, Ep};
use crate::ffi::complete;
use crate::frame::{Refusal, take};
use crate::iface::Iface;
use crate::region::Slot;

/// Requests to a peer that may wait before more are refused.
const QUEUE: usize = 64;
/// Most requests that a peer has not answered.
pub(crate) const WINDOW: usize = 64;

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
    left: Cell<usize>,
    status: Cell<Status>,
    comp: *mut Completion,
}

impl Operation {
    pub(crate) fn new(requests: usize, comp: *mut Completion) -> Rc<Operation> {
        Rc::new(Operation { left: Cell::new(requests), status: Cell::new(ucx::UCS_OK), comp })
    }
}

#[derive(Debug)]
struct Request {
    ep: *mut Ep,
    into: Into_,
    operation: Rc<Operation>,
}

/// Requests under way, and frames that found no room.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    /// By the lower half of a token; the upper one tells uses of a slot apart.
    slots: Vec<(u32, Option<Request>)>,
    free: Vec<u32>,
    active: usize,
    flows: HashMap<PeerId, Flow>,
    /// Peers that frames wait for.
    queued: Vec<PeerId>,
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
    /// Whether it is in `queued`.
    queued: bool,
}

impl Flow {
    /// Sends what can be sent; whether anything is left.
    fn send(&mut self, mut send: impl FnMut(&[u8]) -> Result<(), Refused>) -> bool {
        // What goes to a peer that is gone goes nowhere.
        while let Some(frame) = self.replies.front() {
            if send(frame) == Err(Refused::Busy) {
                return true;
            }
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

impl Remote {
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

    /// Whether a peer has asked for more than it may before it reads the answers.
    pub(crate) fn is_greedy(&self, from: PeerId) -> bool {
        self.flows.get(&from).is_some_and(|flow| flow.replies.len() >= WINDOW)
    }

    /// A peer has answered a request.
    fn heard(&mut self, from: PeerId) {
        if let Some(flow) = self.flows.get_mut(&from) {
            flow.unanswered = flow.unanswered.saturating_sub(1);
        }
    }

    /// Sends a frame, now or later; whether it has to wait.
    fn post(
        &mut self,
        to: PeerId,
        frame: Vec<u8>,
        reply: bool,
        send: impl FnMut(&[u8]) -> Result<(), Refused>,
    ) -> bool {
        let flow = self.flows.entry(to).or_default();
        if reply {
            flow.replies.push_back(frame)
        } else {
            flow.asks.push_back(frame)
        }
        // Those before it wait for the next progress.
        if flow.queued {
            return true;
        }
        flow.queued = flow.send(send);
        if flow.queued {
            self.queued.push(to);
        }
        flow.queued
    }

    /// Sends what can be sent of what waits.
    fn flush(&mut self, mut send: impl FnMut(PeerId, &[u8]) -> Result<(), Refused>) {
        let flows = &mut self.flows;
        self.queued.retain(|to| {
            let Some(flow) = flows.get_mut(to) else { return false };
            flow.queued = flow.send(|frame| send(*to, frame));
            flow.queued
        });
    }

    fn insert(&mut self, request: Request) -> u64 {
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

    fn take(&mut self, token: u64, from: PeerId) -> Option<Request> {
        let (slot, generation) = (token as u32, (token >> 32) as u32);
        let (known, place) = self.slots.get_mut(slot as usize)?;
        // SAFETY: endpoints of requests live: `abandon` is called before one goes.
        if *known != generation || place.as_ref().is_none_or(|r| unsafe { (*r.ep).peer } != from) {
            return None;
        }
        self.free.push(slot);
        self.active -= 1;
        place.take()
    }

    /// Forgets an endpoint's requests; the completions of its operations.
    pub(crate) fn abandon(&mut self, ep: *mut Ep) -> Vec<*mut Completion> {
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
        self.flows.remove(&peer);
        self.queued.retain(|to| *to != peer);
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) what: What,
    pub(crate) addr: u64,
    /// A length, or the operand.
    pub(crate) a: u64,
    /// What to compare with.
    pub(crate) b: u64,
    /// Of the key.
    pub(crate) slot: Option<Slot>,
}

impl Iface {
    /// Sends a request; its operation counts it already.
    pub(crate) fn ask(
        &mut self,
        ep: &mut Ep,
        ask: Ask,
        bytes: &[u8],
        into: Into_,
        operation: &Rc<Operation>,
    ) {
        let request = Request { ep, into, operation: Rc::clone(operation) };
        let token = self.remote.insert(request);
        ep.outstanding += 1;
        let mut frame = Vec::with_capacity(Head::LEN + size_of::<wire::ucx::Request>() + bytes.len());
        put(&mut frame, &Head::bytes(Kind::Request, ask.what as u8));
        put(
            &mut frame,
            &wire::ucx::Request {
                token: token.into(),
                addr: ask.addr.into(),
                a: ask.a.into(),
                b: ask.b.into(),
                slot: Slot::to_wire(ask.slot),
                zero: 0.into(),
            },
        );
        put(&mut frame, bytes);
        if let Err(why) = self.post(ep.peer, frame, false) {
            ep.refused(why);
        }
    }

    /// Sends a frame, now or later; an error if the peer is gone.
    pub(crate) fn post(&mut self, to: PeerId, frame: Vec<u8>, reply: bool) -> Result<(), Refused> {
        let (link, mut sent) = (&mut self.link, Ok(()));
        let waits = self.remote.post(to, frame, reply, |frame| {
            sent = link.send(to, frame, &[], 0, 0);
            sent
        });
        self.busy |= waits;
        if waits { Ok(()) } else { sent }
    }

    /// Sends what waits.
    pub(crate) fn flush_remote(&mut self) {
        let (link, mut gone) = (&mut self.link, Vec::new());
        self.remote.flush(|to, frame| {
            let sent = link.send(to, frame, &[], 0, 0);
            if let (Err(Refused::Gone(_)), false) = (sent, gone.contains(&to)) {
                gone.push(to);
            }
            sent
        });
        for ep in gone.iter().filter_map(|peer| self.eps.get(peer)).flatten() {
            // SAFETY: endpoints live as long as they are listed.
            unsafe { ep::fail(*ep, ucx::UCS_ERR_CONNECTION_RESET) };
        }
    }
}

/// A reply came.
///
/// # Safety
/// As for `hear`.
pub(crate) unsafe fn answered(
    this: *mut Iface,
    from: PeerId,
    status: Status,
    body: &[u8],
) -> Result<(), Refusal> {
    // SAFETY: the caller's promise; destinations are valid until their operation is complete.
    unsafe {
        (*this).remote.heard(from);
        let mut bytes = body;
        let reply: Reply = take(&mut bytes)?;
        let Some(request) = (*this).remote.take(reply.token.get(), from) else { return Ok(()) };
        let mut status = status.min(ucx::UCS_OK);
        if status == ucx::UCS_OK {
            match request.into {
                Into_::Nowhere => {}
                Into_::Memory(to, len) if bytes.len() == len => {
                    to.copy_from_nonoverlapping(bytes.as_ptr(), len);
                }
                Into_::Callback(unpack, arg, len) if bytes.len() == len => {
                    unpack(arg, bytes.as_ptr().cast(), len);
                }
                _ => status = ucx::UCS_ERR_IO_ERROR,
            }
        } else if request.operation.status.get() == ucx::UCS_OK {
            log::warn!("{} refused an access: status {status}", (*this).link.peer_addr(from));
        }
        let Request { ep, operation, .. } = request;
        if status != ucx::UCS_OK {
            operation.status.set(status);
        }
        let left = operation.left.get() - 1;
        operation.left.set(left);
        if left == 0 {
            complete(operation.comp, operation.status.get());
        }
        // The completion may have destroyed the endpoint.
        if (*this).has(ep) {
            Ep::answered(ep);
        }
        Ok(())
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
        let (mut remote, peer, mut sent) = (Remote::default(), PeerId(3), Vec::new());
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
        let (mut remote, peer, mut sent) = (Remote::default(), PeerId(3), Vec::new());
        for _ in 0..WINDOW + 1 {
            remote.post(peer, vec![0], false, ring(&mut sent, 1000));
        }
        remote.post(peer, vec![1], true, ring(&mut sent, 1000));
        remote.flush(|_, frame| ring(&mut sent, 1000)(frame));
        assert_eq!(sent[WINDOW..], [1]);
    }

    #[test]
    fn a_peer_that_does_not_read_its_replies_is_greedy() {
        let (mut remote, peer, mut sent) = (Remote::default(), PeerId(3), Vec::new());
        for n in 0..2 * WINDOW {
            assert_eq!(remote.is_greedy(peer), n == 2 * WINDOW);
            remote.post(peer, vec![1], true, ring(&mut sent, WINDOW));
        }
        assert!(remote.is_greedy(peer) && !remote.is_greedy(PeerId(4)));
        remote.forget(peer);
        assert!(remote.sent() && !remote.is_greedy(peer));
    }
}
