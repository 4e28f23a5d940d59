//! The library, and its functions.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use loaded::Object;

use crate::{
    _compat_ibv_port_attr, Error, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_fork_status, ibv_gid, ibv_gid_entry, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wr_opcode,
};

/// What rdma-core's packages install. The name ends in the number of the public interface.
pub const SONAME: &CStr = c"libibverbs.so.1";

macro_rules! functions {
    (
        $(#[$about:meta])*
        $table:ident
        required { $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
        optional { $($(#[$doc:meta])* $opt:ident = $symbol:literal: fn($($oarg:ty),*) $(-> $oret:ty)?;)* }
    ) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $($(#[$doc])* pub $opt: Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        impl $table {
            pub(crate) fn of(object: &Object) -> Result<$table, Error> {
                // SAFETY: the types are those that the library's header declares.
                unsafe {
                    Ok($table {
                        $($name: {
                            const NAME: &str = stringify!($name);
                            $crate::library::named(object, NAME).ok_or(Error::Missing(NAME))?
                        },)*
                        $($opt: $crate::library::named(object, $symbol),)*
                    })
                }
            }

            /// The names of optional functions that this library lacks.
            pub fn missing(&self) -> Vec<&'static str> {
                let all: &[(bool, &'static str)] = &[$((self.$opt.is_none(), $symbol)),*];
                all.iter().filter(|(is_missing, _)| *is_missing).map(|(_, name)| *name).collect()
            }
        }

        impl ::std::fmt::Debug for $table {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($table)).field("missing", &self.missing()).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use functions;

functions! {
    /// The functions of one library, by their names. Those that some release since rdma-core 44 lacks,
    /// and those that a build may leave out, are optional.
    Functions
    required {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
        ibv_get_device_guid: fn(*mut ibv_device) -> u64;
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event: fn(*mut ibv_async_event);
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    }
    optional {
        /// Access flags that a kernel may ignore: relaxed ordering.
        reg_mr_iova2 = "ibv_reg_mr_iova2": fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        reg_dmabuf_mr = "ibv_reg_dmabuf_mr": fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        /// Since rdma-core 59.
        reg_mr_ex = "ibv_reg_mr_ex": fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr;
        /// The type and the network interface of a GID.
        query_gid_ex = "_ibv_query_gid_ex": fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        fork_status = "ibv_is_fork_initialized": fn() -> ibv_fork_status;
        data_in_order = "ibv_query_qp_data_in_order": fn(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int;
    }
}

/// # Safety
///
/// `F` is the type of that function's pointer.
pub(crate) unsafe fn named<F: Copy>(object: &Object, name: &str) -> Option<F> {
    let name = CString::new(name).ok()?;
    // SAFETY: the caller's promise.
    unsafe { object.symbol(&name) }
}

/// A libibverbs. It stays loaded, since its drivers may have threads and handlers of exit(3).
#[derive(Clone, Debug)]
pub struct Library {
    functions: Arc<Functions>,
}

impl Library {
    /// The library that the linker finds, which the process may have already.
    pub fn open() -> Result<Library, Error> {
        Self::load(SONAME)
    }

    /// The library in this file.
    pub fn open_at(path: &Path) -> Result<Library, Error> {
        let name = CString::new(path.as_os_str().as_bytes());
        Self::load(&name.map_err(|_| Error::NoLibrary(format!("{path:?} has a zero byte in its name")))?)
    }

    fn load(name: &CStr) -> Result<Library, Error> {
        // SAFETY: libibverbs' initialisers register its drivers, and any process may run them.
        let object = unsafe { Object::load(name) }.map_err(Error::NoLibrary)?;
        let functions = Functions::of(&object)?;
        core::mem::forget(object);
        Ok(Library { functions: Arc::new(functions) })
    }

    /// The functions, to be called by their own rules.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Whether memory that is registered is safe in a process that forks: the kernel sees to it (since Linux
    /// 5.12), or ibv_fork_init(3) does. `None`: this libibverbs cannot say.
    pub fn survives_fork(&self) -> Option<bool> {
        // SAFETY: takes nothing.
        let status = unsafe { (self.functions.fork_status?)() };
        Some(status != crate::IBV_FORK_DISABLED)
    }
}
