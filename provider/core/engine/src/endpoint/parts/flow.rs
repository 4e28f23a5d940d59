//! What may be sent to a peer now, and what waits for room.

use std::collections::VecDeque;

use link_api::{Path, RmaCaps};

use crate::proto::Limits;

/// What short messages touch comes first.
#[derive(Debug)]
#[repr(C)]
pub(in crate::endpoint) struct Flow {
    /// A message of fewer bytes may be sent eagerly with nothing else to look at: none while frames wait in
    /// the backlog or messages to be sent on, while the peer is short of room, or before its path is in the
    /// log.
    plain_below: usize,
    /// What the way to it can do, as far as that has not turned out otherwise.
    limits: Limits,
    /// The peer has asked this side to send no more for now.
    paused: bool,
    /// So many of the next long messages it has asked this side to offer.
    long_offers: u16,
    /// Its path is in the log.
    path_logged: bool,
    /// Its messages are counted, so that none is too plain to be looked at.
    metered: bool,
    /// Messages to it that wait to be sent on before they complete.
    unsent: u32,
    /// Frames that found no room; they must go before anything else. And how much that is.
    backlog: VecDeque<Vec<u8>>,
    owed: usize,
}

impl Flow {
    pub(in crate::endpoint) fn new(path: &Path, metered: bool) -> Flow {
        Flow {
            plain_below: 0,
            limits: Limits::new(path),
            paused: false,
            long_offers: 0,
            path_logged: false,
            metered,
            unsent: 0,
            backlog: VecDeque::new(),
            owed: 0,
        }
    }

    /// Whether a message of so many bytes may be sent eagerly, whatever else there is.
    #[inline(always)]
    pub(in crate::endpoint) fn takes_plain(&self, len: usize) -> bool {
        len < self.plain_below
    }

    #[inline(always)]
    pub(in crate::endpoint) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// To be called after each change of what `plain_below` depends on.
    fn update_plain(&mut self) {
        let nothing_waits = self.backlog.is_empty() && self.unsent == 0;
        let clear = self.path_logged && !self.metered && !self.paused && nothing_waits;
        self.plain_below = if clear { self.limits.eager.saturating_add(1) } else { 0 };
    }

    /// Its memory turned out not to be accessible in the call, ever.
    #[cold]
    pub(in crate::endpoint) fn set_not_sync(&mut self) {
        self.limits.rma.remove(RmaCaps::SYNC);
    }

    /// Whether frames wait for room.
    pub(in crate::endpoint) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The oldest frame that waits for room.
    pub(in crate::endpoint) fn next_in_backlog(&self) -> Option<&[u8]> {
        self.backlog.front().map(Vec::as_slice)
    }

    pub(in crate::endpoint) fn push_backlog(&mut self, frame: Vec<u8>) {
        self.backlog.push_back(frame);
        self.update_plain();
    }

    pub(in crate::endpoint) fn pop_backlog(&mut self) -> Option<Vec<u8>> {
        let frame = self.backlog.pop_front();
        self.update_plain();
        frame
    }

    /// What the backlog takes up.
    pub(in crate::endpoint) fn owed(&self) -> usize {
        self.owed
    }

    /// So much more is owed; how much that is by now.
    pub(in crate::endpoint) fn owe(&mut self, bytes: usize) -> usize {
        self.owed += bytes;
        self.owed
    }

    /// So much was paid, if it was owed; how much that is.
    pub(in crate::endpoint) fn pay(&mut self, bytes: usize) -> usize {
        let paid = bytes.min(self.owed);
        self.owed -= paid;
        paid
    }

    /// A message to it is under way until it has been sent on.
    pub(in crate::endpoint) fn keep_unsent(&mut self) {
        self.unsent += 1;
        self.update_plain();
    }

    pub(in crate::endpoint) fn let_go_unsent(&mut self) {
        self.unsent = self.unsent.saturating_sub(1);
        if self.unsent == 0 {
            self.update_plain();
        }
    }

    /// Whether the peer has said that messages had better not be sent for now.
    pub(in crate::endpoint) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether it has asked that this long message be offered, which counts.
    pub(in crate::endpoint) fn takes_long_offer(&mut self) -> bool {
        let takes = self.long_offers > 0;
        self.long_offers = self.long_offers.saturating_sub(1);
        takes
    }

    pub(in crate::endpoint) fn offer_long(&mut self, messages: u16) {
        self.long_offers = messages;
    }

    pub(in crate::endpoint) fn set_paused(&mut self, on: bool) {
        self.paused = on;
        self.update_plain();
    }

    pub(in crate::endpoint) fn is_path_logged(&self) -> bool {
        self.path_logged
    }

    /// Whether this is the first time.
    pub(in crate::endpoint) fn mark_path_logged(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.path_logged, true);
        self.update_plain();
        first
    }

    /// From now on its messages are counted.
    pub(in crate::endpoint) fn set_metered(&mut self) {
        self.metered = true;
        self.update_plain();
    }

    /// Another path leads to it, which is not in the log yet.
    pub(in crate::endpoint) fn set_path(&mut self, path: &Path) {
        self.limits = Limits::new(path);
        self.path_logged = false;
        self.update_plain();
    }

    /// Its channel is gone: what was on its way is, too, and another path may follow.
    pub(in crate::endpoint) fn reset(&mut self, path: &Path) {
        self.backlog.clear();
        self.owed = 0;
        self.paused = false;
        self.long_offers = 0;
        self.limits = Limits::new(path);
        self.update_plain();
    }
}
