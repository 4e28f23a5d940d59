//! Requests that something is to be done for, by what that is.

use std::collections::VecDeque;

use link_api::{OpId, PeerId};

use crate::endpoint::parts::request::{Unbegun, Unsent};

#[derive(Debug, Default)]
#[repr(C)]
pub(in crate::endpoint) struct Queues {
    /// Not 0 if there is anything in one of those below, but for `in_flight` and `unsent`: in one word, which
    /// each call of progress tests.
    any: usize,
    /// Requests with frames to send, or with bytes on their way to a device.
    streams: VecDeque<u64>,
    /// Requests of which this side has pieces to copy.
    coop: VecDeque<u64>,
    /// Operations by handles in flight, the request each is for, and whether it is a frame whose bytes the
    /// link puts into place as they come.
    in_flight: Vec<(OpId, u64, bool)>,
    /// Requests whose sender is invited, and for how many polls more it is left to that.
    invited: Vec<(u64, u16)>,
    /// Messages that the next calls of progress take in.
    unbegun: VecDeque<Unbegun>,
    /// Messages of which the link keeps a part.
    unsent: Vec<Unsent>,
    /// Requests whose memory was taken back, from which peer, and whether that was because of a time limit.
    revoked: Vec<(u64, PeerId, bool)>,
}

impl Queues {
    /// Not 0 if progress has something to do for a request; messages of which the link keeps a part are not
    /// among it.
    #[inline(always)]
    pub(in crate::endpoint) fn any(&self) -> usize {
        debug_assert_eq!(self.any, self.counted());
        self.any
    }

    fn counted(&self) -> usize {
        self.streams.len() | self.coop.len() | self.revoked.len() | self.invited.len() | self.unbegun.len()
    }

    /// To be called after each change of a queue that `any` is of.
    fn update(&mut self) {
        self.any = self.counted();
    }

    /// Whether requests wait for room, for pieces to be copied, or to be begun.
    pub(in crate::endpoint) fn has_work(&self) -> bool {
        !self.streams.is_empty() || !self.coop.is_empty() || !self.unbegun.is_empty()
    }

    /// These requests are no more.
    pub(in crate::endpoint) fn drop_requests(&mut self, names: &[u64]) {
        self.streams.retain(|name| !names.contains(name));
        self.coop.retain(|name| !names.contains(name));
        self.invited.retain(|(name, _)| !names.contains(name));
        self.unbegun.retain(|d| !names.contains(&d.name));
        self.update();
    }

    #[inline(always)]
    pub(in crate::endpoint) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    pub(in crate::endpoint) fn streams(&self) -> usize {
        self.streams.len()
    }

    pub(in crate::endpoint) fn is_streamed(&self, name: u64) -> bool {
        self.streams.contains(&name)
    }

    pub(in crate::endpoint) fn add_stream(&mut self, name: u64) {
        self.streams.push_back(name);
        self.update();
    }

    /// Adds one whose turn is next.
    pub(in crate::endpoint) fn add_stream_first(&mut self, name: u64) {
        self.streams.push_front(name);
        self.update();
    }

    /// The one whose turn it is.
    pub(in crate::endpoint) fn next_stream(&mut self) -> Option<u64> {
        let name = self.streams.pop_front()?;
        self.streams.push_back(name);
        Some(name)
    }

    pub(in crate::endpoint) fn drop_stream(&mut self, name: u64) {
        match self.streams.back() == Some(&name) {
            true => drop(self.streams.pop_back()),
            false => self.streams.retain(|s| *s != name),
        }
        self.update();
    }

    #[inline(always)]
    pub(in crate::endpoint) fn has_coop(&self) -> bool {
        !self.coop.is_empty()
    }

    pub(in crate::endpoint) fn coop(&self) -> &VecDeque<u64> {
        &self.coop
    }

    pub(in crate::endpoint) fn add_coop(&mut self, name: u64) {
        self.coop.push_back(name);
        self.update();
    }

    /// The one whose turn it is.
    pub(in crate::endpoint) fn next_coop(&mut self) -> Option<u64> {
        let name = *self.coop.front()?;
        self.coop.rotate_left(1);
        Some(name)
    }

    pub(in crate::endpoint) fn drop_coop(&mut self, name: u64) {
        self.coop.retain(|s| *s != name);
        self.update();
    }

    pub(in crate::endpoint) fn add_flight(&mut self, op: OpId, name: u64) {
        self.in_flight.push((op, name, false));
    }

    /// The same, of a frame that lands.
    pub(in crate::endpoint) fn add_landing(&mut self, op: OpId, name: u64) {
        self.in_flight.push((op, name, true));
    }

    pub(in crate::endpoint) fn has_flights(&self) -> bool {
        !self.in_flight.is_empty()
    }

    pub(in crate::endpoint) fn is_in_flight(&self, name: u64) -> bool {
        self.in_flight.iter().any(|(_, n, _)| *n == name)
    }

    pub(in crate::endpoint) fn flights(&self) -> impl Iterator<Item = OpId> {
        self.in_flight.iter().map(|(op, ..)| *op)
    }

    /// An operation is over: the request that it was for, and whether it was a frame that lands.
    pub(in crate::endpoint) fn end_flight(&mut self, op: OpId) -> Option<(u64, bool)> {
        let at = self.in_flight.iter().position(|(o, ..)| *o == op)?;
        let (_, name, lands) = self.in_flight.swap_remove(at);
        Some((name, lands))
    }

    /// Takes out the operations for this request, or all.
    pub(in crate::endpoint) fn take_flights(&mut self, of: Option<u64>) -> Vec<OpId> {
        let is_it = |(_, name, _): &(OpId, u64, bool)| of.is_none_or(|of| of == *name);
        let (taken, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.in_flight).into_iter().partition(is_it);
        self.in_flight = rest;
        taken.into_iter().map(|(op, ..)| op).collect()
    }

    #[inline(always)]
    pub(in crate::endpoint) fn has_invited(&self) -> bool {
        !self.invited.is_empty()
    }

    /// The sender of this request is invited, and left to it for so many polls.
    pub(in crate::endpoint) fn add_invited(&mut self, name: u64, polls: u16) {
        self.invited.push((name, polls));
        self.update();
    }

    pub(in crate::endpoint) fn take_invited(&mut self) -> Vec<(u64, u16)> {
        let invited = std::mem::take(&mut self.invited);
        self.update();
        invited
    }

    pub(in crate::endpoint) fn set_invited(&mut self, invited: Vec<(u64, u16)>) {
        self.invited = invited;
        self.update();
    }

    pub(in crate::endpoint) fn drop_invited(&mut self, name: u64) {
        self.invited.retain(|(n, _)| *n != name);
        self.update();
    }

    #[inline(always)]
    pub(in crate::endpoint) fn has_unbegun(&self) -> bool {
        !self.unbegun.is_empty()
    }

    pub(in crate::endpoint) fn add_unbegun(&mut self, message: Unbegun) {
        self.unbegun.push_back(message);
        self.update();
    }

    pub(in crate::endpoint) fn next_unbegun(&mut self) -> Option<Unbegun> {
        let next = self.unbegun.pop_front();
        self.update();
        next
    }

    #[inline(always)]
    pub(in crate::endpoint) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(in crate::endpoint) fn unsent(&self) -> &[Unsent] {
        &self.unsent
    }

    pub(in crate::endpoint) fn add_unsent(&mut self, message: Unsent) {
        self.unsent.push(message);
    }

    pub(in crate::endpoint) fn take_unsent(&mut self) -> Vec<Unsent> {
        std::mem::take(&mut self.unsent)
    }

    pub(in crate::endpoint) fn set_unsent(&mut self, unsent: Vec<Unsent>) {
        self.unsent = unsent;
    }

    #[inline(always)]
    pub(in crate::endpoint) fn has_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// The memory of this request was taken back from a peer, perhaps not for the first time.
    pub(in crate::endpoint) fn add_revoked(&mut self, name: u64, peer: PeerId) {
        if !self.revoked.iter().any(|&(n, p, _)| (n, p) == (name, peer)) {
            self.revoked.push((name, peer, false));
        }
        self.update();
    }

    /// The memory of this request was taken back because of a time limit.
    pub(in crate::endpoint) fn set_overdue(&mut self, name: u64) {
        self.revoked.iter_mut().filter(|(n, _, _)| *n == name).for_each(|(_, _, overdue)| *overdue = true);
    }

    pub(in crate::endpoint) fn is_overdue(&self, name: u64) -> bool {
        self.revoked.iter().any(|&(n, _, overdue)| n == name && overdue)
    }

    pub(in crate::endpoint) fn retain_revoked(&mut self, mut stays: impl FnMut(u64, PeerId) -> bool) {
        self.revoked.retain(|&(name, peer, _)| stays(name, peer));
        self.update();
    }
}
