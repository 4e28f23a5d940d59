//! Meeting peers: calls to and from them, names and users that are served, processes that became others.

pub(super) mod admission;
pub(super) mod callers;
pub(super) mod calls;
pub(super) mod contested;
pub(super) mod contests;
pub(super) mod executed;
pub(super) mod expected;
pub(super) mod guest;
pub(super) mod hello;

pub(super) mod listening;
pub(super) mod looks;
pub(super) mod meeting;
pub(super) mod own;
pub(super) mod reach;
pub(super) mod served;
pub(super) mod shortage_log;
pub(super) mod token;
