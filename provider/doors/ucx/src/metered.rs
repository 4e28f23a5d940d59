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

use crate::ffi::{guard_or, spans};
use crate::rma::direct::{Way, way};
use crate::state::Ep;
use crate::{
    am, ep, param,
    rma::{self, atomic},
};

static USAGE: OnceLock<Option<Arc<Usage>>> = OnceLock::new();

/// Interfaces that an endpoint was made of.
static KNOWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn usage() -> Option<&'static Arc<Usage>> {
    let made = || Usage::reported_at_exit(param::get().report.clone()?, "UCX");
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

/// Counts an active message.
///
/// # Safety
/// `ep` must be an endpoint of ours.
unsafe fn message(ep: ucx::Ep, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { count(ep, How::Eager, bytes) }
}

/// Counts an operation on memory behind a key, unless it has no bytes. `far`: how it goes where CMA reaches
/// the memory.
///
/// # Safety
/// `ep` and `rkey` must be ours.
unsafe fn access(ep: ucx::Ep, bytes: usize, addr: u64, rkey: usize, far: How) {
    if bytes == 0 {
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

/// What a function of the table returns.
trait Outcome {
    /// The bytes of an operation that was taken: what it returned, or `bytes`.
    fn taken(self, bytes: impl FnOnce() -> usize) -> Option<usize>;
}

impl Outcome for Status {
    fn taken(self, bytes: impl FnOnce() -> usize) -> Option<usize> {
        (self == ucx::UCS_OK || self == ucx::UCS_INPROGRESS).then(bytes)
    }
}

impl Outcome for isize {
    fn taken(self, _: impl FnOnce() -> usize) -> Option<usize> {
        usize::try_from(self).ok()
    }
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
        if let (true, Some(usage)) = (status == ucx::UCS_OK, usage()) {
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

/// Defines functions of the table: each calls the transport's of that name, and counts what was taken. Behind
/// the arrow is the function that counts, with the bytes; where the transport returns them, those count.
macro_rules! counted {
    ($($in:ident::$name:ident($($arg:ident: $of:ty),*) -> $out:ty => $count:ident($bytes:expr $(, $more:expr)*);)*) => {$(
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $name(ep: ucx::Ep, $($arg: $of),*) -> $out {
            // SAFETY: UCX's arguments.
            unsafe {
                let out = $in::$name(ep, $($arg),*);
                if let Some(bytes) = out.taken(|| $bytes) {
                    $count(ep, bytes $(, $more)*);
                }
                out
            }
        }
    )*};
}

counted! {
    am::am_short(id: u8, header: u64, from: *const c_void, len: c_uint) -> Status
        => message(len as usize + size_of_val(&header));
    am::am_short_iov(id: u8, iov: *const Iov, parts: usize) -> Status => message(bytes_of(iov, parts));
    am::am_bcopy(id: u8, pack: PackFn, arg: *mut c_void, flags: c_uint) -> isize => message(0);
    am::am_zcopy(id: u8, header: *const c_void, len: c_uint, iov: *const Iov, parts: usize, flags: c_uint,
        comp: *mut Completion) -> Status => message(len as usize + bytes_of(iov, parts));

    rma::put_short(from: *const c_void, len: c_uint, addr: u64, rkey: usize) -> Status
        => access(len as usize, addr, rkey, How::Direct);
    rma::put_bcopy(pack: PackFn, arg: *mut c_void, addr: u64, rkey: usize) -> isize
        => access(0, addr, rkey, How::Direct);
    rma::put_zcopy(iov: *const Iov, parts: usize, addr: u64, rkey: usize, comp: *mut Completion) -> Status
        => access(bytes_of(iov, parts), addr, rkey, How::Direct);
    rma::get_short(to: *mut c_void, len: c_uint, addr: u64, rkey: usize) -> Status
        => access(len as usize, addr, rkey, How::Direct);
    rma::get_bcopy(unpack: UnpackFn, arg: *mut c_void, len: usize, addr: u64, rkey: usize,
        comp: *mut Completion) -> Status => access(len, addr, rkey, How::Direct);
    rma::get_zcopy(iov: *const Iov, parts: usize, addr: u64, rkey: usize, comp: *mut Completion) -> Status
        => access(bytes_of(iov, parts), addr, rkey, How::Direct);

    atomic::post32(op: c_uint, value: u32, addr: u64, rkey: usize) -> Status => access(4, addr, rkey, How::Frames);
    atomic::post64(op: c_uint, value: u64, addr: u64, rkey: usize) -> Status => access(8, addr, rkey, How::Frames);
    atomic::fetch32(op: c_uint, value: u32, result: *mut u32, addr: u64, rkey: usize,
        comp: *mut Completion) -> Status => access(4, addr, rkey, How::Frames);
    atomic::fetch64(op: c_uint, value: u64, result: *mut u64, addr: u64, rkey: usize,
        comp: *mut Completion) -> Status => access(8, addr, rkey, How::Frames);
    atomic::cswap32(compare: u32, swap: u32, addr: u64, rkey: usize, result: *mut u32,
        comp: *mut Completion) -> Status => access(4, addr, rkey, How::Frames);
    atomic::cswap64(compare: u64, swap: u64, addr: u64, rkey: usize, result: *mut u64,
        comp: *mut Completion) -> Status => access(8, addr, rkey, How::Frames);
}
