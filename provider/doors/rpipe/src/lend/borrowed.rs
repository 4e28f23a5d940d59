//! The borrower's side: the book, and the ways to the bytes.

use std::sync::Arc;

use super::asked::Wanted;
use super::blocks::{Attached, Blocks};
use super::book::Loan;
use super::remote::Remote;
use super::{Lends, Local, copy, wait_for, with};
use crate::core::Context;
use crate::core::Patience;
use crate::core::forked;
use crate::core::granule;
use crate::{ALIGN_MOST, Atomic, Block, Error, Heap, Memory, Policy, Rank, Usage};

/// How often it is asked whether the lender is there, where operations do not show it: each so many
/// nanoseconds.
const ASK: u64 = 100_000_000;

/// What was done with borrowed memory, and what is in its heap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LendStats {
    pub heap: u64,
    pub usage: Usage,
    /// Operations, and their bytes.
    pub writes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub atomics: u64,
    pub mapped: bool,
    /// A thread of the lender's makes progress for this process.
    pub thread: bool,
    /// Of several borrowers the one that keeps the book, which is another one if there is no policy.
    pub keeper: Option<Rank>,
    pub policy: Option<Policy>,
    pub path: String,
    pub path_why: String,
}

/// Memory of another process, and the book of the heap in it.
#[derive(Debug)]
pub struct Borrowed {
    context: Arc<Context>,
    loan: Loan,
    blocks: Blocks,
    way: Way,
    asked: u64,
    /// The memory is not to be used any more.
    fault: Option<Error>,
    /// Operations, and their bytes.
    written: (u64, u64),
    read: (u64, u64),
    atomics: u64,
}

#[derive(Debug)]
enum Way {
    Mapped(Memory),
    Remote(Remote),
}

impl Borrowed {
    /// The oldest memory that this process lends to this one, and that is not borrowed yet. Waits for it.
    pub fn open(
        context: &Arc<Context>,
        lender: Rank,
        policy: Option<Policy>,
        patience: Patience,
    ) -> Result<Borrowed, Error> {
        let loan = wait_for(context, patience, || {
            let mut inner = context.lock();
            let (lends, net) = inner.service::<Lends>()?;
            match lends.borrow_next(net, lender)? {
                Some(loan) => Ok(Some(loan)),
                None => inner.takes_in(lender).map(|()| None),
            }
        })?;
        Borrowed::new(context, &loan, policy).inspect_err(|fault| {
            let _ = with(context, |lends, net| match fault {
                // There may be some with the next call.
                Error::Exhausted(_) => {
                    lends.not_borrowed(loan.name);
                    Ok(())
                }
                _ => lends.give_back(net, loan.name, None),
            });
        })
    }

    fn new(context: &Arc<Context>, loan: &Loan, policy: Option<Policy>) -> Result<Borrowed, Error> {
        let me = loan.name.borrower;
        let blocks = match loan.keeper.filter(|keeper| *keeper != me) {
            Some(keeper) => Blocks::Attached(Attached::new(keeper, loan.len)),
            None => {
                let policy = policy.or(context.settings().policy).unwrap_or_default();
                Blocks::Book(Heap::new(loan.len, granule(loan.len), policy)?)
            }
        };
        let way = match &loan.grant.mapped {
            Some(memory) if loan.promise.mapped => Way::Mapped(memory.clone()),
            _ if !loan.promise.settled => {
                return Err(Error::Unsupported(format!(
                    "{} does not promise that a read finds what was written before it (FI_ORDER_RMA_RAW, or \
                     FI_DELIVERY_COMPLETE): memory cannot be lent over it",
                    loan.promise.path
                )));
            }
            _ => Way::Remote(Remote::new(context, loan)?),
        };
        let (context, loan) = (context.clone(), loan.clone());
        let (written, read) = ((0, 0), (0, 0));
        Ok(Borrowed { context, loan, blocks, way, asked: 0, fault: None, written, read, atomics: 0 })
    }

    /// Fails if the lender has ended or has taken the memory back, at the latest [`ASK`] later.
    #[inline]
    fn check(&mut self) -> Result<(), Error> {
        forked::check()?;
        let now = ipc::tick();
        if self.fault.is_none() && now.wrapping_sub(self.asked) < ASK {
            return Ok(());
        }
        self.ask(now)
    }

    #[cold]
    fn ask(&mut self, now: u64) -> Result<(), Error> {
        if self.fault.is_none() {
            self.asked = now;
            let mut inner = self.context.lock();
            let outcome = inner.progress().and_then(|()| {
                let (lends, net) = inner.service::<Lends>()?;
                lends.is_lent(net, self.loan.name)
            });
            drop(inner);
            self.fault = outcome.err();
        }
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Allocates a block, on a multiple of `align`. No byte of it is sent.
    pub fn alloc(&mut self, len: usize, align: usize) -> Result<Block, Error> {
        self.check()?;
        if !align.is_power_of_two() || align > ALIGN_MOST {
            return Err(Error::Invalid(format!(
                "an alignment of {align}: it has to be a power of two, of 4096 at most"
            )));
        }
        if len > self.loan.len || u32::try_from(len).is_err() {
            return Err(Error::TooLong(format!(
                "{len} bytes of {} that were lent; a block has less than 4 GiB",
                self.loan.len
            )));
        }
        self.blocks.alloc(len, align)?.ok_or_else(|| {
            let Usage { free, largest, .. } = self.blocks.usage();
            Error::Full(format!(
                "{len} bytes, and of the memory that was lent {free} are free, {largest} in one block: free some, or borrow more"
            ))
        })
    }

    /// Frees a block. Bytes of it stay as they are until a block has them again.
    pub fn free(&mut self, block: Block) -> Result<(), Error> {
        self.check()?;
        self.blocks.free(block)
    }

    /// Of memory with several borrowers: which one it is of the lender's, for all of them.
    pub(crate) fn shared_name(&self) -> Option<(Rank, u32)> {
        self.loan.keeper.map(|_| (self.loan.name.lender, self.loan.name.ordinal))
    }

    /// Makes a block that the first borrower has allocated usable in this process, with so many bytes.
    /// Blocks that it overlaps are stale here: they were freed before. Nothing is sent.
    pub fn attach(&mut self, block: Block, len: usize) -> Result<(), Error> {
        self.check()?;
        self.blocks.attach(block, len)
    }

    /// Ends that.
    pub fn detach(&mut self, block: Block) -> Result<(), Error> {
        self.check()?;
        self.blocks.detach(block)
    }

    /// The bytes of a block.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self, block: Block) -> Result<usize, Error> {
        self.blocks.len(block)
    }

    /// Where `len` bytes at `at` of a block are.
    #[inline]
    fn place(&self, block: Block, at: usize, len: usize) -> Result<usize, Error> {
        let has = self.len(block)?;
        if at > has || len > has - at {
            return Err(Error::TooLong(format!("{len} bytes at {at} of a block of {has}")));
        }
        Ok(self.blocks.offset(block) + at)
    }

    /// Writes bytes at `at` of a block. They are in the lender's memory when it returns. `Again`: not all
    /// within the time; write them again.
    #[inline]
    pub fn write(&mut self, block: Block, at: usize, bytes: &[u8], patience: Patience) -> Result<(), Error> {
        // SAFETY: a slice.
        unsafe { self.transfer(block, at, Local::From(bytes.as_ptr()), bytes.len(), patience) }
    }

    /// Reads bytes at `at` of a block. `Again`: not all within the time.
    #[inline]
    pub fn read(
        &mut self,
        block: Block,
        at: usize,
        bytes: &mut [u8],
        patience: Patience,
    ) -> Result<(), Error> {
        // SAFETY: a slice.
        unsafe { self.transfer(block, at, Local::To(bytes.as_mut_ptr()), bytes.len(), patience) }
    }

    /// Whether `len` bytes at `at` of a block are there.
    pub(crate) fn check_part(&self, block: Block, at: usize, len: usize) -> Result<(), Error> {
        self.place(block, at, len).map(drop)
    }

    /// As [`Borrowed::write`] or [`Borrowed::read`].
    ///
    /// # Safety
    /// `len` bytes are there, readable and not written meanwhile, or writable and not used meanwhile.
    #[inline]
    pub(crate) unsafe fn transfer(
        &mut self,
        block: Block,
        at: usize,
        local: Local,
        len: usize,
        patience: Patience,
    ) -> Result<(), Error> {
        let place = self.place(block, at, len)?;
        self.check()?;
        match &mut self.way {
            // SAFETY: the caller's promise.
            Way::Mapped(memory) => unsafe { copy(memory, place, local, len) },
            Way::Remote(remote) => {
                let there = (&*self.context, &self.loan, place);
                // SAFETY: the caller's promise.
                let done = unsafe { remote.transfer(there, local, len, patience) };
                done.inspect_err(|fault| keep(&mut self.fault, fault))?;
            }
        }
        let (operations, bytes) = if local.is_source() { &mut self.written } else { &mut self.read };
        *operations += 1;
        *bytes += len as u64;
        Ok(())
    }

    /// Does an atomic operation with the word at byte `at` of a block; what the word was. It is atomic among
    /// all borrowers and the lender. `Again`: the time was over, and it may be done or not; the same call
    /// again has its answer, and does it no second time.
    #[inline]
    pub fn atomic(
        &mut self,
        block: Block,
        at: usize,
        atomic: &Atomic,
        patience: Patience,
    ) -> Result<u64, Error> {
        let place = self.place(block, at, atomic.width())?;
        let misplaced = || {
            Error::Invalid(format!(
                "a word of {0} bytes at {at}: it has to be at a multiple of {0} in its block",
                atomic.width()
            ))
        };
        if place % atomic.width() != 0 {
            return Err(misplaced());
        }
        self.check()?;
        let was = match &mut self.way {
            Way::Mapped(memory) => atomic.apply(memory, place).ok_or_else(misplaced)?,
            Way::Remote(remote) => {
                let there = (&*self.context, &self.loan, place);
                let done = remote.atomic(there, atomic, Wanted::new((block, at), *atomic), patience);
                done.inspect_err(|fault| keep(&mut self.fault, fault))?
            }
        };
        self.atomics += 1;
        Ok(was)
    }

    /// Where a block is in this process, if the memory is mapped: as long as this object is there, also when
    /// the lender has ended.
    pub fn address(&mut self, block: Block) -> Result<*mut u8, Error> {
        let place = self.place(block, 0, 0)?;
        self.check()?;
        match &self.way {
            Way::Mapped(memory) => Ok(memory.address(place)),
            Way::Remote(_) => Err(Error::Unsupported(format!(
                "memory that is lent over {} is not mapped here: read and write it by calls",
                self.loan.promise.path
            ))),
        }
    }

    /// What was done, and what is in the heap.
    pub fn stats(&self) -> LendStats {
        let ((writes, written_bytes), (reads, read_bytes)) = (self.written, self.read);
        LendStats {
            heap: self.loan.len as u64,
            usage: self.blocks.usage(),
            writes,
            written_bytes,
            reads,
            read_bytes,
            atomics: self.atomics,
            mapped: matches!(self.way, Way::Mapped(_)),
            thread: self.loan.promise.peer_progress,
            keeper: self.loan.keeper,
            policy: self.blocks.policy(),
            path: self.loan.promise.path.clone(),
            path_why: self.loan.promise.why.clone(),
        }
    }
}

impl Drop for Borrowed {
    /// Gives the memory back.
    fn drop(&mut self) {
        if forked::is_child() {
            return;
        }
        let region = match &self.way {
            Way::Mapped(_) => None,
            Way::Remote(remote) => Some(remote.region.id),
        };
        let _ = with(&self.context, |lends, net| lends.give_back(net, self.loan.name, region));
    }
}

/// A fault that does not end.
#[cold]
fn keep(place: &mut Option<Error>, fault: &Error) {
    if matches!(fault, Error::Gone(_)) {
        place.get_or_insert_with(|| fault.clone());
    }
}
