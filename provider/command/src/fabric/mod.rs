//! A client of libfabric: opens one reliable datagram endpoint, posts operations and counts their
//! completions.
//!
//! Only functions that every libfabric 1.x has are used, and no field that came later than 1.14 is
//! read or written: the library may be older than the headers the bindings are from.

mod call;
mod context;
mod endpoint;
mod links;
mod post;
mod region;

pub use call::{Called, Outcome, call};
pub use context::{AtomicKind, Slot};
pub use endpoint::{Endpoint, Remote};
pub use fabric_client::{Error, Info, Library, Param, Want, version_text};
pub use links::{LinkStatus, has_provider, links, path};
pub use post::{Kind, Operands};
pub use region::{Part, Region};
