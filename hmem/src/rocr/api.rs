//! ROCm's HSA runtime, as far as it is used here: types, constants and the table of functions.
//!
//! Source of names and values: HSA Runtime Programmer's Reference Manual 1.2, and the public interface of
//! hsa.h and hsa_ext_amd.h (ROCm documentation).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::error::codes;
use crate::kind::Kind;
use crate::loaded_library::{self, functions};
use crate::presence;

/// An `hsa_agent_t`, `hsa_signal_t`: both are one 64-bit handle.
pub(crate) type Handle = u64;

/// An `hsa_status_t` that is not `HSA_STATUS_SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Error(pub i32);

pub(crate) const INVALID_ARGUMENT: i32 = 0x1001;
pub(crate) const INVALID_ALLOCATION: i32 = 0x1003;
const OUT_OF_RESOURCES: i32 = 0x1008;
const NOT_INITIALIZED: i32 = 0x100b;
/// Not one of the runtime's: it does not have the function, or the memory is not of a kind for it.
pub(crate) const UNSUPPORTED: i32 = -1;

impl Error {
    /// The errno nearest to it.
    pub fn errno(self) -> i32 {
        match self.0 {
            INVALID_ARGUMENT => libc::EINVAL,
            INVALID_ALLOCATION => libc::EFAULT,
            OUT_OF_RESOURCES => libc::ENOMEM,
            NOT_INITIALIZED => libc::ENXIO,
            UNSUPPORTED => libc::EOPNOTSUPP,
            _ => libc::EIO,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == UNSUPPORTED {
            return f.write_str("this HSA runtime cannot, or not with this memory");
        }
        let mut text: *const c_char = std::ptr::null();
        let known = loaded().is_some_and(|api| api.status_string(self.0, &mut text).is_ok());
        if !known || text.is_null() {
            return write!(f, "HSA status {:#x}", self.0);
        }
        // SAFETY: the runtime's texts are constants that end in NUL.
        let text = unsafe { CStr::from_ptr(text) };
        write!(f, "{} ({:#x})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

codes!(Kind::Rocr);

/// `hsa_amd_ipc_memory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Ipc(pub(crate) [u32; 8]);

/// `hsa_amd_pointer_info_t`, up to `global_flags`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PointerInfo {
    pub(crate) size: u32,
    pub(crate) kind: u32,
    pub(crate) base: *mut c_void,
    pub(crate) host_base: *mut c_void,
    pub(crate) len: usize,
    pub(crate) user: *mut c_void,
    pub(crate) owner: Handle,
    pub(crate) flags: u32,
}

pub(crate) const POINTER_UNKNOWN: u32 = 0;
pub(crate) const POINTER_HSA: u32 = 1;
pub(crate) const POINTER_LOCKED: u32 = 2;
/// `HSA_AGENT_INFO_DEVICE`, and what it is for a GPU.
pub(crate) const AGENT_DEVICE: u32 = 17;
pub(crate) const DEVICE_GPU: u32 = 1;
/// `HSA_SIGNAL_CONDITION_LT`, `HSA_WAIT_STATE_BLOCKED`.
pub(crate) const LESS: u32 = 2;
pub(crate) const BLOCKED: u32 = 0;

pub(crate) type Gone = unsafe extern "C" fn(at: *mut c_void, user: *mut c_void);
pub(crate) type EachAgent = unsafe extern "C" fn(agent: Handle, user: *mut c_void) -> c_int;

functions! {
    /// The runtime's functions, where it has them.
    Error, UNSUPPORTED;
    status_string b"hsa_status_string\0" (status: c_int, text: *mut *const c_char);
    iterate_agents b"hsa_iterate_agents\0" (each: EachAgent, user: *mut c_void);
    agent_info b"hsa_agent_get_info\0" (agent: Handle, what: u32, to: *mut c_void);
    pointer_info b"hsa_amd_pointer_info\0" (at: *const c_void, to: *mut PointerInfo, alloc: *const c_void, count: *mut u32, agents: *mut *mut Handle);
    on_free b"hsa_amd_register_deallocation_callback\0" (at: *mut c_void, call: Gone, user: *mut c_void);
    ipc_create b"hsa_amd_ipc_memory_create\0" (at: *mut c_void, len: usize, to: *mut Ipc);
    ipc_attach b"hsa_amd_ipc_memory_attach\0" (from: *const Ipc, len: usize, count: u32, agents: *const Handle, at: *mut *mut c_void);
    ipc_detach b"hsa_amd_ipc_memory_detach\0" (at: *mut c_void);
    export_dmabuf b"hsa_amd_portable_export_dmabuf\0" (at: *const c_void, len: usize, fd: *mut c_int, off: *mut u64);
    copy b"hsa_memory_copy\0" (dst: *mut c_void, src: *const c_void, len: usize);
    copy_async b"hsa_amd_memory_async_copy\0" (dst: *mut c_void, dst_agent: Handle, src: *const c_void, src_agent: Handle, len: usize, count: u32, after: *const Handle, done: Handle);
    signal_create b"hsa_signal_create\0" (initial: i64, consumers: u32, agents: *const Handle, to: *mut Handle);
    signal_destroy b"hsa_signal_destroy\0" (signal: Handle);
    =>
    signal_load b"hsa_signal_load_scacquire\0" (signal: Handle) -> i64;
    signal_wait b"hsa_signal_wait_scacquire\0" (signal: Handle, condition: u32, than: i64, most: u64, how: u32) -> i64;
}

impl Api {
    /// Of the runtime that is in this process, if one is. Loads nothing.
    fn find() -> Option<Api> {
        let library = loaded_library::find("libhsa-runtime64.so.1")?;
        // SAFETY: it goes by the name of the runtime's library, and is never given back.
        Some(unsafe { Api::read(library) })
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Its functions, if it is known to be in the process.
#[inline]
pub(super) fn loaded() -> Option<&'static Api> {
    if presence::is_here(Kind::Rocr) { API.get() } else { None }
}

/// Looks for it, and keeps its functions.
pub(super) fn find() -> bool {
    let Some(api) = Api::find() else { return false };
    // Two threads may find it at once: either table will do.
    let _ = API.set(api);
    true
}
