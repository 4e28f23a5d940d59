//! Remote memory: fi_rma(3).

use engine::{Iov, OpFlags, Rma, RmaIov};
use hmem::total;
use libc::{c_void, iovec};
use libfabric_sys as fi;

use super::endpoint::EpFid;
use super::flags::How;
use super::iov::{remote, segment, span, spans};
use super::post::{self, cq_data, ctx};
use crate::errno::Errno;
use crate::ffi::{arg, guard, obj};

pub(super) static OPS: fi::fi_ops_rma = fi::fi_ops_rma {
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
    ..fi::NO_OPS_RMA
};

/// Where remote memory is: whose, at what offset or address, under what key.
type There = (fi::fi_addr_t, u64, u64);

/// One buffer, read into or written from.
///
/// # Safety
/// `ep` is NULL or a live fid; the buffer is as [`span`] demands.
#[inline(always)]
unsafe fn one(
    ep: *mut fi::fid_ep,
    write: bool,
    (buf, len): (*const c_void, usize),
    data: Option<u64>,
    (to, addr, key): There,
    context: *mut c_void,
    how: How,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (ep, iov) = unsafe { (obj::<EpFid, _>(ep)?, [span(buf, len)]) };
    let remote = [segment(addr, len, key)];
    let (ctx, flags) = (ctx(context), OpFlags::empty());
    post::rma(ep, Rma { to, write, iov: &iov, remote: &remote, data, ctx, flags }, how)
}

/// Several buffers, one stretch of remote memory.
///
/// # Safety
/// `ep` is NULL or a live fid; the vector is as [`spans`] demands.
unsafe fn several(
    ep: *mut fi::fid_ep,
    write: bool,
    (iov, count): (*const iovec, usize),
    (to, addr, key): There,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (ep, iov) = unsafe { (obj::<EpFid, _>(ep)?, spans(iov, count)?) };
    let remote = [segment(addr, total(&iov), key)];
    let (data, ctx, flags) = (None, ctx(context), OpFlags::empty());
    post::rma(ep, Rma { to, write, iov: &iov, remote: &remote, data, ctx, flags }, How::Default)
}

/// Both sides of a `struct fi_msg_rma`.
///
/// # Safety
/// Its vectors are as [`spans`] and [`remote`] demand.
pub(super) unsafe fn sides(m: &fi::fi_msg_rma) -> Result<(Iov, RmaIov), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let iov = spans(m.msg_iov, m.iov_count)?;
        let there = remote(m.rma_iov, m.rma_iov_count, total(&iov))?;
        Ok((iov, there))
    }
}

/// Everything in a message.
///
/// # Safety
/// `ep` is NULL or a live fid; `msg` is NULL or valid, its vectors as [`sides`] demands.
unsafe fn whole(ep: *mut fi::fid_ep, write: bool, msg: *const fi::fi_msg_rma, raw: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (ep, m) = unsafe { (obj::<EpFid, _>(ep)?, arg(msg)?) };
    // SAFETY: the caller's promise.
    let (iov, remote) = unsafe { sides(m) }?;
    let op = Rma {
        to: m.addr,
        write,
        iov: &iov,
        remote: &remote,
        data: cq_data(raw, m.data).filter(|_| write),
        ctx: ctx(m.context),
        flags: OpFlags::empty(),
    };
    post::rma(ep, op, How::Flags(raw))
}

unsafe extern "C" fn read(
    ep: *mut fi::fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let buf = (buf.cast_const(), len);
    // SAFETY: fi_read(3): a live endpoint, and a buffer that stays until it completes.
    guard(|| unsafe { one(ep, false, buf, None, (from, addr, key), context, How::Default) })
}

unsafe extern "C" fn readv(
    ep: *mut fi::fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_readv(3): a live endpoint, a vector, and buffers that stay until it completes.
    guard(|| unsafe { several(ep, false, (iov, count), (from, addr, key), context) })
}

unsafe extern "C" fn readmsg(ep: *mut fi::fid_ep, msg: *const fi::fi_msg_rma, flags: u64) -> isize {
    // SAFETY: fi_readmsg(3): a live endpoint, a message, and buffers that stay until it completes.
    guard(|| unsafe { whole(ep, false, msg, flags) })
}

unsafe extern "C" fn write(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_write(3): a live endpoint, and a buffer that stays until it completes.
    guard(|| unsafe { one(ep, true, (buf, len), None, (to, addr, key), context, How::Default) })
}

unsafe extern "C" fn writev(
    ep: *mut fi::fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_writev(3): a live endpoint, a vector, and buffers that stay until it completes.
    guard(|| unsafe { several(ep, true, (iov, count), (to, addr, key), context) })
}

unsafe extern "C" fn writemsg(ep: *mut fi::fid_ep, msg: *const fi::fi_msg_rma, flags: u64) -> isize {
    // SAFETY: fi_writemsg(3): a live endpoint, a message, and buffers that stay until it completes.
    guard(|| unsafe { whole(ep, true, msg, flags) })
}

unsafe extern "C" fn writedata(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let there = (to, addr, key);
    // SAFETY: fi_writedata(3): as for `write`.
    guard(|| unsafe { one(ep, true, (buf, len), Some(data), there, context, How::Default) })
}

unsafe extern "C" fn inject(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let (there, none) = ((to, addr, key), std::ptr::null_mut());
    // SAFETY: fi_inject_write(3): a live endpoint, and a buffer that stays until the call returns,
    // which is all the engine needs of an injected one.
    guard(|| unsafe { one(ep, true, (buf, len), None, there, none, How::Inject) })
}

unsafe extern "C" fn injectdata(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let (there, none) = ((to, addr, key), std::ptr::null_mut());
    // SAFETY: fi_inject_writedata(3): as for `inject`.
    guard(|| unsafe { one(ep, true, (buf, len), Some(data), there, none, How::Inject) })
}
