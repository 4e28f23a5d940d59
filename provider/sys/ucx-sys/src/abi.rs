//! What has been the same in every UCX since 1.13 (x86-64 and other LP64 systems).

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};

/// `ucs_status_t`: an enum that UCX packs into one byte.
pub type Status = i8;

pub const UCS_OK: Status = 0;
pub const UCS_INPROGRESS: Status = 1;
pub const UCS_ERR_NO_RESOURCE: Status = -2;
pub const UCS_ERR_IO_ERROR: Status = -3;
pub const UCS_ERR_NO_MEMORY: Status = -4;
pub const UCS_ERR_INVALID_PARAM: Status = -5;
pub const UCS_ERR_UNREACHABLE: Status = -6;
pub const UCS_ERR_INVALID_ADDR: Status = -7;
pub const UCS_ERR_BUSY: Status = -15;
pub const UCS_ERR_CANCELED: Status = -16;
pub const UCS_ERR_EXCEEDS_LIMIT: Status = -21;
pub const UCS_ERR_UNSUPPORTED: Status = -22;
pub const UCS_ERR_CONNECTION_RESET: Status = -25;
pub const UCS_ERR_ENDPOINT_TIMEOUT: Status = -80;

pub const UCT_IFACE_FLAG_AM_SHORT: u64 = 1 << 0;
pub const UCT_IFACE_FLAG_AM_BCOPY: u64 = 1 << 1;
pub const UCT_IFACE_FLAG_AM_ZCOPY: u64 = 1 << 2;
pub const UCT_IFACE_FLAG_PENDING: u64 = 1 << 3;
pub const UCT_IFACE_FLAG_PUT_SHORT: u64 = 1 << 4;
pub const UCT_IFACE_FLAG_PUT_BCOPY: u64 = 1 << 5;
pub const UCT_IFACE_FLAG_PUT_ZCOPY: u64 = 1 << 6;
pub const UCT_IFACE_FLAG_GET_SHORT: u64 = 1 << 8;
pub const UCT_IFACE_FLAG_GET_BCOPY: u64 = 1 << 9;
pub const UCT_IFACE_FLAG_GET_ZCOPY: u64 = 1 << 10;
pub const UCT_IFACE_FLAG_ATOMIC_CPU: u64 = 1 << 30;
pub const UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE: u64 = 1 << 38;
pub const UCT_IFACE_FLAG_EP_CHECK: u64 = 1 << 39;
pub const UCT_IFACE_FLAG_CONNECT_TO_IFACE: u64 = 1 << 40;
pub const UCT_IFACE_FLAG_CB_SYNC: u64 = 1 << 44;

pub const UCT_IFACE_FLAG_EVENT_SEND_COMP: u64 = 1 << 0;
pub const UCT_IFACE_FLAG_EVENT_RECV: u64 = 1 << 1;
pub const UCT_IFACE_FLAG_EVENT_FD: u64 = 1 << 3;

pub const UCT_MD_FLAG_ALLOC: u64 = 1 << 0;
pub const UCT_MD_FLAG_REG: u64 = 1 << 1;
pub const UCT_MD_FLAG_NEED_MEMH: u64 = 1 << 2;
pub const UCT_MD_FLAG_NEED_RKEY: u64 = 1 << 3;
pub const UCT_MD_FLAG_FIXED: u64 = 1 << 5;
/// 1.15 and newer also know which operations can be invalidated.
pub const UCT_MD_FLAG_INVALIDATE: u64 = 1 << 8;
pub const UCT_MD_FLAG_INVALIDATE_RMA: u64 = 1 << 11;
pub const UCT_MD_FLAG_INVALIDATE_AMO: u64 = 1 << 12;

pub const UCT_MD_MEM_FLAG_FIXED: c_uint = 1 << 1;

pub const UCT_MD_MEM_DEREG_FIELD_MEMH: u64 = 1 << 0;
pub const UCT_MD_MEM_DEREG_FIELD_FLAGS: u64 = 1 << 1;
pub const UCT_MD_MEM_DEREG_FIELD_COMPLETION: u64 = 1 << 2;
pub const UCT_MD_MEM_DEREG_FLAG_INVALIDATE: c_uint = 1 << 0;

pub const UCS_MEMORY_TYPE_HOST: c_int = 0;
pub const UCS_MEMORY_TYPE_CUDA: c_int = 1;
pub const UCS_MEMORY_TYPE_CUDA_MANAGED: c_int = 2;
pub const UCT_DEVICE_TYPE_SHM: c_int = 1;

pub const UCT_EP_PARAM_FIELD_IFACE: u64 = 1 << 0;
pub const UCT_EP_PARAM_FIELD_DEV_ADDR: u64 = 1 << 2;
pub const UCT_EP_PARAM_FIELD_IFACE_ADDR: u64 = 1 << 3;
pub const UCT_IFACE_PARAM_FIELD_RX_HEADROOM: u64 = 1 << 5;
pub const UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT: u64 = 1 << 16;
pub const UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET: u64 = 1 << 17;

/// Progress of both sends and receives. Further bits request the thread-safe form, which takes effect later.
pub const UCT_PROGRESS_BOTH: c_uint = 0b11;
/// What stands for no key.
pub const UCT_INVALID_RKEY: usize = usize::MAX;

pub const UCT_FLUSH_FLAG_CANCEL: c_uint = 1 << 0;
pub const UCT_CB_PARAM_FLAG_DESC: c_uint = 1 << 0;

pub const UCT_ATOMIC_OP_ADD: c_uint = 0;
pub const UCT_ATOMIC_OP_AND: c_uint = 1;
pub const UCT_ATOMIC_OP_OR: c_uint = 2;
pub const UCT_ATOMIC_OP_XOR: c_uint = 3;
pub const UCT_ATOMIC_OP_SWAP: c_uint = 4;
pub const UCT_ATOMIC_OP_CSWAP: c_uint = 5;

pub const UCT_AM_ID_MAX: usize = 32;
/// Longest name of a memory domain, with its end.
pub const UCT_MD_NAME_MAX: usize = 16;
/// Longest TL name, with its end.
pub const UCT_TL_NAME_MAX: usize = 10;

/// A slot that is never called with arguments we look at.
pub type Slot = *const c_void;
/// `uct_ep_h`, `uct_iface_h`, `uct_md_h`, ... as what they point to.
pub type Ep = *mut c_void;
pub type Iface = *mut c_void;
pub type Md = *mut c_void;

pub type PackFn = unsafe extern "C" fn(dest: *mut c_void, arg: *mut c_void) -> usize;
pub type UnpackFn = unsafe extern "C" fn(arg: *mut c_void, data: *const c_void, length: usize);
pub type AmFn =
    unsafe extern "C" fn(arg: *mut c_void, data: *mut c_void, length: usize, flags: c_uint) -> Status;
pub type PurgeFn = unsafe extern "C" fn(req: *mut PendingReq, arg: *mut c_void);

/// `uct_iov_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Iov {
    pub buffer: *mut c_void,
    pub length: usize,
    pub memh: *mut c_void,
    pub stride: usize,
    pub count: c_uint,
}

/// `uct_completion_t`
#[repr(C)]
#[derive(Debug)]
pub struct Completion {
    pub func: Option<unsafe extern "C" fn(*mut Completion)>,
    pub count: c_int,
    pub status: Status,
}

/// `uct_pending_req_t`
#[repr(C)]
#[derive(Debug)]
pub struct PendingReq {
    pub func: unsafe extern "C" fn(*mut PendingReq) -> Status,
    pub priv_: [u8; 40],
}

/// An entry of the table of active message handlers in `uct_base_iface_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AmHandler {
    pub cb: AmFn,
    pub arg: *mut c_void,
    pub flags: u32,
}

/// `uct_recv_desc_t`: how a receive descriptor that UCP kept comes back.
#[repr(C)]
#[derive(Debug)]
pub struct RecvDesc {
    pub cb: unsafe extern "C" fn(*mut RecvDesc, desc: *mut c_void),
}

/// `uct_md_t`
#[repr(C)]
#[derive(Debug)]
pub struct MdBase {
    pub ops: *const c_void,
    pub component: *const c_void,
}

/// `uct_md_mem_dereg_params_t`
#[repr(C)]
#[derive(Debug)]
pub struct DeregParams {
    pub field_mask: u64,
    pub flags: c_uint,
    pub memh: *mut c_void,
    pub comp: *mut Completion,
}

/// The beginning of `uct_ep_params_t`, as far as it was always the same.
#[repr(C)]
#[derive(Debug)]
pub struct EpParams {
    pub field_mask: u64,
    pub iface: Iface,
    pub user_data: *mut c_void,
    pub dev_addr: *const u8,
    pub iface_addr: *const u8,
}

/// `uct_iface_params_t` up to the fields of use here.
#[repr(C)]
#[derive(Debug)]
pub struct IfaceParams {
    pub field_mask: u64,
    pub cpu_mask: [u64; 16],
    pub open_mode: u64,
    pub mode: [u64; 5],
    pub stats_root: *mut c_void,
    pub rx_headroom: usize,
    /// Handlers of errors, tags and events, and the interval of keepalive messages.
    pub others: [u64; 10],
    pub am_alignment: usize,
    pub am_align_offset: usize,
}

/// The beginning of `uct_iface_is_reachable_params_t` and of `uct_ep_is_connected_params_t`.
#[repr(C)]
#[derive(Debug)]
pub struct AddrParams {
    pub field_mask: u64,
    pub device_addr: *const u8,
    pub iface_addr: *const u8,
    pub info_string: *mut c_char,
    pub info_string_length: usize,
}
pub const ADDR_PARAMS_DEVICE: u64 = 1 << 0;
pub const ADDR_PARAMS_IFACE: u64 = 1 << 1;
pub const ADDR_PARAMS_INFO: u64 = 1 << 2;
pub const ADDR_PARAMS_INFO_LENGTH: u64 = 1 << 3;

/// Limits of put and get in `uct_iface_attr_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaCap {
    pub max_short: usize,
    pub max_bcopy: usize,
    pub min_zcopy: usize,
    pub max_zcopy: usize,
    pub opt_zcopy_align: usize,
    pub align_mtu: usize,
    pub max_iov: usize,
}

/// Limits of active messages in `uct_iface_attr_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AmCap {
    pub max_short: usize,
    pub max_bcopy: usize,
    pub min_zcopy: usize,
    pub max_zcopy: usize,
    pub opt_zcopy_align: usize,
    pub align_mtu: usize,
    pub max_hdr: usize,
    pub max_iov: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AtomicCap {
    pub op_flags: u64,
    pub fop_flags: u64,
}

/// `uct_iface_attr_t`
#[repr(C)]
#[derive(Debug)]
pub struct IfaceAttr {
    pub put: RmaCap,
    pub get: RmaCap,
    pub am: AmCap,
    pub tag: [usize; 11],
    pub atomic32: AtomicCap,
    pub atomic64: AtomicCap,
    pub flags: u64,
    pub event_flags: u64,
    pub device_addr_len: usize,
    pub iface_addr_len: usize,
    pub ep_addr_len: usize,
    pub max_conn_priv: usize,
    pub listen_sockaddr: [u64; 16],
    pub overhead: f64,
    pub bandwidth: Bandwidth,
    pub latency: Linear,
    pub priority: u8,
    pub max_num_eps: usize,
    pub dev_num_paths: c_uint,
}

/// `uct_ppn_bandwidth_t`, bytes a second
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidth {
    pub dedicated: f64,
    pub shared: f64,
}

/// `ucs_linear_func_t`: `c + m * x`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Linear {
    pub c: f64,
    pub m: f64,
}

/// The part of `uct_perf_attr_t` before what moved.
#[repr(C)]
#[derive(Debug)]
pub struct PerfAttr {
    pub field_mask: u64,
    pub operation: c_int,
    pub local_memory_type: c_int,
    pub remote_memory_type: c_int,
    pub sys_devices: [u8; 4],
    pub send_pre_overhead: f64,
    pub send_post_overhead: f64,
    pub recv_overhead: f64,
    pub bandwidth: Bandwidth,
}
pub const UCT_PERF_ATTR_FIELD_OPERATION: u64 = 1 << 0;
pub const UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE: u64 = 1 << 1;
pub const UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE: u64 = 1 << 2;
pub const UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD: u64 = 1 << 5;
pub const UCT_PERF_ATTR_FIELD_RECV_OVERHEAD: u64 = 1 << 7;
pub const UCT_PERF_ATTR_FIELD_BANDWIDTH: u64 = 1 << 8;
pub const UCT_EP_OP_AM_SHORT: c_int = 0;
pub const UCT_EP_OP_AM_BCOPY: c_int = 1;
pub const UCT_EP_OP_AM_ZCOPY: c_int = 2;
pub const UCT_EP_OP_PUT_SHORT: c_int = 3;
pub const UCT_EP_OP_PUT_BCOPY: c_int = 4;
pub const UCT_EP_OP_PUT_ZCOPY: c_int = 5;
pub const UCT_EP_OP_GET_SHORT: c_int = 6;
pub const UCT_EP_OP_GET_BCOPY: c_int = 7;
pub const UCT_EP_OP_GET_ZCOPY: c_int = 8;

/// `uct_iface_ops_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IfaceOps {
    pub ep_put_short: unsafe extern "C" fn(Ep, *const c_void, c_uint, u64, usize) -> Status,
    pub ep_put_bcopy: unsafe extern "C" fn(Ep, PackFn, *mut c_void, u64, usize) -> isize,
    pub ep_put_zcopy: unsafe extern "C" fn(Ep, *const Iov, usize, u64, usize, *mut Completion) -> Status,
    pub ep_get_short: unsafe extern "C" fn(Ep, *mut c_void, c_uint, u64, usize) -> Status,
    pub ep_get_bcopy:
        unsafe extern "C" fn(Ep, UnpackFn, *mut c_void, usize, u64, usize, *mut Completion) -> Status,
    pub ep_get_zcopy: unsafe extern "C" fn(Ep, *const Iov, usize, u64, usize, *mut Completion) -> Status,
    pub ep_am_short: unsafe extern "C" fn(Ep, u8, u64, *const c_void, c_uint) -> Status,
    pub ep_am_short_iov: unsafe extern "C" fn(Ep, u8, *const Iov, usize) -> Status,
    pub ep_am_bcopy: unsafe extern "C" fn(Ep, u8, PackFn, *mut c_void, c_uint) -> isize,
    pub ep_am_zcopy: unsafe extern "C" fn(
        Ep,
        u8,
        *const c_void,
        c_uint,
        *const Iov,
        usize,
        c_uint,
        *mut Completion,
    ) -> Status,
    pub ep_atomic_cswap64:
        unsafe extern "C" fn(Ep, u64, u64, u64, usize, *mut u64, *mut Completion) -> Status,
    pub ep_atomic_cswap32:
        unsafe extern "C" fn(Ep, u32, u32, u64, usize, *mut u32, *mut Completion) -> Status,
    pub ep_atomic32_post: unsafe extern "C" fn(Ep, c_uint, u32, u64, usize) -> Status,
    pub ep_atomic64_post: unsafe extern "C" fn(Ep, c_uint, u64, u64, usize) -> Status,
    pub ep_atomic32_fetch:
        unsafe extern "C" fn(Ep, c_uint, u32, *mut u32, u64, usize, *mut Completion) -> Status,
    pub ep_atomic64_fetch:
        unsafe extern "C" fn(Ep, c_uint, u64, *mut u64, u64, usize, *mut Completion) -> Status,
    pub ep_tag_eager_short: Slot,
    pub ep_tag_eager_bcopy: Slot,
    pub ep_tag_eager_zcopy: Slot,
    pub ep_tag_rndv_zcopy: Slot,
    pub ep_tag_rndv_cancel: Slot,
    pub ep_tag_rndv_request: Slot,
    pub iface_tag_recv_zcopy: Slot,
    pub iface_tag_recv_cancel: Slot,
    pub ep_pending_add: unsafe extern "C" fn(Ep, *mut PendingReq, c_uint) -> Status,
    pub ep_pending_purge: unsafe extern "C" fn(Ep, Option<PurgeFn>, *mut c_void),
    pub ep_flush: unsafe extern "C" fn(Ep, c_uint, *mut Completion) -> Status,
    pub ep_fence: unsafe extern "C" fn(Ep, c_uint) -> Status,
    pub ep_check: unsafe extern "C" fn(Ep, c_uint, *mut Completion) -> Status,
    pub ep_create: unsafe extern "C" fn(*const EpParams, *mut Ep) -> Status,
    pub ep_connect: Slot,
    pub ep_disconnect: Slot,
    pub cm_ep_conn_notify: Slot,
    pub ep_destroy: unsafe extern "C" fn(Ep),
    pub ep_get_address: Slot,
    pub ep_connect_to_ep: Slot,
    pub iface_accept: Slot,
    pub iface_reject: Slot,
    pub iface_flush: unsafe extern "C" fn(Iface, c_uint, *mut Completion) -> Status,
    pub iface_fence: unsafe extern "C" fn(Iface, c_uint) -> Status,
    pub iface_progress_enable: unsafe extern "C" fn(Iface, c_uint),
    pub iface_progress_disable: unsafe extern "C" fn(Iface, c_uint),
    pub iface_progress: unsafe extern "C" fn(Iface) -> c_uint,
    pub iface_event_fd_get: unsafe extern "C" fn(Iface, *mut c_int) -> Status,
    pub iface_event_arm: unsafe extern "C" fn(Iface, c_uint) -> Status,
    pub iface_close: unsafe extern "C" fn(Iface),
    pub iface_query: unsafe extern "C" fn(Iface, *mut IfaceAttr) -> Status,
    pub iface_get_device_address: unsafe extern "C" fn(Iface, *mut u8) -> Status,
    pub iface_get_address: unsafe extern "C" fn(Iface, *mut u8) -> Status,
    pub iface_is_reachable: unsafe extern "C" fn(Iface, *const u8, *const u8) -> c_int,
}

/// `uct_base_iface_t`: the operations, what UCX keeps to itself, and the table of handlers.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct BaseIface {
    pub ops: IfaceOps,
    pub internal_ops: *const c_void,
    pub md: Md,
    pub worker: *mut c_void,
    pub am: [AmHandler; UCT_AM_ID_MAX],
    /// The rest, and as much again for releases to come and builds with statistics.
    pub rest: [u64; 43],
}

const _: () = {
    assert!(size_of::<*const c_void>() == 8);
    assert!(size_of::<IfaceOps>() == 400);
    assert!(offset_of!(IfaceOps, ep_pending_add) == 24 * 8);
    assert!(offset_of!(IfaceOps, iface_progress) == 42 * 8);
    assert!(offset_of!(IfaceOps, iface_query) == 46 * 8);
    assert!(offset_of!(IfaceOps, iface_is_reachable) == 49 * 8);
    assert!(offset_of!(BaseIface, internal_ops) == 400);
    assert!(offset_of!(BaseIface, md) == 408);
    assert!(offset_of!(BaseIface, worker) == 416);
    assert!(offset_of!(BaseIface, am) == 424);
    assert!(size_of::<AmHandler>() == 24);
    assert!(size_of::<BaseIface>() >= 1280 + 128);
    assert!(size_of::<IfaceAttr>() == 536);
    assert!(offset_of!(IfaceAttr, get) == 56);
    assert!(offset_of!(IfaceAttr, am) == 112);
    assert!(offset_of!(IfaceAttr, tag) == 176);
    assert!(offset_of!(IfaceAttr, atomic32) == 264);
    assert!(offset_of!(IfaceAttr, flags) == 296);
    assert!(offset_of!(IfaceAttr, device_addr_len) == 312);
    assert!(offset_of!(IfaceAttr, listen_sockaddr) == 344);
    assert!(offset_of!(IfaceAttr, overhead) == 472);
    assert!(offset_of!(IfaceAttr, bandwidth) == 480);
    assert!(offset_of!(IfaceAttr, latency) == 496);
    assert!(offset_of!(IfaceAttr, priority) == 512);
    assert!(offset_of!(IfaceAttr, max_num_eps) == 520);
    assert!(offset_of!(PerfAttr, send_pre_overhead) == 24);
    assert!(offset_of!(PerfAttr, bandwidth) == 48);
    assert!(size_of::<Iov>() == 40);
    assert!(size_of::<Completion>() == 16);
    assert!(size_of::<PendingReq>() == 48);
    assert!(size_of::<MdBase>() == 16);
    assert!(offset_of!(DeregParams, memh) == 16);
    assert!(offset_of!(EpParams, dev_addr) == 24);
    assert!(offset_of!(IfaceParams, open_mode) == 136);
    assert!(offset_of!(IfaceParams, stats_root) == 184);
    assert!(offset_of!(IfaceParams, rx_headroom) == 192);
    assert!(offset_of!(IfaceParams, am_alignment) == 280);
};
