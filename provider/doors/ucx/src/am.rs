//! Endpoints: active messages.

use std::ffi::{c_uint, c_void};

use hmem::Span;
use link_api::FrameLink;
use ucx_sys::{self as ucx, Completion, Iov, PackFn, Status};
use wire::ucx::{Head, Kind};

use crate::ffi::{guard, spans};
use crate::frame::HEAD;
use crate::iface::attr::{MAX_HEADER, SEGMENT};
use crate::state::Ep;

/// What an active message begins with.
#[inline]
fn am(id: u8) -> [u8; HEAD] {
    Head::bytes(Kind::Am, id)
}

pub(crate) unsafe extern "C" fn am_short(
    ep: ucx::Ep,
    id: u8,
    header: u64,
    payload: *const c_void,
    length: c_uint,
) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours; nothing calls back.
        let e = unsafe { Ep::of(ep) };
        if let Err(status) = e.open() {
            return status;
        }
        let len = length as usize;
        if len + 8 > SEGMENT {
            return ucx::UCS_ERR_EXCEEDS_LIMIT;
        }
        let mut head = [0; HEAD + 8];
        head[..HEAD].copy_from_slice(&am(id));
        head[HEAD..].copy_from_slice(&header.to_ne_bytes());
        // SAFETY: UCX says that this memory is valid, which is all read before the return; the
        // interface outlives its endpoints.
        let sent = unsafe {
            let body = [Span::new(payload.expose_provenance(), len, hmem::Kind::System)];
            (*e.iface).link.send(e.peer, &head, &body, 0, len)
        };
        match sent {
            Ok(_) => ucx::UCS_OK,
            Err(why) => e.refused(why),
        }
    })
}

pub(crate) unsafe extern "C" fn am_short_iov(ep: ucx::Ep, id: u8, iov: *const Iov, count: usize) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours; nothing calls back; UCX's vector.
        unsafe { send_parts(Ep::of(ep), &am(id), iov, count) }
    })
}

/// # Safety
/// `iov` must be `count` valid parts.
unsafe fn send_parts(e: &mut Ep, head: &[u8], iov: *const Iov, count: usize) -> Status {
    if let Err(status) = e.open() {
        return status;
    }
    // SAFETY: the caller's promise; all is read before the return.
    let Some((body, len)) = (unsafe { spans(iov, count) }) else { return ucx::UCS_ERR_INVALID_PARAM };
    if head.len() - HEAD + len > SEGMENT {
        return ucx::UCS_ERR_EXCEEDS_LIMIT;
    }
    // SAFETY: an endpoint's interface outlives it.
    match unsafe { (*e.iface).link.send(e.peer, head, &body, 0, len) } {
        Ok(_) => ucx::UCS_OK,
        Err(why) => e.refused(why),
    }
}

pub(crate) unsafe extern "C" fn am_bcopy(
    ep: ucx::Ep,
    id: u8,
    pack: PackFn,
    arg: *mut c_void,
    _flags: c_uint,
) -> isize {
    guard(|| {
        // SAFETY: an endpoint of ours. UCX's function writes at most what `query` says it may, and
        // calls nothing of ours.
        let sent = unsafe {
            let e = Ep::of(ep);
            if let Err(status) = e.open() {
                return status.into();
            }
            (*e.iface).link.send_packed(e.peer, &am(id), SEGMENT, |to| pack(to.cast(), arg))
        };
        match sent {
            Ok(n) => n as isize,
            // SAFETY: as above.
            Err(why) => unsafe { Ep::of(ep) }.refused(why).into(),
        }
    })
}

/// The bytes are copied at once, so this never has to wait for a completion.
pub(crate) unsafe extern "C" fn am_zcopy(
    ep: ucx::Ep,
    id: u8,
    header: *const c_void,
    header_length: c_uint,
    iov: *const Iov,
    count: usize,
    _flags: c_uint,
    _comp: *mut Completion,
) -> Status {
    guard(|| {
        let n = header_length as usize;
        if n > MAX_HEADER {
            return ucx::UCS_ERR_EXCEEDS_LIMIT;
        }
        let mut head = [0; HEAD + MAX_HEADER];
        head[..HEAD].copy_from_slice(&am(id));
        // SAFETY: UCX's header, which is not longer than the array; the rest as in `am_short_iov`.
        unsafe {
            head.as_mut_ptr().add(HEAD).copy_from_nonoverlapping(header.cast(), n);
            send_parts(Ep::of(ep), &head[..HEAD + n], iov, count)
        }
    })
}
