//! Memory of a process that makes no calls (memory disaggregation): it lends the memory, and another
//! process, the borrower, allocates in it, writes to it and reads from it by one-sided operations.
//!
//! The borrower keeps the book, in memory of its own, and the lender has none of it. Where the memory is
//! mapped, an operation is a copy. Else it is a put or a get; where that takes progress of the lender's,
//! the lender has a thread for it, which sleeps while nothing comes.
//!
//! Of several borrowers the first one keeps the book, and the others attach the blocks whose addresses it
//! passes. Atomic operations are all done by atomic instructions of a processor: the borrower's where the
//! memory is in its reach, else the lender's, which a message asks for.

mod asked;
mod blocks;
mod book;
mod borrowed;
#[cfg(all(test, not(loom)))]
mod many_tests;
mod messages;
mod remote;
#[cfg(all(test, not(loom)))]
mod tests;
mod thread;

use std::ptr;
use std::sync::Arc;

use crate::core::Context;
use crate::core::forked;
use crate::core::{Net, Patience, WaitStep, Waiting};
use crate::{Error, Memory, Rank};

pub(crate) use book::Lends;
pub use borrowed::{Borrowed, LendStats};

use book::Offered;
use messages::Name;

/// Memory that this process lends.
#[derive(Debug)]
pub struct Lent {
    context: Arc<Context>,
    /// One for each borrower.
    names: Vec<Name>,
    has_thread: bool,
}

/// Bytes of this process, which are copied into memory, or to which memory is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    From(*const u8),
    To(*mut u8),
}

impl Local {
    fn is_source(self) -> bool {
        matches!(self, Local::From(_))
    }

    /// Those behind so many.
    fn behind(self, bytes: usize) -> Local {
        match self {
            Local::From(from) => Local::From(from.wrapping_add(bytes)),
            Local::To(to) => Local::To(to.wrapping_add(bytes)),
        }
    }
}

/// Copies bytes between memory and a place, which may lie in it.
///
/// # Safety
/// `len` bytes are there, readable or writable.
unsafe fn copy(memory: &Memory, at: usize, local: Local, len: usize) {
    assert!(at <= memory.len() && len <= memory.len() - at, "outside of the memory");
    let inside = memory.address(at);
    // SAFETY: inside (asserted) and mapped, as `Memory` says; the other side is the caller's promise.
    unsafe {
        match local {
            Local::From(from) => ptr::copy(from, inside, len),
            Local::To(to) => ptr::copy(inside, to, len),
        }
    }
}

/// Does something with the book of what is lent.
fn with<T>(
    context: &Context,
    body: impl FnOnce(&mut Lends, &mut Net) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut inner = context.lock();
    let (lends, net) = inner.service()?;
    body(lends, net)
}

/// Waits until something is there.
fn wait_for<T>(
    context: &Context,
    patience: Patience,
    mut poll: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let mut waiting = Waiting::new(patience, false);
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        match waiting.step(context) {
            // What the last progress has brought counts.
            Err(Error::Again) => return poll()?.ok_or(Error::Again),
            step => {
                if step? == WaitStep::Sleep {
                    waiting.sleep(context, false);
                }
            }
        }
    }
}

impl Lent {
    /// Lends so many bytes, all zero, to a process. Returns when that process has them, by whichever of its
    /// calls. From then on this process need not make any call. `Again`: it has not within the time, and
    /// nothing is lent.
    pub fn open(
        context: &Arc<Context>,
        borrower: Rank,
        len: usize,
        patience: Patience,
    ) -> Result<Lent, Error> {
        let names = with(context, |lends, net| lends.lend(net, &[borrower], len, false))?;
        Lent::offer(context, names, patience)
    }

    /// As `open`, to several processes, which reach the same bytes. The first one keeps the book.
    /// Returns when all of them have the memory; with any error it is lent to none.
    pub fn open_many(
        context: &Arc<Context>,
        borrowers: &[Rank],
        len: usize,
        patience: Patience,
    ) -> Result<Lent, Error> {
        let names = with(context, |lends, net| lends.lend(net, borrowers, len, true))?;
        Lent::offer(context, names, patience)
    }

    fn offer(context: &Arc<Context>, names: Vec<Name>, patience: Patience) -> Result<Lent, Error> {
        // Takes it back if anything fails.
        let mut lent = Lent { context: context.clone(), names, has_thread: false };
        wait_for(context, patience, || {
            let mut inner = context.lock();
            let mut are_taken = true;
            for name in &lent.names {
                let (lends, net) = inner.service::<Lends>()?;
                match lends.offer(net, *name)? {
                    Offered::Taken => continue,
                    Offered::Unmet => {}
                    Offered::Sent => inner.takes_in(name.borrower)?,
                }
                are_taken = false;
            }
            Ok(are_taken.then_some(()))
        })?;
        lent.has_thread = lent.help()?;
        Ok(lent)
    }

    /// Starts the thread that makes progress, if a borrower's operations take it.
    fn help(&self) -> Result<bool, Error> {
        let mut last = None;
        let helps = with(&self.context, |lends, net| {
            last = lends.take_ended_helper();
            lends.help(net, &self.context, &self.names)
        });
        drop(last);
        helps
    }

    /// Whether a thread of this process's makes progress for the borrower.
    pub fn has_thread(&self) -> bool {
        self.has_thread
    }

    /// Waits until no borrower needs the memory any more; [`Error::Gone`]: one of them has ended before it
    /// has given the memory back.
    pub fn wait(&self, patience: Patience) -> Result<(), Error> {
        wait_for(&self.context, patience, || {
            let mut inner = self.context.lock();
            let (mut are_back, mut ended) = (true, Ok(()));
            for name in &self.names {
                let (lends, net) = inner.service::<Lends>()?;
                match lends.is_back(net, *name) {
                    Ok(true) => {}
                    Ok(false) => {
                        are_back = false;
                        inner.takes_in(name.borrower)?;
                    }
                    Err(fault @ Error::Gone(_)) => ended = ended.and(Err(fault)),
                    Err(fault) => return Err(fault),
                }
            }
            if are_back { ended.map(Some) } else { Ok(None) }
        })
    }
}

impl Lent {
    /// Takes the memory back: calls of the borrower, and of threads that wait here, fail from now on. The
    /// thread that makes progress does so until no borrower reaches the memory.
    pub fn close(&self) {
        if forked::is_child() {
            return;
        }
        for name in &self.names {
            let _ = with(&self.context, |lends, net| lends.take_back(net, *name));
        }
        // Some may have it already where others have not, and there is no thread yet.
        let _ = self.help();
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread that makes progress for borrowers ends: the process leaves the job.
pub(crate) fn finish(context: &Context) {
    if !forked::is_child() {
        drop(with(context, |lends, _| Ok(lends.take_last_helper())));
    }
}
