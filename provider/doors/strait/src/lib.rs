//! `libstrait.so` and `include/strait.h`: the C interface to what no standard interface offers yet.
//!
//! It translates: C structures, negative errnos and versions on one side, `hmem` on the other. Every
//! entry catches panics. The header is made from this crate by `ci/check/header`, so what is public here has
//! its documentation in C's terms.
//!
//! | module | what it holds |
//! |---|---|
//! | `client` | peer memory clients |
//! | `memory` | questions about memory |
//! | `peer` | peer memory; has a header of its own, `include/strait_p2pmem.h` |
//! | `storage` | files to memory of any kind; has a header of its own, `include/strait_storage.h` |

mod client;
mod memory;
/// cbindgen:ignore
mod peer;
/// cbindgen:ignore
mod storage;

use libc::{c_char, c_int};

pub use client::*;
pub use memory::*;
pub use peer::*;
pub use storage::*;

/// Version of this header: major << 16 | minor. Within a major version structures only grow at their
/// end, and functions are only added.
pub const STRAIT_VERSION: u32 = 1;

/// Version of the library in use, as STRAIT_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn strait_version() -> u32 {
    STRAIT_VERSION
}

/// What a negative value that a function here has returned means. The text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn strait_strerror(error: c_int) -> *const c_char {
    let text = match error.saturating_neg() {
        0 => c"done",
        libc::EINVAL => c"an argument is wrong: NULL, a size that is too small, or a range that is none",
        libc::EFAULT => c"no memory of that kind is there",
        libc::ENOENT => c"it is not registered, or there is no such client",
        libc::ESTALE => c"it was invalidated while registered: close that registration first",
        libc::EDEADLK => c"not from within a client's callback",
        libc::EOPNOTSUPP => c"not with this memory",
        libc::EPERM => c"not allowed, or a file that could shrink (a memfd wants F_SEAL_SHRINK)",
        libc::EIO => c"it failed inside",
        libc::ENOSYS => c"this library is older than what was asked of it",
        // SAFETY: the C library knows every number, and keeps its texts.
        other => return unsafe { libc::strerror(other) },
    };
    text.as_ptr()
}

/// For Strait's other libraries in the same process: not for programs.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub extern "C" fn strait_hmem_table_v1() -> *const hmem::client::Table {
    hmem::client::own()
}
