//! Text for an application's buffers.

use libc::c_char;

/// Copies text into an application's buffer, always terminated, and returns the buffer.
///
/// # Safety
/// `buf` is NULL or valid for `len` bytes of writes.
pub(crate) unsafe fn put_text(buf: *mut c_char, len: usize, s: &str) -> *const c_char {
    if !buf.is_null() && len > 0 {
        let n = s.len().min(len - 1);
        // SAFETY: `n < len`, and the caller promised `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(s.as_ptr().cast(), buf, n);
            *buf.add(n) = 0;
        }
    }
    buf
}
