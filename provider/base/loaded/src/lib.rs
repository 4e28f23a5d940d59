//! What the dynamic linker has loaded. Only [`Object::load`] loads an object.

mod callers;

pub use callers::callers;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null};
use std::ffi::CString;

/// A loaded object, held while this exists.
#[derive(Debug)]
pub struct Object(NonNull<c_void>);

impl Object {
    /// The object of this file name or soname, if it is loaded.
    pub fn named(name: &CStr) -> Option<Object> {
        // SAFETY: the name ends in NUL. With RTLD_NOLOAD nothing is loaded and no initialiser runs.
        unsafe { Self::open(name.as_ptr()) }
    }

    /// The program, and with it all symbols of the global scope.
    pub fn global() -> Option<Object> {
        // SAFETY: null stands for the program, which is always loaded.
        unsafe { Self::open(null()) }
    }

    /// The object that holds `address`, which is on our stack or named by a caller that has it loaded. Not
    /// the program, unless that can be opened by its name.
    pub fn holding(address: *const c_void) -> Option<Object> {
        Self::named(&place(address)?.path?)
    }

    /// The object that holds `address`, if it itself (not a library it needs) defines `symbol`.
    pub fn defining(address: *const c_void, symbol: &CStr) -> Option<Object> {
        let base = base(address)?;
        // A name that is gone by now only fails.
        [Self::holding(address), Self::global()]
            .into_iter()
            .flatten()
            .find(|object| self::base(object.lookup(symbol)) == Some(base))
    }

    /// All loaded objects, in load order.
    pub fn all() -> Vec<Object> {
        names()
            .iter()
            .filter_map(|Loaded { path, .. }| match path.is_empty() {
                true => Self::global(),
                false => Self::named(path),
            })
            .collect()
    }

    /// All libraries that themselves (not through a library they need) define `symbol`, and their names.
    pub fn all_defining(symbol: &CStr) -> Vec<(Object, CString)> {
        let defines = |object: &Object, at| base(object.lookup(symbol)) == Some(at);
        names()
            .into_iter()
            .filter(|Loaded { path, .. }| !path.is_empty())
            .filter_map(|Loaded { path, base }| Some((Self::named(&path)?, path, base)))
            .filter(|(object, _, base)| defines(object, *base))
            .map(|(object, path, _)| (object, path))
            .collect()
    }

    /// Loads the object of this file name or soname, unless it is loaded. Its symbols stay out of the global
    /// scope. The error is dlerror(3)'s.
    ///
    /// # Safety
    ///
    /// The initialisers of the object, and of those that it needs, may run in this process now.
    pub unsafe fn load(name: &CStr) -> Result<Object, String> {
        // SAFETY: the name ends in NUL; the caller's promise for the initialisers.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Object).ok_or_else(|| {
            // SAFETY: dlerror gives null or a string that ends in NUL, good until this thread's next call.
            let text = unsafe { libc::dlerror() };
            match text.is_null() {
                true => format!("{name:?} cannot be loaded"),
                // SAFETY: not null, by the check above.
                false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            }
        })
    }

    /// # Safety
    ///
    /// `name` is null or ends in NUL.
    unsafe fn open(name: *const c_char) -> Option<Object> {
        // SAFETY: the caller's promise; RTLD_NOLOAD keeps it from running foreign code.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        NonNull::new(handle).map(Object)
    }

    /// Where the symbol is, in this object or one it needs; null if it is not.
    pub fn lookup(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, the name ends in NUL.
        unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) }
    }

    /// The function or the object `name`, of this object or of one it needs. It is good while that is loaded.
    ///
    /// # Safety
    ///
    /// `F` is the type of that function's, or object's, pointer.
    pub unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the caller's promise.
        unsafe { typed(self.lookup(name)) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the handle is open and this is its one close.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// Where a symbol is that this object, preloaded, hides from the program.
///
/// # Safety
///
/// As for [`Object::symbol`].
pub unsafe fn next<F: Copy>(name: &CStr) -> Option<F> {
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

/// The object that an address is in.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its base address, which no other loaded object has.
    pub base: usize,
    /// Its file name, as the linker knows it.
    pub path: Option<CString>,
}

/// The object that holds `address`, which may be any.
pub fn place(address: *const c_void) -> Option<Place> {
    let info = info(address)?;
    // SAFETY: the linker's name, where there is one, ends in NUL and lives while the object is loaded.
    let path = (!info.dli_fname.is_null()).then(|| unsafe { CStr::from_ptr(info.dli_fname) }.to_owned());
    Some(Place { base: info.dli_fbase as usize, path })
}

/// Where the object begins that holds `address`.
pub(crate) fn base(address: *const c_void) -> Option<usize> {
    info(address).map(|info| info.dli_fbase as usize)
}

fn info(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr compares the address with the ranges of loaded objects and never follows it;
    // on success it has filled in the structure.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

struct Loaded {
    /// Empty for the program.
    path: CString,
    base: usize,
}

/// The names of all loaded objects, in load order.
fn names() -> Vec<Loaded> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
        // SAFETY: the linker passes a valid entry whose name, where there is one, ends in NUL,
        // and the pointer given to dl_iterate_phdr, which is to a Vec that nothing else uses.
        unsafe {
            let name = (*info).dlpi_name;
            if !name.is_null() {
                let names = &mut *names.cast::<Vec<Loaded>>();
                let (path, base) = (CStr::from_ptr(name).to_owned(), (*info).dlpi_addr as usize);
                names.push(Loaded { path, base });
            }
        }
        0
    }

    let mut names: Vec<Loaded> = Vec::new();
    // SAFETY: `note` is as dl_iterate_phdr wants it and `names` outlives the call. Objects are
    // opened after it, for the linker's lock is held during it.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_libc() -> *const c_void {
        libc::getpid as *const c_void
    }

    #[test]
    fn what_is_not_loaded_is_not_found() {
        assert!(Object::named(c"libstrait-there-is-none.so").is_none());
        assert!(Object::all_defining(c"strait_there_is_none").is_empty());
        assert!(Object::global().unwrap().lookup(c"strait_there_is_none").is_null());
        assert!(place(null()).is_none());
        // SAFETY: nothing is called.
        assert!(unsafe { next::<extern "C" fn()>(c"strait_there_is_none") }.is_none());
    }

    #[test]
    fn an_object_that_cannot_be_loaded_is_an_error_with_its_name() {
        // SAFETY: there is no such object.
        let error = unsafe { Object::load(c"libstrait-there-is-none.so") }.unwrap_err();
        assert!(error.contains("libstrait-there-is-none.so"), "{error}");
    }

    #[test]
    fn the_object_of_an_address_is_found_by_what_it_defines() {
        if place(of_libc()).map(|at| at.base) == place(of_libc as *const c_void).map(|at| at.base) {
            eprintln!("skipped: the C library is linked statically");
            return;
        }
        let base = place(Object::global().unwrap().lookup(c"getpid")).unwrap().base;
        let object = Object::defining(Object::global().unwrap().lookup(c"getpid"), c"getpid").unwrap();
        // SAFETY: that function's type.
        let getpid: unsafe extern "C" fn() -> c_int = unsafe { object.symbol(c"getpid") }.unwrap();
        // SAFETY: takes nothing and cannot fail.
        assert_eq!(unsafe { getpid() } as u32, std::process::id());
        // Another object's address does not: it only needs the one that does.
        assert!(Object::defining(place as *const c_void, c"getpid").is_none());
        let all = Object::all_defining(c"getpid");
        assert!(all.iter().any(|(object, _)| place(object.lookup(c"getpid")).unwrap().base == base));
        assert!(all.iter().all(|(_, path)| !path.is_empty()));
        assert!(Object::all().len() > all.len(), "the program is one more");
    }
}
