//! The parts of an [`BelowLink`](crate::BelowLink): each owns its state.

pub(crate) mod exposed;
pub(crate) mod inbox;
pub(crate) mod peers;
pub(crate) mod provider;
pub(crate) mod reading;
pub(crate) mod saying;
pub(crate) mod sleep;
pub(crate) mod turns;
