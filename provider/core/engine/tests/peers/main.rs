//! Peers that end, that send too much, and that send nonsense.

mod ahead;
mod bound;
mod death;
mod flood;
mod flow;
mod garbage;
mod gone;
mod kept;
