//! What a request has used, and gives back when it is over.

use std::collections::VecDeque;

use below::Did;
use register::Registry;

use crate::bounces::Bounces;
use crate::pair::{Access, Posted};
use crate::registered::Adapter;
use crate::sends::Sends;

/// What a request has used.
pub(crate) struct Used<'a> {
    pub(crate) sends: &'a mut Sends,
    pub(crate) bounces: &'a mut Bounces,
    pub(crate) registered: &'a mut Registry<Adapter>,
    pub(crate) did: &'a mut VecDeque<Did>,
}

impl Used<'_> {
    /// A request is over: what it has used is this side's again.
    pub(crate) fn free(&mut self, one: Posted, is_done: bool) {
        let Some(Access { op, into, held }) = one.access else {
            return one.place.into_iter().for_each(|place| self.sends.give_back(place));
        };
        let mut ok = is_done;
        if let Some(place) = one.place {
            if let Some(span) = into.filter(|_| is_done) {
                let bytes = &self.bounces.bytes_mut(place)[..span.len()];
                ok = hmem::write(&[span], 0, bytes) == span.len();
            }
            self.bounces.give_back(place);
        }
        if let Some(Err((call, errno))) = held.map(|number| self.registered.end(number)) {
            log::error!("{call}: errno {errno}: memory of a request that is over stays registered");
        }
        self.did.push_back(Did::Over(op, ok));
    }
}
