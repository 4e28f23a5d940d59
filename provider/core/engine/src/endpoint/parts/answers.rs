//! What a peer has yet to answer of the operations started here, and in what order.

#[derive(Debug, Default)]
pub(in crate::endpoint) struct Answers {
    /// Operations started here that it has yet to answer.
    outstanding: u32,
    /// Those of them that are RMA by rendezvous.
    large: u32,
    /// Frames sent to it that it answers, or that change its memory; and which of these was the last that it
    /// does not answer, unless one behind it has been answered.
    posted: u64,
    last_unacked_seq: u64,
    /// Which of them was the last atomic, unless that has been answered: then so have those before it.
    last_atomic_seq: u64,
    /// The same of those that the link does.
    last_link_atomic_seq: u64,
    /// How many it was not to answer, and has not refused.
    unacked: u64,
}

impl Answers {
    #[inline(always)]
    pub(in crate::endpoint) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(in crate::endpoint) fn has_large(&self) -> bool {
        self.large > 0
    }

    /// Whether its processor has atomics to apply, which one that it does not see would overtake.
    pub(in crate::endpoint) fn has_atomics(&self) -> bool {
        self.last_atomic_seq > 0
    }

    /// The last frame is an atomic that it answers.
    pub(in crate::endpoint) fn sent_atomic(&mut self) {
        self.last_atomic_seq = self.posted;
    }

    /// The last operation is an atomic that the link does.
    pub(in crate::endpoint) fn started_atomic(&mut self) {
        self.last_link_atomic_seq = self.posted;
    }

    /// Whether the link has atomics to do, which a frame would overtake.
    pub(in crate::endpoint) fn has_link_atomics(&self) -> bool {
        self.last_link_atomic_seq > 0
    }

    /// The number of the next frame.
    #[inline(always)]
    pub(in crate::endpoint) fn next_seq(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// The number of the last frame.
    #[inline(always)]
    pub(in crate::endpoint) fn last_seq(&self) -> u64 {
        self.posted
    }

    /// An operation has begun.
    #[inline(always)]
    pub(in crate::endpoint) fn begin(&mut self, large: bool) {
        self.outstanding += 1;
        self.large += u32::from(large);
    }

    /// One that has begun turned out to be a large one.
    pub(in crate::endpoint) fn becomes_large(&mut self) {
        self.large += 1;
    }

    /// One is over.
    #[inline(always)]
    pub(in crate::endpoint) fn end(&mut self, large: bool) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if large {
            self.large = self.large.saturating_sub(1);
        }
    }

    /// The frame of this number was answered.
    #[inline(always)]
    fn answered(&mut self, seq: u64) {
        if seq > self.last_unacked_seq {
            self.last_unacked_seq = 0;
        }
    }

    /// The operation that was begun with the frame of this number is over.
    #[inline(always)]
    pub(in crate::endpoint) fn over(&mut self, seq: u64, large: bool) {
        self.answered(seq);
        if seq == self.last_atomic_seq {
            self.last_atomic_seq = 0;
        }
        if seq == self.last_link_atomic_seq {
            self.last_link_atomic_seq = 0;
        }
        self.end(large);
    }

    /// A frame was sent that is not answered.
    #[inline(always)]
    pub(in crate::endpoint) fn sent_unacked(&mut self) {
        self.last_unacked_seq = self.next_seq();
        self.unacked += 1;
    }

    /// Whether the last frame of an access is one that is not answered.
    #[inline(always)]
    pub(in crate::endpoint) fn is_behind_unacked(&self) -> bool {
        self.last_unacked_seq > 0
    }

    /// A frame that was not to be answered was refused; `false` if there is none.
    pub(in crate::endpoint) fn refuse_unacked(&mut self) -> bool {
        let left = self.unacked.checked_sub(1);
        self.unacked = left.unwrap_or(0);
        left.is_some()
    }

    /// The channel is gone, with all that was not to be answered.
    pub(in crate::endpoint) fn reset(&mut self) {
        (self.last_unacked_seq, self.last_atomic_seq, self.last_link_atomic_seq) = (0, 0, 0);
        self.unacked = 0;
    }
}
