//! Words for graphs, whose operations have the same values in each replay.
//!
//! A threshold cannot rise by itself in a graph: a wait for 1 is satisfied by what an earlier replay left.
//! Nor is it enough that the waiting side resets the word: a sender that runs ahead raises it again before
//! the reset, and one signal is lost. So each word goes back and forth between two sides, and each store is
//! made by the side whose turn it is:
//!
//! - [`Pair`]: a flag and a credit. The sender waits for the credit, takes it, moves data, and raises the
//!   flag; the receiver waits for the flag, clears it, uses the data, and returns the credit. All of it are
//!   constants that memory operations of a stream wait for and store; no multiprocessor is taken.
//! - [`Shared`]: several senders raise one flag, each with a credit of its own. The flag counts: it is
//!   raised by an atomic addition and lowered by the receiver. The addition is a memory operation where the
//!   driver has it, else a kernel of one thread.
//!
//! In both, what one side executes is in the order of its streams: the same graph again, another graph or an
//! eager call may follow at any time, but two of them do not execute at once on one pair. Graphs that are
//! launched side by side have a pair each, or are senders of a shared flag.
//!
//! The model in `replay_model.rs` goes through all interleavings of replays, other graphs and eager calls;
//! `loom_tests.rs` has the order of accesses.

use std::fmt;

use crate::error::Error;
use crate::memory::Memory;
use crate::op::{Op, Until};
use crate::place::{Fence, Place};

/// A flag in memory that the receiver waits for, and a credit in memory that the sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// 1: data is there that the receiver has not seen.
    pub flag: Place,
    /// 1: the sender may write the data.
    pub credit: Place,
}

impl Pair {
    /// Sets both words as they are before the first transfer. To be done before either side executes
    /// anything.
    pub fn prepare(&self, memory: &impl Memory) -> Result<(), Error> {
        memory.store32(self.flag, 0)?;
        memory.store32(self.credit, 1)?;
        memory.fence();
        Ok(())
    }

    /// What the sender executes before it writes the data.
    pub fn acquire(&self) -> [Op; 3] {
        take(self.credit)
    }

    /// What it executes behind that.
    pub fn signal(&self) -> [Op; 2] {
        raise(self.flag)
    }

    /// What the receiver executes before it uses the data.
    pub fn wait(&self) -> [Op; 3] {
        take(self.flag)
    }

    /// What it executes behind that.
    pub fn release(&self) -> [Op; 2] {
        raise(self.credit)
    }
}

/// A flag that several senders raise; each has a credit, and a place for its data, of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// How many transfers are there that the receiver has not seen.
    pub flag: Place,
}

impl Shared {
    /// Sets the flag as it is before the first transfer.
    pub fn prepare(&self, memory: &impl Memory) -> Result<(), Error> {
        memory.store32(self.flag, 0)?;
        memory.fence();
        Ok(())
    }

    /// What a sender executes before it writes its data, with its credit.
    pub fn acquire(&self, credit: Place) -> [Op; 3] {
        take(credit)
    }

    /// What it executes behind that.
    pub fn signal(&self) -> [Op; 2] {
        [Op::Fence(Fence::RELEASE), Op::Add32 { to: self.flag, value: 1 }]
    }

    /// What the receiver executes before it uses the data of any `count` transfers. One stream at a time
    /// waits for a flag.
    pub fn wait(&self, count: u32) -> [Op; 3] {
        [
            Op::Poll { at: self.flag, until: Until::Geq, value: count },
            Op::Add32 { to: self.flag, value: count.wrapping_neg() },
            Op::Fence(Fence::ACQUIRE),
        ]
    }

    /// What it executes when a sender's data is used, with that sender's credit.
    pub fn release(&self, credit: Place) -> [Op; 2] {
        raise(credit)
    }
}

/// Waits until the other side has raised a word, and lowers it: from then on the other side may not write to
/// it until it is given what it waits for.
fn take(word: Place) -> [Op; 3] {
    [
        Op::Poll { at: word, until: Until::And, value: 1 },
        Op::Store32 { to: word, value: 0 },
        Op::Fence(Fence::ACQUIRE.union(Fence::RELEASE)),
    ]
}

fn raise(word: Place) -> [Op; 2] {
    [Op::Fence(Fence::RELEASE), Op::Store32 { to: word, value: 1 }]
}

/// How a word is raised in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A [`Pair`]: constants.
    Alternation,
    /// A [`Shared`] flag, by the driver's atomic reduction.
    Reduction,
    /// A [`Shared`] flag, by a kernel of one thread.
    Kernel,
}

/// How many sides raise a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Senders {
    /// One, whose streams are in order.
    One,
    /// Several, at any time.
    Several,
}

/// What a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Means {
    /// Memory operations of streams.
    pub memory_operations: bool,
    /// Atomic reductions among them, by the device's attribute.
    pub reduction: bool,
    /// Kernels of this library's can be loaded.
    pub kernel: bool,
}

/// What was chosen, and why: the answer of a query is its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How.
    pub method: Method,
    /// Why so.
    pub why: &'static str,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.method {
            Method::Alternation => "alternation",
            Method::Reduction => "reduction",
            Method::Kernel => "kernel",
        };
        write!(f, "{name}: {}", self.why)
    }
}

/// The one place where it is chosen how words are raised in graphs.
pub fn choose(senders: Senders, means: Means) -> Result<Choice, Error> {
    if !means.memory_operations {
        return Err(Error::NoMeans("the driver has no memory operations of streams (CUDA 11.7): update it"));
    }
    let (method, why) = match senders {
        Senders::One => (Method::Alternation, "one sender: constants, no multiprocessor is taken"),
        Senders::Several if means.reduction => {
            (Method::Reduction, "several senders, and the device has atomic reductions in batches")
        }
        Senders::Several if means.kernel => {
            (Method::Kernel, "several senders, and the device has no atomic reductions in batches")
        }
        Senders::Several => {
            return Err(Error::NoMeans(
                "several senders need an atomic addition, and this device has neither atomic reductions in \
                 batches nor takes a kernel: give each sender a pair of its own",
            ));
        }
    };
    Ok(Choice { method, why })
}

#[cfg(all(test, not(loom)))]
#[path = "replay_model.rs"]
mod model;
