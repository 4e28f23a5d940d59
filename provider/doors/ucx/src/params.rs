//! Parameters that the memory domains of host and device memory read alike.

use std::ffi::{c_uint, c_void};

use ucx_sys::{self as ucx, DeregParams, Status};

use crate::ffi::{complete, guard};
use crate::md::region::Wait;

/// Releases a handle. With UCT_MD_MEM_DEREG_FLAG_INVALIDATE it waits until accesses of peers that are under
/// way are over ([`Regions::invalidate`]), and calls UCX's completion then; without a completion to call it
/// waits for 1 s at most, as UCX's other transports do not wait at all.
///
/// # Safety
/// UCX's parameters; `release` may trust the handle.
pub(crate) unsafe fn deregister(
    params: *const DeregParams,
    release: impl FnOnce(*mut c_void, Wait),
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let params = unsafe { &*params };
        if params.field_mask & ucx::UCT_MD_MEM_DEREG_FIELD_MEMH == 0 || params.memh.is_null() {
            return ucx::UCS_ERR_INVALID_PARAM;
        }
        let has = |field| params.field_mask & field != 0;
        let invalidate = has(ucx::UCT_MD_MEM_DEREG_FIELD_FLAGS)
            && params.flags & ucx::UCT_MD_MEM_DEREG_FLAG_INVALIDATE != 0;
        if invalidate && (!has(ucx::UCT_MD_MEM_DEREG_FIELD_COMPLETION) || params.comp.is_null()) {
            return ucx::UCS_ERR_INVALID_PARAM;
        }
        release(params.memh, if invalidate { Wait::Over } else { Wait::Bounded });
        if invalidate {
            // SAFETY: the completion that UCX gave, for this one event.
            unsafe { complete(params.comp, ucx::UCS_OK) };
        }
        ucx::UCS_OK
    })
}

/// Whether accesses by a key may be invalidated later; `None` if the flags have others.
///
/// # Safety
/// `params` must be null or UCX's.
pub(crate) unsafe fn invalidates(params: *const u64) -> Option<bool> {
    // Parameters are a mask of fields and, as bit 0 of it says, flags: which accesses. Bit 2 is for other
    // processes than peers.
    // SAFETY: the caller's promise.
    let flags = unsafe {
        if params.is_null() || params.read() & 1 == 0 { 0 } else { params.add(1).cast::<c_uint>().read() }
    };
    (flags & !0b11 == 0).then_some(flags != 0)
}
