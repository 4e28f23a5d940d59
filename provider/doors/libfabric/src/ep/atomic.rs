//! Atomics: fi_atomic(3).

use engine::{Atomic, FiAddr, Iov, RmaIov, WorkOp};
use hmem::{AtomicOp, Class, Datatype, total};
use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::endpoint::EpFid;
use super::flags::How;
use super::iov::{element, elements, remote_elements, segment};
use super::post::{cq_data, ctx};
use super::trigger;
use crate::atomic::{MAX_BYTES, query};
use crate::errno::Errno;
use crate::ffi::{arg, guard, obj, put};

pub(super) static OPS: fi::fi_ops_atomic = fi::fi_ops_atomic {
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
    ..fi::NO_OPS_ATOMIC
};

/// An atomic but for where it goes, translated and found sound.
#[derive(Debug)]
pub(super) struct Parts {
    pub op: AtomicOp,
    pub datatype: Datatype,
    pub operand: Iov,
    pub compare: Iov,
    pub result: Iov,
    pub remote: RmaIov,
}

impl Parts {
    /// Every vector the operation has is as long as the memory it works on, and that is not too
    /// long.
    fn sound(self, class: Class, len: usize) -> Result<Parts, Errno> {
        let reads = self.op == AtomicOp::AtomicRead;
        let fits = (reads || total(&self.operand) == len)
            && (class != Class::Compare || total(&self.compare) == len)
            && (class == Class::Base || total(&self.result) == len);
        match fits {
            false => Err(Errno::INVAL),
            true if len > MAX_BYTES => Err(Errno::MSGSIZE),
            true => Ok(self),
        }
    }
}

/// Operand, compare and result of a call with one buffer each; NULL where its class has none.
type Buffers = [*const c_void; 3];
/// The same for a call with vectors.
type Vectors = [(*const fi::fi_ioc, usize); 3];
const NO_VECTOR: (*const fi::fi_ioc, usize) = (std::ptr::null(), 0);

/// Reads three vectors, leaving out those that the operation has no use for.
///
/// # Safety
/// Each of those in use is as [`elements`] demands.
unsafe fn operands(
    class: Class,
    op: AtomicOp,
    datatype: Datatype,
    [operand, compare, result]: Vectors,
) -> Result<[Iov; 3], Errno> {
    let read = |used: bool, (v, n)| match used {
        // SAFETY: the caller's promise.
        true => unsafe { elements(v, n, datatype) },
        false => Ok(Iov::new()),
    };
    Ok([
        read(op != AtomicOp::AtomicRead, operand)?,
        read(class == Class::Compare, compare)?,
        read(class != Class::Base, result)?,
    ])
}

/// Reads a message.
///
/// # Safety
/// All vectors its class uses are as [`elements`] and [`remote_elements`] demand.
pub(super) unsafe fn parts(
    class: Class,
    m: &fi::fi_msg_atomic,
    compare: (*const fi::fi_ioc, usize),
    result: (*const fi::fi_ioc, usize),
) -> Result<Parts, Errno> {
    let (op, datatype, _) = query(m.datatype, m.op, class)?;
    let vectors = [(m.msg_iov, m.iov_count), compare, result];
    // SAFETY: the caller's promise.
    let ([operand, compare, result], (remote, len)) = unsafe {
        let here = operands(class, op, datatype, vectors)?;
        (here, remote_elements(m.rma_iov, m.rma_iov_count, datatype)?)
    };
    Parts { op, datatype, operand, compare, result, remote }.sound(class, len)
}

/// Posts it.
fn post(
    ep: &EpFid,
    to: FiAddr,
    p: Parts,
    data: Option<u64>,
    context: *mut c_void,
    how: How,
) -> Result<(), Errno> {
    let live = ep.live()?;
    let (flags, triggered) = ep.transmit(how, live.tx_always, total(&p.operand))?;
    let ctx = ctx(context);
    let Parts { op, datatype, operand, compare, result, remote } = p;
    if triggered {
        let ep_id = live.ep;
        let work = WorkOp::Atomic {
            ep: ep_id,
            to,
            op,
            datatype,
            operand,
            compare,
            result,
            remote,
            data,
            ctx,
            flags,
        };
        return trigger::defer(ep.shared(), ctx, work);
    }
    let (operand, compare, result, remote) = (&operand[..], &compare[..], &result[..], &remote[..]);
    let op = Atomic { to, op, datatype, operand, compare, result, remote, data, ctx, flags };
    Ok(ep.shared().lock().atomic(live.ep, &op)?)
}

/// Where remote memory is: whose, at what offset or address, under what key.
type There = (fi::fi_addr_t, u64, u64);

/// A call with one buffer each.
///
/// # Safety
/// `ep` is NULL or a live fid; each buffer the class uses is as [`element`] demands.
unsafe fn one(
    ep: *mut fi::fid_ep,
    class: Class,
    (op, datatype): (fi::fi_op, fi::fi_datatype),
    (buffers, count): (Buffers, usize),
    (to, addr, key): There,
    context: *mut c_void,
    how: How,
) -> Result<(), Errno> {
    let (op, datatype, _) = query(datatype, op, class)?;
    let used = [op != AtomicOp::AtomicRead, class == Class::Compare, class != Class::Base];
    let (mut iovs, mut len) = ([const { Iov::new_const() }; 3], 0);
    for ((iov, buf), _) in iovs.iter_mut().zip(buffers).zip(used).filter(|(_, used)| *used) {
        // SAFETY: the caller's promise.
        let span = unsafe { element(buf, count, datatype) }?;
        len = span.len();
        iov.push(span);
    }
    let [operand, compare, result] = iovs;
    let remote = [segment(addr, len, key)].into_iter().collect();
    let p = Parts { op, datatype, operand, compare, result, remote }.sound(class, len)?;
    // SAFETY: the caller's promise.
    let ep = unsafe { obj::<EpFid, _>(ep) }?;
    post(ep, to, p, None, context, how)
}

/// A call with vectors and one stretch of remote memory.
///
/// # Safety
/// `ep` is NULL or a live fid; the vectors are as [`operands`] demands.
unsafe fn several(
    ep: *mut fi::fid_ep,
    class: Class,
    (op, datatype): (fi::fi_op, fi::fi_datatype),
    vectors: Vectors,
    (to, addr, key): There,
    context: *mut c_void,
) -> Result<(), Errno> {
    let (op, datatype, _) = query(datatype, op, class)?;
    // SAFETY: the caller's promise.
    let [operand, compare, result] = unsafe { operands(class, op, datatype, vectors) }?;
    let len = total(if class == Class::Base { &operand } else { &result });
    let remote = [segment(addr, len, key)].into_iter().collect();
    let p = Parts { op, datatype, operand, compare, result, remote }.sound(class, len)?;
    // SAFETY: the caller's promise.
    let ep = unsafe { obj::<EpFid, _>(ep) }?;
    post(ep, to, p, None, context, How::Default)
}

/// A call with everything in a message.
///
/// # Safety
/// `ep` is NULL or a live fid, `msg` NULL or valid; its vectors are as [`parts`] demands.
unsafe fn whole(
    ep: *mut fi::fid_ep,
    class: Class,
    msg: *const fi::fi_msg_atomic,
    compare: (*const fi::fi_ioc, usize),
    result: (*const fi::fi_ioc, usize),
    raw: u64,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (ep, m) = unsafe { (obj::<EpFid, _>(ep)?, arg(msg)?) };
    // SAFETY: the caller's promise.
    let p = unsafe { parts(class, m, compare, result) }?;
    post(ep, m.addr, p, cq_data(raw, m.data), m.context, How::Flags(raw))
}

unsafe extern "C" fn write(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    context: *mut c_void,
) -> isize {
    let (buffers, there) = ([buf, std::ptr::null(), std::ptr::null()], (to, addr, key));
    let (what, how) = ((op, datatype), How::Default);
    // SAFETY: fi_atomic(3): a live endpoint, and a buffer that stays until it completes.
    guard(|| unsafe { one(ep, Class::Base, what, (buffers, count), there, context, how) })
}

unsafe extern "C" fn inject(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    count: usize,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
) -> isize {
    let (buffers, there) = ([buf, std::ptr::null(), std::ptr::null()], (to, addr, key));
    let (what, none, how) = ((op, datatype), std::ptr::null_mut(), How::Inject);
    // SAFETY: fi_inject_atomic(3): a live endpoint, and a buffer that stays until the call returns,
    // which is all the engine needs of an injected one.
    guard(|| unsafe { one(ep, Class::Base, what, (buffers, count), there, none, how) })
}

unsafe extern "C" fn readwrite(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    context: *mut c_void,
) -> isize {
    let (buffers, there) = ([buf, std::ptr::null(), result.cast_const()], (to, addr, key));
    let (what, how) = ((op, datatype), How::Default);
    // SAFETY: fi_fetch_atomic(3): a live endpoint, and buffers that stay until it completes.
    guard(|| unsafe { one(ep, Class::Fetch, what, (buffers, count), there, context, how) })
}

unsafe extern "C" fn compwrite(
    ep: *mut fi::fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    context: *mut c_void,
) -> isize {
    let (buffers, there) = ([buf, compare, result.cast_const()], (to, addr, key));
    let (what, how) = ((op, datatype), How::Default);
    // SAFETY: fi_compare_atomic(3): a live endpoint, and buffers that stay until it completes.
    guard(|| unsafe { one(ep, Class::Compare, what, (buffers, count), there, context, how) })
}

unsafe extern "C" fn writev(
    ep: *mut fi::fid_ep,
    iov: *const fi::fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    context: *mut c_void,
) -> isize {
    let (vectors, there) = ([(iov, count), NO_VECTOR, NO_VECTOR], (to, addr, key));
    // SAFETY: fi_atomicv(3): a live endpoint, a vector, and buffers that stay until it completes.
    guard(|| unsafe { several(ep, Class::Base, (op, datatype), vectors, there, context) })
}

unsafe extern "C" fn readwritev(
    ep: *mut fi::fid_ep,
    iov: *const fi::fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    result: *mut fi::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    context: *mut c_void,
) -> isize {
    let vectors = [(iov, count), NO_VECTOR, (result.cast_const(), result_count)];
    let (what, there) = ((op, datatype), (to, addr, key));
    // SAFETY: fi_fetch_atomicv(3): a live endpoint, vectors, and buffers that stay until it
    // completes.
    guard(|| unsafe { several(ep, Class::Fetch, what, vectors, there, context) })
}

unsafe extern "C" fn compwritev(
    ep: *mut fi::fid_ep,
    iov: *const fi::fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    compare: *const fi::fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: fi::fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    context: *mut c_void,
) -> isize {
    let vectors = [(iov, count), (compare, compare_count), (result.cast_const(), result_count)];
    let (what, there) = ((op, datatype), (to, addr, key));
    // SAFETY: fi_compare_atomicv(3): as for `readwritev`.
    guard(|| unsafe { several(ep, Class::Compare, what, vectors, there, context) })
}

unsafe extern "C" fn writemsg(ep: *mut fi::fid_ep, msg: *const fi::fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: fi_atomicmsg(3): a live endpoint, a message, and buffers that stay until it completes.
    guard(|| unsafe { whole(ep, Class::Base, msg, NO_VECTOR, NO_VECTOR, flags) })
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fi::fid_ep,
    msg: *const fi::fi_msg_atomic,
    result: *mut fi::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = (result.cast_const(), result_count);
    // SAFETY: fi_fetch_atomicmsg(3): as for `writemsg`, with a vector for results.
    guard(|| unsafe { whole(ep, Class::Fetch, msg, NO_VECTOR, result, flags) })
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fi::fid_ep,
    msg: *const fi::fi_msg_atomic,
    compare: *const fi::fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let (compare, result) = ((compare, compare_count), (result.cast_const(), result_count));
    // SAFETY: fi_compare_atomicmsg(3): as for `writemsg`, with two more vectors.
    guard(|| unsafe { whole(ep, Class::Compare, msg, compare, result, flags) })
}

/// Whether a call of this family does that, and on how many elements.
///
/// # Safety
/// `ep` is NULL or a live fid; `count` is NULL or valid for a write.
unsafe fn ask(
    ep: *mut fi::fid_ep,
    class: Class,
    (op, datatype): (fi::fi_op, fi::fi_datatype),
    count: *mut usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { obj::<EpFid, _>(ep) }?;
    let (_, _, answer) = query(datatype, op, class)?;
    // SAFETY: the caller's promise.
    unsafe { put(count, answer.count) }
}

unsafe extern "C" fn writevalid(
    ep: *mut fi::fid_ep,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: fi_atomicvalid(3): a live endpoint, and a place for the count.
    guard(|| unsafe { ask(ep, Class::Base, (op, datatype), count) })
}

unsafe extern "C" fn readwritevalid(
    ep: *mut fi::fid_ep,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: fi_fetch_atomicvalid(3): as above.
    guard(|| unsafe { ask(ep, Class::Fetch, (op, datatype), count) })
}

unsafe extern "C" fn compwritevalid(
    ep: *mut fi::fid_ep,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: fi_compare_atomicvalid(3): as above.
    guard(|| unsafe { ask(ep, Class::Compare, (op, datatype), count) })
}
