//! What the libraries with an interface in C share: no panic leaves an entry point, no structure is read
//! beyond its size, and a thread has the words of its last error.

use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_char, c_int};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The words of the last error of this thread in this library. Valid until the next one.
pub fn last_error() -> *const c_char {
    // A thread that ends, as in a handler of atexit(3), has none any more.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Keeps the words of an error for [`last_error`].
#[cold]
pub fn keep_error(error: &dyn Display) {
    let words = error.to_string().replace('\0', " ");
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(words).unwrap_or_default());
}

/// What a body returns; `None` after a panic.
#[inline]
pub fn caught<T>(body: impl FnOnce() -> T) -> Option<T> {
    // Dropping what was thrown may throw again.
    catch_unwind(AssertUnwindSafe(body)).map_err(std::mem::forget).ok()
}

/// The body of an entry point: 0, or a negative errno; -EIO after a panic.
pub fn guard(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match caught(body) {
        Some(Ok(())) => 0,
        Some(Err(code)) => -code,
        None => {
            keep_error(&"the library has failed inside of the call, which is a fault of the library's");
            -libc::EIO
        }
    }
}

/// A copy of the structure at `from` whose first field, its size, says how much of it there is: what is
/// missing of it, because the program knows an older version, is as in `fresh`. EINVAL if it is
/// shorter than `least`, the first version, or longer than 64 KiB; ENOSYS if it is longer than this
/// version and not 0 there.
///
/// # Safety
/// `from` is NULL or points to as many readable bytes as its first field says, which are a `T` as far
/// as they go.
pub unsafe fn sized<T: Copy>(from: *const T, least: usize, fresh: T) -> Result<T, c_int> {
    let refused = |code, why: &str| {
        keep_error(&why);
        Err(code)
    };
    if from.is_null() || !from.is_aligned() {
        return refused(libc::EINVAL, "a structure is NULL that may not be, or is not aligned");
    }
    // SAFETY: the caller's promise: the first field is a size.
    let size = unsafe { from.cast::<usize>().read() };
    if size < least || size > 1 << 16 {
        return refused(libc::EINVAL, "the first member of a structure is not its size: set it to sizeof");
    }
    for off in size_of::<T>()..size {
        // SAFETY: within the size it has.
        if unsafe { from.cast::<u8>().add(off).read() } != 0 {
            return refused(libc::ENOSYS, "a member of a structure is set that this version does not know");
        }
    }
    let mut to = fresh;
    // SAFETY: both are as long as that.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping((&raw mut to).cast(), size.min(size_of::<T>())) };
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Sized {
        size: usize,
        old: u32,
        new: u32,
    }

    #[test]
    fn a_panic_is_an_error_even_if_its_payload_panics() {
        struct Twice;
        impl Drop for Twice {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("dropped"));
            }
        }
        assert_eq!(guard(|| Ok(())), 0);
        assert_eq!(guard(|| Err(libc::EINVAL)), -libc::EINVAL);
        assert_eq!(guard(|| std::panic::resume_unwind(Box::new(Twice))), -libc::EIO);
    }

    #[test]
    fn of_a_structure_of_another_version_the_part_that_both_know_is_copied() {
        let fresh = Sized { size: 0, old: 1, new: 2 };
        let copied = |words: &[u64]| {
            // SAFETY: as many bytes as the first word says.
            unsafe { sized(words.as_ptr().cast(), 12, fresh) }
        };
        assert_eq!(copied(&[12, 7 | 9 << 32]), Ok(Sized { size: 12, old: 7, new: 2 }));
        assert_eq!(copied(&[16, 7 | 9 << 32]), Ok(Sized { size: 16, old: 7, new: 9 }));
        assert_eq!(copied(&[24, 7, 0]), Ok(Sized { size: 24, old: 7, new: 0 }));
        assert_eq!(copied(&[24, 7, 1]), Err(libc::ENOSYS));
        assert_eq!(copied(&[11, 7]), Err(libc::EINVAL));
        // SAFETY: NULL.
        assert_eq!(unsafe { sized(std::ptr::null(), 12, fresh) }, Err(libc::EINVAL));
    }
}
