//! The PCI tree of a host.

pub mod config;
mod cpu;
mod distance;
mod host_bridge;
pub mod recording;
mod sysfs;
mod tree;

pub use cpu::Cpu;
pub use distance::{Map, Reason, Route, Ties};
pub use recording::{P2pmem, Raw};
pub(crate) use sysfs::p2pmem as published;
pub use tree::{Device, Host, Topology};
