//! Messages: matching, eager and rendezvous, receives posted early and late, cooperative copies.

mod awaited;
mod coop;
mod deferred;
mod late;
mod late_model;
mod matching;
mod messages;
mod metered;
mod model;
mod one_way;
mod overdue;
mod pending;
mod posted_late;
mod shared;
mod shared_model;
mod unexpected;
mod unsent;
