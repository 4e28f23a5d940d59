//! What processes of one host need to share memory, each mechanism once. Nothing here knows of messages,
//! endpoints or kinds of memory.
//!
//! | module | what it holds |
//! |---|---|
//! | `memfd` | sealed memory behind a descriptor, and the check of one that another process sent |
//! | `mapping` | such memory, mapped; its words |
//! | `limits` | which limit keeps a process from more memory, for people |
//! | `socket` | unix sockets that keep packets apart, under abstract names |
//! | `listeners` | which unix sockets of the host listen |
//! | `rights` | descriptors that travel with packets |
//! | `credentials` | which user and process is at the other end of a socket |
//! | `tcp_user` | which user has the other end of a TCP connection of this host |
//! | `pidfd` | descriptors of processes |
//! | `word` | words that several processes change |
//! | `fence` | full fences, also by membarrier(2) |
//! | `fork` | descriptors that a forked child does not keep |
//! | `access` | accesses to memory of another process, and the barrier by which it is taken back |
//! | `revocation` | the same for memory that many processes access: reader slots and generations |
//! | `pieces` | counters that hand out the pieces of transfers which two processes do together |
//! | `host` | which host this is, and which boot of it |
//! | `process` | names of processes, different for two with the same pid |
//! | `signals` | threads that take none of the program's signals |
//! | `tick` | the time of the kernel's last tick |
//! | `timer` | descriptors that are readable every so often |
//! | `poller` | sleeping until one of many descriptors has something |
//! | `ports` | which ports an endpoint may listen at |

#[cfg(all(test, loom))]
extern crate self as ipc;

mod bell;
pub mod credentials;
mod fork;
pub mod host;
mod limits;
pub mod listeners;
mod mapping;
pub mod memfd;
pub mod pidfd;
mod poller;
mod ports;
pub mod process;
mod random;
pub mod rights;
mod shared;
mod signals;
pub mod socket;
pub mod tcp_user;
mod tick;
mod timer;

pub use bell::Bell;
pub use fork::{Unshared, each_marked};
pub use limits::MemoryLimit;
pub use mapping::Mapping;
pub use poller::{Poller, Ready, Watch};
pub use ports::Ports;
pub use random::random;
pub use shared::revocation_table::RevocationTable;
pub use shared::{access, fence, pieces, word};
pub use signals::without_signals;
pub use tick::tick;
pub use timer::Timer;

use std::io;

/// The answer of a system call, or errno.
pub fn cvt(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}
