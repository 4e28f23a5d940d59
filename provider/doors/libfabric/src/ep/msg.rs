//! Messages: fi_msg(3).

use engine::{OpFlags, Send};
use libc::{c_void, iovec};
use libfabric_sys as fi;

use super::context::SrxFid;
use super::endpoint::EpFid;
use super::flags::How;
use super::iov::{span, span_again, spans};
use super::post::{self, cq_data, ctx};
use super::receiver::Receiver;
use crate::errno::Errno;
use crate::ffi::{arg, guard, obj, this};

pub(super) static OPS: fi::fi_ops_msg = fi::fi_ops_msg {
    recv: Some(recv::<EpFid>),
    recvv: Some(recvv::<EpFid>),
    recvmsg: Some(recvmsg::<EpFid>),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
    ..fi::NO_OPS_MSG
};

pub(super) static SRX_OPS: fi::fi_ops_msg = fi::fi_ops_msg {
    recv: Some(recv::<SrxFid>),
    recvv: Some(recvv::<SrxFid>),
    recvmsg: Some(recvmsg::<SrxFid>),
    ..fi::NO_OPS_MSG
};

/// A send of one buffer.
///
/// # Safety
/// `ep` is NULL or a live fid; the buffer is as [`span`] demands.
#[inline(always)]
unsafe fn one(
    ep: *mut fi::fid_ep,
    (buf, len): (*const c_void, usize),
    data: Option<u64>,
    to: fi::fi_addr_t,
    context: *mut c_void,
    how: How,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (fid, span) = unsafe { (this::<EpFid, _>(ep)?, span(buf, len)) };
    let op = Send { to, iov: &[], tag: None, data, ctx: ctx(context), flags: OpFlags::empty() };
    if post::send_plain(fid, span, op, how) {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { one_of_any(ep, (buf, len), data, to, context, how) }
}

/// Sends one message that is not plain.
///
/// # Safety
/// As for [`one`].
#[inline(never)]
unsafe fn one_of_any(
    ep: *mut fi::fid_ep,
    (buf, len): (*const c_void, usize),
    data: Option<u64>,
    to: fi::fi_addr_t,
    context: *mut c_void,
    how: How,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (ep, iov) = unsafe { (obj::<EpFid, _>(ep)?, [span(buf, len)]) };
    let op = Send { to, iov: &iov, tag: None, data, ctx: ctx(context), flags: OpFlags::empty() };
    post::send(ep, op, how)
}

unsafe extern "C" fn send(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi::fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_send(3): a live endpoint, and a buffer that stays until it completes.
    guard(|| unsafe { one(ep, (buf, len), None, to, context, How::Default) })
}

unsafe extern "C" fn senddata(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi::fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_senddata(3): as for `send`.
    guard(|| unsafe { one(ep, (buf, len), Some(data), to, context, How::Default) })
}

unsafe extern "C" fn inject(ep: *mut fi::fid_ep, buf: *const c_void, len: usize, to: fi::fi_addr_t) -> isize {
    // SAFETY: fi_inject(3): a live endpoint, and a buffer that stays until the call returns, which
    // is all the engine needs of an injected one.
    guard(|| unsafe { one(ep, (buf, len), None, to, std::ptr::null_mut(), How::Inject) })
}

unsafe extern "C" fn injectdata(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi::fi_addr_t,
) -> isize {
    // SAFETY: fi_injectdata(3): as for `inject`.
    guard(|| unsafe { one(ep, (buf, len), Some(data), to, std::ptr::null_mut(), How::Inject) })
}

unsafe extern "C" fn sendv(
    ep: *mut fi::fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi::fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: fi_sendv(3): a live endpoint, a vector, and buffers that stay until it completes.
        let (ep, iov) = unsafe { (obj::<EpFid, _>(ep)?, spans(iov, count)?) };
        let (tag, data, flags) = (None, None, OpFlags::empty());
        let op = Send { to, iov: &iov, tag, data, ctx: ctx(context), flags };
        post::send(ep, op, How::Default)
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fi::fid_ep, msg: *const fi::fi_msg, flags: u64) -> isize {
    guard(|| {
        // SAFETY: fi_sendmsg(3): a live endpoint and a message.
        let (ep, m) = unsafe { (obj::<EpFid, _>(ep)?, arg(msg)?) };
        // SAFETY: fi_sendmsg(3): its vector, and buffers that stay until it completes.
        let iov = unsafe { spans(m.msg_iov, m.iov_count) }?;
        let op = Send {
            to: m.addr,
            iov: &iov,
            tag: None,
            data: cq_data(flags, m.data),
            ctx: ctx(m.context),
            flags: OpFlags::empty(),
        };
        post::send(ep, op, How::Flags(flags))
    })
}

unsafe extern "C" fn recv<R: Receiver>(
    ep: *mut fi::fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: fi::fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: fi_recv(3): a live receiver, and a buffer that stays until it completes.
        let (to, span) = unsafe { (this::<R, _>(ep)?, span(buf, len)) };
        match post::recv_one(to, src, None, span, ctx(context)) {
            Some(posted) => posted,
            None => {
                // SAFETY: as above.
                let iov = [unsafe { span_again(buf, len) }];
                post::recv(to, src, None, &iov, ctx(context))
            }
        }
    })
}

unsafe extern "C" fn recvv<R: Receiver>(
    ep: *mut fi::fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: fi::fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: fi_recvv(3): a live receiver, a vector, and buffers that stay until it completes.
        let (to, iov) = unsafe { (obj::<R, _>(ep)?, spans(iov, count)?) };
        post::recv(to, src, None, &iov, ctx(context))
    })
}

unsafe extern "C" fn recvmsg<R: Receiver>(ep: *mut fi::fid_ep, msg: *const fi::fi_msg, flags: u64) -> isize {
    guard(|| {
        // SAFETY: fi_recvmsg(3): a live receiver and a message.
        let (to, m) = unsafe { (obj::<R, _>(ep)?, arg(msg)?) };
        // SAFETY: fi_recvmsg(3): its vector, and buffers that stay until it completes.
        let iov = || unsafe { spans(m.msg_iov, m.iov_count) };
        post::recvmsg(to, m.addr, None, iov, ctx(m.context), flags)
    })
}
