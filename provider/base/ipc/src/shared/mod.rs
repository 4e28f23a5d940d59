//! Words that several processes change, and the protocols on them.

pub mod access;
pub mod fence;
pub mod pieces;
pub(crate) mod revocation_table;
#[cfg(all(test, loom))]
pub(crate) mod twin;
pub mod word;
