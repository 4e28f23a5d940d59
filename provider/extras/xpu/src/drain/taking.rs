//! Taking commands from a ring, many at a time: what all of them need is found out once, and the device is
//! shown how far the ring is taken after some of them.

use std::sync::atomic::Ordering::{Acquire, Release};

use engine::Domain;
use link_api::RmaLink;

use super::Drain;
use crate::backlog::lane;
use crate::command::{Limits, Raw};
use crate::error::code;
use crate::layout::{self, Completion, word_of};
use crate::ring;

/// How much is taken from a ring in one call, before other rings have their turn.
const BATCH: usize = 512;
/// What a command counts for that the engine or a check has part in; one that does nothing counts for 1.
const WORK: usize = 8;
/// After so many commands the device is shown that their slots are free.
const SHOWN: usize = 32;

impl Drain {
    /// Takes what there is, up to a batch; the number of commands.
    pub(super) fn take<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize) -> usize {
        if !self.may_take(at) || !self.is_written(at) {
            return 0;
        }
        let (mut n, mut spent) = (0, 0);
        while spent < BATCH {
            let r = &mut self.rings[at];
            if r.window.is_full() {
                break;
            }
            let (ticket, log2) = (r.window.next, r.options.log2_slots);
            if r.options.bell && r.places.produced.word(word_of!(Produced.bell)).load(Acquire) <= ticket {
                break;
            }
            let slot = r.places.slots.slot(ring::slot(ticket, log2));
            let Some(words) = ring::take(|i| &slot[i], ring::lap(ticket, log2)) else { break };
            n += 1;
            if Raw::is_idle(&words) && r.window.pass() {
                spent += 1;
            } else {
                spent += WORK;
                self.accept(engine, at, &Raw::of(&words));
                if !self.may_take(at) {
                    break;
                }
            }
            if n % SHOWN == 0 {
                self.show_taken(at);
            }
        }
        self.show_taken(at);
        n
    }

    /// Whether the first word of the next slot is of this lap: that is all that an idle ring costs.
    fn is_written(&self, at: usize) -> bool {
        let r = &self.rings[at];
        let (ticket, log2) = (r.window.next, r.options.log2_slots);
        let first = r.places.slots.slot(ring::slot(ticket, log2))[0].load(Acquire);
        first >> layout::LAP_BIT == ring::lap(ticket, log2)
    }

    /// Whether the ring is open, and its queues have room. A ring ends with its queue.
    fn may_take(&mut self, at: usize) -> bool {
        let r = &self.rings[at];
        let queues = [r.options.queue, r.options.receive_queue].into_iter().flatten();
        if !r.ended && queues.clone().any(|q| self.queues[q].is_ended()) {
            self.rings[at].end(code::CANCELED);
            return false;
        }
        let behind = { queues }.any(|q| self.queues[q].is_behind());
        !self.rings[at].ended && !behind
    }

    fn show_taken(&self, at: usize) {
        let r = &self.rings[at];
        r.status(word_of!(Status.consumed)).store(r.window.next, Release);
    }

    fn accept<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize, raw: &Raw) {
        let regions = self.known.all(&self.regions);
        let checked = raw.check(&Limits { peers: self.peers.count(), regions, message: self.message });
        match checked {
            Ok(command) => {
                let ticket = self.rings[at].window.admit(command);
                if self.backlog.holds(lane(at, &command)) {
                    self.backlog.push(lane(at, &command), ticket);
                } else {
                    self.go(engine, at, ticket);
                }
            }
            Err(why) => {
                let ticket = self.rings[at].window.skip(raw.names(self.peers.count()));
                let entry = Completion { context: raw.context, what: raw.op.into(), ..Completion::default() };
                self.refused(at, ticket, why);
                self.complete(self.rings[at].options.queue, at, ticket, entry, why);
            }
        }
    }
}
