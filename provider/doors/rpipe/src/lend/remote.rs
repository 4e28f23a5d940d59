//! Borrowed memory that is not mapped: bytes go through a region of this process, one piece at a time, and
//! atomic operations are the lender's where operations take its progress.

use super::asked::{Asked, Next, Wanted};
use super::book::{Loan, Move};
use super::{Lends, Local, copy, wait_for, with};
use crate::core::Context;
use crate::core::{Patience, WaitStep, Waiting};
use crate::{Atomic, Error, Region};

/// The longest piece.
const PIECE: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) region: Region,
    piece: usize,
    /// An operation was not waited for to its end.
    under_way: bool,
    asked: Asked,
}

impl Remote {
    pub(super) fn new(context: &Context, loan: &Loan) -> Result<Remote, Error> {
        let piece = PIECE.min(loan.len).min(loan.promise.most).max(64) & !63;
        let region = context.lock().backend().expose(piece)?;
        Ok(Remote { region, piece, under_way: false, asked: Asked::default() })
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
        outcome.or_else(|fault| {
            with(context, |lends, net| lends.is_lent(net, loan.name))?;
            match fault {
                Error::Gone(why) => Err(Error::Gone(format!("rank {}: {why}", loan.name.lender))),
                fault => Err(fault),
            }
        })
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

    /// Does an atomic operation, with the word at byte `at`; what the word was. `Again`: it may be done
    /// or not, and the call that wants the same again has its answer.
    pub(super) fn atomic(
        &mut self,
        (context, loan, at): (&Context, &Loan, usize),
        atomic: &Atomic,
        wanted: Wanted,
        patience: Patience,
    ) -> Result<u64, Error> {
        self.settle(context, loan, patience)?;
        let name = loan.name;
        if !loan.promise.peer_progress {
            return with(context, |lends, net| {
                lends.is_lent(net, name)?;
                net.backend().atomic(name.lender, (loan.grant.remote, at), atomic)
            });
        }
        loop {
            let (number, mine) = match self.asked.next(wanted) {
                Next::Ask(number) => {
                    let asked = with(context, |lends, net| lends.ask(net, name, number, (at, atomic)));
                    asked.inspect_err(|_| self.asked.settle(None, true))?;
                    (number, true)
                }
                Next::Await(number, mine) => (number, mine),
                Next::Done(was) => return Ok(was),
            };
            let answer = wait_for(context, patience, || {
                let mut inner = context.lock();
                let (lends, net) = inner.service::<Lends>()?;
                match lends.answer(net, name, number)? {
                    Some(answer) => Ok(Some(answer)),
                    None => inner.takes_in(name.lender).map(|()| None),
                }
            })?;
            self.asked.settle(answer, mine);
            if !mine {
                continue;
            }
            if let Some(was) = answer {
                return Ok(was);
            }
            // What is refused for memory that was taken back is refused because of that.
            with(context, |lends, net| lends.is_lent(net, name))?;
            return Err(Error::Broken(format!("rank {} refuses an atomic operation", name.lender)));
        }
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
