//! Put, get and atomics: in mapped memory by the CPU, else by CMA (put and get), else by request.
//!
//! A put or get of no bytes is done at once, and looks at nothing: its buffer, address and key may be none.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use engine::{Grant, Link, NoDirect, Refused};
use hmem::{Kind, Span};
use ucx_sys::{self as ucx, Completion, Iov, PackFn, Status, UnpackFn};
use wire::Seg;

use crate::attr::SEGMENT;
use crate::ep::{self, Ep};
use crate::ffi::guard;
use crate::md::{Reach, Rkey};
use crate::region::Slot;
use crate::remote::{Ask, Into_, Operation, What};
use crate::share::{self, Access};

/// How an access goes.
enum Way {
    Mapped(*mut u8),
    Cma,
    Request,
}

/// Chooses for memory behind a key.
#[inline]
fn way(e: &mut Ep, rkey: usize, addr: u64, len: usize) -> Result<Way, Status> {
    if rkey == ucx::UCT_INVALID_RKEY {
        return Err(ucx::UCS_ERR_INVALID_PARAM);
    }
    e.open()?;
    // SAFETY: a key that was unpacked, and is not released while used.
    let key = unsafe { &mut *(rkey as *mut Rkey) };
    // SAFETY: an endpoint's interface outlives it.
    let seats = unsafe { &mut (*e.iface()).seats };
    match key.reach(addr, len, seats) {
        Reach::Mapped(at) => Ok(Way::Mapped(at)),
        other => far(e, other),
    }
}

#[cold]
fn far(e: &mut Ep, reach: Reach) -> Result<Way, Status> {
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    e.awaits = false;
    match reach {
        Reach::Outside => return Err(ucx::UCS_ERR_INVALID_ADDR),
        Reach::Want { id, wait } => {
            i.link.want(e.peer, id).map_err(|why| e.refused(why))?;
            e.awaits = wait || e.no_cma;
            if e.awaits {
                return Err(ucx::UCS_ERR_NO_RESOURCE);
            }
        }
        _ => {}
    }
    if !e.no_cma && reach != Reach::Ask {
        if i.link.peer_pid(e.peer).is_none() {
            i.link.room(e.peer, 0).map_err(|why| e.refused(why))?;
        }
        match i.link.knows_space(e.peer) {
            Some(true) => return Ok(Way::Cma),
            // Its welcome is on the way.
            Some(false) => {
                e.awaits = true;
                return Err(ucx::UCS_ERR_NO_RESOURCE);
            }
            None => e.no_cma = true,
        }
    }
    if i.remote.full(e.peer) { Err(ucx::UCS_ERR_NO_RESOURCE) } else { Ok(Way::Request) }
}

/// Runs an access to a key's memory, unless that was taken back.
#[inline]
pub(crate) fn access<T>(rkey: usize, f: impl FnOnce() -> T) -> Result<T, Status> {
    // SAFETY: as in `way`.
    let key = unsafe { &*(rkey as *const Rkey) };
    key.access(f).ok_or(ucx::UCS_ERR_CANCELED)
}

/// What a key names on its owner's board.
pub(crate) fn slot(rkey: usize) -> Option<Slot> {
    // SAFETY: as in `way`.
    unsafe { (*(rkey as *const Rkey)).slot() }
}

/// By CMA; `Ok(false)` if that does not work with this peer.
fn cma(e: &mut Ep, rkey: usize, put: bool, addr: u64, local: &[Span], len: usize) -> Result<bool, Status> {
    let remote = [Seg { addr: addr.into(), len: (len as u64).into() }];
    // SAFETY: an endpoint's interface outlives it.
    let link = unsafe { &mut (*e.iface()).link };
    let peer = e.peer;
    let done = access(rkey, || {
        if put {
            link.put(peer, Grant::Agreed, &remote, 0, local, 0, len)
        } else {
            link.get(peer, Grant::Agreed, &remote, 0, local, 0, len)
        }
    })?;
    match done {
        Ok(()) => {
            if !std::mem::replace(&mut e.help.can, true) {
                log::info!("{}: CMA works", link.peer_addr(peer));
            }
            Ok(true)
        }
        Err(NoDirect::Never) => {
            e.no_cma = true;
            log::info!("{}: no CMA: its memory is reached through the ring", link.peer_addr(peer));
            Ok(false)
        }
        // Not this memory: the owner's answer to a request tells.
        Err(NoDirect::Memory) => Ok(false),
        Err(NoDirect::Revoked | NoDirect::Fault) => match link.room(peer, 0) {
            // Dead, but not yet buried.
            Err(why @ Refused::Gone(_)) => Err(e.refused(why)),
            _ => Err(ucx::UCS_ERR_IO_ERROR),
        },
    }
}

/// By CMA or by request, whatever works with this peer.
pub(crate) fn transfer(e: &mut Ep, a: &Access) -> Result<Status, Status> {
    if !e.no_cma && cma(e, a.rkey, a.put, a.addr, &a.local, a.len)? {
        return Ok(ucx::UCS_OK);
    }
    Ok(by_request(e, a))
}

fn by_request(e: &mut Ep, a: &Access) -> Status {
    if a.put { put_by_request(e, a) } else { get_by_request(e, a) }
}

/// To or from memory that is not mapped here: by CMA, large ones together with the owner, or by request.
fn reach_out(e: &mut Ep, way: &Way, a: &Access) -> Result<Status, Status> {
    match way {
        Way::Cma => share::start(e, a).map_or_else(|| transfer(e, a), Ok),
        _ => Ok(by_request(e, a)),
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
    let e = unsafe { ep::of(ep) };
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

#[cold]
fn put_by_request(e: &mut Ep, a: &Access) -> Status {
    let (len, addr, comp) = (a.len, a.addr, a.comp);
    let requests = len.div_ceil(SEGMENT);
    if requests == 0 {
        return ucx::UCS_OK;
    }
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    let operation = Operation::new(requests, comp);
    let mut bytes = vec![0; SEGMENT.min(len)];
    for k in 0..requests {
        let off = k * SEGMENT;
        let n = SEGMENT.min(len - off);
        hmem::read(&a.local, off, &mut bytes[..n]);
        let ask = Ask { what: What::Put, addr: addr + off as u64, a: 0, b: 0, slot: slot(a.rkey) };
        i.ask(e, ask, &bytes[..n], Into_::Nowhere, &operation);
    }
    // Without a completion (short, bcopy) a flush tells when it has arrived.
    if comp.is_null() { ucx::UCS_OK } else { ucx::UCS_INPROGRESS }
}

#[cold]
fn get_by_request(e: &mut Ep, a: &Access) -> Status {
    let (len, addr, comp) = (a.len, a.addr, a.comp);
    // Pieces that end where a part or a segment does.
    let mut pieces = Vec::new();
    let mut off = 0;
    for part in &a.local {
        let mut at = 0;
        while at < part.len() && off < len {
            let n = SEGMENT.min(part.len() - at).min(len - off);
            pieces.push((part.as_ptr().wrapping_add(at), off, n));
            at += n;
            off += n;
        }
    }
    if pieces.is_empty() {
        return ucx::UCS_OK;
    }
    let operation = Operation::new(pieces.len(), comp);
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    for (to, off, n) in pieces {
        let ask = Ask { what: What::Get, addr: addr + off as u64, a: n as u64, b: 0, slot: slot(a.rkey) };
        i.ask(e, ask, &[], Into_::Memory(to, n), &operation);
    }
    ucx::UCS_INPROGRESS
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
        if let (Ok(()), Some(at)) = (ep::of(ep).open(), (*(rkey as *const Rkey)).plain(addr, len)) {
            (*ep::of(ep).iface()).empty = 0;
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
            let e = ep::of(ep);
            let i = &mut *e.iface();
            // Pack only what can go: packing twice is not the same for every kind of data. What is refused for
            // good may still be nothing.
            let refused = way(e, rkey, addr, 0).err();
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
            let Some((local, len)) = ep::spans(iov, count) else { return ucx::UCS_ERR_INVALID_PARAM };
            put(ep, &local, len, addr, rkey, comp)
        }
    })
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
        // SAFETY: UCX's arguments. Only what is done at once is offered: nobody would wait for it.
        unsafe {
            match way(ep::of(ep), rkey, addr, length as usize) {
                Ok(Way::Request) => ucx::UCS_ERR_UNSUPPORTED,
                Ok(_) => {
                    let local = [span(buffer, length as usize)];
                    get(ep, &local, length as usize, addr, rkey, std::ptr::null_mut())
                }
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
            let e = ep::of(ep);
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
            let here = match way {
                Way::Mapped(at) => access(rkey, || copy(at, &local, length, false)).map(|()| true),
                Way::Cma => cma(e, rkey, false, addr, &local, length),
                Way::Request => Ok(false),
            };
            match here {
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
            let Some((local, len)) = ep::spans(iov, count) else { return ucx::UCS_ERR_INVALID_PARAM };
            get(ep, &local, len, addr, rkey, comp)
        }
    })
}

macro_rules! width {
    ($int:ty, $atomic:ty, $what:expr, $apply:ident, $run:ident, $post:ident, $fetch:ident, $cswap:ident) => {
        /// Applies one operation; the value before. `None` if there is no such operation.
        ///
        /// # Safety
        /// `at` must be aligned memory, valid for reads and writes, that is only changed by atomics
        /// meanwhile.
        pub(crate) unsafe fn $apply(at: *mut u8, op: c_uint, value: $int, compare: $int) -> Option<$int> {
            // SAFETY: the caller's promise.
            let word = unsafe { <$atomic>::from_ptr(at.cast()) };
            Some(match op {
                ucx::UCT_ATOMIC_OP_ADD => word.fetch_add(value, SeqCst),
                ucx::UCT_ATOMIC_OP_AND => word.fetch_and(value, SeqCst),
                ucx::UCT_ATOMIC_OP_OR => word.fetch_or(value, SeqCst),
                ucx::UCT_ATOMIC_OP_XOR => word.fetch_xor(value, SeqCst),
                ucx::UCT_ATOMIC_OP_SWAP => word.swap(value, SeqCst),
                ucx::UCT_ATOMIC_OP_CSWAP => match word.compare_exchange(compare, value, SeqCst, SeqCst) {
                    Ok(old) | Err(old) => old,
                },
                _ => return None,
            })
        }

        /// # Safety
        /// `ep` and `rkey` must be ours, `result` null or valid until the operation is complete.
        #[inline]
        unsafe fn $run(
            ep: ucx::Ep,
            (op, value, compare): (c_uint, $int, $int),
            result: *mut $int,
            addr: u64,
            rkey: usize,
            comp: *mut Completion,
        ) -> Status {
            const SIZE: usize = size_of::<$int>();
            if addr as usize % SIZE != 0 {
                return ucx::UCS_ERR_INVALID_PARAM;
            }
            // SAFETY: the caller's promise; nothing calls back while it is borrowed. Mapped memory
            // has SIZE bytes there, aligned as the peer's address is.
            unsafe {
                let e = ep::of(ep);
                match way(e, rkey, addr, SIZE) {
                    Err(status) => status,
                    Ok(Way::Mapped(at)) => match access(rkey, || $apply(at, op, value, compare)) {
                        Ok(Some(old)) => {
                            if !result.is_null() {
                                result.write_unaligned(old);
                            }
                            ucx::UCS_OK
                        }
                        Ok(None) => ucx::UCS_ERR_UNSUPPORTED,
                        Err(status) => status,
                    },
                    // CMA has no atomics.
                    Ok(Way::Cma | Way::Request) => {
                        let i = &mut *e.iface();
                        if i.remote.full(e.peer) {
                            return ucx::UCS_ERR_NO_RESOURCE;
                        }
                        let operation = Operation::new(1, comp);
                        let (a, b) = (u64::from(value), u64::from(compare));
                        let ask = Ask { what: $what, addr, a, b, slot: slot(rkey) };
                        let into = match result.is_null() {
                            // The old value comes all the same.
                            true => Into_::Nowhere,
                            false => Into_::Memory(result.cast(), SIZE),
                        };
                        i.ask(e, ask, &[op as u8], into, &operation);
                        if result.is_null() { ucx::UCS_OK } else { ucx::UCS_INPROGRESS }
                    }
                }
            }
        }

        pub(crate) unsafe extern "C" fn $post(
            ep: ucx::Ep,
            op: c_uint,
            value: $int,
            addr: u64,
            rkey: usize,
        ) -> Status {
            let null = std::ptr::null_mut();
            // SAFETY: UCX's arguments.
            guard(|| unsafe { $run(ep, (op, value, 0), std::ptr::null_mut(), addr, rkey, null) })
        }

        pub(crate) unsafe extern "C" fn $fetch(
            ep: ucx::Ep,
            op: c_uint,
            value: $int,
            result: *mut $int,
            addr: u64,
            rkey: usize,
            comp: *mut Completion,
        ) -> Status {
            // SAFETY: UCX's arguments.
            guard(|| unsafe { $run(ep, (op, value, 0), result, addr, rkey, comp) })
        }

        pub(crate) unsafe extern "C" fn $cswap(
            ep: ucx::Ep,
            compare: $int,
            swap: $int,
            addr: u64,
            rkey: usize,
            result: *mut $int,
            comp: *mut Completion,
        ) -> Status {
            let what = (ucx::UCT_ATOMIC_OP_CSWAP, swap, compare);
            // SAFETY: UCX's arguments.
            guard(|| unsafe { $run(ep, what, result, addr, rkey, comp) })
        }
    };
}

width!(u32, AtomicU32, What::Atomic32, atomic32, run32, post32, fetch32, cswap32);
width!(u64, AtomicU64, What::Atomic64, atomic64, run64, post64, fetch64, cswap64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_atomics_do() {
        let mut word = 12u64;
        let mut run = |op, value, compare| {
            let at = (&raw mut word).cast();
            // SAFETY: a word of our own.
            let old = unsafe { atomic64(at, op, value, compare) };
            (old, word)
        };
        assert_eq!(run(ucx::UCT_ATOMIC_OP_ADD, 3, 0), (Some(12), 15));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_AND, 6, 0), (Some(15), 6));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_OR, 9, 0), (Some(6), 15));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_XOR, 1, 0), (Some(15), 14));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_SWAP, 5, 0), (Some(14), 5));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_CSWAP, 7, 4), (Some(5), 5));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_CSWAP, 7, 5), (Some(5), 7));
        assert_eq!(run(6, 0, 0), (None, 7));
    }
}
