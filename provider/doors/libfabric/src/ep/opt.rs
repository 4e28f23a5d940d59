//! Options and other things an endpoint is asked: fi_endpoint(3).

use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::context::SrxFid;
use super::endpoint::EpFid;
use super::options::{HasOptions, RawValue, Value};
use super::post::ctx;
use super::receiver::Receiver;
use crate::errno::Errno;
use crate::ffi::{arg, guard, obj};

pub(super) static EP_OPS: fi::fi_ops_ep = fi::fi_ops_ep {
    cancel: Some(cancel_of_endpoint),
    getopt: Some(getopt::<EpFid>),
    setopt: Some(setopt::<EpFid>),
    rx_size_left: Some(rx_size_left),
    tx_size_left: Some(tx_size_left),
    export_xpu: Some(super::bind::export_xpu),
    ..fi::NO_OPS_EP
};

pub(super) static SRX_OPS: fi::fi_ops_ep = fi::fi_ops_ep {
    cancel: Some(cancel_of_context),
    getopt: Some(getopt::<SrxFid>),
    setopt: Some(setopt::<SrxFid>),
    ..fi::NO_OPS_EP
};

/// Stores a value and its length where the application asked.
///
/// # Safety
/// `to` is NULL or valid for `*len` bytes of writes; `len` is NULL or valid.
unsafe fn answer(value: Value, to: *mut c_void, len: *mut usize) -> Result<(), Errno> {
    let bytes: &[u8] = match &value {
        Value::Size(n) => &n.to_ne_bytes(),
        Value::Int(n) => &n.to_ne_bytes(),
    };
    // SAFETY: the caller's promise.
    let room = unsafe { *arg(len)? };
    // SAFETY: `arg` has seen that it is not NULL; the caller promised that it is valid.
    unsafe { len.write(bytes.len()) };
    if room < bytes.len() {
        return Err(Errno::TOOSMALL);
    }
    if to.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `to` has `room` bytes by the caller's promise, and that is enough.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Ok(())
}

unsafe extern "C" fn getopt<T: HasOptions + crate::ffi::Fid>(
    fid: fi::fid_t,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: fi_getopt(3): a live fid.
        let of = unsafe { obj::<T, _>(fid) }?;
        if level != fi::FI_OPT_ENDPOINT {
            return Err(Errno::NOPROTOOPT);
        }
        let value = of.get(name)?;
        // SAFETY: fi_getopt(3): a buffer, and how long it is.
        unsafe { answer(value, to, len) }
    })
}

unsafe extern "C" fn setopt<T: HasOptions + crate::ffi::Fid>(
    fid: fi::fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: fi_setopt(3): a live fid.
        let of = unsafe { obj::<T, _>(fid) }?;
        if level != fi::FI_OPT_ENDPOINT {
            return Err(Errno::NOPROTOOPT);
        }
        // SAFETY: fi_setopt(3): `len` bytes at `value`, during the call.
        of.set(name, &unsafe { RawValue::new(value, len) })
    })
}

unsafe extern "C" fn cancel_of_endpoint(fid: fi::fid_t, context: *mut c_void) -> isize {
    guard(|| {
        // SAFETY: fi_cancel(3): a live fid.
        let ep = unsafe { obj::<EpFid, _>(fid) }?;
        let live = ep.live()?.ep;
        Ok(ep.endpoint.shared.cancel(live, ctx(context))?)
    })
}

unsafe extern "C" fn cancel_of_context(fid: fi::fid_t, context: *mut c_void) -> isize {
    guard(|| {
        // SAFETY: fi_cancel(3): a live fid.
        let rx = unsafe { obj::<SrxFid, _>(fid) }?.rx()?;
        Ok(rx.shared.lock().cancel(rx.id, ctx(context))?)
    })
}

unsafe extern "C" fn tx_size_left(ep: *mut fi::fid_ep) -> isize {
    guard(|| {
        // SAFETY: fi_tx_size_left(3): a live endpoint.
        let ep = unsafe { obj::<EpFid, _>(ep) }?;
        ep.live().map(|_| ep.endpoint.attrs.tx_size)
    })
}

unsafe extern "C" fn rx_size_left(ep: *mut fi::fid_ep) -> isize {
    guard(|| {
        // SAFETY: fi_rx_size_left(3): a live endpoint.
        let ep = unsafe { obj::<EpFid, _>(ep) }?;
        ep.live().map(|_| ep.endpoint.attrs.rx_size)
    })
}
