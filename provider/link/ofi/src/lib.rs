//! The network of another provider of the libfabric core that runs, opened below Strait: cxi, efa, psm3,
//! verbs, or one that needs no hardware. [`OfiLink`] is the link over it.
//!
//! | module | what it holds |
//! |---|---|
//! | `choice` | which provider that is, and how the core is called for it |
//! | `fabric` | [`Fabric`]: [`below::Below`] by libfabric's calls |
//! | `places` | messages that are received and sent, each from a place of its own |
//! | `slab` | memory that operations in flight use |
//! | `registration` | how memory is registered |
//! | `remote`, `lender` | accesses to memory, by libfabric's calls; the endpoint that peers access it by |

mod choice;
mod fabric;
mod lender;
mod places;
mod registration;
mod remote;
mod slab;

pub use choice::{Beyond, FABRICS, SOFT, has_adapter, open};
pub use fabric::Fabric;

/// The link over a provider, with connections `B`.
pub type OfiLink<B> = below::BelowLink<B, Fabric>;
