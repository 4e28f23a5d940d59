//! What a request has used, and gives back when it is over.

use std::collections::VecDeque;

use below::Did;
use register::Registry;

use crate::bounces::Bounces;
use crate::pair::{Access, Posted};
use crate::registered::Adapter;
use crate::sends::Sends;
use crate::windows::Windows;

/// What a request has used.
pub(crate) struct Used<'a> {
    pub(crate) windows: &'a mut Windows,
    pub(crate) sends: &'a mut Sends,
    pub(crate) bounces: &'a mut Bounces,
    pub(crate) registered: &'a mut Registry<Adapter>,
    pub(crate) did: &'a mut VecDeque<Did>,
    /// Which queue pair it was posted to.
    pub(crate) pair: u32,
    /// If it has failed: since the device had no access to memory of this side.
    pub(crate) is_own_memory: bool,
    /// Memory of an access was taken back before that was over, which has put the queue pair in error.
    pub(crate) has_lost: bool,
}

/// Ends a registration that no peer knows a key of.
pub(crate) fn end_registration(registered: &mut Registry<Adapter>, lease: u64) {
    if let Err((call, errno)) = registered.close(lease) {
        log::error!("{call}: errno {errno}: memory that no peer knows a key of stays registered");
    }
}

/// A request that names a registration is over.
pub(crate) fn end_request(registered: &mut Registry<Adapter>, number: u64) {
    if let Err((call, errno)) = registered.end(number) {
        log::error!("{call}: errno {errno}: memory of a request that is over stays registered");
    }
}

impl Used<'_> {
    /// A request is over: what it has used is this side's again.
    pub(crate) fn free(&mut self, one: Posted, is_done: bool) {
        if one.bind.is_some_and(|lease| self.windows.note_done(lease, self.pair)) {
            one.bind.into_iter().for_each(|lease| end_registration(self.registered, lease));
        }
        let Some(Access { op, into, held, late }) = one.access else {
            return one.place.into_iter().for_each(|place| self.sends.give_back(place));
        };
        // What was done is in memory that may be another's by now.
        let (was_done, is_lost) = (is_done, held.is_some_and(|held| !self.registered.is_there(held)));
        let is_done = is_done && !is_lost;
        self.has_lost |= is_lost;
        let mut did = Did::Over(op, is_done);
        if let Some(place) = one.place {
            if let Some(span) = into.filter(|_| is_done) {
                let bytes = &self.bounces.bytes_mut(place)[..span.len()];
                if hmem::write(&[span], 0, bytes) < span.len() {
                    did = Did::Unwritten(op);
                }
            }
            self.bounces.give_back(place);
        }
        if let Some(Err((call, errno))) = held.filter(|_| is_done).map(|number| self.registered.flush(number))
        {
            log::error!("{call}: errno {errno}: what was read into memory of a device cannot be used");
            did = Did::Unwritten(op);
        }
        if let Some(Err((call, errno))) =
            held.filter(|_| !is_done).map(|number| self.registered.note_failure(number, self.is_own_memory))
        {
            log::error!(
                "{call}: errno {errno}: memory on demand that a request has failed with stays registered"
            );
        }
        // What was done may be repeated.
        let late = late.filter(|_| !was_done);
        held.into_iter().chain(late).for_each(|number| end_request(self.registered, number));
        self.did.push_back(did);
    }
}
