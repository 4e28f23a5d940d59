//! What the interface says of itself. UCP chooses among transports, and among the operations of
//! one, by these figures; they are medians of what was measured on several machines, rounded.

use ucx_sys::{self as ucx, AtomicCap, Bandwidth, IfaceAttr, Linear, PerfAttr, RmaCap};

/// Longest message that goes through the ring: active messages, and gets by way of a callback.
/// 8 KiB and UCP's header.
pub(crate) const SEGMENT: usize = (8 << 10) + 64;
/// Longest header of a zero-copy active message.
pub(crate) const MAX_HEADER: usize = 256;
/// Most parts of a vectored operation.
pub(crate) const MAX_IOV: usize = 16;

/// One way, besides the overheads, and what a message costs either side, in seconds.
const LATENCY: f64 = 70e-9;
const OVERHEAD: f64 = 10e-9;
/// Copying into the ring (UCP adds the copy out of it), and one direct copy (a mapped window, or
/// CMA), in bytes a second.
const RING_BANDWIDTH: f64 = 20.0e9;
const COPY_BANDWIDTH: f64 = 15.4e9;
/// Of a system call that copies.
const CMA_OVERHEAD: f64 = 1.2e-6;
/// Of one with what UCP's rendezvous adds to it, and how fast both sides copy at best (many of 1 MiB, on a
/// machine of the quicker sort). UCP adds up what transports are said to carry at the same time, and would
/// leave part of each message to its own cma, for which one side alone copies, on a core that copies already.
/// From four times cma's figure on it does not. The overhead is such that the rendezvous begins where it
/// begins to be quicker.
const RENDEZVOUS_OVERHEAD: f64 = 4.9e-6;
const SHARED_BANDWIDTH: f64 = 50.0e9;
/// A vectored active message is copied as well: no gain over the others.
const VECTOR_OVERHEAD: f64 = 50e-9;
const VECTOR_BANDWIDTH: f64 = 8.0e9;

/// Fills in the attributes of an interface that reaches any memory (`cma`), or windows only.
pub(crate) fn fill(attr: &mut IfaceAttr, cma: bool, device_addr: usize, iface_addr: usize) {
    let all = RmaCap {
        max_short: u32::MAX as usize,
        max_bcopy: SEGMENT,
        min_zcopy: 0,
        max_zcopy: usize::MAX,
        opt_zcopy_align: 1,
        align_mtu: 1,
        max_iov: MAX_IOV,
    };
    attr.put = all;
    attr.get = RmaCap { max_short: 0, ..all };
    attr.am.max_short = SEGMENT;
    attr.am.max_bcopy = SEGMENT;
    attr.am.max_zcopy = SEGMENT;
    attr.am.opt_zcopy_align = 1;
    attr.am.align_mtu = 1;
    attr.am.max_hdr = MAX_HEADER;
    attr.am.max_iov = MAX_IOV;
    attr.device_addr_len = device_addr;
    attr.iface_addr_len = iface_addr;
    attr.flags = ucx::UCT_IFACE_FLAG_AM_SHORT
        | ucx::UCT_IFACE_FLAG_AM_BCOPY
        | ucx::UCT_IFACE_FLAG_AM_ZCOPY
        | ucx::UCT_IFACE_FLAG_PENDING
        | ucx::UCT_IFACE_FLAG_PUT_SHORT
        | ucx::UCT_IFACE_FLAG_PUT_BCOPY
        | ucx::UCT_IFACE_FLAG_GET_BCOPY
        | ucx::UCT_IFACE_FLAG_ATOMIC_CPU
        | ucx::UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE
        | ucx::UCT_IFACE_FLAG_EP_CHECK
        | ucx::UCT_IFACE_FLAG_CONNECT_TO_IFACE
        | ucx::UCT_IFACE_FLAG_CB_SYNC;
    if cma {
        attr.flags |= ucx::UCT_IFACE_FLAG_PUT_ZCOPY | ucx::UCT_IFACE_FLAG_GET_ZCOPY;
    }
    attr.event_flags =
        ucx::UCT_IFACE_FLAG_EVENT_SEND_COMP | ucx::UCT_IFACE_FLAG_EVENT_RECV | ucx::UCT_IFACE_FLAG_EVENT_FD;
    let post =
        [ucx::UCT_ATOMIC_OP_ADD, ucx::UCT_ATOMIC_OP_AND, ucx::UCT_ATOMIC_OP_OR, ucx::UCT_ATOMIC_OP_XOR]
            .iter()
            .fold(0, |bits, op| bits | 1u64 << op);
    let fetch = post | 1 << ucx::UCT_ATOMIC_OP_SWAP | 1 << ucx::UCT_ATOMIC_OP_CSWAP;
    attr.atomic32 = AtomicCap { op_flags: post, fop_flags: fetch };
    attr.atomic64 = attr.atomic32;
    attr.overhead = OVERHEAD;
    attr.latency = Linear { c: LATENCY, m: 0.0 };
    attr.bandwidth = Bandwidth { dedicated: COPY_BANDWIDTH, shared: 0.0 };
}

/// Of a copy by a device: what it takes the CPU to start one, and until one of a few bytes is over besides.
const DEVICE_OVERHEAD: f64 = 4.0e-6;
const DEVICE_LATENCY: f64 = 1.8e-6;

/// Fills in the attributes of an interface for device memory, which moves so many bytes a second.
pub(crate) fn fill_device(attr: &mut IfaceAttr, bandwidth: f64, device_addr: usize, iface_addr: usize) {
    attr.put = RmaCap {
        max_zcopy: usize::MAX,
        opt_zcopy_align: 1,
        align_mtu: 1,
        max_iov: MAX_IOV,
        ..RmaCap::default()
    };
    attr.get = attr.put;
    attr.device_addr_len = device_addr;
    attr.iface_addr_len = iface_addr;
    attr.flags = ucx::UCT_IFACE_FLAG_PENDING
        | ucx::UCT_IFACE_FLAG_PUT_ZCOPY
        | ucx::UCT_IFACE_FLAG_GET_ZCOPY
        | ucx::UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE
        | ucx::UCT_IFACE_FLAG_CONNECT_TO_IFACE;
    attr.event_flags =
        ucx::UCT_IFACE_FLAG_EVENT_SEND_COMP | ucx::UCT_IFACE_FLAG_EVENT_RECV | ucx::UCT_IFACE_FLAG_EVENT_FD;
    attr.overhead = DEVICE_OVERHEAD;
    attr.latency = Linear { c: DEVICE_LATENCY, m: 0.0 };
    attr.bandwidth = Bandwidth { dedicated: 0.0, shared: bandwidth };
}

/// Changes an estimate, made of the attributes above, to what this operation is like.
pub(crate) fn refine(perf: &mut PerfAttr) -> Option<Bandwidth> {
    let (overhead, bandwidth) = match perf.operation {
        ucx::UCT_EP_OP_AM_SHORT | ucx::UCT_EP_OP_AM_BCOPY => (None, RING_BANDWIDTH),
        ucx::UCT_EP_OP_AM_ZCOPY => (Some(VECTOR_OVERHEAD), VECTOR_BANDWIDTH),
        ucx::UCT_EP_OP_PUT_ZCOPY | ucx::UCT_EP_OP_GET_ZCOPY => (Some(RENDEZVOUS_OVERHEAD), SHARED_BANDWIDTH),
        // By way of a callback: copied twice.
        ucx::UCT_EP_OP_PUT_BCOPY | ucx::UCT_EP_OP_GET_BCOPY => (Some(CMA_OVERHEAD), COPY_BANDWIDTH / 2.0),
        _ => return None,
    };
    if let (Some(overhead), true) =
        (overhead, perf.field_mask & ucx::UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD != 0)
    {
        perf.send_pre_overhead = overhead;
    }
    let bandwidth = Bandwidth { dedicated: bandwidth, shared: 0.0 };
    if perf.field_mask & ucx::UCT_PERF_ATTR_FIELD_BANDWIDTH != 0 {
        perf.bandwidth = bandwidth;
    }
    Some(bandwidth)
}
