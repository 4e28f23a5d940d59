//! PCI peer memory: what publishes it, how far devices are from it, and which of it a process gets.
//!
//! | module | what it holds |
//! |---|---|
//! | `address` | names of PCI functions |
//! | `error` | what can go wrong, in words and as an errno |
//! | [`topology`] | the PCI tree from sysfs or a recording; distances and map types of pci_p2pdma |
//! | `ranges` | which parts of a piece of memory are free |
//! | [`publisher`] | what offers memory: windows in sysfs, memory that a program gives, host memory |
//! | [`rules`] | what a user allows, prefers and demands |
//! | [`orchestrator`] | publishers, clients, rules and buffers together |
//! | [`daemon`] | the same for several processes, over a unix socket |
//! | [`peer`] | buffers of windows as a kind of memory of `hmem` |
//! | [`storage`] | files to memory of any kind and back |

mod address;
pub mod daemon;
mod error;
pub mod orchestrator;
pub mod peer;
pub mod publisher;
mod ranges;
pub mod rules;
pub mod storage;
pub mod topology;

pub use address::Address;
pub use error::Error;
pub use orchestrator::{Buffer, Drain, Orchestrator, Request};
pub use ranges::Ranges;
pub use rules::Rules;
pub use topology::{Map, Route, Topology};
