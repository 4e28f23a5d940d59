//! CUDA's driver API, as far as it is used here: names, types, constants and the table of functions.
//!
//! Everything is looked up in a `libcuda.so.1` that the application has loaded. A function that this
//! driver does not have stays `None`, and calling it is answered with [`NOT_FOUND`].
//! Source of names and values: CUDA Driver API reference manual, and cuda.h's public interface.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::error::codes;
use crate::kind::Kind;
use crate::loaded_library::{self, functions};
use crate::presence;

/// A `CUdeviceptr`.
pub(crate) type DevicePtr = u64;
/// A `CUcontext`, `CUstream` or `CUevent`.
pub(crate) type Handle = *mut c_void;

/// What a call of the driver answered: a `CUresult` that is not `CUDA_SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Error(pub i32);

/// `CUstreamBatchMemOpParams`: the operation, an address, a value, flags.
pub(crate) type MemOp = [u64; 6];
/// `CU_STREAM_MEM_OP_WRITE_VALUE_64`.
pub(crate) const WRITE_VALUE_64: u64 = 5;

/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const NOT_READY: i32 = 600;
/// `CUDA_ERROR_NOT_FOUND`: also, the driver is too old to have the function.
pub(crate) const NOT_FOUND: i32 = 500;

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and the last of those about streams that are being captured into
/// graphs.
pub(crate) const CAPTURE_FIRST: i32 = 900;
const CAPTURE_LAST: i32 = 908;

impl Error {
    /// Whether it is refused because a stream is being captured into a graph.
    pub fn is_capture(self) -> bool {
        (CAPTURE_FIRST..=CAPTURE_LAST).contains(&self.0)
    }

    /// The errno nearest to what the driver said.
    pub fn errno(self) -> i32 {
        match self.0 {
            1 | 400 => libc::EINVAL,
            2 => libc::ENOMEM,
            3 | 101 | 201 => libc::ENXIO,
            100 => libc::ENODEV,
            500 => libc::ENOENT,
            600 => libc::EAGAIN,
            800 => libc::EPERM,
            801 | CAPTURE_FIRST..=CAPTURE_LAST => libc::EOPNOTSUPP,
            _ => libc::EIO,
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

codes!(Kind::Cuda);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name: *const c_char = std::ptr::null();
        if let Some(api) = loaded() {
            if api.get_error_name(self.0, &mut name).is_err() {
                name = std::ptr::null();
            }
        }
        if name.is_null() {
            return write!(f, "CUDA error {}", self.0);
        }
        // SAFETY: the driver's names are constants that end in NUL.
        let name = unsafe { CStr::from_ptr(name) };
        write!(f, "{} ({})", name.to_string_lossy(), self.0)
    }
}

impl std::error::Error for Error {}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct BatchParams {
    pub(crate) ctx: Handle,
    pub(crate) count: u32,
    pub(crate) ops: *const MemOp,
    pub(crate) flags: u32,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`. The grid: blocks and threads in three dimensions, and shared memory.
#[repr(C)]
pub(crate) struct KernelParams {
    pub(crate) function: Handle,
    pub(crate) grid: [u32; 7],
    pub(crate) arguments: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    pub(crate) kernel: Handle,
    pub(crate) ctx: Handle,
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// `CUmemAllocationProp`: page-locked memory of a device, with handles of this type.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: u32,
    pub(crate) device: c_int,
    pub(crate) win32: u64,
    pub(crate) flags: u64,
}

/// `CUmemAccessDesc` for one device: `CUmemLocation` and the access flags.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDesc {
    pub(crate) kind: u32,
    pub(crate) device: c_int,
    pub(crate) flags: u32,
}

pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const ACCESS_READ_WRITE: u32 = 3;
pub(crate) const HANDLE_POSIX_FD: u32 = 1;
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;
pub(crate) const IPC_LAZY_PEER_ACCESS: u32 = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `CU_MEMHOSTREGISTER_DEVICEMAP`.
pub(crate) const LOCK_PORTABLE: u32 = 1;
pub(crate) const LOCK_MAPPED: u32 = 2;
pub(crate) const RANGE_DMA_BUF: u32 = 1;
pub(crate) const DMA_BUF_PCIE: u64 = 1;

/// `CUpointer_attribute`.
pub(crate) mod attr {
    pub(crate) const CONTEXT: u32 = 1;
    pub(crate) const MEMORY_TYPE: u32 = 2;
    pub(crate) const SYNC_MEMOPS: u32 = 6;
    pub(crate) const BUFFER_ID: u32 = 7;
    pub(crate) const IS_MANAGED: u32 = 8;
    pub(crate) const DEVICE_ORDINAL: u32 = 9;
    pub(crate) const LEGACY_IPC: u32 = 10;
    pub(crate) const RANGE_START: u32 = 11;
    pub(crate) const RANGE_SIZE: u32 = 12;
    pub(crate) const HANDLE_TYPES: u32 = 14;
    pub(crate) const MEMPOOL: u32 = 17;
    pub(crate) const MAPPING_SIZE: u32 = 18;
    pub(crate) const MAPPING_BASE: u32 = 19;
}

pub(crate) const TYPE_HOST: u32 = 1;
pub(crate) const TYPE_DEVICE: u32 = 2;

functions! {
    /// The driver's functions, where it has them.
    Error, NOT_FOUND;
    get_error_name b"cuGetErrorName\0" (code: c_int, name: *mut *const c_char);
    init b"cuInit\0" (flags: u32);
    driver_version b"cuDriverGetVersion\0" (version: *mut c_int);
    pointer_get b"cuPointerGetAttributes\0" (n: u32, which: *const u32, to: *const *mut c_void, at: DevicePtr);
    pointer_set b"cuPointerSetAttribute\0" (value: *const c_void, which: u32, at: DevicePtr);
    ctx_current b"cuCtxGetCurrent\0" (ctx: *mut Handle);
    ctx_push b"cuCtxPushCurrent_v2\0" (ctx: Handle);
    ctx_pop b"cuCtxPopCurrent_v2\0" (ctx: *mut Handle);
    ctx_device b"cuCtxGetDevice\0" (device: *mut c_int);
    ctx_id b"cuCtxGetId\0" (ctx: Handle, id: *mut u64);
    ctx_wait b"cuCtxSynchronize\0" ();
    device_count b"cuDeviceGetCount\0" (count: *mut c_int);
    device_get b"cuDeviceGet\0" (device: *mut c_int, ordinal: c_int);
    device_attr b"cuDeviceGetAttribute\0" (value: *mut c_int, which: c_int, device: c_int);
    peer_attr b"cuDeviceGetP2PAttribute\0" (value: *mut c_int, which: c_int, from: c_int, to: c_int);
    flush_writes b"cuFlushGPUDirectRDMAWrites\0" (target: c_int, scope: c_int);
    device_pci b"cuDeviceGetPCIBusId\0" (to: *mut c_char, len: c_int, device: c_int);
    device_uuid b"cuDeviceGetUuid_v2\0" (uuid: *mut [u8; 16], device: c_int);
    primary_state b"cuDevicePrimaryCtxGetState\0" (device: c_int, flags: *mut u32, active: *mut c_int);
    primary_retain b"cuDevicePrimaryCtxRetain\0" (ctx: *mut Handle, device: c_int);
    stream_create b"cuStreamCreate\0" (stream: *mut Handle, flags: u32);
    stream_destroy b"cuStreamDestroy_v2\0" (stream: Handle);
    stream_wait b"cuStreamSynchronize\0" (stream: Handle);
    stream_query b"cuStreamQuery\0" (stream: Handle);
    stream_ctx b"cuStreamGetCtx\0" (stream: Handle, ctx: *mut Handle);
    stream_capturing b"cuStreamIsCapturing\0" (stream: Handle, status: *mut c_int);
    capture_mode b"cuThreadExchangeStreamCaptureMode\0" (mode: *mut c_int);
    stream_call b"cuLaunchHostFunc\0" (stream: Handle, call: unsafe extern "C" fn(*mut c_void), arg: *mut c_void);
    module_load b"cuModuleLoadDataEx\0" (to: *mut Handle, image: *const c_char, n: u32, which: *mut u32, values: *mut usize);
    module_function b"cuModuleGetFunction\0" (function: *mut Handle, module: Handle, name: *const c_char);
    module_unload b"cuModuleUnload\0" (module: Handle);
    launch b"cuLaunchKernel\0" (function: Handle, x: u32, y: u32, z: u32, tx: u32, ty: u32, tz: u32, shared: u32, stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    event_create b"cuEventCreate\0" (event: *mut Handle, flags: u32);
    event_record b"cuEventRecord\0" (event: Handle, stream: Handle);
    event_query b"cuEventQuery\0" (event: Handle);
    event_wait b"cuEventSynchronize\0" (event: Handle);
    event_destroy b"cuEventDestroy_v2\0" (event: Handle);
    copy_async b"cuMemcpyAsync\0" (dst: DevicePtr, src: DevicePtr, len: usize, stream: Handle);
    mem_ops b"cuStreamBatchMemOp_v2\0" (stream: Handle, count: u32, ops: *const MemOp, flags: u32);
    capture_begin b"cuStreamBeginCapture_v2\0" (stream: Handle, mode: c_int);
    capture_end b"cuStreamEndCapture\0" (stream: Handle, graph: *mut Handle);
    graph_create b"cuGraphCreate\0" (graph: *mut Handle, flags: u32);
    graph_destroy b"cuGraphDestroy\0" (graph: Handle);
    graph_batch b"cuGraphAddBatchMemOpNode\0" (node: *mut Handle, graph: Handle, before: *const Handle, n: usize, params: *const BatchParams);
    graph_kernel b"cuGraphAddKernelNode_v2\0" (node: *mut Handle, graph: Handle, before: *const Handle, n: usize, params: *const KernelParams);
    graph_nodes b"cuGraphGetNodes\0" (graph: Handle, nodes: *mut Handle, count: *mut usize);
    graph_instantiate b"cuGraphInstantiateWithFlags\0" (exec: *mut Handle, graph: Handle, flags: u64);
    graph_launch b"cuGraphLaunch\0" (exec: Handle, stream: Handle);
    graph_set_batch b"cuGraphExecBatchMemOpNodeSetParams\0" (exec: Handle, node: Handle, params: *const BatchParams);
    graph_exec_destroy b"cuGraphExecDestroy\0" (exec: Handle);
    capture_info b"cuStreamGetCaptureInfo_v2\0" (stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle, after: *mut *const Handle, n: *mut usize);
    held_create b"cuUserObjectCreate\0" (object: *mut Handle, of: *mut c_void, end: unsafe extern "C" fn(*mut c_void), count: u32, flags: u32);
    held_release b"cuUserObjectRelease\0" (object: Handle, count: u32);
    graph_hold b"cuGraphRetainUserObject\0" (graph: Handle, object: Handle, count: u32, flags: u32);
    graph_let_go b"cuGraphReleaseUserObject\0" (graph: Handle, object: Handle, count: u32);
    host_lock b"cuMemHostRegister_v2\0" (at: *mut c_void, len: usize, flags: u32);
    host_unlock b"cuMemHostUnregister\0" (at: *mut c_void);
    host_device b"cuMemHostGetDevicePointer_v2\0" (to: *mut DevicePtr, at: *mut c_void, flags: u32);
    ipc_get b"cuIpcGetMemHandle\0" (handle: *mut IpcHandle, at: DevicePtr);
    ipc_open b"cuIpcOpenMemHandle_v2\0" (at: *mut DevicePtr, handle: IpcHandle, flags: u32);
    ipc_close b"cuIpcCloseMemHandle\0" (at: DevicePtr);
    mem_alloc b"cuMemAlloc_v2\0" (at: *mut DevicePtr, len: usize);
    mem_free b"cuMemFree_v2\0" (at: DevicePtr);
    mem_range b"cuMemGetAddressRange_v2\0" (base: *mut DevicePtr, len: *mut usize, at: DevicePtr);
    mem_granularity b"cuMemGetAllocationGranularity\0" (to: *mut usize, prop: *const AllocationProp, which: u32);
    mem_create b"cuMemCreate\0" (handle: *mut u64, len: usize, prop: *const AllocationProp, flags: u64);
    mem_retain b"cuMemRetainAllocationHandle\0" (handle: *mut u64, at: *mut c_void);
    mem_release b"cuMemRelease\0" (handle: u64);
    mem_export b"cuMemExportToShareableHandle\0" (to: *mut c_int, handle: u64, kind: u32, flags: u64);
    mem_import b"cuMemImportFromShareableHandle\0" (handle: *mut u64, from: *mut c_void, kind: u32);
    mem_reserve b"cuMemAddressReserve\0" (at: *mut DevicePtr, len: usize, align: usize, near: DevicePtr, flags: u64);
    mem_unreserve b"cuMemAddressFree\0" (at: DevicePtr, len: usize);
    mem_map b"cuMemMap\0" (at: DevicePtr, len: usize, off: usize, handle: u64, flags: u64);
    mem_unmap b"cuMemUnmap\0" (at: DevicePtr, len: usize);
    mem_access b"cuMemSetAccess\0" (at: DevicePtr, len: usize, desc: *const AccessDesc, count: usize);
    free_async b"cuMemFreeAsync\0" (at: DevicePtr, stream: Handle);
    pool_export b"cuMemPoolExportToShareableHandle\0" (to: *mut c_int, pool: Handle, kind: u32, flags: u64);
    pool_import b"cuMemPoolImportFromShareableHandle\0" (pool: *mut Handle, from: *mut c_void, kind: u32, flags: u64);
    pool_export_ptr b"cuMemPoolExportPointer\0" (to: *mut [u8; 64], at: DevicePtr);
    pool_import_ptr b"cuMemPoolImportPointer\0" (at: *mut DevicePtr, pool: Handle, from: *const [u8; 64]);
    pool_access b"cuMemPoolSetAccess\0" (pool: Handle, desc: *const AccessDesc, count: usize);
    pool_destroy b"cuMemPoolDestroy\0" (pool: Handle);
    range_handle b"cuMemGetHandleForAddressRange\0" (to: *mut c_void, at: DevicePtr, len: usize, kind: u32, flags: u64);
}

impl Api {
    /// Of the driver's library that is in this process, if one is. Loads nothing.
    fn find() -> Option<Api> {
        let library = loaded_library::find("libcuda.so.1")?;
        // SAFETY: it goes by the name of the driver's library, and is never given back.
        Some(unsafe { Api::read(library) })
    }

    /// What an attribute of a device is; 0 of one that the driver does not know.
    pub(super) fn attribute(&self, which: c_int, device: c_int) -> c_int {
        let mut value = 0;
        if self.device_attr(&mut value, which, device).is_ok() { value } else { 0 }
    }

    /// Whether the driver flushes what adapters have written.
    pub(super) fn has_flush_writes(&self) -> bool {
        self.flush_writes.is_some()
    }

    /// Whether the driver has memory operations of streams.
    pub(super) fn has_mem_ops(&self) -> bool {
        self.mem_ops.is_some()
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Its functions, if it is known to be in the process.
#[inline]
pub(super) fn loaded() -> Option<&'static Api> {
    if presence::is_here(Kind::Cuda) { API.get() } else { None }
}

/// Looks for it, and keeps its functions.
pub(super) fn find() -> bool {
    let Some(api) = Api::find() else { return false };
    // Two threads may find it at once: either table will do.
    let _ = API.set(api);
    true
}
