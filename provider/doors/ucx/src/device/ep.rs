//! Endpoints: put, get, flush. All is one copy by a device of this process, in flight until it is seen to
//! be over.

use std::ffi::{c_int, c_uint, c_void};

use hmem::Kind;
use hmem::share::{NoPlan, plan};
use ucx_sys::{self as ucx, AddrParams, Completion, EpParams, Iov, PendingReq, PurgeFn, Status};

use super::iface;
use super::key::{self, Rkey};
use super::state::{Ep, Iface};
use crate::ffi::{guard, spans_of};

pub(crate) unsafe extern "C" fn create(params: *const EpParams, out: *mut ucx::Ep) -> Status {
    guard(|| {
        // SAFETY: UCX's structure.
        let p = unsafe { &*params };
        let needed = ucx::UCT_EP_PARAM_FIELD_IFACE
            | ucx::UCT_EP_PARAM_FIELD_DEV_ADDR
            | ucx::UCT_EP_PARAM_FIELD_IFACE_ADDR;
        if p.field_mask & needed != needed {
            return ucx::UCS_ERR_UNSUPPORTED;
        }
        // SAFETY: addresses of this transport; an interface of ours.
        unsafe {
            if !iface::same_place(p.dev_addr) {
                return ucx::UCS_ERR_UNREACHABLE;
            }
            let ep = Box::into_raw(Box::new(Ep {
                iface: p.iface.cast(),
                owner: iface::owner(p.iface_addr),
                outstanding: 0,
                fenced: false,
                flushes: Vec::new(),
            }));
            Iface::of(p.iface).eps.push(ep);
            out.write(ep.cast());
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn destroy(ep: ucx::Ep) {
    guard(|| {
        // SAFETY: an endpoint of ours, destroyed once, and its interface.
        unsafe {
            let this = ep.cast::<Ep>();
            let i = &mut *(*this).iface;
            i.eps.retain(|e| *e != this);
            // Should UCP not have flushed it.
            i.copies.cancel(this);
            let owner = (*this).owner;
            drop(Box::from_raw(this));
            // What stays open keeps the peer's memory from being freed.
            if !i.eps.iter().any(|e| (**e).owner == owner) {
                i.copies.end_readers(owner);
                key::forget(owner);
            }
        }
    });
}

/// Copies between `iov` and a peer's memory.
///
/// # Safety
/// `ep` and `rkey` must be ours, `iov` `count` parts that stay valid until the operation is complete.
unsafe fn copy(
    ep: ucx::Ep,
    (iov, count): (*const Iov, usize),
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
    put: bool,
) -> Status {
    // SAFETY: the caller's promise.
    let Some((local, len)) = (unsafe { spans_of(Kind::Cuda, iov, count) }) else {
        return ucx::UCS_ERR_INVALID_PARAM;
    };
    // Nothing is looked at for no bytes: there need not be a key.
    if len == 0 {
        return ucx::UCS_OK;
    }
    if rkey == ucx::UCT_INVALID_RKEY {
        return ucx::UCS_ERR_INVALID_PARAM;
    }
    // SAFETY: the caller's promise; nothing calls back.
    let (e, i, key) =
        unsafe { (Ep::of(ep), Iface::of((*ep.cast::<Ep>()).iface.cast()), &*(rkey as *const Rkey)) };
    if !key.covers(addr, len) {
        return ucx::UCS_ERR_INVALID_ADDR;
    }
    if std::mem::take(&mut e.fenced) {
        i.copies.wait_for(e);
    }
    let remote = [(addr, len as u64)];
    let plan = match plan(put, key.owner, |at| key.find(at), remote, &local, len) {
        Ok(planned) => planned,
        Err(NoPlan::Fault) => return ucx::UCS_ERR_INVALID_ADDR,
        Err(NoPlan::Open(why)) => {
            return i.copies.failed(e.owner, format_args!("memory cannot be opened: {why}"));
        }
    };
    if let Err(status) = i.copies.start((e, e.owner), comp, key, plan) {
        return status;
    }
    e.outstanding += 1;
    ucx::UCS_INPROGRESS
}

pub(crate) unsafe extern "C" fn put_zcopy(
    ep: ucx::Ep,
    iov: *const Iov,
    count: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    // SAFETY: UCX's arguments.
    guard(|| unsafe { copy(ep, (iov, count), addr, rkey, comp, true) })
}

pub(crate) unsafe extern "C" fn get_zcopy(
    ep: ucx::Ep,
    iov: *const Iov,
    count: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    // SAFETY: UCX's arguments.
    guard(|| unsafe { copy(ep, (iov, count), addr, rkey, comp, false) })
}

/// Nothing is ever refused for want of room, so nothing has to wait for that.
pub(crate) unsafe extern "C" fn pending_add(_ep: ucx::Ep, _req: *mut PendingReq, _flags: c_uint) -> Status {
    ucx::UCS_ERR_BUSY
}

pub(crate) unsafe extern "C" fn pending_purge(_ep: ucx::Ep, _callback: Option<PurgeFn>, _arg: *mut c_void) {}

/// Copies are not taken back: they end by themselves, also if the peer is dead: its memory stays as long
/// as it is open here.
pub(crate) unsafe extern "C" fn flush(ep: ucx::Ep, _flags: c_uint, comp: *mut Completion) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours; nothing calls back.
        let e = unsafe { Ep::of(ep) };
        if e.outstanding == 0 {
            return ucx::UCS_OK;
        }
        if !comp.is_null() {
            e.flushes.push(comp);
        }
        ucx::UCS_INPROGRESS
    })
}

pub(crate) unsafe extern "C" fn fence(ep: ucx::Ep, _flags: c_uint) -> Status {
    // SAFETY: an endpoint of ours.
    guard(|| unsafe {
        Ep::of(ep).fence();
        ucx::UCS_OK
    })
}

/// The endpoint for host memory looks after the peer.
pub(crate) unsafe extern "C" fn check(_ep: ucx::Ep, _flags: c_uint, _comp: *mut Completion) -> Status {
    ucx::UCS_ERR_UNSUPPORTED
}

/// Since 1.16: whether the endpoint leads to the interface with this address.
pub(crate) unsafe extern "C" fn is_connected(ep: ucx::Ep, params: *const AddrParams) -> c_int {
    guard(|| {
        // SAFETY: an endpoint of ours; UCX's structure, whose first fields are these.
        unsafe {
            let p = &*params;
            let both = ucx::ADDR_PARAMS_DEVICE | ucx::ADDR_PARAMS_IFACE;
            let same = p.field_mask & both == both
                && iface::same_place(p.device_addr)
                && iface::owner(p.iface_addr) == Ep::of(ep).owner;
            c_int::from(same)
        }
    })
}
