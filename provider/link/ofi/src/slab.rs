//! Memory that a provider reads and writes while operations are in flight: places of one length each.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use libfabric_sys as fi;

/// Where places begin.
const ALIGN: usize = 4096;

/// Places, and for each of them a context of an operation.
///
/// What the provider may touch is never looked at: a place belongs either to it, from the call that posts an
/// operation until its completion, or to this side.
#[derive(Debug)]
pub(crate) struct Slab {
    at: NonNull<u8>,
    layout: Layout,
    each: usize,
    /// Not looked at after an operation was posted with one of them: the provider keeps notes there.
    contexts: NonNull<fi::fi_context2>,
    context_layout: Layout,
    n: usize,
}

// SAFETY: memory of its own, which nothing else in this process frees, and no thread's.
unsafe impl Send for Slab {}

impl Slab {
    /// `n` places of `each` bytes; `None` if there is no memory.
    pub(crate) fn new(n: usize, each: usize) -> Option<Slab> {
        let layout = Layout::from_size_align(n.checked_mul(each)?.max(1), ALIGN).ok()?;
        let context_layout = Layout::array::<fi::fi_context2>(n.max(1)).ok()?;
        // SAFETY: neither layout is of no bytes.
        let (at, contexts) = unsafe { (alloc_zeroed(layout), alloc_zeroed(context_layout)) };
        let (at, contexts) = (NonNull::new(at)?, NonNull::new(contexts.cast())?);
        Some(Slab { at, layout, each, contexts, context_layout, n })
    }

    /// Bytes of a place.
    pub(crate) fn each(&self) -> usize {
        self.each
    }

    /// All of it, for a registration.
    pub(crate) fn all(&self) -> (*mut u8, usize) {
        (self.at.as_ptr(), self.n * self.each)
    }

    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Where a place is.
    pub(crate) fn place(&self, at: usize) -> *mut u8 {
        assert!(at < self.n, "a place that there is");
        // SAFETY: inside of the memory, as just checked.
        unsafe { self.at.as_ptr().add(at * self.each) }
    }

    /// The context of an operation with this place.
    pub(crate) fn context(&self, at: usize) -> *mut fi::fi_context2 {
        assert!(at < self.n, "a place that there is");
        // SAFETY: likewise.
        unsafe { self.contexts.as_ptr().add(at) }
    }

    /// Which place a context is of, if it is one of these.
    pub(crate) fn of_context(&self, context: *mut libc::c_void) -> Option<usize> {
        let off = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let at = off / size_of::<fi::fi_context2>();
        (off % size_of::<fi::fi_context2>() == 0 && at < self.n).then_some(at)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with these layouts. Whatever posted operations with it has closed the endpoint
        // before.
        unsafe {
            dealloc(self.at.as_ptr(), self.layout);
            dealloc(self.contexts.as_ptr().cast(), self.context_layout);
        }
    }
}
