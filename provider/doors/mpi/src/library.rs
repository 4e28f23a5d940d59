//! The MPI that is in the process, and the functions of it.
//!
//! A program that links an MPI has it in the linker's global scope; mpi4py, Julia and R load it themselves,
//! with RTLD_LOCAL, so that only a search of all loaded objects finds it.

use core::ffi::{CStr, c_int};
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loaded::Object;

use crate::abi::{self, Abi};
use crate::words;

/// The MPI.
#[derive(Debug)]
pub struct Library {
    object: Object,
    /// Its binary interface.
    pub abi: Abi,
}

// SAFETY: a handle of dlopen(3) is for all threads.
unsafe impl Sync for Library {}
// SAFETY: as above.
unsafe impl Send for Library {}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// The MPI of this process, once it has loaded one.
pub fn library() -> Option<&'static Library> {
    if let Some(found) = LIBRARY.get() {
        return Some(found);
    }
    let found = find()?;
    Some(LIBRARY.get_or_init(|| found))
}

/// An object that defines PMPI functions is an MPI. Of several the one that the program's calls are bound to
/// counts, which is the first of the global scope.
fn find() -> Option<Library> {
    let mut all = Object::all_defining(c"PMPI_Comm_size");
    let bound = address_of_next(c"MPI_Comm_size");
    let at = all
        .iter()
        .position(|(object, _)| bound != 0 && object.lookup(c"MPI_Comm_size") as usize == bound)
        .unwrap_or(0);
    if at >= all.len() {
        return None;
    }
    let (object, path) = all.swap_remove(at);
    let abi = abi_of(&object, &path);
    Some(Library { object, abi })
}

fn abi_of(object: &Object, path: &CStr) -> Abi {
    if !object.lookup(c"ompi_mpi_comm_world").is_null() {
        return abi::open_mpi(|name| object_in(object, name));
    }
    let path = path.to_string_lossy();
    if path.rsplit('/').next().is_some_and(|file| file.contains("mpi_abi")) {
        abi::STANDARD
    } else {
        abi::MPICH
    }
}

/// Where an object of Open MPI's is. A program that is not position independent has its own copy of it, which
/// counts.
fn object_in(library: &Object, name: &CStr) -> usize {
    let copied = Object::global().map_or(std::ptr::null_mut(), |global| global.lookup(name));
    if copied.is_null() { library.lookup(name) as usize } else { copied as usize }
}

/// The same of the MPI of this process.
pub fn object(library: &Library, name: &CStr) -> usize {
    object_in(&library.object, name)
}

/// The next definition of `name` in the linker's order, or 0.
pub fn address_of_next(name: &CStr) -> usize {
    // SAFETY: the address is not followed.
    unsafe { loaded::next::<usize>(name) }.unwrap_or(0)
}

impl Library {
    /// Where the MPI's own function `MPI_...` is.
    pub fn function(&self, name: &str) -> Option<usize> {
        let address = |name: String| CString::new(name).map_or(0, |name| self.address(&name));
        let found = match address(format!("P{name}")) {
            // Open MPI 4.1 has the persistent collectives of MPI 4 by the prefix of an extension.
            0 if name.ends_with("_init") => address(format!("PMPIX_{}", name.strip_prefix("MPI_")?)),
            found => found,
        };
        (found != 0).then_some(found)
    }

    /// Where a function of it is, or 0.
    pub fn address(&self, name: &CStr) -> usize {
        self.object.lookup(name) as usize
    }
}

/// A function that was not searched for yet.
const UNKNOWN: usize = 0;
/// One that the MPI does not have.
const MISSING: usize = 1;

/// What a call is answered with that this MPI does not have: no MPI uses the value, and mpi4py takes it for a
/// missing function.
pub const UNAVAILABLE: c_int = 0xaaaa_aaaa_u32 as c_int;

/// A function of the MPI, found when it is first needed.
#[derive(Debug)]
pub struct Function {
    name: &'static CStr,
    at: AtomicUsize,
}

impl Function {
    /// Of this name, which begins with `PMPI_`.
    pub const fn new(name: &'static CStr) -> Function {
        Function { name, at: AtomicUsize::new(UNKNOWN) }
    }

    /// Its address, if the MPI has it.
    pub fn address(&self) -> Option<usize> {
        let mut at = self.at.load(Relaxed);
        if at == UNKNOWN {
            let found = library()?.address(self.name);
            at = if found == 0 { MISSING } else { found };
            self.at.store(at, Relaxed);
        }
        (at != MISSING).then_some(at)
    }

    /// Calls it.
    ///
    /// # Safety
    /// The arguments are those of that function, and valid for it.
    pub unsafe fn call(&self, arguments: &[usize]) -> c_int {
        match self.address() {
            // SAFETY: the caller's promise.
            Some(at) => unsafe { words::call(at, arguments) },
            None => UNAVAILABLE,
        }
    }
}

/// A name as C has it.
macro_rules! c_name {
    ($name:expr) => {
        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!(),
        }
    };
}
pub(crate) use c_name;

/// Calls a function of the MPI, by the name of its profiling interface without its prefix: `Err` with the
/// error's code where it does not answer MPI_SUCCESS.
macro_rules! pmpi {
    ($name:literal $(, $argument:expr)* $(,)?) => {{
        const NAME: &core::ffi::CStr =
            match core::ffi::CStr::from_bytes_with_nul(concat!("PMPI_", $name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            };
        static FUNCTION: $crate::library::Function = $crate::library::Function::new(NAME);
        match FUNCTION.call(&[$($argument as usize),*]) {
            0 => Ok::<(), core::ffi::c_int>(()),
            code => Err(code),
        }
    }};
}
pub(crate) use pmpi;

/// Whom an entry point calls: the next tool or library that defines it, or the MPI's own.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    at: AtomicUsize,
}

impl Next {
    /// Of the entry point of this name.
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, at: AtomicUsize::new(UNKNOWN) }
    }

    /// Its address, or `None` where the MPI does not have it.
    #[inline]
    pub fn address(&self) -> Option<usize> {
        match self.at.load(Relaxed) {
            UNKNOWN => self.search(),
            MISSING => None,
            at => Some(at),
        }
    }

    /// Where the form without large counts is, of a call that the MPI has in that form alone.
    pub fn with_small_counts(&self) -> Option<usize> {
        library()?.function(self.name.to_str().ok()?.strip_suffix("_c")?)
    }

    #[cold]
    fn search(&self) -> Option<usize> {
        let found = self.found();
        if found == 0 && library().is_none() {
            // There is no MPI yet.
            return None;
        }
        self.at.store(if found == 0 { MISSING } else { found }, Relaxed);
        (found != 0).then_some(found)
    }

    fn found(&self) -> usize {
        let next = address_of_next(self.name);
        if next != 0 {
            return next;
        }
        let name = self.name.to_str().unwrap_or_default();
        if name.starts_with("MPI") {
            return library().and_then(|library| library.function(name)).unwrap_or(0);
        }
        // A Fortran library that was loaded with RTLD_LOCAL.
        let own = loaded::place(Next::new as *const core::ffi::c_void).map(|place| place.base);
        let others = Object::all_defining(self.name).into_iter().map(|(object, _)| object.lookup(self.name));
        others
            .filter(|at| loaded::place(at.cast_const()).map(|place| place.base) != own)
            .map(|at| at as usize)
            .next()
            .unwrap_or(0)
    }
}
