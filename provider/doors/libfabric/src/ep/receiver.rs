//! Where receives are posted to: an endpoint, or a shared receive context.

use std::sync::Arc;

use engine::{ADDR_UNSPEC, EpId, FiAddr, OpFlags, Pattern, RxId};
use libfabric_sys as fi;

use crate::domain::Shared;
use crate::errno::Errno;
use crate::ffi::Fid;

/// What receives are posted to.
pub(super) trait Receiver: Fid {
    fn rx(&self) -> Result<Rx<'_>, Errno>;
    fn default_flags(&self) -> u64;
}

/// A receive context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rx<'a> {
    pub shared: &'a Arc<Shared>,
    pub id: RxId,
    /// The endpoint that is called, unless it is a shared context.
    pub ep: Option<EpId>,
    /// What each receive asks for, whatever its flags.
    pub each: OpFlags,
    pub caps: u64,
}

impl Rx<'_> {
    /// A source address counts only with FI_DIRECTED_RECV.
    #[inline]
    pub(super) fn pattern(&self, src: FiAddr, tag: Option<(u64, u64)>) -> Pattern {
        let tagged = if tag.is_some() { fi::FI_TAGGED_DIRECTED_RECV } else { 0 };
        let directed = self.caps & (fi::FI_DIRECTED_RECV | tagged) != 0;
        Pattern { src: if directed { src } else { ADDR_UNSPEC }, tag }
    }
}
