//! Borrowed memory that is not mapped: bytes go through a region of this process, one piece at a time.

use super::book::{Loan, Move};
use super::{Local, copy, wait_for, with};
use crate::core::Context;
use crate::core::{Patience, WaitStep, Waiting};
use crate::{Error, Region};

/// The longest piece.
const PIECE: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) region: Region,
    piece: usize,
    /// An operation was not waited for to its end.
    under_way: bool,
}

impl Remote {
    pub(super) fn new(context: &Context, loan: &Loan) -> Result<Remote, Error> {
        let piece = PIECE.min(loan.len).min(loan.promise.most).max(64) & !63;
        let region = context.lock().backend().expose(piece)?;
        Ok(Remote { region, piece, under_way: false })
    }

    /// Waits for the operation under way.
    fn settle(&mut self, context: &Context, loan: &Loan, patience: Patience) -> Result<(), Error> {
        if !self.under_way {
            return Ok(());
        }
        let outcome =
            wait_for(context, patience, || with(context, |lends, net| lends.moved(net, loan.name)))?;
        self.under_way = false;
        // What fails on memory that was taken back fails because of that.
        outcome.or_else(|fault| with(context, |lends, net| lends.is_lent(net, loan.name)).and(Err(fault)))
    }

    fn step(&mut self, context: &Context, loan: &Loan, op: &Move, patience: Patience) -> Result<(), Error> {
        let mut waiting = Waiting::new(patience, false);
        loop {
            match with(context, |lends, net| lends.start_move(net, loan, op)) {
                Err(Error::Again) => {}
                started => break started?,
            }
            if waiting.step(context)? == WaitStep::Sleep {
                waiting.sleep(context, false);
            }
        }
        self.under_way = true;
        self.settle(context, loan, patience)
    }

    /// Moves bytes to or from the memory. `Again`: some of them may be there.
    ///
    /// # Safety
    /// `len` bytes are at `local`, readable or writable.
    pub(super) unsafe fn transfer(
        &mut self,
        (context, loan, at): (&Context, &Loan, usize),
        local: Local,
        len: usize,
        patience: Patience,
    ) -> Result<(), Error> {
        self.settle(context, loan, patience)?;
        let write = local.is_source();
        for done in (0..len).step_by(self.piece) {
            let now = self.piece.min(len - done);
            // SAFETY: the caller's promise.
            let by_region = |region: &Region| unsafe { copy(&region.memory, 0, local.behind(done), now) };
            if write {
                by_region(&self.region);
            }
            let op = Move { write, local: (self.region.id, 0), at: at + done, len: now };
            self.step(context, loan, &op, patience)?;
            if !write {
                by_region(&self.region);
            }
        }
        Ok(())
    }
}
