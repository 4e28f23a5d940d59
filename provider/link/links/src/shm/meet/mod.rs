//! Meeting peers: names, hellos, connections that are no channels yet, and processes that became others.

pub(super) mod admission;
pub(super) mod contested;
pub(super) mod contests;
pub(super) mod executed;
pub(super) mod expected;
pub(super) mod guest;
pub(super) mod hello;
pub(super) mod lack;
pub(super) mod listening;
pub(super) mod looks;
pub(super) mod own;
pub(super) mod reach;
pub(super) mod served;
pub(super) mod token;
