//! UCX's transport interface (UCT) as a transport outside UCX's tree sees it, and nothing that
//! links to UCX.
//!
//! UCX keeps these structures to itself and changes them between releases, so there are two parts:
//!
//! * `abi`: what has been the same since 1.13 and is in installed headers: `#[repr(C)]`, checked
//!   against the sizes and offsets that a C compiler gives.
//! * [`Epoch`] and [`Layout`]: what moved. A layout is a table of offsets and slots, one for each
//!   release that changed anything, and structures are written through it into bytes.
//!
//! The epoch of a UCX is found by the functions it exports ([`Epoch::of`]): version strings say little, since
//! packages ship snapshots. Functions of UCX itself are called wherever the structure behind them is unstable
//! ([`Host`]).
//!
//! | release | what moved |
//! |---|---|
//! | 1.14 | md_ops: `mem_attach` inserted; `mem_reg` takes parameters; md query has its own structure |
//! | 1.15 | configuration entries have flags, so `uct_component` and `uct_tl` grow; `iface_is_reachable_v2` |
//! | 1.16 | `rkey_compare` inserted; md_ops: `is_sockaddr_accessible` removed; `mkey_pack` takes a range |
//! | 1.17 | – (performance attributes grow at their end) |
//! | 1.18 | md attributes: a bitmap inserted |
//! | 1.19 | `mem_alloc` takes a device, `rkey_unpack` parameters; performance: `path_bandwidth` inserted |
//! | 1.20 | internal ops: `iface_query_v2` and `iface_mem_element_pack` inserted |
//! | 1.21 | both removed again; md_ops: `mem_elem_pack` appended; `ep_invalidate` takes parameters |
//! | 1.22 | internal ops: `iface_query_v2` inserted again |
//! | 1.23 | appended to only |
//!
//! A slot that a later UCX appends finds a function that answers UCS_ERR_UNSUPPORTED
//! ([`unsupported`]): tables have room for [`SLOTS`].

mod abi;
mod check;
mod epoch;
mod host;

pub use abi::*;
pub use check::posix_agrees;
pub use epoch::{
    ComponentOps, ConfigEntry, Epoch, InternalOps, Layout, MdAttr, MdOps, MdValues, SLOTS, Table,
    UNKNOWN_SYS_DEVICE, unsupported, zero,
};
pub use host::{Host, Library, QueryComponents, libraries, query_components};
