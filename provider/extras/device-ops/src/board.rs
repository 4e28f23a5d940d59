//! Agreement of the ranks of a communicator about its collectives: whether all of them pass device memory.
//!
//! The algorithm of a collective may not depend on what one rank alone knows. Each rank has one word in
//! memory that all share: the number of its last collective and, for it and those before, whether it passed
//! device memory. A rank that passes host memory writes its word and goes on at once. One that passes device
//! memory reads the others' words until it has seen a rank with host memory, or all with device memory.
//!
//! All ranks with device memory come to the same outcome: whether every rank's kind was device. A rank may be
//! ahead by any number of collectives (the root of a broadcast), so its kind is looked up in the history.
//! What is no longer there counts as of host kind. Before a rank would push a collective out of the history
//! to which all passed device memory, it waits until every rank is past that one. Where some rank passed host
//! memory, the outcome is the same whatever the kinds of others are taken for.
//!
//! The stores are Release and the loads Acquire: a rank's loads for one collective are over before others
//! find it past that, and may push it out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use ipc::Mapping;
use ipc::word::Wide;

/// Collectives in a word.
pub const HISTORY: u32 = 31;
/// Bytes from one rank's word to the next: a cache line each.
pub const STRIDE: usize = 64;

/// What memory a rank passes to a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of the host.
    Host,
    /// Of a device.
    Device,
}

/// What all ranks that pass device memory do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank passes device memory.
    Device,
    /// Some rank passes host memory: device memory is staged.
    Staged,
}

/// Why ranks do not agree.
#[derive(Debug, PartialEq, Eq)]
pub enum Disagreement<E> {
    /// The caller has ended the wait.
    Ended(E),
    /// What a rank wrote cannot follow what it wrote before.
    Corrupt(usize),
    /// An earlier call failed: the communicator's ranks cannot agree any more.
    Over,
}

impl<E: fmt::Display> fmt::Display for Disagreement<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disagreement::Ended(why) => write!(f, "the ranks do not agree about a collective: {why}"),
            Disagreement::Corrupt(rank) => {
                write!(
                    f,
                    "rank {rank} wrote a word that cannot be: does it run another version of this library?"
                )
            }
            Disagreement::Over => f.write_str("an earlier collective of this communicator failed: free it"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Disagreement<E> {}

/// Where the ranks' words are.
pub trait Words {
    /// A word.
    type Word: Wide;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// The word of a rank that there is.
    fn word(&self, rank: usize) -> &Self::Word;
}

/// The words in shared memory.
#[derive(Debug)]
pub struct SharedWords {
    memory: Arc<Mapping>,
    at: usize,
    ranks: usize,
}

impl SharedWords {
    /// Words of that many ranks from byte `at` on, [`STRIDE`] bytes each; all 0 when the communicator is
    /// made. `None` where the memory has no room for them.
    pub fn new(memory: Arc<Mapping>, at: usize, ranks: usize) -> Option<SharedWords> {
        let end = ranks.checked_mul(STRIDE)?.checked_add(at)?;
        (at % 8 == 0 && end <= memory.len()).then_some(SharedWords { memory, at, ranks })
    }
}

impl Words for SharedWords {
    type Word = AtomicU64;

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn word(&self, rank: usize) -> &AtomicU64 {
        assert!(rank < self.ranks);
        // SAFETY: `new` checked that the words of all ranks are inside, and aligned.
        unsafe { self.memory.wide(self.at + rank * STRIDE) }
    }
}

/// What a model of it leaves out.
#[cfg(all(test, loom))]
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// Of a rank that is ahead, its last collective is taken.
    NoHistory,
    /// Collectives are pushed out of the history at any time.
    NoWait,
}

/// One rank's side. `BITS` collectives are in a word.
#[derive(Debug)]
pub struct Agreement<W: Words, const BITS: u32 = HISTORY> {
    words: W,
    rank: usize,
    /// Its own word.
    own: Past<BITS>,
    /// The same with the outcomes in the place of kinds.
    outcomes: Past<BITS>,
    /// What each rank's word was.
    seen: Vec<Past<BITS>>,
    over: bool,
    #[cfg(all(test, loom))]
    flaw: Flaw,
}

/// A word: the number of the last collective, modulo 2^(64 - `BITS`), and in the lower `BITS` bits the kinds
/// of that and those before it; 1 is a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past<const BITS: u32>(u64);

impl<const BITS: u32> Past<BITS> {
    const KINDS: u64 = (1 << BITS) - 1;
    pub(crate) const NUMBERS: u64 = u64::MAX >> BITS;

    /// What a word says.
    pub(crate) fn of(word: u64) -> Past<BITS> {
        Past(word)
    }

    /// The word.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn number(self) -> u64 {
        self.0 >> BITS
    }

    /// With one more.
    pub(crate) fn with(self, kind: Kind) -> Past<BITS> {
        let number = (self.number() + 1) & Self::NUMBERS;
        Past(number << BITS | (self.0 << 1 | u64::from(kind == Kind::Device)) & Self::KINDS)
    }

    /// How far it is past that number; `None` if it has not come to it. Ranks are less than half of all
    /// numbers apart.
    fn ahead_of(self, number: u64) -> Option<u64> {
        let ahead = self.number().wrapping_sub(number) & Self::NUMBERS;
        (ahead <= Self::NUMBERS / 2).then_some(ahead)
    }

    /// The kind of that collective, once the rank has come to it.
    pub(crate) fn kind(self, number: u64) -> Option<Kind> {
        let ahead = self.ahead_of(number)?;
        // What is pushed out counts as of host kind.
        let device = ahead < u64::from(BITS) && self.0 >> ahead & 1 == 1;
        Some(if device { Kind::Device } else { Kind::Host })
    }

    /// The collective of a device that one more would push out.
    fn pushes_out(self) -> Option<u64> {
        let oldest = self.number().wrapping_sub(u64::from(BITS) - 1) & Self::NUMBERS;
        (self.0 >> (BITS - 1) & 1 == 1).then_some(oldest)
    }

    /// Whether a word may follow this one.
    pub(crate) fn may_become(self, later: Past<BITS>) -> bool {
        match later.ahead_of(self.number()) {
            Some(ahead) if ahead < u64::from(BITS) => {
                (later.0 & Self::KINDS) >> ahead == self.0 & (Self::KINDS >> ahead)
            }
            ahead => ahead.is_some(),
        }
    }
}

impl<W: Words, const BITS: u32> Agreement<W, BITS> {
    /// The side of that rank; `None` if there is none such.
    pub fn new(words: W, rank: usize) -> Option<Agreement<W, BITS>> {
        // With one, each rank would wait for the other to go on first.
        const { assert!(BITS > 1 && BITS < 63) };
        let ranks = words.ranks();
        (rank < ranks).then(|| Agreement {
            words,
            rank,
            own: Past(0),
            outcomes: Past(0),
            seen: vec![Past(0); ranks],
            over: false,
            #[cfg(all(test, loom))]
            flaw: Flaw::None,
        })
    }

    /// The next collective, to which this rank passes memory of that kind. A rank with host memory always
    /// gets [`Outcome::Staged`], and waits for others only where it is [`HISTORY`] collectives ahead of one
    /// that they all passed device memory to. `wait` is called again and again while it waits, and may end
    /// that.
    pub fn agree<E>(
        &mut self,
        kind: Kind,
        mut wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Outcome, Disagreement<E>> {
        if std::mem::replace(&mut self.over, true) {
            return Err(Disagreement::Over);
        }
        if let Some(oldest) = self.outcomes.pushes_out().filter(|_| self.waits()) {
            let next = (oldest + 1) & Past::<BITS>::NUMBERS;
            self.until(&mut wait, |word| word.ahead_of(next).map(|_| true))?;
        }
        self.own = self.own.with(kind);
        self.words.word(self.rank).store(self.own.0, Release);
        let outcome = match kind {
            Kind::Host => Outcome::Staged,
            Kind::Device => {
                let (number, newest) = (self.own.number(), !self.looks_up());
                let is_device = |word: Past<BITS>| {
                    let number =
                        if newest && word.ahead_of(number).is_some() { word.number() } else { number };
                    word.kind(number).map(|kind| kind == Kind::Device)
                };
                match self.until(&mut wait, is_device)? {
                    true => Outcome::Device,
                    false => Outcome::Staged,
                }
            }
        };
        let is_device = outcome == Outcome::Device;
        self.outcomes = self.outcomes.with(if is_device { Kind::Device } else { Kind::Host });
        self.over = false;
        Ok(outcome)
    }

    /// Reads the others' words until `of` is true of all or false of one; it has no answer for a rank that
    /// has not come so far.
    fn until<E>(
        &mut self,
        wait: &mut impl FnMut() -> Result<(), E>,
        of: impl Fn(Past<BITS>) -> Option<bool>,
    ) -> Result<bool, Disagreement<E>> {
        let mut left: Vec<usize> = (0..self.seen.len()).filter(|r| *r != self.rank).collect();
        loop {
            let mut still = Vec::new();
            for rank in left {
                match of(self.read(rank)?) {
                    Some(true) => {}
                    Some(false) => return Ok(false),
                    None => still.push(rank),
                }
            }
            if still.is_empty() {
                return Ok(true);
            }
            left = still;
            wait().map_err(Disagreement::Ended)?;
        }
    }

    /// A rank's word, checked.
    fn read<E>(&mut self, rank: usize) -> Result<Past<BITS>, Disagreement<E>> {
        let word = Past(self.words.word(rank).load(Acquire));
        if !self.seen[rank].may_become(word) {
            return Err(Disagreement::Corrupt(rank));
        }
        self.seen[rank] = word;
        Ok(word)
    }

    #[cfg(all(test, loom))]
    fn looks_up(&self) -> bool {
        self.flaw != Flaw::NoHistory
    }

    #[cfg(not(all(test, loom)))]
    fn looks_up(&self) -> bool {
        true
    }

    #[cfg(all(test, loom))]
    fn waits(&self) -> bool {
        self.flaw != Flaw::NoWait
    }

    #[cfg(not(all(test, loom)))]
    fn waits(&self) -> bool {
        true
    }
}

#[cfg(all(test, loom))]
#[path = "board_loom.rs"]
mod board_loom;

#[cfg(all(test, not(loom)))]
#[path = "board_tests.rs"]
mod tests;
