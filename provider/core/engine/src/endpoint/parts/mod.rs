//! What an endpoint is made of: each part owns its state, and knows no endpoint.

pub(super) mod adapt;
pub(super) mod answers;
pub(super) mod bind;
pub(super) mod cumulative;
pub(super) mod flow;
pub(super) mod header;
pub(super) mod held_back;
pub(super) mod hints;
pub(super) mod injected;
pub(super) mod offered;
pub(super) mod peer;
pub(super) mod queues;
pub(super) mod quota;
pub(super) mod request;
pub(super) mod sources;
pub(super) mod table;
pub(super) mod unhurried;
