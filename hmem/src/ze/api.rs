//! Level Zero, as far as it is used here: types, constants and the table of functions.
//!
//! Source of names and values: the oneAPI Level Zero specification 1.18, core API and its experimental
//! memory functions.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::error::codes;
use crate::kind::Kind;
use crate::loaded_library::{self, functions};
use crate::presence;

/// A `ze_..._handle_t`.
pub(crate) type Handle = *mut c_void;

/// A `ze_result_t` that is not `ZE_RESULT_SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Error(pub i32);

pub(crate) const NOT_READY: i32 = 1;
pub(crate) const UNSUPPORTED_FEATURE: i32 = 0x7800_0003;
pub(crate) const INVALID_ARGUMENT: i32 = 0x7800_0004;

impl Error {
    /// The errno nearest to it.
    pub fn errno(self) -> i32 {
        match self.0 {
            0x7000_0002 | 0x7000_0003 => libc::ENOMEM,
            0x7001_0000 => libc::EPERM,
            0x7800_0001 => libc::ENXIO,
            0x7800_0002 | UNSUPPORTED_FEATURE => libc::EOPNOTSUPP,
            0x7800_0004..=0x7800_0008 => libc::EINVAL,
            _ => libc::EIO,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            NOT_READY => "NOT_READY",
            0x7000_0001 => "ERROR_DEVICE_LOST",
            0x7000_0002 => "ERROR_OUT_OF_HOST_MEMORY",
            0x7000_0003 => "ERROR_OUT_OF_DEVICE_MEMORY",
            0x7001_0000 => "ERROR_INSUFFICIENT_PERMISSIONS",
            0x7800_0001 => "ERROR_UNINITIALIZED",
            UNSUPPORTED_FEATURE => "ERROR_UNSUPPORTED_FEATURE",
            INVALID_ARGUMENT => "ERROR_INVALID_ARGUMENT",
            other => return write!(f, "Level Zero result {other:#x}"),
        };
        write!(f, "ZE_RESULT_{name} ({:#x})", self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

codes!(Kind::Ze);

/// `ze_ipc_mem_handle_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ipc(pub(crate) [u8; 64]);

/// `ze_context_desc_t`.
#[repr(C)]
pub(crate) struct ContextDesc {
    pub(crate) stype: u32,
    pub(crate) next: *const c_void,
    pub(crate) flags: u32,
}

/// `ze_command_queue_desc_t`.
#[repr(C)]
pub(crate) struct QueueDesc {
    pub(crate) stype: u32,
    pub(crate) next: *const c_void,
    pub(crate) ordinal: u32,
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) mode: u32,
    pub(crate) priority: u32,
}

/// `ze_event_pool_desc_t`.
#[repr(C)]
pub(crate) struct PoolDesc {
    pub(crate) stype: u32,
    pub(crate) next: *const c_void,
    pub(crate) flags: u32,
    pub(crate) count: u32,
}

/// `ze_event_desc_t`.
#[repr(C)]
pub(crate) struct EventDesc {
    pub(crate) stype: u32,
    pub(crate) next: *const c_void,
    pub(crate) index: u32,
    pub(crate) signal: u32,
    pub(crate) wait: u32,
}

/// `ze_memory_allocation_properties_t`.
#[repr(C)]
pub(crate) struct AllocProps {
    pub(crate) stype: u32,
    pub(crate) next: *mut c_void,
    pub(crate) kind: u32,
    pub(crate) id: u64,
    pub(crate) page: u64,
}

/// `ze_external_memory_export_fd_t`.
#[repr(C)]
pub(crate) struct ExportFd {
    pub(crate) stype: u32,
    pub(crate) next: *mut c_void,
    pub(crate) flags: u32,
    pub(crate) fd: c_int,
}

/// `ZE_STRUCTURE_TYPE_...`.
pub(crate) mod stype {
    pub(crate) const CONTEXT_DESC: u32 = 0xd;
    pub(crate) const QUEUE_DESC: u32 = 0xe;
    pub(crate) const POOL_DESC: u32 = 0x10;
    pub(crate) const EVENT_DESC: u32 = 0x11;
    pub(crate) const ALLOC_PROPS: u32 = 0x17;
    pub(crate) const EXPORT_FD: u32 = 0x1a;
}

pub(crate) const MEMORY_DEVICE: u32 = 2;
pub(crate) const MEMORY_SHARED: u32 = 3;
/// `ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF`.
pub(crate) const DMA_BUF: u32 = 2;
/// `ZE_COMMAND_QUEUE_MODE_...`.
pub(crate) const SYNCHRONOUS: u32 = 1;
pub(crate) const ASYNCHRONOUS: u32 = 2;
/// `ZE_EVENT_POOL_FLAG_HOST_VISIBLE`, `ZE_EVENT_SCOPE_FLAG_HOST`.
pub(crate) const HOST_VISIBLE: u32 = 1;
pub(crate) const SCOPE_HOST: u32 = 4;

functions! {
    /// The loader's functions, where it has them.
    Error, UNSUPPORTED_FEATURE;
    driver_get b"zeDriverGet\0" (count: *mut u32, drivers: *mut Handle);
    device_get b"zeDeviceGet\0" (driver: Handle, count: *mut u32, devices: *mut Handle);
    context_create b"zeContextCreate\0" (driver: Handle, desc: *const ContextDesc, ctx: *mut Handle);
    alloc_props b"zeMemGetAllocProperties\0" (ctx: Handle, at: *const c_void, to: *mut AllocProps, device: *mut Handle);
    range b"zeMemGetAddressRange\0" (ctx: Handle, at: *const c_void, base: *mut *mut c_void, len: *mut usize);
    ipc_get b"zeMemGetIpcHandle\0" (ctx: Handle, at: *const c_void, to: *mut Ipc);
    ipc_open b"zeMemOpenIpcHandle\0" (ctx: Handle, device: Handle, from: Ipc, flags: u32, at: *mut *mut c_void);
    ipc_close b"zeMemCloseIpcHandle\0" (ctx: Handle, at: *const c_void);
    ipc_to_fd b"zeMemGetFileDescriptorFromIpcHandleExp\0" (ctx: Handle, from: Ipc, fd: *mut u64);
    fd_to_ipc b"zeMemGetIpcHandleFromFileDescriptorExp\0" (ctx: Handle, fd: u64, to: *mut Ipc);
    list_create b"zeCommandListCreateImmediate\0" (ctx: Handle, device: Handle, desc: *const QueueDesc, list: *mut Handle);
    copy b"zeCommandListAppendMemoryCopy\0" (list: Handle, dst: *mut c_void, src: *const c_void, len: usize, done: Handle, count: u32, after: *mut Handle);
    pool_create b"zeEventPoolCreate\0" (ctx: Handle, desc: *const PoolDesc, count: u32, devices: *mut Handle, pool: *mut Handle);
    event_create b"zeEventCreate\0" (pool: Handle, desc: *const EventDesc, event: *mut Handle);
    event_query b"zeEventQueryStatus\0" (event: Handle);
    event_wait b"zeEventHostSynchronize\0" (event: Handle, most: u64);
    event_reset b"zeEventHostReset\0" (event: Handle);
}

impl Api {
    /// Of the loader that is in this process, if one is. Loads nothing.
    fn find() -> Option<Api> {
        let library = loaded_library::find("libze_loader.so.1")?;
        // SAFETY: it goes by the name of Level Zero's loader, and is never given back.
        Some(unsafe { Api::read(library) })
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Its functions, if it is known to be in the process.
#[inline]
pub(super) fn loaded() -> Option<&'static Api> {
    if presence::is_here(Kind::Ze) { API.get() } else { None }
}

/// Looks for it, and keeps its functions.
pub(super) fn find() -> bool {
    let Some(api) = Api::find() else { return false };
    // Two threads may find it at once: either table will do.
    let _ = API.set(api);
    true
}
