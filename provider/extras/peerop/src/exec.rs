//! What executes bytecode: the trait, and the CPU, which is the reference.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::memory::Memory;
use crate::op::Op;
use crate::place::Caps;

/// Why a list was not executed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// How many operations at its beginning were executed or queued, or may have been. 0: none was.
    pub done: usize,
    /// Why not the others.
    pub error: Error,
}

impl Failed {
    /// Before anything was done.
    pub fn at_once(error: Error) -> Failed {
        Failed { done: 0, error }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.done {
            0 => write!(f, "no operation of the list was executed: {}", self.error),
            n => write!(
                f,
                "the first {n} operations of the list were executed, the others not: {}",
                self.error
            ),
        }
    }
}

impl std::error::Error for Failed {}

/// What executes lists of operations, each list and its operations in order.
pub trait Executor {
    /// Which operations it has.
    fn caps(&self) -> Caps;

    /// Executes a list, or queues it for a device that does. Nothing is done of a list with an operation that
    /// this executor lacks, or with a place that is not in registered memory.
    fn execute(&mut self, ops: &[Op]) -> Result<(), Failed>;
}

/// Refuses lists with operations that are lacking.
pub(crate) fn check(ops: &[Op], caps: Caps) -> Result<(), Error> {
    let needs = ops.iter().fold(Caps::empty(), |all, op| all | op.needs());
    let lacks = needs.difference(caps);
    if lacks.is_empty() { Ok(()) } else { Err(Error::Lacks(lacks)) }
}

/// The CPU: the calling thread executes a list, and returns when all of it is done.
pub struct Cpu<M, W> {
    memory: M,
    wait: W,
}

impl<M, W> fmt::Debug for Cpu<M, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cpu")
    }
}

impl<M: Memory> Cpu<M, ()> {
    /// A poll that did not end in `most` fails the list.
    pub fn within(memory: M, most: Duration) -> Cpu<M, impl FnMut(Instant) -> Result<(), Error>> {
        let wait = move |began: Instant| {
            if began.elapsed() >= most {
                return Err(Error::TimedOut);
            }
            std::thread::yield_now();
            Ok(())
        };
        Cpu { memory, wait }
    }
}

impl<M: Memory, W: FnMut(Instant) -> Result<(), Error>> Cpu<M, W> {
    /// `wait` is called again and again while a poll goes on, with the time when that began, and may fail the
    /// list.
    pub fn new(memory: M, wait: W) -> Cpu<M, W> {
        Cpu { memory, wait }
    }

    fn one(&mut self, op: &Op) -> Result<(), Error> {
        match op {
            Op::Fence(_) => {
                self.memory.fence();
                Ok(())
            }
            Op::Store32 { to, value } => self.memory.store32(*to, *value),
            Op::Store64 { to, value } => self.memory.store64(*to, *value),
            Op::Copy { to, block } => {
                let mut words = block.words().iter().enumerate();
                words.try_for_each(|(i, word)| self.memory.store32(to.plus(4 * i as u64), *word))
            }
            Op::Poll { at, until, value } => {
                let began = Instant::now();
                while !until.is_met(self.memory.load32(*at)?, *value) {
                    (self.wait)(began)?;
                }
                Ok(())
            }
            Op::Add32 { to, value } => self.memory.add32(*to, *value),
        }
    }
}

impl<M: Memory, W: FnMut(Instant) -> Result<(), Error>> Executor for Cpu<M, W> {
    fn caps(&self) -> Caps {
        Caps::all()
    }

    fn execute(&mut self, ops: &[Op]) -> Result<(), Failed> {
        check(ops, self.caps()).map_err(Failed::at_once)?;
        for op in ops {
            if let Some((place, len)) = op.place() {
                self.memory.check(place, len, op.alignment()).map_err(Failed::at_once)?;
            }
        }
        for (i, op) in ops.iter().enumerate() {
            self.one(op).map_err(|error| Failed { done: i, error })?;
        }
        Ok(())
    }
}
