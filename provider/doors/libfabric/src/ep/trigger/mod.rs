//! Operations that wait for a counter: `FI_TRIGGER`. fi_trigger(3).

pub(crate) mod deferred;

use std::sync::Arc;

use engine::{CntrId, Ctx, Work, WorkOp};
use libfabric_sys as fi;

use crate::cntr::CntrFid;
use crate::domain::Shared;
use crate::errno::Errno;
use crate::ffi::{arg, obj};

/// A counter of this domain.
///
/// # Safety
/// `cntr` is NULL or a live fid.
pub(super) unsafe fn counter(shared: &Arc<Shared>, cntr: *const fi::fid_cntr) -> Result<CntrId, Errno> {
    // SAFETY: the caller's promise.
    let cntr = unsafe { obj::<CntrFid, _>(cntr) }?;
    if Arc::ptr_eq(&cntr.shared, shared) { Ok(cntr.id) } else { Err(Errno::INVAL) }
}

/// Reads a triggered context.
fn condition(c: &fi::fi_triggered_context) -> Result<(*const fi::fid_cntr, u64), Errno> {
    if c.event_type != fi::FI_TRIGGER_THRESHOLD {
        return Err(Errno::NOSYS);
    }
    // SAFETY: the event type says which of the union is set, and any bytes make that one.
    let t = unsafe { c.trigger.threshold };
    Ok((t.cntr.cast_const(), t.threshold as u64))
}

/// Queues an operation posted with `FI_TRIGGER`: its context says what it waits for.
#[cold]
pub(super) fn defer(shared: &Arc<Shared>, context: Ctx, op: WorkOp) -> Result<(), Errno> {
    let at = std::ptr::with_exposed_provenance::<fi::fi_triggered_context>(context.0);
    if !at.is_aligned() {
        return Err(Errno::INVAL);
    }
    // SAFETY: fi_trigger(3): the context of an operation with FI_TRIGGER is NULL at worst and else
    // a triggered context, of which this is the part both forms have in common.
    let (cntr, threshold) = condition(unsafe { arg(at) }?)?;
    // SAFETY: fi_trigger(3): it names a live counter.
    let trigger = unsafe { counter(shared, cntr) }?;
    shared.lock().queue_work(Work { id: Ctx(0), trigger, threshold, completion: None, op });
    Ok(())
}
