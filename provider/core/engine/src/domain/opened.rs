//! What is open in a domain.

use crate::av::Av;
use crate::core::{Core, Slab};
use crate::endpoint::Endpoint;

/// Address vectors, endpoints, and what these share: all but the deferred work, which runs on them.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Opened<L> {
    pub(super) eps: Slab<Endpoint<L>>,
    pub(super) core: Core,
    pub(super) avs: Slab<Av>,
}
