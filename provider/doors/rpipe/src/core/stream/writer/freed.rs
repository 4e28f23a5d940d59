//! Taking in what the reader has freed.

use super::blocks::Blocks;
use crate::core::context::Ready;
use crate::core::control::{STATE, Shape};
use crate::core::settings::Sync;
use crate::core::stream::Patience;
use crate::core::stream::port::{OpNumbers, Port};
use crate::core::tags::{self, Cursor};
use crate::{Error, Get, Memory};

#[derive(Debug)]
pub(super) struct Freed {
    cursor: Cursor,
    /// The operation that gets tags, if a call has not waited for its end.
    fetching: Option<u32>,
}

impl Freed {
    pub(super) fn new(shape: Shape) -> Freed {
        Freed { cursor: Cursor::new(shape.slots), fetching: None }
    }

    /// Gives the book all that the reader has freed, as far as it is here; how many tags there were.
    /// `mapped`: the reader's region. A fault is the reader's.
    pub(super) fn take_in(
        &mut self,
        ready: &Ready,
        mapped: Option<&Memory>,
        sync: Sync,
        blocks: &mut Blocks,
    ) -> Result<u64, Error> {
        let (from, at) = match (mapped, sync) {
            (Some(theirs), Sync::Immediate) => (theirs, ready.met.shape.tags()),
            _ => (&ready.mine.memory, STATE),
        };
        let mut taken = 0;
        while let Some(range) = tags::take(from, at, &mut self.cursor) {
            taken += 1;
            blocks.take_back(range)?;
        }
        Ok(taken)
    }

    /// Gets the reader's tags into the place of those that would be put.
    pub(super) fn fetch(
        &mut self,
        port: &Port,
        ready: &Ready,
        ops: &mut OpNumbers,
        patience: Patience,
    ) -> Result<(), Error> {
        // That of a call whose time was over.
        self.settle(port, patience)?;
        let (shape, op) = (ready.met.shape, ops.next());
        let get = Get {
            from: port.peer(),
            remote: (ready.theirs.remote, shape.tags()),
            to: (ready.mine.id, STATE),
            len: 8 * shape.slots,
            token: port.token(op),
        };
        port.post(patience, |backend| backend.get(&get))?;
        self.fetching = Some(op);
        self.settle(port, patience)
    }

    /// Waits for the tags that are got.
    pub(super) fn settle(&mut self, port: &Port, patience: Patience) -> Result<(), Error> {
        let Some(op) = self.fetching else { return Ok(()) };
        let ended = port.await_op(op, patience);
        if ended != Err(Error::Again) {
            self.fetching = None;
        }
        ended.map(drop)
    }
}
