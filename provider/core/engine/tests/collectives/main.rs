//! Collective operations of endpoints in one process.

mod death;
mod group;
mod model;
mod parts;
mod shared;
