//! libibverbs' public interface, and nothing that links to it.
//!
//! * Structures, enums and flags of the public headers, from `bindings.rs`: checked-in output of bindgen
//!   (`regen.sh`), so that building needs neither the headers nor libclang. All names are libibverbs' and at
//!   the root of this crate. A C enum is an alias of `c_uint` with constants.
//! * [`Library`]: `libibverbs.so.1`, opened at run time. One binary serves each rdma-core since 44: a
//!   function that came later, or that a build of the library leaves out, may be missing
//!   ([`Error::Missing`]).
//! * [`Error`] of every call: the function that failed, and its errno. Lengths and offsets are in bytes; the
//!   numbers of requests, entries and pieces of memory are counts.
//! * Owners: [`Device`], [`Context`], [`Pd`], [`Mr`], [`Channel`], [`Cq`], [`Srq`], [`Qp`]. Each keeps what
//!   it was made of, so the order of drops does not matter. An object that the library refuses to destroy
//!   is leaked, with what it was made of.
//! * librdmacm the same way, of which iWARP devices have their connections: [`CmLibrary`], [`CmChannel`],
//!   [`CmId`], and what is used of its header in [`cm_bindings`].
//!
//! Functions that the header defines inline (ibv_post_send(3), ibv_poll_cq(3) and others) go through
//! `ibv_context.ops` and `verbs_context`, whose layouts are the header's: the first is fixed, the second
//! grows at its beginning and has its size (`extended.rs`). The interface of libibverbs' own drivers is
//! private, changes with each release, and is not used.
//!
//! The layouts are of rdma-core 65. Older ones have a prefix of the same structures: what the library fills
//! in is zeroed before, so that a newer field reads as zero.

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn
)]
#[rustfmt::skip]
mod bindings;
mod cm;
pub mod cm_bindings;
mod context;
mod cq;
mod device;
mod error;
mod extended;
mod library;
mod mr;
mod mw;
mod port;
mod qp;
mod srq;

pub use bindings::*;
pub use cm::{CmChannel, CmEvent, CmId, CmLibrary, CmSaid};
pub use context::{Context, Event};
pub use cq::{Channel, Cq};
pub use device::Device;
pub use error::Error;
pub use library::{Functions, Library, SONAME};
pub use mr::{Access, Dmabuf, Mr, PEER_MEMORY, Pd, has_peer_memory};
pub use mw::{Bind, Mw};
pub use port::{Gid, GidType, Port};
pub use qp::{Attributes, Breaker, Qp, QpInit, Ready, ToRts};
pub use srq::{Srq, SrqInit};
