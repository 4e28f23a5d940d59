//! The boundary: no panic leaves the crate.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ucx_sys::{self as ucx, Status};

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
