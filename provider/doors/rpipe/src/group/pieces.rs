//! Messages of a call of a group, in pieces. The first piece of each begins with what call it is of, and how
//! many bytes there are in all.

use std::ptr;

use crate::{Error, Rank};

/// Bytes before the first piece: what call it is of; the length of the whole.
pub(super) const HEAD: usize = 16;
/// The longest piece; a fourth of the heap, if that is less.
pub(super) const PIECE: usize = 32 << 10;
/// What a message of an exchange begins with.
pub(super) const EXCHANGE: u64 = 1;
/// The same of a note, a message of a head alone: in the place of the length it has what the call's messages
/// begin with in which its sender waits.
pub(super) const NOTE: u64 = 15;

/// A call that all members make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bcast = 2,
    Barrier,
    Gather,
    Scatter,
    Alltoall,
    Reduce,
    Allreduce,
}

/// What a message of the n-th such call of a group begins with, so that one of an earlier call is not taken
/// for it. `root` is a place; `detail` has what else members have to agree on.
pub(super) fn call(kind: Kind, root: usize, detail: u8, number: u32) -> u64 {
    kind as u64 | (root as u64 & u64::from(u16::MAX)) << 8 | u64::from(detail) << 24 | u64::from(number) << 32
}

/// Writes what the first piece of a message begins with.
///
/// # Safety
/// `HEAD` bytes are writable there.
pub(super) unsafe fn write_head(to: *mut u8, what: u64, total: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        to.cast::<u64>().write_unaligned(what.to_le());
        to.add(8).cast::<u64>().write_unaligned((total as u64).to_le());
    }
}

/// What the first piece of a message begins with; `None`: it is too short.
pub(super) fn head(at: *const u8, len: usize) -> Option<(u64, u64)> {
    if len < HEAD {
        return None;
    }
    // SAFETY: so many bytes were read; each number is loaded once, and any bytes are one.
    let (what, total) =
        unsafe { (at.cast::<u64>().read_unaligned(), at.add(8).cast::<u64>().read_unaligned()) };
    Some((u64::from_le(what), u64::from_le(total)))
}

/// A member's message is of another call.
pub(super) fn differs(rank: Rank) -> Error {
    Error::Invalid(format!(
        "rank {rank} is in another call of the group, or has another root, type or operation: all members call the same in the same order"
    ))
}

/// What comes from a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) member: usize,
    pub(super) what: u64,
    pub(super) to: (*mut u8, usize),
    /// It has to be as long as the room for it.
    pub(super) exact: bool,
    /// What comes from the same member before.
    pub(super) after: Option<usize>,
    pub(super) total: Option<usize>,
    pub(super) got: usize,
}

/// What goes to a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) member: usize,
    pub(super) what: u64,
    pub(super) from: (*const u8, usize),
    /// What goes to the same member before.
    pub(super) after: Option<usize>,
    /// The most bytes of a piece, with room for a head.
    pub(super) piece: usize,
    pub(super) begun: bool,
    pub(super) sent: usize,
    pub(super) done: bool,
}

// SAFETY: the addresses are used within the call that they are of, by its thread.
unsafe impl Send for Incoming {}
// SAFETY: as above.
unsafe impl Send for Outgoing {}

impl Incoming {
    pub(super) fn new(member: usize, what: u64, to: (*mut u8, usize), exact: bool) -> Incoming {
        Incoming { member, what, to, exact, after: None, total: None, got: 0 }
    }

    /// The same, behind another one of the same member.
    pub(super) fn behind(self, after: Option<usize>) -> Incoming {
        Incoming { after, ..self }
    }

    pub(super) fn is_done(&self) -> bool {
        self.total == Some(self.got)
    }

    /// Takes a piece in, which is a copy of the peer's alone to change.
    pub(super) fn take(&mut self, at: *const u8, len: usize, rank: Rank) -> Result<(), Error> {
        let (at, len) = self.payload(at, len, rank)?;
        // SAFETY: `len` bytes are there; the room has `total` bytes at least (`check`), of which `got` are
        // filled, and `len` more are no more than that (`payload`).
        unsafe { ptr::copy_nonoverlapping(at, self.to.0.add(self.got), len) };
        self.got += len;
        Ok(())
    }

    /// The bytes of a piece behind its head, which is checked. They are no more than are still to come.
    pub(super) fn payload(
        &mut self,
        at: *const u8,
        len: usize,
        rank: Rank,
    ) -> Result<(*const u8, usize), Error> {
        let mut skip = 0;
        if self.total.is_none() {
            let (what, total) =
                head(at, len).ok_or_else(|| Error::Broken("a message of a group has no head".into()))?;
            self.check(what, total, rank)?;
            skip = HEAD;
        }
        let (len, total) = (len - skip, self.total.unwrap_or(0));
        if len == 0 && skip == 0 {
            // Without end, of a member of ill will.
            return Err(Error::Broken("a message of a group comes in pieces of no bytes".into()));
        }
        if len > total - self.got {
            return Err(Error::Broken("more bytes came than the member has said".into()));
        }
        // SAFETY: `len` bytes follow the head.
        Ok((unsafe { at.add(skip) }, len))
    }

    fn check(&mut self, what: u64, total: u64, rank: Rank) -> Result<(), Error> {
        if what != self.what {
            return Err(differs(rank));
        }
        let room = self.to.1;
        match usize::try_from(total) {
            Ok(total) if total <= room && (total == room || !self.exact) => self.total = Some(total),
            _ => {
                return Err(Error::TooLong(format!(
                    "rank {rank} sends {total} bytes, and this member has asked for {room}"
                )));
            }
        }
        Ok(())
    }
}

impl Outgoing {
    pub(super) fn new(member: usize, what: u64, from: (*const u8, usize)) -> Outgoing {
        Outgoing { member, what, from, after: None, piece: PIECE, begun: false, sent: 0, done: false }
    }

    /// The same, behind another one of the same member.
    pub(super) fn behind(self, after: Option<usize>) -> Outgoing {
        Outgoing { after, ..self }
    }

    /// The same, in pieces of so many bytes, beside the head of the first.
    pub(super) fn in_pieces(self, payload: usize) -> Outgoing {
        Outgoing { piece: HEAD + payload, ..self }
    }

    /// Whether a piece could go, of what is there by now.
    pub(super) fn can_send(&self, there: Option<usize>) -> bool {
        !self.done && there.is_some_and(|there| !self.begun || self.sent < there)
    }

    /// Whether it is done, or waits for bytes that are to come.
    pub(super) fn is_idle(&self, there: Option<usize>) -> bool {
        self.done || !self.can_send(there) && self.sent < self.from.1
    }
}
