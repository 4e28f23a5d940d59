//! Endpoints: put, get, flush. All is one copy by a device of this process, in flight until it is seen to
//! be over.

use std::ffi::{c_int, c_uint, c_void};

use hmem::Kind;
use hmem::share::{NoPlan, Owner, plan};
use ucx_sys::{self as ucx, AddrParams, Completion, EpParams, Iov, PendingReq, PurgeFn, Status};

use super::iface;
use super::key::{self, Rkey};
use super::state::{Copy, Ep, Iface};
use crate::ffi::{guard, spans_of};
use crate::md::readers::{Held, NoReader};

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
            // Should UCP not have.
            i.copies.wait(|copy| copy.ep == this);
            while let Some(held) =
                i.copies.find(|c| c.ep == this && c.held.is_some()).and_then(|c| c.held.take())
            {
                i.readers.leave(held);
            }
            i.copies.cancel(|copy| copy.ep == this);
            let owner = (*this).owner;
            drop(Box::from_raw(this));
            // What stays open keeps the peer's memory from being freed.
            if !i.eps.iter().any(|e| (**e).owner == owner) {
                i.end_readers(owner);
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
        let this: *const Ep = e;
        i.copies.wait(|copy| std::ptr::eq(copy.ep, this));
    }
    let remote = [(addr, len as u64)];
    let plan = match plan(put, key.owner, |at| key.find(at), remote, &local, len) {
        Ok(planned) => planned,
        Err(NoPlan::Fault) => return ucx::UCS_ERR_INVALID_ADDR,
        Err(NoPlan::Open(why)) => return i.failed(e.owner, format_args!("memory cannot be opened: {why}")),
    };
    let held = match i.announce(key) {
        Ok(held) => held,
        Err(status) => return status,
    };
    match plan.start() {
        Ok(flight) => {
            i.copies.add(Copy { ep: e, comp, held }, flight);
            e.outstanding += 1;
            ucx::UCS_INPROGRESS
        }
        Err(why) => {
            if let Some(held) = held {
                i.readers.leave(held);
            }
            i.failed(e.owner, format_args!("the device does not copy: {why}"))
        }
    }
}

impl Iface {
    /// A reader slot for an access by this key, if one is needed.
    fn announce(&mut self, key: &Rkey) -> Result<Option<Held>, Status> {
        let Some((board, slot, table)) = &key.guard else { return Ok(None) };
        loop {
            match self.readers.enter((*board, table), *slot, key.owner) {
                Ok(held) => return Ok(Some(held)),
                Err(NoReader::Gone) => return Err(ucx::UCS_ERR_CANCELED),
                Err(NoReader::Full) => {}
            }
            // The next that comes free is one of our own.
            let mut one = false;
            self.copies.wait(|copy| {
                !one && {
                    one = copy.held.is_some();
                    one
                }
            });
            let Some(held) = self.copies.find(|copy| copy.held.is_some()).and_then(|copy| copy.held.take())
            else {
                log::warn!("no reader slot is free on a peer's board");
                return Err(ucx::UCS_ERR_IO_ERROR);
            };
            self.readers.leave(held);
        }
    }

    /// Logs, the first time, why a copy cannot be done. Returns the status for UCX.
    #[cold]
    fn failed(&mut self, of: Owner, why: std::fmt::Arguments<'_>) -> Status {
        let gone = Owner::now(of.pid) != of;
        if gone {
            log::debug!("pid {} is gone", of.pid);
            return ucx::UCS_ERR_CONNECTION_RESET;
        }
        if !std::mem::replace(&mut self.warned, true) {
            log::warn!("pid {}: {why}", of.pid);
        }
        ucx::UCS_ERR_IO_ERROR
    }
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
