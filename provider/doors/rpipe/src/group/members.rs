//! The members of a group, and the pipes to them.

use std::sync::Arc;

use crate::core::{Context, Patience, Visit};
use crate::{Address, Error, Pipe, Rank};

/// Of each pipe of a group, at least.
pub(super) const HEAP: usize = 64 << 10;
pub(super) const SLOTS: usize = 16;
/// What a member's pipe has to have, or nothing goes on.
const LEAST: (usize, usize) = (HEAP, 4);

/// What went wrong in a call, and the place of the member whose pipe it came of.
pub(super) type Fault = (usize, Error);

/// A member, as this one sees it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) rank: Rank,
    /// `None`: it is this process, or the group is over.
    pub(super) pipe: Option<Pipe>,
    /// The last transfer of this call.
    pub(super) last: Option<usize>,
}

/// All members, in the order of the group.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) context: Arc<Context>,
    /// The place of this one.
    pub(super) me: usize,
    pub(super) all: Vec<Member>,
}

impl Members {
    /// The next message of a member, if there is one: a block of its pipe, where it is, and its length.
    pub(super) fn next(
        &mut self,
        place: usize,
        ask: bool,
    ) -> Result<Option<(Address, *mut u8, usize)>, Error> {
        let Some(pipe) = &mut self.all[place].pipe else { return Ok(None) };
        let visit = if ask { Visit::Ask { begin: true } } else { Visit::Flag };
        if !pipe.visit(visit) {
            return Ok(None);
        }
        let (address, len, handler) = match pipe.read_any(usize::MAX, Patience::Poll) {
            Err(Error::Again) => return Ok(None),
            other => other?,
        };
        if handler != 0 {
            return Err(Error::Broken("an active message came in a group's pipe".into()));
        }
        Ok(Some((address, pipe.address(address)?, len)))
    }

    /// The pipe to a member, once it can be written to, and the bytes of its heap.
    pub(super) fn writable(&mut self, place: usize, ask: bool) -> Result<Option<(&mut Pipe, usize)>, Error> {
        let Some(pipe) = &mut self.all[place].pipe else { return Ok(None) };
        if ask && !pipe.connect_writer()? {
            return Ok(None);
        }
        let Some((heap, slots)) = pipe.room() else { return Ok(None) };
        if heap < LEAST.0 || slots < LEAST.1 {
            return Err(Error::Broken(
                "the heap of a group's pipe is shorter than each member makes it".into(),
            ));
        }
        Ok(Some((pipe, heap)))
    }

    /// Frees a block of a member's pipe.
    pub(super) fn free(&mut self, place: usize, address: Address) -> Result<(), Error> {
        self.all[place].pipe.as_mut().map_or(Ok(()), |pipe| pipe.free(address))
    }

    /// Whether all that was written to a member has left.
    pub(super) fn flush(&mut self, place: usize) -> Result<bool, Error> {
        match self.all[place].pipe.as_mut().map_or(Ok(()), |pipe| pipe.flush(Patience::Poll)) {
            Err(Error::Again) => Ok(false),
            flushed => flushed.map(|()| true),
        }
    }
}
