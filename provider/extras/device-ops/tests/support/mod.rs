//! What tests share.

pub mod host;
