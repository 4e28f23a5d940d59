//! What processes of one host need to share memory, each mechanism once. Nothing here knows of messages, endpoints or
//! kinds of memory.
//!
//! | module | what it holds |
//! |---|---|
//! | `memfd` | sealed memory behind a descriptor, and the check of one that another process sent |
//! | `mapping` | such memory, mapped; its words |
//! | `socket` | unix sockets that keep packets apart, under abstract names |
//! | `rights` | descriptors that travel with packets |
//! | `credentials` | which user and process is at the other end of a socket |
//! | `pidfd` | descriptors of processes, which tell their end |
//! | `poller` | sleeping until one of many descriptors has something |

pub mod credentials;
mod mapping;
pub mod memfd;
pub mod pidfd;
mod poller;
pub mod rights;
pub mod socket;

pub use mapping::Mapping;
pub use poller::{Poller, Ready};

use std::io;

/// The answer of a system call, or errno.
pub fn cvt(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}
