//! The deferred work of a domain. fi_trigger(3).
//!
//! Everything an operation names is copied when it is queued, so that nothing but its buffers has to stay.
//! Unlike `FI_TRIGGER`, which completes as its endpoint says, deferred work completes in its own counter, and
//! in a queue only with `FI_COMPLETION`.

use std::sync::Arc;

use engine::{OpFlags, Work, WorkOp};
use hmem::Class;
use libc::c_void;
use libfabric_sys as fi;

use super::counter;
use crate::domain::{DomainFid, Shared};
use crate::ep::context::SrxFid;
use crate::ep::endpoint::EpFid;
use crate::ep::flags::{self, Receive};
use crate::ep::iov::spans;
use crate::ep::post::{cq_data, ctx};
use crate::ep::receiver::{Receiver, Rx};
use crate::ep::{atomic, rma};
use crate::errno::Errno;
use crate::ffi::{arg, is, obj};

/// `FI_QUEUE_WORK`.
///
/// # Safety
/// `work` is NULL or valid, as is what it points to.
pub(crate) unsafe fn queue(domain: &DomainFid, work: *mut fi::fi_deferred_work) -> Result<(), Errno> {
    let shared = &domain.shared;
    // SAFETY: the caller's promise.
    let w = unsafe { arg(work) }?;
    // SAFETY: the caller's promise.
    let trigger = unsafe { counter(shared, w.triggering_cntr) }?;
    let completion = if w.completion_cntr.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { counter(shared, w.completion_cntr) }?)
    };
    let id = ctx(work.cast());
    // SAFETY: the caller's promise.
    let op = unsafe { operation(shared, w) }?;
    if matches!(op, WorkOp::CntrAdd { .. } | WorkOp::CntrSet { .. }) && completion.is_some() {
        return Err(Errno::INVAL);
    }
    let work = Work { id, trigger, threshold: w.threshold, completion, op };
    shared.lock().queue_work(work);
    Ok(())
}

/// `FI_CANCEL_WORK`.
pub(crate) fn cancel(domain: &DomainFid, work: *mut fi::fi_deferred_work) -> Result<(), Errno> {
    if work.is_null() {
        return Err(Errno::INVAL);
    }
    Ok(domain.shared.lock().cancel_work(ctx(work.cast()))?)
}

/// `FI_FLUSH_WORK`: all of it, whatever it waits for.
pub(crate) fn flush(domain: &DomainFid) -> Result<(), Errno> {
    domain.shared.lock().flush_work();
    Ok(())
}

/// Flags of deferred work that transmits. Its buffers stay until it completes: nothing to inject.
fn tx(raw: u64) -> Result<OpFlags, Errno> {
    flags::offered(raw)?;
    Ok(flags::tx(raw & !fi::FI_INJECT, false))
}

/// What deferred work is to do.
///
/// # Safety
/// What its `op` points to is valid.
unsafe fn operation(shared: &Arc<Shared>, w: &fi::fi_deferred_work) -> Result<WorkOp, Errno> {
    match w.op_type {
        fi::FI_OP_SEND | fi::FI_OP_RECV => {
            // SAFETY: `op_type` says which of the union is set; the caller's promise.
            let o = unsafe { arg(w.op.msg) }?;
            let m = &o.msg;
            let t = Message {
                ep: o.ep,
                addr: m.addr,
                iov: (m.msg_iov, m.iov_count),
                tag: None,
                data: cq_data(o.flags, m.data),
                context: m.context,
                flags: o.flags,
            };
            // SAFETY: the caller's promise.
            unsafe { message(shared, w.op_type == fi::FI_OP_SEND, t) }
        }
        fi::FI_OP_TSEND | fi::FI_OP_TRECV => {
            // SAFETY: as above.
            let o = unsafe { arg(w.op.tagged) }?;
            let m = &o.msg;
            let t = Message {
                ep: o.ep,
                addr: m.addr,
                iov: (m.msg_iov, m.iov_count),
                tag: Some((m.tag, m.ignore)),
                data: cq_data(o.flags, m.data),
                context: m.context,
                flags: o.flags,
            };
            // SAFETY: the caller's promise.
            unsafe { message(shared, w.op_type == fi::FI_OP_TSEND, t) }
        }
        fi::FI_OP_READ | fi::FI_OP_WRITE => {
            // SAFETY: as above.
            unsafe { rma_op(shared, w.op_type == fi::FI_OP_WRITE, arg(w.op.rma)?) }
        }
        fi::FI_OP_ATOMIC => {
            // SAFETY: as above.
            let o = unsafe { arg(w.op.atomic) }?;
            let none = (std::ptr::null(), 0);
            // SAFETY: the caller's promise.
            unsafe { atomic_op(shared, Class::Base, o.ep, &o.msg, none, none, o.flags) }
        }
        fi::FI_OP_FETCH_ATOMIC => {
            // SAFETY: as above.
            let o = unsafe { arg(w.op.fetch_atomic) }?;
            let result = (o.fetch.msg_iov.cast_const(), o.fetch.iov_count);
            let none = (std::ptr::null(), 0);
            // SAFETY: the caller's promise.
            unsafe { atomic_op(shared, Class::Fetch, o.ep, &o.msg, none, result, o.flags) }
        }
        fi::FI_OP_COMPARE_ATOMIC => {
            // SAFETY: as above.
            let o = unsafe { arg(w.op.compare_atomic) }?;
            let result = (o.fetch.msg_iov.cast_const(), o.fetch.iov_count);
            let compare = (o.compare.msg_iov, o.compare.iov_count);
            // SAFETY: the caller's promise.
            unsafe { atomic_op(shared, Class::Compare, o.ep, &o.msg, compare, result, o.flags) }
        }
        fi::FI_OP_CNTR_SET | fi::FI_OP_CNTR_ADD => {
            // SAFETY: as above.
            let o = unsafe { arg(w.op.cntr) }?;
            // SAFETY: the caller's promise.
            let (cntr, value) = (unsafe { counter(shared, o.cntr) }?, o.value);
            Ok(match w.op_type {
                fi::FI_OP_CNTR_SET => WorkOp::CntrSet { cntr, value },
                _ => WorkOp::CntrAdd { cntr, value },
            })
        }
        _ => Err(Errno::NOSYS),
    }
}

/// A read or write.
///
/// # Safety
/// What `o` points to is valid.
unsafe fn rma_op(shared: &Arc<Shared>, write: bool, o: &fi::fi_op_rma) -> Result<WorkOp, Errno> {
    // SAFETY: the caller's promise.
    let (ep, (iov, remote)) = unsafe { (endpoint(shared, o.ep)?, rma::sides(&o.msg)?) };
    Ok(WorkOp::Rma {
        ep: ep.live()?.ep,
        to: o.msg.addr,
        write,
        iov,
        remote,
        data: cq_data(o.flags, o.msg.data).filter(|_| write),
        ctx: ctx(o.msg.context),
        flags: tx(o.flags)?,
    })
}

/// An endpoint of this domain.
///
/// # Safety
/// `ep` is NULL or a live fid.
unsafe fn endpoint<'a>(shared: &Arc<Shared>, ep: *mut fi::fid_ep) -> Result<&'a EpFid, Errno> {
    // SAFETY: the caller's promise.
    let ep = unsafe { obj::<EpFid, _>(ep) }?;
    if Arc::ptr_eq(ep.shared(), shared) { Ok(ep) } else { Err(Errno::INVAL) }
}

/// What `fi_op_msg` and `fi_op_tagged` have in common.
struct Message {
    ep: *mut fi::fid_ep,
    addr: fi::fi_addr_t,
    iov: (*const libc::iovec, usize),
    tag: Option<(u64, u64)>,
    data: Option<u64>,
    context: *mut c_void,
    flags: u64,
}

/// A deferred send or receive.
///
/// # Safety
/// Everything in `m` is NULL or valid.
unsafe fn message(shared: &Arc<Shared>, send: bool, m: Message) -> Result<WorkOp, Errno> {
    // SAFETY: the caller's promise.
    let iov = unsafe { spans(m.iov.0, m.iov.1) }?;
    let ctx = ctx(m.context);
    if send {
        // SAFETY: the caller's promise.
        let ep = unsafe { endpoint(shared, m.ep) }?.live()?.ep;
        let (tag, data, flags) = (m.tag.map(|t| t.0), m.data, tx(m.flags)?);
        return Ok(WorkOp::Send { ep, to: m.addr, iov, tag, data, ctx, flags });
    }
    if flags::receive(m.flags)? != Receive::Post {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let rx: Rx<'_> = unsafe {
        if is::<SrxFid, _>(m.ep) { obj::<SrxFid, _>(m.ep)?.rx()? } else { endpoint(shared, m.ep)?.rx()? }
    };
    if !Arc::ptr_eq(rx.shared, shared) {
        return Err(Errno::INVAL);
    }
    let pattern = rx.pattern(m.addr, m.tag);
    let flags = flags::rx(m.flags, OpFlags::empty(), m.tag.is_some());
    Ok(WorkOp::Recv { rx: rx.id, pattern, iov, ctx, flags })
}

/// A deferred atomic.
///
/// # Safety
/// Everything named is NULL or valid.
unsafe fn atomic_op(
    shared: &Arc<Shared>,
    class: Class,
    ep: *mut fi::fid_ep,
    m: &fi::fi_msg_atomic,
    compare: (*const fi::fi_ioc, usize),
    result: (*const fi::fi_ioc, usize),
    raw: u64,
) -> Result<WorkOp, Errno> {
    // SAFETY: the caller's promise.
    let (ep, p) = unsafe { (endpoint(shared, ep)?, atomic::parts(class, m, compare, result)?) };
    Ok(WorkOp::Atomic {
        ep: ep.live()?.ep,
        to: m.addr,
        op: p.op,
        datatype: p.datatype,
        operand: p.operand,
        compare: p.compare,
        result: p.result,
        remote: p.remote,
        data: cq_data(raw, m.data),
        ctx: ctx(m.context),
        flags: tx(raw)?,
    })
}
