//! Ways from one endpoint to another: implementations of [`link_api::Link`].
//!
//! | module | what it holds |
//! |---|---|
//! | `select` | [`Links`]: which link each peer is reached by |
//! | `shm` | [`ShmLink`]: shared memory, for peers on this host |
//! | `shm::link`, `frames` | opening and end; the traits that the engine calls |
//! | `shm::channels`, `lifetime` | the channels of all peers: frames out and in; peers that come and end |
//! | `shm::poll`, `service` | what a poll does; what arrives on sockets |
//! | `shm::peer`, `options` | a channel either way; [`OpenOptions`] |
//! | `shm::direct` | access to peers' memory, what allows it, and what ends that |
//! | `shm::ahead` | what the processor does ahead of the program |
//! | `shm::channel` | the ring over an abstract memory, that memory (a sealed memfd), wake-ups |
//! | `shm::meet` | calls to peers and from peers, names, peers that became another program |
//! | `shm::group` | memory that members of a group share |
//! | `shm::memory` | the published MR table, windows, copies of devices, exported handles |
//! | `tcp` | [`TcpLink`]: connections, for peers on other hosts |
//! | `space` | an identity of an address space, which execve(2) ends |
//! | `cma` | reading and writing a peer's memory: process_vm_readv(2) |
//! | `usage` | what endpoints have carried, for reports |
//! | `turns`, `processors` | when a waiting process yields; how many processors a job may use |
//! | `net` | which addresses are this host's |
//! | `pacing` | congestion control of TCP within the host |
//!
//! # Trust
//!
//! A peer runs as the same user (checked with SO_PEERCRED, else it is refused), yet nothing it
//! writes is trusted: a shared word is loaded once and checked against this side's private
//! layout, and shared bytes are only ever copied out of, never borrowed. A peer that breaks the
//! rules is closed.

#[cfg(all(test, loom))]
#[path = "../../../base/ipc/src/shared/twin.rs"]
mod twin;

mod cma;
pub mod journal;
mod name;
mod net;
mod pacing;
mod processors;
mod select;
mod shm;
mod space;
mod tcp;
pub mod turns;
pub mod usage;

pub use ipc::credentials::other_uids_coincide;
pub use ipc::fence::full_fence;
pub use ipc::host::{boot_id, name as host_name};
pub use ipc::{Mapping, MemoryLimit, Ports, RevocationTable};

pub use cma::{cma_allowed, eager_in_a_row, eager_one_way, eager_size};
pub use name::{Name, Port};
pub use net::primary_ip;
pub use select::{BoxedLink, Links};
pub use shm::{
    DEFAULT_RING, ENDPOINT_NAMES, FEW, LONG_RING, MAX_RING, MIDDLE_RING, MIN_RING, NEAR, OpenOptions,
    ShmLink, WindowId, Windows, eager_most, offers as shm_offers, speculation_barrier,
};
pub use tcp::{TcpLink, TcpOptions, lost_at_ends};

/// A random number.
pub(crate) fn random() -> std::io::Result<u64> {
    ipc::random().map(u64::from_ne_bytes)
}
