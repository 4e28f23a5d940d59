//! Counting what interfaces send, where `STRAIT_UCX_REPORT` asks for it.
//!
//! UCX calls through the table that an interface is opened with. [`table`] has functions in it that call
//! those of the table before and then count; without the setting it is not used, and nothing is asked on any
//! way.

use std::collections::BTreeSet;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use link::usage::Usage;
use link_api::{How, Link, Side};
use ucx_sys::{self as ucx, Completion, EpParams, IfaceOps, Iov, PackFn, Status, UnpackFn};

use crate::direct::{Way, way};
use crate::ffi::{guard_or, spans};
use crate::state::Ep;
use crate::{am, atomic, ep, param, rma};

static USAGE: OnceLock<Option<Arc<Usage>>> = OnceLock::new();

/// Interfaces that an endpoint was made of.
static KNOWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn usage() -> Option<&'static Arc<Usage>> {
    let made = || Usage::told_at_exit(param::get().report.clone()?, "UCX");
    USAGE.get_or_init(made).as_ref()
}

/// The table of functions, with counting ones if a report is requested.
pub(crate) fn table(ops: IfaceOps) -> IfaceOps {
    if usage().is_none() {
        return ops;
    }
    IfaceOps {
        ep_put_short: put_short,
        ep_put_bcopy: put_bcopy,
        ep_put_zcopy: put_zcopy,
        ep_get_short: get_short,
        ep_get_bcopy: get_bcopy,
        ep_get_zcopy: get_zcopy,
        ep_am_short: am_short,
        ep_am_short_iov: am_short_iov,
        ep_am_bcopy: am_bcopy,
        ep_am_zcopy: am_zcopy,
        ep_atomic_cswap64: cswap64,
        ep_atomic_cswap32: cswap32,
        ep_atomic32_post: post32,
        ep_atomic64_post: post64,
        ep_atomic32_fetch: fetch32,
        ep_atomic64_fetch: fetch64,
        ep_create: create,
        ep_destroy: destroy,
        ..ops
    }
}

/// Records the present path to the peer.
///
/// # Safety
/// `ep` must be an endpoint of ours.
unsafe fn note_path(usage: &Usage, ep: ucx::Ep) {
    // SAFETY: the caller's promise; an endpoint's interface outlives it.
    let (e, i) = unsafe { (Ep::of(ep), &*Ep::of(ep).iface()) };
    let mut words = i.link.describe(e.peer);
    // Device memory has an interface of its own.
    words.truncate(words.find("; device memory").unwrap_or(words.len()));
    usage.path(&i.link.peer_addr(e.peer), "shm", words);
}

/// Counts an operation that was taken.
///
/// # Safety
/// `ep` must be an endpoint of ours.
unsafe fn count(ep: ucx::Ep, how: How, bytes: usize) {
    guard_or((), || {
        let Some(usage) = usage() else { return };
        // SAFETY: the caller's promise; an endpoint's interface outlives it.
        let addr = unsafe { (*Ep::of(ep).iface()).link.peer_addr(Ep::of(ep).peer) };
        if !usage.count(&addr, Side::Ours, how, bytes) {
            // SAFETY: the caller's promise.
            unsafe { note_path(usage, ep) };
            usage.count(&addr, Side::Ours, how, bytes);
        }
    });
}

/// Counts an operation on memory behind a key, unless it was refused or has no bytes. `far`: how it goes
/// where CMA reaches the memory.
///
/// # Safety
/// `ep` and `rkey` must be ours.
unsafe fn count_access(ep: ucx::Ep, status: Status, bytes: usize, (addr, rkey): (u64, usize), far: How) {
    if bytes == 0 || !taken(status) {
        return;
    }
    // SAFETY: the caller's promise.
    let e = unsafe { Ep::of(ep) };
    let awaits = e.awaits;
    let how = match way(e, rkey, addr, bytes) {
        Ok(Way::Mapped(_)) => How::Mapped,
        Ok(Way::Cma) => far,
        _ => How::Frames,
    };
    // That was a question, and no access.
    e.awaits = awaits;
    // SAFETY: the caller's promise.
    unsafe { count(ep, how, bytes) };
}

fn taken(status: Status) -> bool {
    status == ucx::UCS_OK || status == ucx::UCS_INPROGRESS
}

/// # Safety
/// UCX's arguments.
unsafe fn bytes_of(iov: *const Iov, count: usize) -> usize {
    // SAFETY: the caller's promise; nothing of the parts is looked at.
    unsafe { spans(iov, count) }.map_or(0, |(_, len)| len)
}

unsafe extern "C" fn create(params: *const EpParams, out: *mut ucx::Ep) -> Status {
    // SAFETY: UCX's arguments.
    let status = unsafe { ep::create(params, out) };
    guard_or((), || {
        if let (true, Some(usage)) = (taken(status), usage()) {
            // SAFETY: as above; it was made, so that its interface is named.
            let iface = unsafe { (*params).iface } as usize;
            let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            if known.insert(iface) {
                usage.opened();
            }
        }
    });
    status
}

unsafe extern "C" fn destroy(ep: ucx::Ep) {
    guard_or((), || {
        if let Some(usage) = usage() {
            // SAFETY: an endpoint of ours, which is destroyed below.
            unsafe { note_path(usage, ep) };
        }
    });
    // SAFETY: UCX's argument.
    unsafe { ep::destroy(ep) }
}

unsafe extern "C" fn am_short(ep: ucx::Ep, id: u8, header: u64, from: *const c_void, len: c_uint) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = am::am_short(ep, id, header, from, len);
        if taken(status) {
            count(ep, How::Eager, len as usize + size_of_val(&header));
        }
        status
    }
}

unsafe extern "C" fn am_short_iov(ep: ucx::Ep, id: u8, iov: *const Iov, parts: usize) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = am::am_short_iov(ep, id, iov, parts);
        if taken(status) {
            count(ep, How::Eager, bytes_of(iov, parts));
        }
        status
    }
}

unsafe extern "C" fn am_bcopy(ep: ucx::Ep, id: u8, pack: PackFn, arg: *mut c_void, flags: c_uint) -> isize {
    // SAFETY: UCX's arguments.
    unsafe {
        let packed = am::am_bcopy(ep, id, pack, arg, flags);
        if let Ok(len) = usize::try_from(packed) {
            count(ep, How::Eager, len);
        }
        packed
    }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn am_zcopy(
    ep: ucx::Ep,
    id: u8,
    header: *const c_void,
    header_length: c_uint,
    iov: *const Iov,
    parts: usize,
    flags: c_uint,
    comp: *mut Completion,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = am::am_zcopy(ep, id, header, header_length, iov, parts, flags, comp);
        if taken(status) {
            count(ep, How::Eager, header_length as usize + bytes_of(iov, parts));
        }
        status
    }
}

unsafe extern "C" fn put_short(
    ep: ucx::Ep,
    from: *const c_void,
    len: c_uint,
    addr: u64,
    rkey: usize,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = rma::put_short(ep, from, len, addr, rkey);
        count_access(ep, status, len as usize, (addr, rkey), How::Direct);
        status
    }
}

unsafe extern "C" fn put_bcopy(ep: ucx::Ep, pack: PackFn, arg: *mut c_void, addr: u64, rkey: usize) -> isize {
    // SAFETY: UCX's arguments.
    unsafe {
        let packed = rma::put_bcopy(ep, pack, arg, addr, rkey);
        if let Ok(len) = usize::try_from(packed) {
            count_access(ep, ucx::UCS_OK, len, (addr, rkey), How::Direct);
        }
        packed
    }
}

unsafe extern "C" fn put_zcopy(
    ep: ucx::Ep,
    iov: *const Iov,
    parts: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = rma::put_zcopy(ep, iov, parts, addr, rkey, comp);
        count_access(ep, status, bytes_of(iov, parts), (addr, rkey), How::Direct);
        status
    }
}

unsafe extern "C" fn get_short(ep: ucx::Ep, to: *mut c_void, len: c_uint, addr: u64, rkey: usize) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = rma::get_short(ep, to, len, addr, rkey);
        count_access(ep, status, len as usize, (addr, rkey), How::Direct);
        status
    }
}

unsafe extern "C" fn get_bcopy(
    ep: ucx::Ep,
    unpack: UnpackFn,
    arg: *mut c_void,
    len: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = rma::get_bcopy(ep, unpack, arg, len, addr, rkey, comp);
        count_access(ep, status, len, (addr, rkey), How::Direct);
        status
    }
}

unsafe extern "C" fn get_zcopy(
    ep: ucx::Ep,
    iov: *const Iov,
    parts: usize,
    addr: u64,
    rkey: usize,
    comp: *mut Completion,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe {
        let status = rma::get_zcopy(ep, iov, parts, addr, rkey, comp);
        count_access(ep, status, bytes_of(iov, parts), (addr, rkey), How::Direct);
        status
    }
}

macro_rules! width {
    ($int:ty, $post:ident, $fetch:ident, $cswap:ident) => {
        unsafe extern "C" fn $post(ep: ucx::Ep, op: c_uint, value: $int, addr: u64, rkey: usize) -> Status {
            // SAFETY: UCX's arguments.
            unsafe {
                let status = atomic::$post(ep, op, value, addr, rkey);
                count_access(ep, status, size_of::<$int>(), (addr, rkey), How::Frames);
                status
            }
        }

        unsafe extern "C" fn $fetch(
            ep: ucx::Ep,
            op: c_uint,
            value: $int,
            result: *mut $int,
            addr: u64,
            rkey: usize,
            comp: *mut Completion,
        ) -> Status {
            // SAFETY: UCX's arguments.
            unsafe {
                let status = atomic::$fetch(ep, op, value, result, addr, rkey, comp);
                count_access(ep, status, size_of::<$int>(), (addr, rkey), How::Frames);
                status
            }
        }

        unsafe extern "C" fn $cswap(
            ep: ucx::Ep,
            compare: $int,
            swap: $int,
            addr: u64,
            rkey: usize,
            result: *mut $int,
            comp: *mut Completion,
        ) -> Status {
            // SAFETY: UCX's arguments.
            unsafe {
                let status = atomic::$cswap(ep, compare, swap, addr, rkey, result, comp);
                count_access(ep, status, size_of::<$int>(), (addr, rkey), How::Frames);
                status
            }
        }
    };
}

width!(u32, post32, fetch32, cswap32);
width!(u64, post64, fetch64, cswap64);
