//! Memory that the members of a group share ([`link_api::GroupLink`]): its words, its layout, and how it
//! comes to the members.
//!
//! One member makes it, a sealed memfd, and offers it to the others by the sockets of their channels, which
//! say whose they are: any other peer that requests it is denied. A request is a `Want` packet, as for a
//! window.

pub(super) mod calls;
mod memory;
pub(super) mod offers;
mod words;

#[cfg(all(test, not(loom)))]
mod tests;
