//! The reader's end of many pipes: the next message of any writer.

pub(crate) mod several;

use std::sync::Arc;

use crate::core::Context;
use crate::many::several::Turns;
use crate::{Address, Error, Patience, Pipe, PipeOptions, Rank, Side};

/// Readers' ends of pipes of several writers, each with a heap of its own, which is made when its writer
/// begins.
#[derive(Debug)]
pub struct Many {
    context: Arc<Context>,
    pipes: Vec<Pipe>,
    ranks: Vec<Rank>,
    turns: Turns,
}

/// A message that was read from one of many pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The place of its pipe.
    pub pipe: usize,
    /// The writer.
    pub source: Rank,
    pub address: Address,
    /// Bytes.
    pub len: usize,
    /// Active message: the handler's number; else 0.
    pub handler: u16,
}

/// Whether nothing more is to be read where this came of a read.
pub(crate) fn is_end(fault: &Error) -> bool {
    !matches!(fault, Error::Again | Error::TooLong(_))
}

/// The error of a read once each writer's end was reported.
pub(crate) fn all_are_gone() -> Error {
    Error::Gone("all writers have ended, and all that they wrote was read".into())
}

impl Many {
    /// Opens a reader's end to each of these writers, which open theirs as that of any pipe.
    pub fn open(context: &Arc<Context>, writers: &[Rank], options: &PipeOptions) -> Result<Many, Error> {
        let options = PipeOptions { side: Side::Reader, ..*options };
        let pipes = writers.iter().map(|rank| Pipe::open(context, *rank, &options));
        let pipes = pipes.collect::<Result<Vec<_>, _>>()?;
        let turns = Turns::new(pipes.len(), options.eager);
        Ok(Many { context: context.clone(), pipes, ranks: writers.to_vec(), turns })
    }

    /// The next message of any writer, of `most` bytes at most. [`Error::Gone`] names a writer that has
    /// ended, once, after all that it wrote; [`Error::TooLong`] leaves the message.
    pub fn read(&mut self, most: usize, patience: Patience) -> Result<Received, Error> {
        loop {
            if self.turns.is_empty() {
                return Err(all_are_gone());
            }
            let at = self.turns.wait(&mut self.pipes[..], &self.context, patience)?;
            match self.pipes[at].read_if_any(most, patience) {
                Ok(None) => {}
                Ok(Some((address, len, handler))) => {
                    return Ok(Received { pipe: at, source: self.ranks[at], address, len, handler });
                }
                Err(fault) => {
                    // What the writer has sent may only wait for a descriptor.
                    let waits = matches!(fault, Error::Exhausted(_)) && !self.pipes[at].is_over();
                    if is_end(&fault) && !waits {
                        self.turns.remove(at);
                    }
                    return Err(fault.of(self.ranks[at]));
                }
            }
        }
    }

    /// The pipe of this place, for the memory of its messages.
    pub fn pipe(&mut self, at: usize) -> Option<&mut Pipe> {
        self.pipes.get_mut(at)
    }

    /// Frees a message that was read.
    pub fn free(&mut self, message: &Received) -> Result<(), Error> {
        let none = || Error::Stale("the message is of none of these pipes".into());
        self.pipe(message.pipe).ok_or_else(none)?.free(message.address)
    }

    /// Closes all ends.
    pub fn close(&mut self) -> Result<(), Error> {
        self.turns = Turns::new(0, false);
        self.pipes.drain(..).map(|mut pipe| pipe.close()).fold(Ok(()), Result::and)
    }
}
