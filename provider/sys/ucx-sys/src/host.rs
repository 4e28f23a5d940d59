//! The UCX copies of this process. There may be several: wheels bring their own.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;

use loaded::Object;

use crate::abi::{Ep, Iface, IfaceAttr, IfaceParams, Md, Status};
use crate::epoch::{Epoch, Layout};

/// `uct_query_components`
pub type QueryComponents = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> Status;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $symbol:literal,)*) => {
        /// One copy of UCX: its layouts, and the functions of it that a transport calls. They are
        /// good for ever: what holds them holds the library.
        #[derive(Debug)]
        pub struct Host {
            pub layout: Layout,
            path: CString,
            /// Address of its list of components, which each copy of UCX has at another one.
            pub components: *mut c_void,
            $($(#[$doc])* pub $name: $type,)*
            _library: Object,
        }

        impl Host {
            fn resolve(Library(library, path): Library, layout: Layout) -> Result<Host, String> {
                // SAFETY: each type is that of the function, or object, of this name in every
                // release since 1.13 (ABI table in lib.rs).
                unsafe {
                    Ok(Host {
                        layout,
                        path,
                        components: library.lookup(c"uct_components_list"),
                        $($name: library
                            .symbol($symbol)
                            .ok_or_else(|| format!("it lacks {}", $symbol.to_string_lossy()))?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    component_register: unsafe extern "C" fn(*mut c_void) = c"uct_component_register",
    tl_register: unsafe extern "C" fn(*mut c_void, *mut c_void) = c"uct_tl_register",
    query_single_md_resource: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_uint) -> Status
        = c"uct_md_query_single_md_resource",
    single_device_resource:
        unsafe extern "C" fn(Md, *const c_char, c_int, u8, *mut c_void, *mut c_uint) -> Status
        = c"uct_single_device_resource",
    /// Two arguments more than most builds have: a build with statistics has them.
    base_iface_init: unsafe extern "C" fn(
        Iface, *const c_void, *mut c_int, *const c_void, *const c_void, Md, *mut c_void,
        *const IfaceParams, *const c_void, *mut c_void, *const c_char,
    ) -> Status = c"uct_base_iface_t_init",
    base_iface_class: *const c_void = c"uct_base_iface_t_class",
    class_cleanup: unsafe extern "C" fn(*const c_void, Iface, c_int) = c"ucs_class_call_cleanup_chain",
    base_iface_query: unsafe extern "C" fn(Iface, *mut IfaceAttr) = c"uct_base_iface_query",
    base_iface_estimate_perf: unsafe extern "C" fn(Iface, *mut c_void) -> Status
        = c"uct_base_iface_estimate_perf",
    progress_enable: unsafe extern "C" fn(Iface, c_uint) = c"uct_base_iface_progress_enable",
    progress_disable: unsafe extern "C" fn(Iface, c_uint) = c"uct_base_iface_progress_disable",
    iface_config_table: *const c_void = c"uct_iface_config_table",
    md_config_table: *const c_void = c"uct_md_config_table",
    handle_ep_err: unsafe extern "C" fn(Iface, Ep, Status) -> Status = c"uct_iface_handle_ep_err",
}

// SAFETY: the pointers are to functions and constant tables of a library that stays loaded.
unsafe impl Send for Host {}
// SAFETY: as above; nothing is changed through them.
unsafe impl Sync for Host {}

impl Host {
    /// What can serve this library; in `Err` why it cannot be served.
    pub fn of(library: Library) -> Result<Host, String> {
        let epoch = library.epoch().ok_or("it is older than 1.13")?;
        let host = Host::resolve(library, epoch.layout())?;
        if host.components.is_null() {
            return Err("it lacks uct_components_list".into());
        }
        Ok(host)
    }

    pub fn epoch(&self) -> Epoch {
        self.layout.epoch
    }

    /// File name of its libuct.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// `uct_iface_base_query_v2`, where the release has it.
    pub fn query_v2(&self) -> *const c_void {
        self._library.lookup(c"uct_iface_base_query_v2")
    }

    /// Where a symbol of it, or of its libucs, is; null if it is not.
    pub(crate) fn lookup(&self, name: &CStr) -> *const c_void {
        self._library.lookup(name)
    }

    /// `uct_iface_scope_is_reachable`, where the release has it.
    pub fn scope_is_reachable(&self) -> Option<unsafe extern "C" fn(Iface, *const c_void) -> c_int> {
        // SAFETY: the function's type since it exists (1.16).
        unsafe { self._library.symbol(c"uct_iface_scope_is_reachable") }
    }
}

/// A loaded libuct.
#[derive(Debug)]
pub struct Library(Object, CString);

impl Library {
    pub fn epoch(&self) -> Option<Epoch> {
        Epoch::of(|name| !self.0.lookup(name).is_null())
    }

    pub fn path(&self) -> &CStr {
        &self.1
    }

    /// Address of its list of components, which each copy of UCX has at another one.
    pub fn components(&self) -> *mut c_void {
        self.0.lookup(c"uct_components_list")
    }
}

/// Every libuct that is loaded.
pub fn libraries() -> Vec<Library> {
    Object::all_defining(c"uct_component_register")
        .into_iter()
        .map(|(object, path)| Library(object, path))
        .collect()
}

/// The `uct_query_components` that the caller means: that of its own dependencies. Else, and for
/// the program itself, which the linker does not name: what it would find if we were not there, or that
/// of the only UCX there is.
pub fn query_components() -> Option<QueryComponents> {
    caller_query_components()
        // SAFETY: that function's type.
        .or_else(|| unsafe { loaded::next(c"uct_query_components") })
        .or_else(|| match &libraries()[..] {
            // SAFETY: as above.
            [only] => unsafe { only.0.symbol(c"uct_query_components") },
            _ => None,
        })
}

fn caller_query_components() -> Option<QueryComponents> {
    let library = Object::holding(loaded::callers().next()?)?;
    let address = library.lookup(c"uct_query_components");
    let own = loaded::place(caller_query_components as *const c_void)?.base;
    // A caller without such a dependency finds what the program finds, which may be ourselves.
    if address.is_null() || loaded::place(address)?.base == own {
        return None;
    }
    // SAFETY: that function's type.
    unsafe { library.symbol(c"uct_query_components") }
}
