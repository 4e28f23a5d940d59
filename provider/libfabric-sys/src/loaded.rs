//! What the dynamic linker has loaded. Nothing here ever loads an object.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null};
use std::ffi::CString;

/// A loaded object, held while this exists.
#[derive(Debug)]
pub(crate) struct Object(NonNull<c_void>);

impl Object {
    /// The object of this file name or soname, if it is loaded.
    pub(crate) fn named(name: &CStr) -> Option<Object> {
        // SAFETY: the name ends in NUL. With RTLD_NOLOAD nothing is loaded and no initialiser runs.
        unsafe { Self::open(name.as_ptr()) }
    }

    /// The program, and with it all symbols of the global scope.
    pub(crate) fn global() -> Option<Object> {
        // SAFETY: null stands for the program, which is always loaded.
        unsafe { Self::open(null()) }
    }

    /// The object that holds `address`, if it itself (not a library it needs) defines `symbol`.
    pub(crate) fn defining(address: *const c_void, symbol: &CStr) -> Option<Object> {
        let place = place(address)?;
        // SAFETY: the linker's names end in NUL and live as long as the object, which holds code
        // on our stack or was named by the caller as loaded. A name that is gone by now only fails.
        let by_name = unsafe { Self::open(place.dli_fname) };
        [by_name, Self::global()].into_iter().flatten().find(|object| {
            self::place(object.lookup(symbol)).is_some_and(|at| at.dli_fbase == place.dli_fbase)
        })
    }

    /// All loaded objects, in load order.
    pub(crate) fn all() -> Vec<Object> {
        unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
            // SAFETY: the linker passes a valid entry whose name, where there is one, ends in NUL,
            // and the pointer given to dl_iterate_phdr, which is to a Vec nobody else uses.
            unsafe {
                let name = (*info).dlpi_name;
                if !name.is_null() {
                    let names = &mut *names.cast::<Vec<CString>>();
                    names.push(CStr::from_ptr(name).to_owned());
                }
            }
            0
        }

        let mut names: Vec<CString> = Vec::new();
        // SAFETY: `note` is as dl_iterate_phdr wants it and `names` outlives the call. Objects are
        // opened after it, for the linker's lock is held during it.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
        names
            .iter()
            .filter_map(|name| match name.is_empty() {
                true => Self::global(),
                false => Self::named(name),
            })
            .collect()
    }

    /// # Safety
    ///
    /// `name` is null or ends in NUL.
    unsafe fn open(name: *const c_char) -> Option<Object> {
        // SAFETY: the caller's promise; RTLD_NOLOAD keeps it from running foreign code.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        NonNull::new(handle).map(Object)
    }

    fn lookup(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, the name ends in NUL.
        unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) }
    }

    /// The function `name` of this object or of one it needs. It is good while that is loaded.
    ///
    /// # Safety
    ///
    /// `F` is the type of that function's pointer.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.lookup(name);
        // SAFETY: equal sizes by the line above; not null, and of type F by the caller's promise.
        (!address.is_null()).then(|| unsafe { core::mem::transmute_copy(&address) })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the handle is open and this is its one close.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// File name of the object that holds `address`.
pub(crate) fn path_of(address: *const c_void) -> Option<CString> {
    let name = place(address)?.dli_fname;
    // SAFETY: the linker's name ends in NUL and lives while the object is loaded.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
}

fn place(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr compares the address with the ranges of loaded objects and never follows it;
    // on success it has filled in the structure.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

/// The code addresses on this thread's stack outside our own object, innermost first.
///
/// Stable Rust has no way to ask for a function's return address; the unwinder that std uses for
/// panics knows it.
pub(crate) fn callers() -> impl Iterator<Item = *const c_void> {
    const DEPTH: usize = 64;
    const CONTINUE: c_int = 0;
    const STOP: c_int = 4;

    struct Trace {
        addresses: [*const c_void; DEPTH],
        used: usize,
    }

    unsafe extern "C" {
        // libgcc_s (or its stand-in), which std links already.
        fn _Unwind_Backtrace(
            each: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            data: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }

    unsafe extern "C" fn each(context: *mut c_void, data: *mut c_void) -> c_int {
        // SAFETY: the unwinder passes its own context and the pointer to our Trace, which nobody
        // else uses meanwhile.
        let (trace, address) = unsafe { (&mut *data.cast::<Trace>(), _Unwind_GetIP(context)) };
        if trace.used == DEPTH || address == 0 {
            return STOP;
        }
        // A return address may be one past the end of its function.
        trace.addresses[trace.used] = (address - 1) as *const c_void;
        trace.used += 1;
        CONTINUE
    }

    let mut trace = Trace { addresses: [null(); DEPTH], used: 0 };
    // SAFETY: `each` does not unwind and is of the unwinder's callback type; `trace` outlives the
    // call.
    unsafe { _Unwind_Backtrace(each, (&raw mut trace).cast()) };

    let own = place(place as *const c_void).map(|at| at.dli_fbase);
    trace
        .addresses
        .into_iter()
        .take(trace.used)
        .filter(move |&address| place(address).map(|at| at.dli_fbase) != own)
}
