//! Collective operations of endpoints in one process.

mod death;
mod group;
mod hosts;
mod model;
mod parts;
mod shared;
