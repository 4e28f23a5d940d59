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
    pub any: AnySource,
}

/// Whether a source address counts, which it does only with FI_DIRECTED_RECV: of tagged receives, and of
/// others. A word to add to the source: none, or all of its bits, as [`ADDR_UNSPEC`] has.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnySource {
    tagged: FiAddr,
    untagged: FiAddr,
}

impl AnySource {
    pub(super) fn of(caps: u64) -> AnySource {
        let of = |directed: u64| if caps & directed != 0 { 0 } else { ADDR_UNSPEC };
        AnySource {
            tagged: of(fi::FI_DIRECTED_RECV | fi::FI_TAGGED_DIRECTED_RECV),
            untagged: of(fi::FI_DIRECTED_RECV),
        }
    }
}

impl Rx<'_> {
    #[inline]
    pub(super) fn pattern(&self, src: FiAddr, tag: Option<(u64, u64)>) -> Pattern {
        let any = if tag.is_some() { self.any.tagged } else { self.any.untagged };
        Pattern { src: src | any, tag }
    }
}
