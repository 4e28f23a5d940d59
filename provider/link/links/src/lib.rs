//! Ways from one endpoint to another: implementations of [`link_api::Link`].
//!
//! | module | what it holds |
//! |---|---|
//! | `select` | [`Links`]: which link each peer is reached by |
//! | `shm` | [`ShmLink`]: shared memory, for peers on this host |
//! | `shm::link`, `shm::peer` | what a link is made of, and what it has of a peer: a channel either way |
//! | `shm::options`, `shm::open` | [`OpenOptions`], and how an endpoint is opened |
//! | `shm::frames`, `shm::send`, `shm::poll`, `shm::pack` | the engine's calls; sending and polling; frames that a callback writes |
//! | `shm::ring`, `shm::segment` | the byte ring over an abstract memory, so that loom can drive it; that memory: a sealed memfd, mapped |
//! | `shm::ahead` | what the processor does ahead of the program |
//! | `shm::wake` | which side notifies the other when that sleeps, and why no wake-up is lost |
//! | `shm::hello`, `shm::connect`, `shm::guests`, `shm::contested` | the hello by which a segment changes hands: to a peer, from one, under a name that another one has |
//! | `shm::service`, `shm::lifetime` | what arrives on sockets; peers that come, end, and have successors |
//! | `shm::expected` | peers that receives wait for, and that never came |
//! | `shm::executed`, `shm::looks` | peers that became another program while a forked process holds their sockets, and when that is asked |
//! | `shm::rma`, `shm::direct`, `shm::mr_table` | direct access to peers' memory, what allows it, and what ends that |
//! | `shm::device`, `shm::devices` | copies that devices make, and exported handles |
//! | `shm::windows`, `shm::window` | memory made by one process and mapped by its peers, and how it changes hands |
//! | `tcp` | [`TcpLink`]: connections, for peers on other hosts |
//! | `space` | an identity of an address space, which execve(2) ends |
//! | `cma` | reading and writing a peer's memory: process_vm_readv(2) |
//! | `usage` | what endpoints have carried, where that is asked for |
//! | `turns`, `processors` | when a process that waits lets others have the processor; how many of them a job may use |
//! | `net` | which addresses are this host's |
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
mod name;
mod net;
mod processors;
mod select;
mod shm;
mod space;
mod tcp;
pub mod turns;
pub mod usage;

pub use ipc::credentials::other_uids_coincide;
pub use ipc::fence::full_fence;
pub use ipc::{Mapping, MemoryLimit, RevocationTable};

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
