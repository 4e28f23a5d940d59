//! What processes of one host need to share memory, each mechanism once. Nothing here knows of messages, endpoints or
//! kinds of memory.
//!
//! | module | what it holds |
//! |---|---|
//! | `memfd` | sealed memory behind a descriptor, and the check of one that another process sent |
//! | `mapping` | such memory, mapped; its words |

mod mapping;
pub mod memfd;

pub use mapping::Mapping;

use std::io;

/// The answer of a system call, or errno.
pub fn cvt(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}
