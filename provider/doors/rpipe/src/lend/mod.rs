//! Memory of a process that makes no calls (memory disaggregation): it lends the memory, and another process,
//! the borrower, allocates in it, writes to it and reads from it by one-sided operations.
//!
//! The borrower keeps the book, in memory of its own, and the lender has none of it. Where the memory is
//! mapped, an operation is a copy. Else it is a put or a get; where that takes progress of the lender's, the
//! lender has a thread for it, which sleeps while nothing comes.

mod book;
mod borrowed;
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
use thread::Helper;

/// Memory that this process lends.
#[derive(Debug)]
pub struct Lent {
    context: Arc<Context>,
    name: Name,
    /// Makes progress where the path takes that.
    helper: Option<Helper>,
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
        let name = with(context, |lends, net| lends.lend(net, borrower, len))?;
        // Takes it back if anything fails.
        let mut lent = Lent { context: context.clone(), name, helper: None };
        wait_for(context, patience, || {
            let mut inner = context.lock();
            let (lends, net) = inner.service::<Lends>()?;
            match lends.offer(net, name)? {
                Offered::Taken => Ok(Some(())),
                Offered::Unmet => Ok(None),
                Offered::Sent => inner.takes_in(borrower).map(|()| None),
            }
        })?;
        let (promise, allowed) = {
            let mut inner = context.lock();
            (inner.backend().promise(borrower), inner.backend().allows_thread())
        };
        if promise.peer_progress {
            allowed?;
            lent.helper = Some(Helper::start(context, promise.wakes)?);
        }
        Ok(lent)
    }

    /// Whether a thread of this process's makes progress for the borrower.
    pub fn has_thread(&self) -> bool {
        self.helper.is_some()
    }

    /// Waits until the borrower needs the memory no more; [`Error::Gone`]: it has ended.
    pub fn wait(&self, patience: Patience) -> Result<(), Error> {
        wait_for(&self.context, patience, || {
            let mut inner = self.context.lock();
            let (lends, net) = inner.service::<Lends>()?;
            match lends.is_back(net, self.name)? {
                true => Ok(Some(())),
                false => inner.takes_in(self.name.borrower).map(|()| None),
            }
        })
    }
}

impl Drop for Lent {
    /// Takes the memory back: calls of the borrower fail from now on.
    fn drop(&mut self) {
        if forked::is_child() {
            return;
        }
        let _ = with(&self.context, |lends, net| lends.take_back(net, self.name));
    }
}
