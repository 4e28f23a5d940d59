//! What becomes of transfers.

use crate::error::Error;

/// What transfers have come to, in their order.
pub type Results = Vec<Result<usize, Error>>;

/// Does it, and makes an error of a panic: what waits for it has to hear of it.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::Os("a transfer".into(), std::io::Error::from_raw_os_error(libc::EIO))))
}
