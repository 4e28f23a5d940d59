//! What stands for the routine and its handler under Miri, which knows neither assembly nor signal handlers:
//! plain copies and atomics. An access to memory that is not there is an error of Miri's, and never a
//! [`super::Fault`].

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::{Cell, Fault};

/// Copies; 0, as there is no fault.
///
/// # Safety
/// As for [`super::copy`]; all of it must be mapped.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from, to, len) };
    0
}

macro_rules! cells {
    ($($int:ty: $atomic:ty;)*) => {$(
        impl Cell for $int {
            unsafe fn load(cell: *mut u8) -> Result<$int, Fault> {
                // SAFETY: the caller's promise; under Miri the cell is mapped.
                Ok(unsafe { <$atomic>::from_ptr(cell.cast()) }.load(SeqCst))
            }
            unsafe fn swap(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                // SAFETY: as above.
                Ok(unsafe { <$atomic>::from_ptr(cell.cast()) }.swap(value, SeqCst))
            }
            unsafe fn add(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                // SAFETY: as above.
                Ok(unsafe { <$atomic>::from_ptr(cell.cast()) }.fetch_add(value, SeqCst))
            }
            unsafe fn and(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                // SAFETY: as above.
                Ok(unsafe { <$atomic>::from_ptr(cell.cast()) }.fetch_and(value, SeqCst))
            }
            unsafe fn or(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                // SAFETY: as above.
                Ok(unsafe { <$atomic>::from_ptr(cell.cast()) }.fetch_or(value, SeqCst))
            }
            unsafe fn xor(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                // SAFETY: as above.
                Ok(unsafe { <$atomic>::from_ptr(cell.cast()) }.fetch_xor(value, SeqCst))
            }
            unsafe fn cas(cell: *mut u8, expected: $int, value: $int) -> Result<$int, Fault> {
                // SAFETY: as above.
                let cell = unsafe { <$atomic>::from_ptr(cell.cast()) };
                Ok(cell.compare_exchange(expected, value, SeqCst, SeqCst).unwrap_or_else(|was| was))
            }
        }
    )*};
}

cells! {
    u8: AtomicU8;
    u16: AtomicU16;
    u32: AtomicU32;
    u64: AtomicU64;
}
