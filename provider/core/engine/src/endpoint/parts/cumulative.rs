//! Writes that the answer to a later one ends, too: a target answers what accesses its memory in the order in
//! which it was posted.
//!
//! Each answer is a packet, which costs both sides more than the write does. So while many operations are
//! under way one of several writes requests an answer, and the others none. At least two answers are on their
//! way then, so that an initiator that keeps a number of operations under way goes on with the first while it
//! waits for the second. For the last writes a `Flush` requests the answer, at the second call of progress in
//! a row between which nothing was posted.

use std::collections::VecDeque;

/// Of so many writes one requests an answer at least.
const SPAN: u32 = 8;
/// Longest write that requests none: to send more takes so long that an answer adds little, and it paces the
/// initiator.
const LONGEST: usize = 8 << 10;
/// So many are sent when they are posted, whatever else is under way.
const FEW: usize = 4;

/// The writes to one peer.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Cumulative {
    /// Those that requested no answer and may not have been ended: their numbers among what was posted, and
    /// their requests' names.
    waiting: VecDeque<(u64, u64)>,
    /// The numbers of those that requested one and were not answered.
    asking: VecDeque<u64>,
    /// How many of the last of them were posted behind the last that requested an answer.
    tail: u32,
    /// One was posted since the last call of progress.
    fresh: bool,
    /// It is in the list of those with a tail.
    listed: bool,
}

/// What is to be done for the last writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) enum Tail {
    /// Nothing: there are none, and an answer is on its way that ends all.
    None,
    /// Nothing yet.
    Waits,
    /// An answer is requested for them now.
    Flush,
}

impl Cumulative {
    /// Whether the next write, of so many bytes, requests an answer, as so many operations to the peer are
    /// under way.
    #[inline]
    pub(in crate::endpoint) fn asks(&self, len: usize, outstanding: u32) -> bool {
        len > LONGEST || self.tail + 1 >= (outstanding / 2).min(SPAN)
    }

    /// Whether the next write, which requests an answer or none, may go together with its neighbours: then so
    /// many writes are under way that the caller waits for some. Other operations do not count.
    #[inline]
    pub(in crate::endpoint) fn gathers(&self, asks: bool) -> bool {
        (!asks || self.tail > 0) && self.waiting.len() + self.asking.len() >= FEW
    }

    /// A write was posted, under this number, that requests an answer.
    #[inline]
    pub(in crate::endpoint) fn posted_asking(&mut self, seq: u64) {
        self.tail = 0;
        self.asking.push_back(seq);
    }

    /// A write was posted, under this number and name, that requests none. Whether this is to be listed among
    /// those with a tail.
    #[inline]
    pub(in crate::endpoint) fn posted(&mut self, seq: u64, name: u64) -> bool {
        self.tail += 1;
        self.fresh = true;
        self.waiting.push_back((seq, name));
        !std::mem::replace(&mut self.listed, true)
    }

    /// A call of progress is at its end; `last`: there may be no other one soon. Of one that is listed.
    pub(in crate::endpoint) fn poll(&mut self, last: bool) -> Tail {
        let fresh = std::mem::take(&mut self.fresh);
        if self.tail == 0 {
            self.listed = false;
            return Tail::None;
        }
        if fresh && !last { Tail::Waits } else { Tail::Flush }
    }

    /// An answer was requested for the tail.
    pub(in crate::endpoint) fn flushed(&mut self) {
        (self.tail, self.listed) = (0, false);
    }

    /// The next request that the answer to the one of this number ends, besides that one.
    #[inline]
    pub(in crate::endpoint) fn next_before(&mut self, seq: u64) -> Option<u64> {
        while self.asking.front().is_some_and(|&first| first <= seq) {
            self.asking.pop_front();
        }
        let (front, name) = *self.waiting.front()?;
        if front >= seq {
            return None;
        }
        self.waiting.pop_front();
        Some(name)
    }
}
