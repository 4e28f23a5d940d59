//! The link over another provider, a fake one, put to the checks of all links and to its own.
#![cfg(not(loom))]

#[path = "../support/counted.rs"]
mod counted;
#[path = "../support/duo.rs"]
#[allow(dead_code, reason = "checks of memory of devices")]
mod duo;
#[path = "../support/fake.rs"]
mod fake;
#[path = "../support/left.rs"]
mod left;
#[path = "../support/node.rs"]
mod node;
#[path = "../support/ofi.rs"]
mod support;

mod called;
mod conformance;
mod kept;
mod reads;
mod rma;
mod ways;
