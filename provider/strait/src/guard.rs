//! The boundary: no panic leaves, no structure is read beyond its size.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::c_int;

/// The body of an entry: 0, or a negative errno; -EIO after a panic.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => -code,
        Err(what) => {
            // Dropping what was thrown may throw again.
            std::mem::forget(what);
            -libc::EIO
        }
    }
}

/// A copy of the structure at `from` whose first field, its size, says how much of it there is: what is
/// missing of it, because the program knows an older version, is as in `fresh`. EINVAL if it is
/// shorter than `least`, the first version, or longer than this one and not 0 there.
///
/// # Safety
/// `from` is NULL or points to as many readable bytes as its first field says, which are a `T` as far
/// as they go.
pub(crate) unsafe fn sized<T: Copy>(from: *const T, least: usize, fresh: T) -> Result<T, c_int> {
    if from.is_null() || !from.is_aligned() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise: the first field is a size.
    let size = unsafe { from.cast::<usize>().read() };
    if size < least || size > 1 << 16 {
        return Err(libc::EINVAL);
    }
    for off in size_of::<T>()..size {
        // SAFETY: within the size it has.
        if unsafe { from.cast::<u8>().add(off).read() } != 0 {
            return Err(libc::ENOSYS);
        }
    }
    let mut to = fresh;
    // SAFETY: both are as long as that.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping((&raw mut to).cast(), size.min(size_of::<T>())) };
    Ok(to)
}
