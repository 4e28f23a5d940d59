//! Collective operations: fi_collective(3).

mod join;
mod query;

use engine::{Collective, CollectiveKind as Kind, GroupId};
use hmem::{Datatype, Span};
use libc::c_void;
use libfabric_sys as fi;

use super::endpoint::EpFid;
use super::flags::How;
use super::iov::span;
use super::post::ctx;
use crate::errno::Errno;
use crate::ffi::{arg, guard, obj};
pub(super) use join::join;
pub(crate) use query::query_collective;
use query::{datatype_of, kind_of, operator_of};

pub(super) static OPS: fi::fi_ops_collective = fi::fi_ops_collective {
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(alltoall),
    allreduce: Some(allreduce),
    allgather: Some(allgather),
    reduce_scatter: Some(reduce_scatter),
    reduce: Some(reduce),
    scatter: Some(scatter),
    gather: Some(gather),
    msg: Some(msg),
    barrier2: Some(barrier2),
    ..fi::NO_OPS_COLLECTIVE
};

/// What a call names.
struct Call {
    kind: Kind,
    /// The two buffers; a broadcast has the second alone.
    buffers: [*const c_void; 2],
    count: usize,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    /// The group's address, and the root's.
    to: (fi::fi_addr_t, fi::fi_addr_t),
    context: *mut c_void,
}

/// Where there is no root.
const NO_ROOT: fi::fi_addr_t = fi::FI_ADDR_UNSPEC;

/// A buffer of so many bytes.
///
/// # Safety
/// As for [`span`].
unsafe fn buffer(at: *const c_void, len: usize) -> Result<Span, Errno> {
    match len {
        0 => Ok(Span::EMPTY),
        _ if at.is_null() => Err(Errno::INVAL),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { span(at, len) }),
    }
}

/// Posts an operation.
///
/// # Safety
/// `ep` is NULL or a live fid. The buffers that this member has in the operation are valid until that
/// completes.
unsafe fn post(ep: *mut fi::fid_ep, call: &Call, how: How) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let ep = unsafe { obj::<EpFid, _>(ep) }?;
    let live = ep.live()?;
    let group = GroupId::of(call.to.0).ok_or(Errno::INVAL)?;
    let (flags, triggered) = ep.transmit(how, live.tx_always, 0)?;
    if triggered || flags.contains(engine::OpFlags::FENCE) {
        return Err(Errno::OPNOTSUPP);
    }
    let barrier = call.kind == Kind::Barrier;
    let datatype = if barrier { Datatype::Uint8 } else { datatype_of(call.datatype)? };
    let op = if call.kind.reduces() { Some(operator_of(call.op, datatype)?) } else { None };
    let mut op = Collective {
        kind: call.kind,
        root: call.to.1,
        count: if barrier { 0 } else { call.count },
        datatype,
        op,
        input: Span::EMPTY,
        result: Span::EMPTY,
        ctx: ctx(call.context),
        flags,
    };
    let mut engine = ep.shared().lock();
    let unknown = |err| if err == engine::Error::NotFound { Errno::INVAL } else { Errno::from(err) };
    let (input, result) = engine.collective_lengths(live.ep, group, &op).map_err(unknown)?;
    // SAFETY: the caller's promise.
    (op.input, op.result) = unsafe { (buffer(call.buffers[0], input)?, buffer(call.buffers[1], result)?) };
    engine.collective(live.ep, group, &op).map_err(unknown)
}

/// Defines calls that have two buffers.
macro_rules! calls {
    ($($name:ident, $kind:ident $(, root $root:ident)? $(, op $op:ident)?;)*) => {$(
        #[allow(clippy::too_many_arguments, reason = "libfabric's signature")]
        unsafe extern "C" fn $name(
            ep: *mut fi::fid_ep,
            buf: *const c_void,
            count: usize,
            _desc: *mut c_void,
            result: *mut c_void,
            _result_desc: *mut c_void,
            coll_addr: fi::fi_addr_t,
            $($root: fi::fi_addr_t,)?
            datatype: fi::fi_datatype,
            $($op: fi::fi_op,)?
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            guard(|| {
                #[allow(unused_mut, unused_assignments)]
                let (mut root_addr, mut by) = (NO_ROOT, fi::FI_NOOP);
                $(root_addr = $root;)?
                $(by = $op;)?
                let (kind, to, op) = (Kind::$kind, (coll_addr, root_addr), by);
                let call = Call { kind, buffers: [buf, result], count, datatype, op, to, context };
                // SAFETY: fi_collective(3): a live fid, and the buffers of this member.
                unsafe { post(ep, &call, How::Flags(flags)) }
            })
        }
    )*};
}

calls! {
    alltoall, AllToAll;
    allgather, AllGather;
    allreduce, AllReduce, op op;
    reduce_scatter, ReduceScatter, op op;
    reduce, Reduce, root root, op op;
    scatter, Scatter, root root;
    gather, Gather, root root;
}

#[allow(clippy::too_many_arguments, reason = "libfabric's signature")]
unsafe extern "C" fn broadcast(
    ep: *mut fi::fid_ep,
    buf: *mut c_void,
    count: usize,
    _desc: *mut c_void,
    coll_addr: fi::fi_addr_t,
    root_addr: fi::fi_addr_t,
    datatype: fi::fi_datatype,
    flags: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let (kind, op, to) = (Kind::Broadcast, fi::FI_NOOP, (coll_addr, root_addr));
        let call = Call { kind, buffers: [std::ptr::null(), buf], count, datatype, op, to, context };
        // SAFETY: fi_collective(3): a live fid, and the buffer of this member.
        unsafe { post(ep, &call, How::Flags(flags)) }
    })
}

/// A barrier, by flags of the endpoint or of the call.
///
/// # Safety
/// `ep` is NULL or a live fid.
unsafe fn enter(ep: *mut fi::fid_ep, group: fi::fi_addr_t, context: *mut c_void, how: How) -> isize {
    guard(|| {
        let call = Call {
            kind: Kind::Barrier,
            buffers: [std::ptr::null(); 2],
            count: 0,
            datatype: fi::FI_VOID,
            op: fi::FI_NOOP,
            to: (group, NO_ROOT),
            context,
        };
        // SAFETY: the caller's promise, and there is no buffer.
        unsafe { post(ep, &call, how) }
    })
}

unsafe extern "C" fn barrier(ep: *mut fi::fid_ep, group: fi::fi_addr_t, context: *mut c_void) -> isize {
    // SAFETY: fi_collective(3): a live fid.
    unsafe { enter(ep, group, context, How::Default) }
}

unsafe extern "C" fn barrier2(
    ep: *mut fi::fid_ep,
    group: fi::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    unsafe { enter(ep, group, context, How::Flags(flags)) }
}

/// All in a message: one buffer on each side.
unsafe extern "C" fn msg(
    ep: *mut fi::fid_ep,
    msg: *const fi::fi_msg_collective,
    resultv: *mut fi::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: fi_collective(3): a message.
        let m = unsafe { arg(msg) }?;
        let kind = kind_of(m.coll)?;
        if m.iov_count > 1 || result_count > 1 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the message's vectors have as many entries as it says.
        let first = |v: *const fi::fi_ioc, n: usize| unsafe {
            if n == 0 || v.is_null() { (std::ptr::null(), 0) } else { ((*v).addr.cast_const(), (*v).count) }
        };
        let (buf, count) = first(m.msg_iov, m.iov_count);
        let (result, slice) = first(resultv, result_count);
        // Of a root's buffer and of the others' the shorter one is the slice.
        let shortest =
            [(buf, count), (result, slice)].into_iter().filter(|(at, _)| !at.is_null()).map(|(_, n)| n);
        let count = shortest.min().unwrap_or(0);
        let buffers = if kind == Kind::Broadcast { [std::ptr::null(), buf] } else { [buf, result] };
        let (to, context) = ((m.coll_addr, m.root_addr), m.context);
        let call = Call { kind, buffers, count, datatype: m.datatype, op: m.op, to, context };
        // SAFETY: fi_collective(3): a live fid, and the buffers of this member.
        unsafe { post(ep, &call, How::Flags(flags)) }
    })
}
