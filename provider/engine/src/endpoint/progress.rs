//! What a call of progress does, and frames that wait for room.

use super::Endpoint;
use crate::core::Core;
use crate::endpoint::parts::quota;
use crate::types::*;
use link_api::{Event, Refused, RmaLink};

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
        while n < BUDGET && !self.requests.staging.is_full() {
            let mut frame = match self.net.link.poll() {
                None => break,
                Some(Event::Frame(frame)) => frame,
                Some(Event::Closed(peer, why)) => {
                    self.closed(core, peer, why);
                    n += 1;
                    continue;
                }
                Some(Event::PathChanged(peer)) => {
                    let path = self.net.link.path(peer);
                    self.net.peer(peer).flow.set_path(&path);
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
                if self.net.metered.is_on() {
                    self.net.metered.frame(&self.net.link, &frame);
                }
                let receives = self.bind.has_receives(core);
                self.incoming(core, &frame);
                self.net.link.release(frame);
                n += 1 + self.go_on_with(core, from);
                // Behind the message of the last receive that was posted, the next ones are as well off in
                // the ring.
                let satisfied = receives && standing(core) > 0 && !self.bind.has_receives(core);
                if satisfied || n >= BUDGET || standing(core) >= most || self.requests.staging.is_full() {
                    break;
                }
                match self.net.link.poll_frame_from(from) {
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
        (self.requests.queues.any() | self.net.peers.backlogs() | self.net.unhurried.any()) != 0
    }

    /// Sends on what waits, and the like.
    #[inline(always)]
    fn attend(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        if self.net.peers.has_backlog() {
            n += self.catch_up(core);
        }
        if self.requests.queues.has_streams() {
            n += self.stream(core);
        }
        if self.requests.queues.has_unbegun() {
            n += self.fetch_unbegun(core);
        }
        if self.requests.queues.has_coop() {
            n += self.coop_progress(core);
        }
        if self.requests.queues.has_invited() {
            n += self.check_invitations();
        }
        if self.may_resume(core) {
            self.net.resume_peers();
        }
        if self.net.quota.is_time_to_count(self.requests.pool.len()) {
            self.count_requests(core);
        }
        if self.requests.queues.has_revoked() {
            self.requests.renew(&mut self.net.link);
        }
        if self.requests.queues.has_unsent() {
            n += self.finish_sent(core);
        }
        n + self.go_on_in_order(core)
    }

    /// Whether there is more to do than to wait for peers: frames that found no room, messages to take in,
    /// pieces to copy.
    pub(crate) fn is_waiting_for_room(&self) -> bool {
        self.net.peers.has_backlog() || self.requests.queues.has_work()
    }

    /// Whether the link is armed, and nothing is left to do that the link does not wake for.
    pub(crate) fn is_armed(&self, core: &Core) -> bool {
        !self.is_waiting_for_room()
            && !self.requests.is_inviting()
            && !self.may_resume(core)
            && self.net.link.is_armed()
    }

    /// Whether paused peers are to go on.
    fn may_resume(&self, core: &Core) -> bool {
        self.net.unhurried.has_paused() && core.waiting <= core.waiting_most / 2
    }

    fn catch_up(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        let mut with_backlog = self.net.peers.take_backlog();
        with_backlog.retain(|&peer| {
            let state = &mut self.net.peers[peer];
            while let Some(frame) = state.flow.next_in_backlog() {
                if self.net.link.send(peer, frame, &[], 0, 0) == Err(Refused::Busy) {
                    return true;
                }
                let sent = state.flow.pop_backlog();
                let size = state.flow.pay(sent.as_deref().map_or(0, quota::cost));
                self.net.quota.pay(size);
                n += 1;
            }
            state.connecting
        });
        self.net.peers.put_back_backlog(with_backlog);
        n + self.retry_connects(core)
    }
}
