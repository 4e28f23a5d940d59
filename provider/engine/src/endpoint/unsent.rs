//! Messages that are sent, but for bytes that the link keeps until there is room.
//!
//! They complete when the link keeps nothing for their peer any more. A program with all its completions need
//! not call again before the peer has received, and only a call of progress sends what the link keeps.

use super::Endpoint;
use crate::core::Core;
use crate::endpoint::parts::request::{Done, Unsent};
use crate::types::*;
use link_api::{PeerId, RmaLink};

impl<L: RmaLink> Endpoint<L> {
    /// Completes a message later, of which the link keeps a part, if it has a completion or is counted.
    #[cold]
    #[inline(never)]
    pub(super) fn finish_later(&mut self, peer: PeerId, len: usize, done_as: Done) {
        let counted = done_as.tally.endpoint && self.bind.cntrs().send.is_some();
        if done_as.report || counted || done_as.tally.also.is_some() {
            self.requests.queues.add_unsent(Unsent { peer, len, done_as });
            self.net.unhurried.set_unsent(true);
            self.net.peer(peer).keep_unsent();
        }
    }

    /// Completes those that have been sent on. How many.
    #[cold]
    #[inline(never)]
    pub(super) fn finish_sent(&mut self, core: &mut Core) -> usize {
        let mut all = self.requests.queues.take_unsent();
        let before = all.len();
        let mut asked = None;
        all.retain(|unsent| {
            // Most are to one peer.
            let (_, kept) = match asked {
                Some(known @ (of, _)) if of == unsent.peer => known,
                _ => *asked.insert((unsent.peer, self.net.link.keeps(unsent.peer))),
            };
            if kept {
                return true;
            }
            self.net.peer(unsent.peer).let_go_unsent();
            self.bind.finish(core, &unsent.done_as, unsent.len, None);
            false
        });
        self.requests.queues.set_unsent(all);
        self.net.unhurried.set_unsent(self.requests.queues.has_unsent());
        before - self.requests.queues.unsent().len()
    }

    /// A peer is gone: those to it have been sent on before, or have failed.
    pub(super) fn end_unsent(&mut self, core: &mut Core, peer: PeerId, why: Error) {
        let err = self.net.link.keeps(peer).then_some(why);
        let (to_it, others) = self.requests.queues.take_unsent().into_iter().partition(|u| u.peer == peer);
        self.requests.queues.set_unsent(others);
        let to_it: Vec<Unsent> = to_it;
        for unsent in to_it {
            self.net.peer(peer).let_go_unsent();
            self.bind.finish(core, &unsent.done_as, unsent.len, err);
        }
        self.net.unhurried.set_unsent(self.requests.queues.has_unsent());
    }
}
