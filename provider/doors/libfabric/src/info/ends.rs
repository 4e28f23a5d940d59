//! What an endpoint will be between.

use wire::Addr;

/// Both ends of what an endpoint will be for, and the format they are in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) format: u32,
    pub(super) src: Addr,
    pub(super) dest: Option<Addr>,
}
