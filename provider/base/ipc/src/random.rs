//! Random bytes.

use std::io;

/// `N` random bytes of getrandom(2).
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: a valid place of so many bytes.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if n == N as isize { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}
