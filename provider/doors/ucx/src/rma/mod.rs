//! Put and get: in mapped memory by the CPU, else by CMA, else by request.
//!
//! A put or get of no bytes is done at once, and looks at nothing: its buffer, address and key may be none.

pub(crate) mod atomic;
pub(crate) mod coop_begin;
pub(crate) mod coop_help;
pub(crate) mod coop_state;
pub(crate) mod deferred;
pub(crate) mod direct;
pub(crate) mod remote;
pub(crate) mod requests;
pub(crate) mod serve;
pub(crate) mod served;

use std::ffi::{c_uint, c_void};

use hmem::{Kind, Span};
use ucx_sys::{self as ucx, Completion, Iov, PackFn, Status, UnpackFn};

use crate::ffi::{guard, spans};
use crate::iface::attr::SEGMENT;
use crate::md::rkey::Rkey;
use crate::rma::coop_state::Access;
use crate::rma::direct::{Way, access, by_request, cma, may_ask, slot, way};
use crate::rma::remote::{Ask, What};
use crate::rma::requests::{Into_, Operation};
use crate::state::Ep;

/// To or from memory that is not mapped here: by CMA, large ones together with the owner, or by request.
fn reach_out(e: &mut Ep, way: &Way, a: &Access) -> Result<Status, Status> {
    match way {
        Way::Cma => deferred::start(e, a),
        _ => by_request(e, a),
    }
}

/// # Safety
/// `at` must be valid for reads of `len` bytes, and for writes as far as it is written to.
unsafe fn span(at: *const c_void, len: usize) -> Span {
    // SAFETY: the caller's promise.
    unsafe { Span::new(at.expose_provenance(), len, Kind::System) }
}

/// Copies between `local` and a peer's memory, by the way that there is.
///
/// # Safety
/// `ep` and `rkey` must be ours.
#[inline(always)]
unsafe fn put_or_get(
    put: bool,
    ep: ucx::Ep,
    local: &[Span],
    len: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    if len == 0 {
        return ucx::UCS_OK;
    }
    // SAFETY: the caller's promise; nothing calls back while it is borrowed.
    let e = unsafe { Ep::of(ep) };
    let done = way(e, rkey, addr, len).and_then(|way| match way {
        Way::Mapped(at) => {
            if put {
                // SAFETY: an endpoint's interface outlives it.
                unsafe { (*e.iface()).empty = 0 };
            }
            access(rkey, || copy(at, local, len, put)).map(|()| ucx::UCS_OK)
        }
        way => {
            let local = local.iter().copied().collect();
            reach_out(e, &way, &Access { put, addr, rkey, local, len, comp })
        }
    });
    done.unwrap_or_else(|status| status)
}

/// Writes `local` to a peer's memory.
///
/// # Safety
/// `ep` and `rkey` must be ours.
#[inline]
unsafe fn put(
    ep: ucx::Ep,
    local: &[Span],
    len: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { put_or_get(true, ep, local, len, addr, rkey, comp) }
}

/// Reads a peer's memory to `local`.
///
/// # Safety
/// As for `put`.
unsafe fn get(
    ep: ucx::Ep,
    local: &[Span],
    len: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { put_or_get(false, ep, local, len, addr, rkey, comp) }
}

/// Copies between mapped memory and local parts.
#[inline]
fn copy(at: *mut u8, local: &[Span], len: usize, to_mapped: bool) {
    let mut done = 0;
    for part in local {
        let n = part.len().min(len - done);
        // SAFETY: `at` has `len` bytes (`reach`), and parts are valid by `Span`'s invariant. A
        // peer's memory may change meanwhile: bytes are copied, and never borrowed.
        unsafe {
            if to_mapped {
                std::ptr::copy(part.as_ptr(), at.add(done), n);
            } else {
                std::ptr::copy(at.add(done), part.as_ptr(), n);
            }
        }
        done += n;
    }
}

pub(crate) unsafe extern "C" fn put_short(
    ep: ucx::Ep,
    buffer: *const c_void,
    length: c_uint,
    addr: u64,
    rkey: usize,
) -> Status {
    let len = length as usize;
    if len == 0 || rkey == ucx::UCT_INVALID_RKEY {
        return if len == 0 { ucx::UCS_OK } else { ucx::UCS_ERR_INVALID_PARAM };
    }
    // SAFETY: UCX's arguments; an endpoint and a key of ours; `plain` found `len` bytes there. A peer may
    // change them meanwhile: they are copied, and never borrowed.
    unsafe {
        if let (Ok(()), Some(at)) = (Ep::of(ep).open(), (*(rkey as *const Rkey)).plain(addr, len)) {
            (*Ep::of(ep).iface()).empty = 0;
            match len {
                8 => at.cast::<u64>().write_unaligned(buffer.cast::<u64>().read_unaligned()),
                _ => std::ptr::copy(buffer.cast(), at, len),
            }
            return ucx::UCS_OK;
        }
        put_short_further(ep, buffer, len, addr, rkey)
    }
}

/// # Safety
/// As for `put_short`.
#[inline(never)]
unsafe fn put_short_further(
    ep: ucx::Ep,
    buffer: *const c_void,
    len: usize,
    addr: u64,
    rkey: usize,
) -> Status {
    // SAFETY: UCX's arguments.
    guard(|| unsafe { put(ep, &[span(buffer, len)], len, addr, rkey, std::ptr::null_mut()) })
}

pub(crate) unsafe extern "C" fn put_bcopy(
    ep: ucx::Ep,
    pack: PackFn,
    arg: *mut c_void,
    addr: u64,
    rkey: usize,
) -> isize {
    guard(|| {
        // SAFETY: an endpoint and a key of ours; UCX's function writes at most a segment, and calls
        // nothing of ours.
        unsafe {
            let e = Ep::of(ep);
            let i = &mut *e.iface();
            // Pack only what can go: packing twice is not the same for every kind of data. What is refused
            // for good may still be nothing. What CMA refuses goes by request.
            let refused = way(e, rkey, addr, 0)
                .and_then(|way| if matches!(way, Way::Mapped(_)) { Ok(()) } else { may_ask(e) })
                .err();
            let for_good = [ucx::UCS_ERR_INVALID_PARAM, ucx::UCS_ERR_INVALID_ADDR];
            if let Some(status) = refused.filter(|status| !for_good.contains(status)) {
                return status.into();
            }
            i.bounce.resize(SEGMENT, 0);
            let n = pack(i.bounce.as_mut_ptr().cast(), arg).min(SEGMENT);
            if let (1.., Some(status)) = (n, refused) {
                return status.into();
            }
            let local = [span(i.bounce.as_ptr().cast(), n)];
            match put(ep, &local, n, addr, rkey, std::ptr::null_mut()) {
                ucx::UCS_OK => n as isize,
                status => status.into(),
            }
        }
    })
}

pub(crate) unsafe extern "C" fn put_zcopy(
    ep: ucx::Ep,
    iov: *const Iov,
    count: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    guard(|| {
        // SAFETY: UCX's arguments; the parts stay valid until the operation is complete.
        unsafe {
            let Some((local, len)) = spans(iov, count) else { return ucx::UCS_ERR_INVALID_PARAM };
            put(ep, &local, len, addr, rkey, comp)
        }
    })
}

/// Gets to one part of memory in this call; `Ok(false)`: only a request can.
fn now(e: &mut Ep, way: Way, rkey: usize, addr: u64, local: &[Span; 1]) -> Result<bool, Status> {
    let len = local[0].len();
    match way {
        Way::Mapped(at) => access(rkey, || copy(at, local, len, false)).map(|()| true),
        Way::Cma => cma(e, rkey, false, addr, local, len),
        Way::Request => Ok(false),
    }
}

pub(crate) unsafe extern "C" fn get_short(
    ep: ucx::Ep,
    buffer: *mut c_void,
    length: c_uint,
    addr: u64,
    rkey: usize,
) -> Status {
    guard(|| {
        if length == 0 {
            return ucx::UCS_OK;
        }
        // SAFETY: UCX's arguments. Only what is done at once is offered: a short get has no completion.
        unsafe {
            let (e, len) = (Ep::of(ep), length as usize);
            match way(e, rkey, addr, len).and_then(|way| now(e, way, rkey, addr, &[span(buffer, len)])) {
                Ok(true) => ucx::UCS_OK,
                Ok(false) => ucx::UCS_ERR_UNSUPPORTED,
                Err(status) => status,
            }
        }
    })
}

pub(crate) unsafe extern "C" fn get_bcopy(
    ep: ucx::Ep,
    unpack: UnpackFn,
    arg: *mut c_void,
    length: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    guard(|| {
        if length > SEGMENT {
            return ucx::UCS_ERR_EXCEEDS_LIMIT;
        }
        // SAFETY: an endpoint and a key of ours; UCX's function is given private memory, and calls
        // nothing of ours.
        unsafe {
            let e = Ep::of(ep);
            let i = &mut *e.iface();
            if length == 0 {
                unpack(arg, i.bounce.as_ptr().cast(), 0);
                return ucx::UCS_OK;
            }
            let way = match way(e, rkey, addr, length) {
                Ok(way) => way,
                Err(status) => return status,
            };
            i.bounce.resize(SEGMENT, 0);
            let local = [span(i.bounce.as_ptr().cast(), length)];
            let here = now(e, way, rkey, addr, &local);
            match here.and_then(|here| if here { Ok(true) } else { may_ask(e).map(|()| false) }) {
                Err(status) => status,
                Ok(true) => {
                    unpack(arg, i.bounce.as_ptr().cast(), length);
                    ucx::UCS_OK
                }
                Ok(false) => {
                    let operation = Operation::new(1, comp);
                    let ask = Ask { what: What::Get, addr, a: length as u64, b: 0, slot: slot(rkey) };
                    i.ask(e, ask, &[], Into_::Callback(unpack, arg, length), &operation);
                    ucx::UCS_INPROGRESS
                }
            }
        }
    })
}

pub(crate) unsafe extern "C" fn get_zcopy(
    ep: ucx::Ep,
    iov: *const Iov,
    count: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    guard(|| {
        // SAFETY: UCX's arguments; the parts stay valid until the operation is complete.
        unsafe {
            let Some((local, len)) = spans(iov, count) else { return ucx::UCS_ERR_INVALID_PARAM };
            get(ep, &local, len, addr, rkey, comp)
        }
    })
}
