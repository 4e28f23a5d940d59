//! RMA and atomics: what they do, their order, and registrations that are closed.

mod atomics;
mod authority;
mod coop_rma;
mod fence;
mod in_order;
mod onesided;
mod order_model;
mod revoke;
mod rma;
mod shared_answers;
