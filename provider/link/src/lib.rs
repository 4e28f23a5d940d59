//! Ways from one endpoint to another: implementations of [`engine::Link`].
//!
//! | module | what it holds |
//! |---|---|
//! | `shm` | [`ShmLink`]: `send`, `poll`, `arm` |
//! | `shm::open` | [`OpenOptions`], and how an endpoint gets its name |
//! | `shm::peer` | what an endpoint has of a peer: a channel either way |
//! | `shm::ring` | the byte ring, written over an abstract memory so that loom can drive it |
//! | `shm::pack` | sending what a callback writes |
//! | `shm::ahead` | what the processor does ahead of the program |
//! | `shm::segment` | that memory for real: a sealed memfd, mapped |
//! | `shm::wake` | who rings whose bell when one side sleeps, and why no ring is lost |
//! | `shm::control` | names, sockets and the hello by which a segment changes hands |
//! | `shm::connect` | reaching a peer that was not reached yet, or no longer |
//! | `shm::service` | what arrives on sockets: hellos, ends, wake-ups |
//! | `shm::window` | memory made by one process and mapped by its peers |
//! | `shm::hazard` | taking memory back from peers that reach it by themselves |
//! | `cma` | reading and writing a peer's memory: process_vm_readv(2) |
//! | `net` | which addresses are this host's |
//!
//! # Trust
//!
//! A peer runs as the same user (checked with SO_PEERCRED, else it is refused), yet nothing it
//! writes is believed: a shared word is loaded once and checked against this side's private
//! layout, and shared bytes are only ever copied out of, never borrowed. A peer that breaks the
//! rules is closed.

mod cma;
mod net;
mod shm;

pub use cma::{cma_allowed, eager_in_a_row, eager_size};
pub use net::primary_ip;
pub use shm::{
    DEFAULT_RING, FEW, Hazards, LONG_RING, MIN_RING, Mapping, OpenOptions, ShmFrame, ShmLink, WindowId,
    Windows, full_fence, look_no_further, others_look_alike,
};
