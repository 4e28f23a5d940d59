//! Where the words of an endpoint are, in lines of 64 bytes.
//!
//! The memory that a peer maps has one line of the endpoint's own, a line for the flag of each slot in which
//! messages arrive and one for the credit of each slot of the peer's, the same for signals, and the slots.
//! What streams of this process alone write is in other memory, a line for each lane: a list, or the calls
//! without a list of one direction.

/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// Words of the first line: the error word ([`crate::failure`]); 1 once the peer has closed; which memory the
/// peer's messages are put to ([`choice`]).
pub(crate) const ERROR: usize = 0;
pub(crate) const CLOSED: usize = 4;
pub(crate) const CHOICE: usize = 8;
/// Where the peer's agent stores its own three words of these; 16 bytes.
pub(crate) const FROM_PEER: usize = 16;
/// Of the endpoint's own: 1 once it has closed, for a peer that has yet to connect.
pub(crate) const OVER: usize = 32;
/// Unused bytes, 8.
pub(crate) const SPARE: usize = 48;

/// Words of a lane: what it waits for ([`code`]); how many operations its kernels have begun; the number of
/// the last execution that has ended.
pub(crate) const AT: usize = 0;
pub(crate) const BEGUN: usize = 4;
pub(crate) const ENDED: usize = 8;
/// Lanes of an endpoint: two of the calls without a list, and lists.
pub(crate) const LANES: usize = 64;

/// The second word of a flag's line: bytes of the message in this slot, and [`GOES_ON`].
pub(crate) const LENGTH: usize = 4;
/// The message goes on in the next slot. A slot has 2^24 bytes at most.
pub(crate) const GOES_ON: u32 = 1 << 31;

/// Words of a slot's flags and credits in a device's memory, of 8 bytes each in one line: parts of a message
/// that are in one slot have one each.
pub(crate) const WORDS: u32 = 8;
/// Bytes for each of these but the first at most, as long as eight have all of `slot_bytes`.
const CELL: usize = 16 << 10;

/// What slots in a device's memory grow to, and all of them together.
const DEVICE_SLOT: usize = 256 << 10;
const DEVICE_BYTES: usize = 64 << 20;

/// What both sides of an endpoint have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) signals: u32,
}

impl Layout {
    /// Whether these numbers can be.
    pub(crate) fn is_valid(&self) -> bool {
        (1..=1024).contains(&self.slots)
            && (1..=1024).contains(&self.signals)
            && (16..=1 << 24).contains(&self.slot_bytes)
            && self.slot_bytes % 16 == 0
            && u64::from(self.slots) * u64::from(self.slot_bytes) <= 1 << 30
    }

    pub(crate) fn flag(&self, slot: u32) -> u32 {
        1 + slot
    }

    pub(crate) fn credit(&self, slot: u32) -> u32 {
        1 + self.slots + slot
    }

    pub(crate) fn signal(&self, signal: u32) -> u32 {
        1 + 2 * self.slots + signal
    }

    pub(crate) fn signal_credit(&self, signal: u32) -> u32 {
        1 + 2 * self.slots + self.signals + signal
    }

    /// Lines below this one are carried by an agent.
    pub(crate) fn carried(&self) -> u32 {
        1 + 2 * self.slots + 2 * self.signals
    }

    /// What a lane asks its agent to put or get: a line of the near words.
    pub(crate) fn job(&self, lane: u32) -> u32 {
        self.carried() + lane
    }

    /// That it has been done: a line of one's own.
    pub(crate) fn job_done(&self, lane: u32) -> u32 {
        self.carried() + LANES as u32 + lane
    }

    pub(crate) fn lines(&self) -> u32 {
        self.carried() + 2 * LANES as u32
    }

    /// Bytes of a lane's memory for one part of a put or a get, and where it is behind the near words.
    pub(crate) fn stage(&self) -> usize {
        self.slot_bytes.min(64 << 10) as usize
    }

    pub(crate) fn stage_at(&self, lane: u32) -> usize {
        self.len() + lane as usize * self.stage()
    }

    /// Bytes of the near words, with that.
    pub(crate) fn near_len(&self) -> usize {
        self.stage_at(LANES as u32).next_multiple_of(4096)
    }

    /// Bytes before the slots.
    pub(crate) fn head(&self) -> usize {
        self.lines() as usize * LINE
    }

    pub(crate) fn slots_len(&self) -> usize {
        self.slots as usize * self.slot_bytes as usize
    }

    /// Bytes of a slot in a device's memory between kernels that wait: a long message needs much under way.
    pub(crate) fn device_slot(&self) -> usize {
        let grown = (DEVICE_BYTES / self.slots as usize / 16 * 16).min(DEVICE_SLOT);
        grown.max(self.slot_bytes as usize)
    }

    /// Bytes of the slot that the words behind the first one have each, behind the first one's: no word's are
    /// another's.
    pub(crate) fn cell(&self) -> usize {
        let all = self.slot_bytes as usize;
        all.div_ceil(WORDS as usize).max(CELL.min(all / 4)).next_multiple_of(16)
    }

    /// From one slot in a device's memory to the next.
    pub(crate) fn device_stride(&self) -> usize {
        self.device_slot() + (WORDS as usize - 1) * self.cell()
    }

    /// Where the lines are in a device's memory, behind its slots.
    pub(crate) fn device_lines(&self) -> usize {
        (self.slots as usize * self.device_stride()).next_multiple_of(4096)
    }

    pub(crate) fn device_len(&self) -> usize {
        self.device_lines() + self.head()
    }

    pub(crate) fn len(&self) -> usize {
        (self.head() + self.slots_len()).next_multiple_of(4096)
    }
}

/// What [`CHOICE`] says: which slots an endpoint of this number writes to. Not 0.
pub(crate) fn choice(slots: u32, number: u32) -> u32 {
    slots & 3 | number << 2
}

/// What a lane's first word says while it waits for the word of a line.
pub(crate) fn code(kind: crate::Kind, line: u32) -> u32 {
    (kind as u32) << 24 | line
}

/// The line of that.
pub(crate) fn line_of(code: u32) -> u32 {
    code & 0xffff
}

/// Where in a code the number of the line's word is, or of a put's part, if kernels wait.
pub(crate) const WORD_AT: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_a_line_of_its_own_before_the_slots() {
        let l = Layout { slots: 3, slot_bytes: 48, signals: 2 };
        let mut lines: Vec<u32> = (0..3).flat_map(|n| [l.flag(n), l.credit(n)]).collect();
        lines.extend((0..2).flat_map(|n| [l.signal(n), l.signal_credit(n)]));
        lines.sort_unstable();
        lines.extend((0..LANES as u32).map(|lane| l.job(lane)));
        lines.extend((0..LANES as u32).map(|lane| l.job_done(lane)));
        assert_eq!(lines, (1..l.lines()).collect::<Vec<_>>());
        assert!(l.head() + l.slots_len() <= l.len() && l.stage_at(0) >= l.len());
        assert!(l.stage_at(LANES as u32 - 1) + l.stage() <= l.near_len());
        assert_eq!(line_of(code(crate::Kind::Wait, l.signal(1))), l.signal(1));
    }
}
