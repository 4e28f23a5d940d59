//! The libfabric core that runs in this process, found without linking to it.
//!
//! A provider that links libfabric is tied to the symbol versions of the host it was built on and
//! is silently not loaded elsewhere; one that leaves `fi_*` undefined fails when the application
//! loaded libfabric with `RTLD_LOCAL`, and otherwise binds to the *oldest* version of `fi_dupinfo`,
//! which cuts `fi_info` short. `dlsym` on the handle of the core that called the provider has neither
//! problem: it works for any copy of libfabric, and answers with the newest version of a symbol,
//! which is the one for the layout the core itself uses.

use crate::bindings::{
    FI_ENOSYS, FI_PARAM_STRING, fi_fabric_attr, fi_info, fi_log_level, fi_log_subsys, fi_param_type,
    fi_provider, fi_type, fid_fabric,
};
use crate::consts::FI_VERSION;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null;
use loaded::{Object, callers};
use std::ffi::CString;

/// `uint32_t fi_version(void)`
pub type VersionFn = unsafe extern "C" fn() -> u32;
/// `struct fi_info *fi_dupinfo(const struct fi_info *info)`
pub type DupInfoFn = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
/// `void fi_freeinfo(struct fi_info *info)`
pub type FreeInfoFn = unsafe extern "C" fn(*mut fi_info);
/// `int fi_param_define(provider, param_name, type, help_string_fmt, ...)`
pub type ParamDefineFn =
    unsafe extern "C" fn(*const fi_provider, *const c_char, fi_param_type, *const c_char, ...) -> c_int;
/// `int fi_param_get(provider, param_name, value)`
pub type ParamGetFn = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;
/// `void fi_log(prov, level, subsys, func, line, fmt, ...)`
pub type LogFn = unsafe extern "C" fn(
    *const fi_provider,
    fi_log_level,
    fi_log_subsys,
    *const c_char,
    c_int,
    *const c_char,
    ...
);
/// `int fi_log_enabled(prov, level, subsys)`
pub type LogEnabledFn = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
/// `int fi_log_ready(prov, level, subsys, showtime)`
pub type LogReadyFn =
    unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys, *mut u64) -> c_int;
/// `const char *fi_strerror(int errnum)`
pub type StrErrorFn = unsafe extern "C" fn(c_int) -> *const c_char;
/// `char *fi_tostr_r(buf, len, data, datatype)`
pub type ToStrRFn = unsafe extern "C" fn(*mut c_char, usize, *const c_void, fi_type) -> *mut c_char;

/// `int fi_getinfo(version, node, service, flags, hints, info)`
pub type GetInfoFn =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
/// `int fi_fabric(attr, fabric, context)`
pub type FabricFn = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// How sure it is that a [`Core`] is the one that loaded this provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its code is on the call stack (or the caller named it): it is the one.
    Caller,
    /// It is in the process. With several copies of libfabric it may be another one's core.
    Loaded,
}

/// Entry points of the running core.
///
/// The pointers stay good until the core is unloaded. The core calls the provider's `cleanup`
/// before that, and a provider must not use its `Core` afterwards. (The core is deliberately not
/// kept loaded from here: it unloads its providers from its own destructor, which a reference held
/// by a provider would put off for ever.)
#[derive(Clone, Copy, Debug)]
pub struct Core {
    version: VersionFn,
    dupinfo: DupInfoFn,
    freeinfo: FreeInfoFn,
    param_define: ParamDefineFn,
    param_get: ParamGetFn,
    log: LogFn,
    log_enabled: LogEnabledFn,
    log_ready: Option<LogReadyFn>,
    strerror: StrErrorFn,
    tostr_r: Option<ToStrRFn>,
    getinfo: Option<GetInfoFn>,
    fabric: Option<FabricFn>,
    found: Found,
}

impl Core {
    /// Finds the core, to be called from `fi_prov_ini`.
    ///
    /// `caller` is any address inside the core if one is known, such as the return address of
    /// `fi_prov_ini`. Without one the call stack is searched, and then whatever is loaded:
    /// `libfabric.so.1`, the global symbols, and every object of the process, which also finds a
    /// copy under another name loaded with `RTLD_LOCAL`.
    ///
    /// `None` means that no loaded object offers the functions, as when libfabric is embedded with
    /// hidden symbols.
    pub fn find(caller: Option<*const c_void>) -> Option<Core> {
        caller
            .into_iter()
            .chain(callers())
            .find_map(|address| Self::of(&Object::defining(address, c"fi_version")?, Found::Caller))
            .or_else(|| Self::of(&Object::named(c"libfabric.so.1")?, Found::Loaded))
            .or_else(|| Self::of(&Object::global()?, Found::Loaded))
            .or_else(|| Object::all().into_iter().find_map(|object| Self::of(&object, Found::Loaded)))
    }

    fn of(object: &Object, found: Found) -> Option<Core> {
        // SAFETY: these names are libfabric's, part of its versioned and append-only C ABI, and
        // each type is that of the function's declaration in the public headers.
        unsafe {
            Some(Core {
                version: object.symbol(c"fi_version")?,
                dupinfo: object.symbol(c"fi_dupinfo")?,
                freeinfo: object.symbol(c"fi_freeinfo")?,
                param_define: object.symbol(c"fi_param_define")?,
                param_get: object.symbol(c"fi_param_get")?,
                log: object.symbol(c"fi_log")?,
                log_enabled: object.symbol(c"fi_log_enabled")?,
                log_ready: object.symbol(c"fi_log_ready"),
                strerror: object.symbol(c"fi_strerror")?,
                tostr_r: object.symbol(c"fi_tostr_r"),
                getinfo: object.symbol(c"fi_getinfo"),
                fabric: object.symbol(c"fi_fabric"),
                found,
            })
        }
    }

    /// How the core was found.
    pub fn found(&self) -> Found {
        self.found
    }

    /// File name of the object the core is in, for messages.
    pub fn path(&self) -> Option<CString> {
        loaded::place(self.version as *const c_void)?.path
    }

    /// The API version the core implements, as from [`FI_VERSION`].
    pub fn version(&self) -> u32 {
        // SAFETY: takes nothing and returns a constant.
        unsafe { (self.version)() }
    }

    /// Whether the core is of API version `major.minor` or newer: the guard in front of a field
    /// that older cores do not have in their structures.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        self.version() >= FI_VERSION(major, minor)
    }

    /// A zeroed `fi_info` with all its attributes, in the size the core uses. Null if out of memory.
    /// Strings put into it must come from `malloc`, for the core frees them.
    pub fn allocinfo(&self) -> *mut fi_info {
        // SAFETY: a null argument is the documented way to allocate (inline fi_allocinfo does it).
        unsafe { (self.dupinfo)(null()) }
    }

    /// A copy of `info` with all it points to, null if out of memory.
    ///
    /// # Safety
    ///
    /// `info` is null, or a complete `fi_info` in the core's layout: from [`Core::allocinfo`], or
    /// passed to the provider by the core.
    pub unsafe fn dupinfo(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: the caller's promise is what the function asks for.
        unsafe { (self.dupinfo)(info) }
    }

    /// Frees a list of `fi_info`.
    ///
    /// # Safety
    ///
    /// `info` is null, or from [`Core::allocinfo`] or [`Core::dupinfo`] of this core, and not freed
    /// yet.
    pub unsafe fn freeinfo(&self, info: *mut fi_info) {
        // SAFETY: the caller's promise is what the function asks for.
        unsafe { (self.freeinfo)(info) }
    }

    /// What providers of this core answer to hints: 0 and a list, which is to be freed, or a negative error.
    /// Not to be called from `fi_prov_ini`, during which the core holds a lock.
    ///
    /// # Safety
    ///
    /// `hints` is null or as for [`Core::dupinfo`].
    pub unsafe fn getinfo(
        &self,
        version: u32,
        node: Option<&CStr>,
        flags: u64,
        hints: *const fi_info,
    ) -> Result<*mut fi_info, c_int> {
        let getinfo = self.getinfo.ok_or(-FI_ENOSYS)?;
        let mut found = core::ptr::null_mut();
        let node = node.map_or(null(), CStr::as_ptr);
        // SAFETY: the caller's promise; the string ends in NUL, and `found` is a place for the answer.
        match unsafe { getinfo(version, node, null(), flags, hints, &mut found) } {
            0 => Ok(found),
            error => Err(error),
        }
    }

    /// Opens a fabric: the object, or a negative error.
    ///
    /// # Safety
    ///
    /// `attr` is of an `fi_info` that this core has given out.
    pub unsafe fn fabric(&self, attr: *mut fi_fabric_attr) -> Result<*mut fid_fabric, c_int> {
        let fabric = self.fabric.ok_or(-FI_ENOSYS)?;
        let mut opened = core::ptr::null_mut();
        // SAFETY: the caller's promise, and `opened` is a place for the answer.
        match unsafe { fabric(attr, &mut opened, core::ptr::null_mut()) } {
            0 => Ok(opened),
            error => Err(error),
        }
    }

    /// Declares a parameter, which makes the core look for the variable `FI_<PROVIDER>_<NAME>` and
    /// `fi_info -e` list it. Returns 0 or a negative error.
    ///
    /// # Safety
    ///
    /// `provider` is the structure returned from `fi_prov_ini`, with its name set.
    pub unsafe fn param_define(
        &self,
        provider: *const fi_provider,
        name: &CStr,
        kind: fi_param_type,
        help: &CStr,
    ) -> c_int {
        // SAFETY: provider is the caller's promise; the strings end in NUL and are copied; "%s"
        // takes exactly the one string that follows, so `help` is never read as a format.
        unsafe { (self.param_define)(provider, name.as_ptr(), kind, c"%s".as_ptr(), help.as_ptr()) }
    }

    /// The raw `fi_param_get`: 0, or `-FI_ENODATA` if the variable is not set.
    ///
    /// # Safety
    ///
    /// `provider` as for [`Core::param_define`], and `value` is writable and of the type that
    /// `name` was defined with.
    pub unsafe fn param_get(&self, provider: *mut fi_provider, name: &CStr, value: *mut c_void) -> c_int {
        // SAFETY: the caller's promise, and `name` ends in NUL.
        unsafe { (self.param_get)(provider, name.as_ptr(), value) }
    }

    /// Defines a parameter and reads it, as text: of a number the core takes what it can read for all of it.
    ///
    /// # Safety
    ///
    /// As for [`Core::param_define`]; `name` is not defined with another type.
    pub unsafe fn param_string(
        &self,
        provider: *mut fi_provider,
        name: &CStr,
        help: &CStr,
    ) -> Option<CString> {
        let mut value: *mut c_char = core::ptr::null_mut();
        // SAFETY: the caller's promise; a string parameter writes a `char *`, which points into the
        // environment and is copied before anything else runs here.
        unsafe {
            self.param_define(provider, name, FI_PARAM_STRING, help);
            let out = (&raw mut value).cast();
            (self.param_get(provider, name, out) == 0 && !value.is_null())
                .then(|| CStr::from_ptr(value).to_owned())
        }
    }

    /// Whether a message of this level and subsystem would be shown.
    ///
    /// # Safety
    ///
    /// `provider` as for [`Core::param_define`].
    pub unsafe fn log_enabled(
        &self,
        provider: *const fi_provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
    ) -> bool {
        // SAFETY: the caller's promise; unknown levels and subsystems are bits of a mask.
        unsafe { (self.log_enabled)(provider, level, subsys) != 0 }
    }

    /// Whether a repeated message may be shown again, `showtime` being its state. Cores older than
    /// the function answer as [`Core::log_enabled`].
    ///
    /// # Safety
    ///
    /// `provider` as for [`Core::param_define`].
    pub unsafe fn log_ready(
        &self,
        provider: *const fi_provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
        showtime: &mut u64,
    ) -> bool {
        // SAFETY: the caller's promise, and `showtime` is an exclusive 64-bit integer.
        unsafe {
            match self.log_ready {
                Some(ready) => ready(provider, level, subsys, showtime) != 0,
                None => self.log_enabled(provider, level, subsys),
            }
        }
    }

    /// Writes one line to the core's log. It does not ask [`Core::log_enabled`] and leaves `errno`
    /// as it is.
    ///
    /// # Safety
    ///
    /// `provider` as for [`Core::param_define`]; `subsys` is one of the `FI_LOG_*` subsystems and
    /// `level` one of the levels, for older cores index their names with them.
    pub unsafe fn log(
        &self,
        provider: *const fi_provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
        function: &CStr,
        line: c_int,
        message: &CStr,
    ) {
        // SAFETY: the caller's promise; the strings end in NUL, and "%s" takes exactly the one that
        // follows. errno is this thread's own.
        unsafe {
            let errno = *libc::__errno_location();
            (self.log)(provider, level, subsys, function.as_ptr(), line, c"%s\n".as_ptr(), message.as_ptr());
            *libc::__errno_location() = errno;
        }
    }

    /// The text of an error number, positive or negative.
    pub fn strerror(&self, errnum: c_int) -> String {
        // SAFETY: any number is allowed, and the answer is a string that ends in NUL. It may be
        // libc's per-thread buffer, hence the copy.
        unsafe {
            let text = (self.strerror)(errnum.wrapping_abs());
            if text.is_null() {
                return errnum.to_string();
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }

    /// The core's text for a structure or constant, `None` before 1.9.
    ///
    /// # Safety
    ///
    /// `data` points to what `kind` says, in the core's layout.
    pub unsafe fn tostr(&self, data: *const c_void, kind: fi_type) -> Option<String> {
        let tostr_r = self.tostr_r?;
        let mut text = vec![0u8; 8192];
        // SAFETY: the caller's promise, and the core writes at most `len` bytes with the NUL.
        unsafe { tostr_r(text.as_mut_ptr().cast(), text.len(), data, kind) };
        let text = CStr::from_bytes_until_nul(&text).ok()?;
        Some(text.to_string_lossy().into_owned())
    }
}
