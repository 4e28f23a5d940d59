//! The engine: matching, choice of protocol, ordering, requests and completions.
//!
//! No IO happens here and no memory is touched: bytes move through a link ([`link_api::Link`]), which moves
//! frames to peers, and through `hmem`, which follows a [`hmem::Span`]. Nothing here knows libfabric; a
//! provider turns its objects and flags into these.
//!
//! - [`Domain`]: all that lives under one lock, and the whole interface of this crate.
//! - `matching`: which message goes to which receive.
//! - `endpoint`: peers and requests; what is posted (`post`), what arrives (`incoming`), payloads
//!   that travel on their own (`transfer`).
//! - `proto`: the one choice of protocol.
//! - `domain::collectives`: groups, and collective operations under way.
//! - `work`: operations that wait for a counter.
//!
//! The tests drive it by the crate `strait-testkit`: endpoints in one process, without any IO.

#![forbid(unsafe_code)]

mod av;
mod config;
mod core;
mod domain;
mod endpoint;
mod entries;
mod error;
mod hash;
mod matching;
mod pending;
mod pool;
mod proto;
mod types;
mod work;

pub use crate::core::{Iov, RmaIov};
pub use collective::Kind as CollectiveKind;
pub use config::{Cntrs, Config, EpConfig, MrId, Reg};
pub use domain::{Abandoned, Domain, Expired, Expiring, pending};
pub use endpoint::Leaving;
pub use link_api;
pub use pending::{Pending, PendingKind};
pub use types::*;
pub use work::{Work, WorkOp};
