//! The members of a group, and the pipes to them.

use std::sync::Arc;

use super::agreement::Agreement;
use super::pieces::{HEAD, NOTE, head, write_head};
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
    /// It has a note of this call.
    noted: bool,
    /// The first piece of a message of a later call, which was seen.
    held: Option<Piece>,
}

impl Member {
    pub(super) fn new(rank: Rank, pipe: Option<Pipe>) -> Member {
        Member { rank, pipe, last: None, noted: false, held: None }
    }

    /// Forgets what is of one call.
    pub(super) fn clear(&mut self) {
        (self.last, self.noted) = (None, false);
    }
}

/// A block of a member's pipe, where it is, and its length.
pub(super) type Piece = (Address, *mut u8, usize);

/// All members, in the order of the group.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) context: Arc<Context>,
    /// The place of this one.
    pub(super) me: usize,
    pub(super) all: Vec<Member>,
    pub(super) agreement: Agreement,
}

// SAFETY: the addresses are those of the members' pipes, which are there as long as the members.
unsafe impl Send for Member {}

impl Members {
    /// The next piece of a member, if there is one. `first`: it is the first one of a message; a note before
    /// it is read here.
    pub(super) fn next(&mut self, place: usize, first: bool, ask: bool) -> Result<Option<Piece>, Error> {
        let visit = if ask { Visit::Ask { begin: true } } else { Visit::Flag };
        self.next_by(place, first, visit)
    }

    fn next_by(&mut self, place: usize, first: bool, visit: Visit) -> Result<Option<Piece>, Error> {
        if let Some(piece) = self.all[place].held.take() {
            return Ok(Some(piece));
        }
        while let Some((address, at, len)) = self.read(place, visit)? {
            match head(at, len) {
                Some((NOTE, what)) if first => {
                    self.agreement.check(what, self.all[place].rank)?;
                    self.free(place, address)?;
                }
                _ => return Ok(Some((address, at, len))),
            }
        }
        Ok(None)
    }

    /// Compares the call of a member of which this one waits for nothing.
    pub(super) fn compare(&mut self, place: usize) -> Result<(), Error> {
        if self.all[place].held.is_some() {
            return Ok(());
        }
        // A pipe that nothing came by is not set up for this.
        let Some(piece) = self.next_by(place, true, Visit::Ask { begin: false })? else { return Ok(()) };
        if let Some((what, _)) = head(piece.1, piece.2) {
            self.agreement.check(what, self.all[place].rank)?;
        }
        self.all[place].held = Some(piece);
        Ok(())
    }

    /// Sends a note to a member that this call waits for, once there is room. That it has ended shows where
    /// its messages are read.
    pub(super) fn note(&mut self, place: usize) -> Result<(), Error> {
        if self.all[place].noted {
            return Ok(());
        }
        let what = self.agreement.now();
        let Some((pipe, _)) = self.writable(place, true)? else { return Ok(()) };
        let Some(block) = pipe.alloc_now(HEAD)? else { return Ok(()) };
        // SAFETY: a block of so many bytes, which is this end's.
        unsafe { write_head(pipe.address(block)?, NOTE, what as usize) };
        match pipe.write_timed(block, None, Patience::Poll) {
            Err(Error::Again) => return pipe.free(block),
            other => other?,
        }
        self.all[place].noted = true;
        Ok(())
    }

    fn read(&mut self, place: usize, visit: Visit) -> Result<Option<Piece>, Error> {
        let Some(pipe) = &mut self.all[place].pipe else { return Ok(None) };
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
