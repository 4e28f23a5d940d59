//! What an endpoint knows of a peer.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use link_api::{Gone, Path, PieceCounter, RmaCaps};
use wire::Seg;
use xfer::Helper;

use super::order::Order;
use super::quota::Complaints;
use crate::proto::{Limits, When};
use crate::types::*;

/// Whether the peer fetches this side's rendezvous payloads directly, as far as was seen. Once it did
/// not, that is what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetches {
    Unknown,
    Directly,
    ByFrames,
}

/// Messages a sender is given ahead: one to copy, and one to go on with.
pub(super) const MOST_DELEGATED: usize = 2;

/// Most messages after one that was waited for in vain that are not.
const WARY: u8 = 63;

/// How promising it is to wait for a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promptness {
    /// How many messages are still not to be waited for, and how many that were to be after the last that
    /// was in vain.
    skip: u8,
    skipped: u8,
}

impl Promptness {
    pub(super) fn is_likely(&mut self) -> bool {
        let likely = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        likely
    }

    pub(super) fn was(&mut self, prompt: bool) {
        self.skipped = if prompt { 0 } else { (2 * self.skipped + 1).min(WARY) };
        self.skip = self.skipped;
    }
}

/// What short messages touch comes first, on one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Peer {
    /// What the address vector calls it.
    pub(crate) src: FiAddr,
    /// A message of fewer bytes may be sent eagerly with nothing else to look at: none while frames wait in the
    /// backlog or messages to be sent on, while the peer is short of room, or before its path is in the log.
    plain_below: usize,
    /// Bytes that messages of it take up which wait to be received.
    pub(super) waiting: usize,
    /// It was sent a message longer than those that always travel eagerly, and has not sent one here since.
    pub(super) unanswered: bool,
    /// It ended, or could not be reached, when that was last known; it may have come back since.
    pub(super) gone: Option<Gone>,
    /// The link knows that receives wait for it, or that it was there.
    pub(super) expected: bool,
    /// Whether this side has asked the peer to send no more for now; and whether the peer has asked this side.
    pub(super) pause_sent: bool,
    paused: bool,
    /// What the way to it can do, as far as that has not turned out otherwise.
    pub(super) limits: Limits,
    /// Frames that found no room; they must go before anything else. And how much that is.
    backlog: VecDeque<Vec<u8>>,
    pub(super) owed: usize,
    /// Operations started here that it has yet to answer.
    pub(super) outstanding: u32,
    /// Frames sent to it that it answers, or that change its memory; and which of these was the last
    /// that it does not answer, unless one behind it has been answered.
    pub(super) posted: u64,
    pub(super) last_unacked_seq: u64,
    /// How many it was not to answer, and has not refused.
    pub(super) unacked: u64,
    /// Those of them that are RMA by rendezvous.
    pub(super) large: u32,
    /// Whether it is worth while to have it copy its part of large transfers.
    pub(super) helper: Helper,
    /// What it was given to copy whole, as far as it has not been seen to begin.
    pub(super) delegated: ArrayVec<PieceCounter, MOST_DELEGATED>,
    pub(super) fetches: Fetches,
    /// It could not put what it was invited to, so it is not asked again.
    pub(super) puts_not: bool,
    /// It could not take what was in bounce buffers here, so nothing goes to it so.
    pub(super) bounces_not: bool,
    /// The memory of a device's that it named last: where it wanted bytes, or a bounce buffer.
    pub(super) on_device: Option<Seg>,
    /// Whether it is worth while to wait for it.
    pub(super) promptness: Promptness,
    /// Messages to it that wait to be sent on before they complete.
    unsent: u32,
    /// Its path is in the log.
    path_logged: bool,
    /// Its messages are counted, so that none is too plain to be looked at.
    metered: bool,
    /// The link's answer to a message of [`Endpoint::send_plain`]; the general post of the same message, which follows, returns it.
    pub(super) refused: Option<Gone>,
    /// It is tried to reach it, for the receives posted that name it.
    pub(super) connecting: bool,
    /// Entries of the address vector that lead to it.
    pub(super) routes: u32,
    /// What it did wrong.
    pub(super) complaints: Complaints,
    /// What its accesses have to wait for, if there is anything.
    pub(super) order: Option<Box<Order>>,
}

impl Peer {
    /// One of which nothing is known.
    pub(super) fn new(path: &Path, metered: bool) -> Peer {
        Peer {
            src: ADDR_UNSPEC,
            limits: Limits::new(path),
            plain_below: 0,
            backlog: VecDeque::new(),
            owed: 0,
            waiting: 0,
            pause_sent: false,
            paused: false,
            outstanding: 0,
            posted: 0,
            last_unacked_seq: 0,
            unacked: 0,
            large: 0,
            unanswered: false,
            helper: Helper::default(),
            delegated: ArrayVec::new(),
            fetches: Fetches::Unknown,
            puts_not: false,
            bounces_not: false,
            on_device: None,
            promptness: Promptness::default(),
            unsent: 0,
            path_logged: false,
            metered,
            gone: None,
            refused: None,
            connecting: false,
            expected: false,
            routes: 0,
            complaints: Complaints::default(),
            order: None,
        }
    }

    /// Whether a message of so many bytes may be sent eagerly, whatever else there is.
    #[inline(always)]
    pub(super) fn takes_plain(&self, len: usize) -> bool {
        len < self.plain_below
    }

    /// It has sent a frame of so many bytes.
    #[inline(always)]
    pub(super) fn has_sent(&mut self, len: usize) {
        if self.unanswered && len > self.limits.eager {
            self.unanswered = false;
        }
    }

    /// What of it an operation's plan depends on that takes in bytes.
    #[inline]
    pub(super) fn when(&self) -> When {
        if self.helper.can() { When::HELPED } else { When::empty() }
    }

    /// Its memory turned out not to be accessible in the call, ever.
    #[cold]
    pub(super) fn set_not_sync(&mut self) {
        self.limits.rma.remove(RmaCaps::SYNC);
    }

    /// To be called after each change of what `plain_below` depends on.
    fn update_plain(&mut self) {
        let nothing_waits = self.backlog.is_empty() && self.unsent == 0;
        let clear = self.path_logged && !self.metered && !self.paused && nothing_waits;
        self.plain_below = if clear { self.limits.eager.saturating_add(1) } else { 0 };
    }

    /// Whether frames wait for room.
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The oldest frame that waits for room.
    pub(super) fn next_in_backlog(&self) -> Option<&[u8]> {
        self.backlog.front().map(Vec::as_slice)
    }

    pub(super) fn push_backlog(&mut self, frame: Vec<u8>) {
        self.backlog.push_back(frame);
        self.update_plain();
    }

    pub(super) fn pop_backlog(&mut self) -> Option<Vec<u8>> {
        let frame = self.backlog.pop_front();
        self.update_plain();
        frame
    }

    /// A message to it is under way until it has been sent on.
    pub(super) fn keep_unsent(&mut self) {
        self.unsent += 1;
        self.outstanding += 1;
        self.update_plain();
    }

    pub(super) fn let_go_unsent(&mut self) {
        self.unsent = self.unsent.saturating_sub(1);
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.unsent == 0 {
            self.update_plain();
        }
    }

    /// Whether the peer has said that messages had better not be sent for now.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn set_paused(&mut self, on: bool) {
        self.paused = on;
        self.update_plain();
    }

    pub(super) fn is_path_logged(&self) -> bool {
        self.path_logged
    }

    /// Whether this is the first time.
    pub(super) fn mark_path_logged(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.path_logged, true);
        self.update_plain();
        first
    }

    /// From now on its messages are counted.
    pub(super) fn set_metered(&mut self) {
        self.metered = true;
        self.update_plain();
    }

    /// Another path leads to it, of which the log is yet to tell.
    pub(super) fn set_path(&mut self, path: &Path) {
        self.limits = Limits::new(path);
        self.path_logged = false;
        self.update_plain();
    }

    /// Its channel is gone: what was on its way is, too, and another path may follow.
    pub(super) fn reset_channel(&mut self, path: &Path) {
        self.backlog.clear();
        self.owed = 0;
        self.order = None;
        self.paused = false;
        self.limits = Limits::new(path);
        self.update_plain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_late_receiver_backs_off_and_is_tried_again() {
        let mut promptness = Promptness::default();
        let mut gaps = Vec::new();
        for _ in 0..9 {
            gaps.push((0..).find(|_| promptness.is_likely()).unwrap());
            promptness.was(false);
        }
        assert_eq!(gaps, [0, 1, 3, 7, 15, 31, 63, 63, 63]);
        while !promptness.is_likely() {}
        promptness.was(true);
        assert!(promptness.is_likely() && promptness.is_likely());
    }
}
