//! The boundary: no panic leaves the crate; what UCX's pointers stand for.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrayvec::ArrayVec;
use hmem::{Kind, Span};
use ucx_sys::{self as ucx, Completion, Iov, Status};

use crate::iface::attr::MAX_IOV;

/// What an entry point answers when its body panicked.
pub(crate) trait OnPanic {
    const VALUE: Self;
}

impl OnPanic for Status {
    const VALUE: Status = ucx::UCS_ERR_IO_ERROR;
}

impl OnPanic for isize {
    const VALUE: isize = ucx::UCS_ERR_IO_ERROR as isize;
}

impl OnPanic for i32 {
    const VALUE: i32 = 0;
}

impl OnPanic for u32 {
    const VALUE: u32 = 0;
}

impl OnPanic for () {
    const VALUE: () = ();
}

/// The body of an entry point. A panic is logged, and answered with an error.
#[inline]
pub(crate) fn guard<T: OnPanic>(body: impl FnOnce() -> T) -> T {
    guard_or(T::VALUE, body)
}

#[inline]
pub(crate) fn guard_or<T>(on_panic: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(t) => t,
        Err(what) => {
            panicked(&*what);
            on_panic
        }
    }
}

#[cold]
fn panicked(what: &(dyn std::any::Any + Send)) {
    let text = what
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| what.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no reason given");
    log::error!("internal error: {text}");
}

/// Counts a completion down.
///
/// # Safety
/// `comp` must be null or a completion that still waits for this event.
pub(crate) unsafe fn complete(comp: *mut Completion, status: Status) {
    if comp.is_null() {
        return;
    }
    // SAFETY: the caller's promise. The function may free it.
    unsafe {
        if status != ucx::UCS_OK && (*comp).status == ucx::UCS_OK {
            (*comp).status = status;
        }
        (*comp).count -= 1;
        if let (0, Some(func)) = ((*comp).count, (*comp).func) {
            func(comp);
        }
    }
}

/// Parts of host memory, as far as they fit.
///
/// # Safety
/// `iov` must be `count` parts that stay valid while the answer is used.
pub(crate) unsafe fn spans(iov: *const Iov, count: usize) -> Option<(ArrayVec<Span, MAX_IOV>, usize)> {
    // SAFETY: the caller's promise.
    unsafe { spans_of(Kind::System, iov, count) }
}

/// The spans of memory of that kind: UCP has found out whose it is.
///
/// # Safety
/// As for [`spans`].
#[inline(always)]
pub(crate) unsafe fn spans_of(
    kind: Kind,
    iov: *const Iov,
    count: usize,
) -> Option<(ArrayVec<Span, MAX_IOV>, usize)> {
    let (mut out, mut total) = (ArrayVec::new(), 0usize);
    for i in 0..count {
        // SAFETY: the caller's promise.
        let part = unsafe { &*iov.add(i) };
        let len = if part.count == 0 { 0 } else { part.length };
        if len > 0 {
            // SAFETY: the caller's promise: memory of that length.
            let span = unsafe { Span::new(part.buffer.expose_provenance(), len, kind) };
            out.try_push(span).ok()?;
            total = total.checked_add(len)?;
        }
    }
    Some((out, total))
}

/// A C int for yes and no.
pub(crate) fn int(yes: bool) -> c_int {
    c_int::from(yes)
}
