//! What the dynamic linker has loaded. Nothing here ever loads an object.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;
use std::ffi::CString;

/// A loaded object, held while this exists.
#[derive(Debug)]
pub(crate) struct Object {
    handle: NonNull<c_void>,
    base: usize,
    path: CString,
}

impl Object {
    /// The object that holds `address`.
    pub(crate) fn holding(address: *const c_void) -> Option<Object> {
        let at = place(address)?;
        // SAFETY: the linker's names end in NUL and live as long as the object.
        let path = unsafe { CStr::from_ptr(at.dli_fname) }.to_owned();
        Object::open(path, at.dli_fbase as usize)
    }

    /// All objects that themselves (not through a library they need) define `symbol`.
    pub(crate) fn defining(symbol: &CStr) -> Vec<Object> {
        unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
            // SAFETY: the linker passes a valid entry whose name, where there is one, ends in NUL,
            // and the pointer given to dl_iterate_phdr, which is to a Vec nobody else uses.
            unsafe {
                let name: *const c_char = (*info).dlpi_name;
                if !name.is_null() && *name != 0 {
                    let names = &mut *names.cast::<Vec<(CString, usize)>>();
                    names.push((CStr::from_ptr(name).to_owned(), (*info).dlpi_addr as usize));
                }
            }
            0
        }

        let mut names: Vec<(CString, usize)> = Vec::new();
        // SAFETY: `note` is as dl_iterate_phdr wants it and `names` outlives the call. Objects are
        // opened after it, for the linker's lock is held during it.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
        names
            .into_iter()
            .filter_map(|(name, base)| Object::open(name, base))
            .filter(|object| object.own(symbol))
            .collect()
    }

    fn open(path: CString, base: usize) -> Option<Object> {
        // SAFETY: the name ends in NUL. With RTLD_NOLOAD nothing is loaded and no initialiser runs.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        NonNull::new(handle).map(|handle| Object { handle, base, path })
    }

    pub(crate) fn path(&self) -> &CStr {
        &self.path
    }

    /// Whether it defines the symbol itself.
    pub(crate) fn own(&self, symbol: &CStr) -> bool {
        place(self.lookup(symbol)).is_some_and(|at| at.dli_fbase as usize == self.base)
    }

    /// Where the symbol is, in this object or one it needs; null if it is not.
    pub(crate) fn lookup(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, the name ends in NUL.
        unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) }
    }

    /// The function or the object `name`. It is good while this library is loaded.
    ///
    /// # Safety
    ///
    /// `F` is the type of that function's, or object's, pointer.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the caller's promise.
        unsafe { typed(self.lookup(name)) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the handle is open and this is its one close.
        unsafe { libc::dlclose(self.handle.as_ptr()) };
    }
}

/// Where a symbol is that this object, preloaded, hides from the program.
///
/// # Safety
///
/// As for [`Object::symbol`].
pub(crate) unsafe fn next<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: the name ends in NUL; the caller's promise.
    unsafe { typed(libc::dlsym(libc::RTLD_NEXT, name.as_ptr())) }
}

/// # Safety
///
/// `F` is the type of what is at the address, if it is not null.
unsafe fn typed<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: equal sizes by the line above; of type F by the caller's promise.
    (!address.is_null()).then(|| unsafe { core::mem::transmute_copy(&address) })
}

pub(crate) fn place(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr compares the address with the ranges of loaded objects and never follows it;
    // on success it has filled in the structure.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

/// The innermost code address on this thread's stack outside the object that holds this code.
///
/// Stable Rust has no way to ask for a function's return address; the unwinder that std uses for
/// panics knows it.
pub(crate) fn caller() -> Option<*const c_void> {
    const CONTINUE: c_int = 0;
    const STOP: c_int = 4;

    struct Search {
        own: usize,
        found: *const c_void,
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
        // SAFETY: the unwinder passes its own context and the pointer to our Search, which nobody
        // else uses meanwhile.
        let (search, address) = unsafe { (&mut *data.cast::<Search>(), _Unwind_GetIP(context)) };
        if address == 0 {
            return STOP;
        }
        // A return address may be one past the end of its function.
        let address = (address - 1) as *const c_void;
        match place(address) {
            Some(at) if at.dli_fbase as usize == search.own => CONTINUE,
            _ => {
                search.found = address;
                STOP
            }
        }
    }

    let own = place(place as *const c_void)?.dli_fbase as usize;
    let mut search = Search { own, found: core::ptr::null() };
    // SAFETY: `each` does not unwind and is of the unwinder's callback type; `search` outlives the
    // call.
    unsafe { _Unwind_Backtrace(each, (&raw mut search).cast()) };
    (!search.found.is_null()).then_some(search.found)
}
