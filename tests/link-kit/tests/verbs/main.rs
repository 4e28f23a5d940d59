//! The link over queue pairs of libibverbs, over devices of the stand-in, put to the checks of all links and to
//! its own.
#![cfg(not(loom))]

#[path = "../support/ofi.rs"]
#[allow(dead_code, reason = "what is of accesses to memory")]
mod support;

#[path = "../support/counted.rs"]
mod counted;
#[path = "../support/duo.rs"]
#[allow(dead_code, reason = "checks of memory of devices")]
mod duo;
#[path = "../support/node.rs"]
mod node;

mod atomics;
mod authority;
mod changes;
mod conformance;
mod data;
mod device;
mod faults;
mod idle;
mod iwarp;
mod iwarp_ends;
#[allow(dead_code, reason = "a check of memory of devices")]
mod lone;
mod on_demand;
mod once;
mod pinned;
mod rails;
mod rma;
mod tcp_alone;
