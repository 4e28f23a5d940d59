//! Identification of an endpoint's operations: contexts, counts, kinds.

use std::cell::UnsafeCell;

use libc::c_void;
use libfabric_sys as sys;

/// Which context an operation uses; sends (and RMA) and receives have their own.
pub type Slot = usize;

/// The memory that a provider with FI_CONTEXT or FI_CONTEXT2 keeps its state of an operation in.
#[derive(Debug)]
pub(super) struct Contexts {
    /// Those of sends, then as many of receives.
    all: Box<[UnsafeCell<sys::fi_context2>]>,
    /// Bytes that the receive of a slot is to get.
    expect: Box<[usize]>,
}

impl Contexts {
    pub(super) fn new(slots: usize) -> Contexts {
        let context = || UnsafeCell::new(sys::fi_context2::default());
        Contexts { all: (0..2 * slots).map(|_| context()).collect(), expect: vec![0; slots].into() }
    }

    /// How many there are of each sort.
    #[inline]
    pub(super) fn slots(&self) -> usize {
        self.expect.len()
    }

    /// Bytes that the receive of a slot is to get.
    #[inline]
    pub(super) fn expected(&self, slot: Slot) -> usize {
        self.expect[slot]
    }

    #[inline]
    pub(super) fn tx(&self, slot: Slot) -> *mut c_void {
        assert!(slot < self.expect.len());
        self.all[slot].get().cast()
    }

    #[inline]
    pub(super) fn rx(&mut self, slot: Slot, len: usize) -> *mut c_void {
        self.expect[slot] = len;
        self.all[self.expect.len() + slot].get().cast()
    }

    #[inline]
    pub(super) fn index(&self, context: *mut c_void) -> Option<usize> {
        let offset = context.addr().checked_sub(self.all.as_ptr().addr())?;
        let index = offset / size_of::<sys::fi_context2>();
        (index < self.all.len()).then_some(index)
    }
}

/// How many operations completed since the endpoint was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Our own sends, RMA and atomic operations.
    pub tx: u64,
    /// Our receives.
    pub rx: u64,
    /// Writes of the peer with data for our queue.
    pub remote: u64,
}

/// Which atomic operation, on one unsigned 64-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// Adds.
    Plain,
    /// Adds, and gives what was there before.
    Fetch,
    /// Compares and swaps, and gives what was there before.
    Compare,
}

impl AtomicKind {
    pub(super) fn op(self) -> sys::fi_op {
        match self {
            AtomicKind::Plain | AtomicKind::Fetch => sys::FI_SUM,
            AtomicKind::Compare => sys::FI_CSWAP,
        }
    }
}
