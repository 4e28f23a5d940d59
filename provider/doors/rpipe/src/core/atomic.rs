//! Atomic operations on words that several processes reach.

use std::sync::atomic::Ordering::SeqCst;

use super::memory::Memory;

/// What becomes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// The operand is added; sums wrap.
    Sum,
    And,
    Or,
    Xor,
    /// It is replaced by the operand.
    Swap,
    /// It is replaced by the operand if it was [`Atomic::compare`].
    CompareSwap,
}

impl AtomicOp {
    /// All of them; a message has the index.
    pub(crate) const ALL: [AtomicOp; 6] =
        [AtomicOp::Sum, AtomicOp::And, AtomicOp::Or, AtomicOp::Xor, AtomicOp::Swap, AtomicOp::CompareSwap];
}

/// An atomic operation, which gives what the word was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    pub op: AtomicOp,
    /// The word has 8 bytes; else it has 4, and of both numbers the lower half counts.
    pub wide: bool,
    pub operand: u64,
    pub compare: u64,
}

macro_rules! apply {
    ($word:expr, $atomic:expr, $number:ty) => {{
        let (word, operand, compare) = ($word, $atomic.operand as $number, $atomic.compare as $number);
        let was = match $atomic.op {
            AtomicOp::Sum => word.fetch_add(operand, SeqCst),
            AtomicOp::And => word.fetch_and(operand, SeqCst),
            AtomicOp::Or => word.fetch_or(operand, SeqCst),
            AtomicOp::Xor => word.fetch_xor(operand, SeqCst),
            AtomicOp::Swap => word.swap(operand, SeqCst),
            AtomicOp::CompareSwap => match word.compare_exchange(compare, operand, SeqCst, SeqCst) {
                Ok(was) | Err(was) => was,
            },
        };
        u64::from(was)
    }};
}

impl Atomic {
    /// Bytes of the word, and what it has to be aligned to.
    pub fn width(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Does it with the word at byte `at`, by the processor's atomic instructions; what the word was. `None`,
    /// and nothing is done: there is no such word.
    #[inline]
    pub(crate) fn apply(&self, memory: &Memory, at: usize) -> Option<u64> {
        Some(match self.wide {
            true => apply!(memory.word_within(at)?, self, u64),
            false => apply!(memory.half_within(at)?, self, u32),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn done(op: AtomicOp, wide: bool, was: u64, operand: u64, compare: u64) -> (u64, u64) {
        let memory = Memory::private(64).unwrap();
        memory.copy_in(8, &was.to_ne_bytes());
        let old = Atomic { op, wide, operand, compare }.apply(&memory, 8).unwrap();
        (old, memory.word(8).load(SeqCst))
    }

    #[test]
    fn each_operation_changes_its_word_and_gives_what_it_was() {
        const HIGH: u64 = 7 << 32;
        for (op, operand, compare, becomes) in [
            (AtomicOp::Sum, 5, 0, 0xf5),
            (AtomicOp::And, 0x30, 0, 0x30),
            (AtomicOp::Or, 0x0f, 0, 0xff),
            (AtomicOp::Xor, 0xff, 0, 0x0f),
            (AtomicOp::Swap, 9, 0, 9),
            (AtomicOp::CompareSwap, 9, 0xf0, 9),
            (AtomicOp::CompareSwap, 9, 0xf1, 0xf0),
        ] {
            assert_eq!(done(op, true, 0xf0, operand, compare), (0xf0, becomes), "{op:?}");
            // The upper halves of both numbers do not count, and the word behind stays.
            if cfg!(target_endian = "little") {
                let narrow = done(op, false, HIGH | 0xf0, operand | 1 << 40, compare | 1 << 50);
                assert_eq!(narrow, (0xf0, HIGH | becomes), "{op:?}");
            }
        }
        assert_eq!(done(AtomicOp::Sum, true, u64::MAX, 2, 0), (u64::MAX, 1));
    }

    #[test]
    fn no_word_outside_of_the_memory_or_across_words_is_changed() {
        let memory = Memory::private(64).unwrap();
        for (wide, places) in
            [(true, [1, 4, 60, 64, usize::MAX - 7]), (false, [1, 2, 62, 64, usize::MAX - 3])]
        {
            for at in places {
                let atomic = Atomic { op: AtomicOp::Swap, wide, operand: u64::MAX, compare: 0 };
                assert_eq!(atomic.apply(&memory, at), None, "{at}");
            }
        }
        assert!((0..8).all(|n| memory.word(8 * n).load(SeqCst) == 0));
    }
}
