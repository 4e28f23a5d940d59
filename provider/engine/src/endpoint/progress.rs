//! What a call of progress does, and frames that wait for room.

use hmem::Span;
use wire::{Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use super::Endpoint;
use crate::core::Core;
use crate::endpoint::parts::quota;
use crate::types::*;
use link_api::{Event, PeerId, Refused, RmaLink};

/// Frames taken in one call of progress, so that the application gets to see what arrived.
const BUDGET: usize = 32;

impl<L: RmaLink> Endpoint<L> {
    /// Takes in what has arrived, and sends on what waits. Returns how much was done. `enough`:
    /// nothing more need be taken in once that queue has so many entries.
    #[inline]
    pub(crate) fn progress(&mut self, core: &mut Core, enough: Option<(CqId, usize)>) -> usize {
        let mut n = 0;
        self.adapt.note_progress();
        let standing = |core: &Core| enough.map_or(0, |(cq, _)| core.standing(cq));
        let most = enough.map_or(usize::MAX, |(_, most)| most);
        while n < BUDGET && !self.staging.is_full() {
            let mut frame = match self.link.poll() {
                None => break,
                Some(Event::Frame(frame)) => frame,
                Some(Event::Closed(peer, why)) => {
                    self.closed(core, peer, why);
                    n += 1;
                    continue;
                }
                Some(Event::PathChanged(peer)) => {
                    let path = self.link.path(peer);
                    self.peer(peer).flow.set_path(&path);
                    n += 1;
                    continue;
                }
                Some(Event::Begun(frame)) => {
                    let from = frame.from;
                    self.begun(core, frame);
                    n += 1 + self.go_on_with(core, from);
                    if standing(core) > 0 {
                        break;
                    }
                    continue;
                }
                Some(Event::Done(copy, ok)) => {
                    self.operation_done(core, copy, ok);
                    n += 1 + self.go_on_in_order(core);
                    if standing(core) > 0 {
                        break;
                    }
                    continue;
                }
            };
            loop {
                let from = frame.from;
                if self.meter.is_some() {
                    self.meter_frame(&frame);
                }
                let receives = self.has_receives(core);
                self.incoming(core, &frame);
                self.link.release(frame);
                n += 1 + self.go_on_with(core, from);
                // Behind the message of the last receive that was posted, the next ones are as well off in
                // the ring.
                let satisfied = receives && standing(core) > 0 && !self.has_receives(core);
                if satisfied || n >= BUDGET || standing(core) >= most || self.staging.is_full() {
                    break;
                }
                match self.link.poll_frame_from(from) {
                    Some(next) => frame = next,
                    None => break,
                }
            }
            // A caller that waits for that queue is better served now than after another round.
            if standing(core) > 0 {
                break;
            }
        }
        n + self.attend(core)
    }

    /// Whether progress is more than to take in frames.
    #[inline(always)]
    pub(super) fn has_chores(&self) -> bool {
        // One question, since it is asked all the time.
        (self.queues.any() | self.peers.backlogs() | self.unhurried.any()) != 0
    }

    /// Sends on what waits, and the like.
    #[inline(always)]
    fn attend(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        if self.peers.has_backlog() {
            n += self.catch_up(core);
        }
        if self.queues.has_streams() {
            n += self.stream(core);
        }
        if self.queues.has_unbegun() {
            n += self.fetch_unbegun(core);
        }
        if self.queues.has_coop() {
            n += self.coop_progress(core);
        }
        if self.queues.has_invited() {
            n += self.check_invitations();
        }
        if self.may_resume(core) {
            self.resume_peers();
        }
        if self.quota.is_time_to_count(self.requests.len()) {
            self.count_requests(core);
        }
        if self.queues.has_revoked() {
            self.renew();
        }
        if self.queues.has_unsent() {
            n += self.finish_sent(core);
        }
        n + self.go_on_in_order(core)
    }

    /// Whether there is more to do than to wait for peers: frames that found no room, messages to take in,
    /// pieces to copy.
    pub(crate) fn is_waiting_for_room(&self) -> bool {
        self.peers.has_backlog() || self.queues.has_work()
    }

    /// Whether the link is armed, and nothing is left to do that the link does not wake for.
    pub(crate) fn is_armed(&self, core: &Core) -> bool {
        !self.is_waiting_for_room() && !self.is_inviting() && !self.may_resume(core) && self.link.is_armed()
    }

    /// Whether paused peers are to go on.
    fn may_resume(&self, core: &Core) -> bool {
        self.unhurried.has_paused() && core.waiting <= core.waiting_most / 2
    }

    /// Sends a frame that must not get lost: now, or as soon as there is room.
    pub(super) fn send_or_queue(&mut self, peer: PeerId, frame: &[u8]) {
        self.send_or_queue_body(peer, frame, &[], 0);
    }

    /// Sends a frame that must not get lost, with the first `len` bytes of `body` behind it, as they are now;
    /// `false` if a device could not read them.
    pub(super) fn send_or_queue_body(
        &mut self,
        peer: PeerId,
        head: &[u8],
        body: &[Span],
        len: usize,
    ) -> bool {
        if !self.peer(peer).flow.has_backlog() {
            match self.link.send(peer, head, body, 0, len) {
                // A peer that is gone needs no answer: the link reports its end, or has.
                Ok(()) | Err(Refused::Gone(_) | Refused::Kept) => return true,
                Err(Refused::Busy) => self.peers.add_backlog(peer),
                Err(Refused::Fault) => return false,
            }
        }
        let mut frame = head.to_vec();
        frame.resize(head.len() + len, 0);
        let read = hmem::read(body, 0, &mut frame[head.len()..]);
        if read == len {
            let size = quota::cost(&frame);
            self.peer(peer).flow.push_backlog(frame);
            self.owe(peer, size);
        }
        read == len
    }

    pub(super) fn fin(&mut self, peer: PeerId, req: u64, status: Status, bytes: usize) {
        let head = Head::new(WireOp::Fin, Flags::empty(), status as u16, req, bytes as u64);
        self.send_or_queue(peer, head.as_bytes());
    }

    fn catch_up(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        let mut with_backlog = self.peers.take_backlog();
        with_backlog.retain(|&peer| {
            let state = &mut self.peers[peer];
            while let Some(frame) = state.flow.next_in_backlog() {
                if self.link.send(peer, frame, &[], 0, 0) == Err(Refused::Busy) {
                    return true;
                }
                let sent = state.flow.pop_backlog();
                let size = state.flow.pay(sent.as_deref().map_or(0, quota::cost));
                self.quota.pay(size);
                n += 1;
            }
            state.connecting
        });
        self.peers.put_back_backlog(with_backlog);
        n + self.retry_connects(core)
    }
}
