//! The library that was built for an MPI: see mpi/strait_rpipe_mpi.c.

use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;

use crate::Error;

/// Directory of the libraries, where they are not beside libstrait_rpipe.so or in the linker's path.
pub const DIR: &str = "STRAIT_RPIPE_MPI_DIR";

const VERSION: u32 = 2;

/// The table of mpi/strait_rpipe_mpi.c.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    version: u32,
    start: unsafe extern "C" fn(*mut c_char, usize) -> c_int,
    pub place: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    pub allgather: unsafe extern "C" fn(*const c_void, usize, *mut c_void) -> c_int,
    pub open_window: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub attach: unsafe extern "C" fn(*mut c_void, usize, *mut u64) -> c_int,
    pub detach: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub put: unsafe extern "C" fn(*const c_void, usize, c_int, u64) -> c_int,
    pub get: unsafe extern "C" fn(*mut c_void, usize, c_int, u64) -> c_int,
    pub fetch_add: unsafe extern "C" fn(*const u64, *mut u64, c_int, u64) -> c_int,
    pub flush: unsafe extern "C" fn(c_int) -> c_int,
    pub send: unsafe extern "C" fn(c_int, *const c_void, usize) -> c_int,
    pub poll: unsafe extern "C" fn(*mut c_int, *mut c_void, usize, *mut usize) -> c_int,
    pub idle: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub end: unsafe extern "C" fn() -> c_int,
    text: unsafe extern "C" fn(c_int, *mut c_char, usize),
    /// Whether another thread may call it while the program is not in a call of this library's.
    pub threads: unsafe extern "C" fn() -> c_int,
}

/// An MPI that is running.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub table: &'static Table,
}

impl Library {
    /// Loads the library of this name and starts MPI, unless it runs; returns what MPI calls itself.
    pub fn load(name: &str) -> Result<(Library, String), Error> {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        {
            return Err(Error::Invalid(format!(
                "{name:?} names no MPI: the backend is mpi:NAME, for libstrait_rpipe_mpi_NAME.so"
            )));
        }
        let file = format!("libstrait_rpipe_mpi_{name}.so");
        let mut places: Vec<PathBuf> =
            std::env::var_os(DIR).map(|dir| PathBuf::from(dir).join(&file)).into_iter().collect();
        places.push(PathBuf::from(&file));
        let mut why = String::new();
        for place in &places {
            // Global, since an MPI opens components that take its symbols from there.
            let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL;
            // SAFETY: a library of this package for an MPI, whose initialisers any program may run.
            match unsafe { libloading::os::unix::Library::open(Some(place), flags) } {
                Ok(object) => return Library::started(Box::leak(Box::new(object))),
                Err(e) => why = e.to_string(),
            }
        }
        Err(Error::Unsupported(format!(
            "no {file}: {why}\n  build it: mpicc -O2 -shared -fPIC -o {file} strait_rpipe_mpi.c, and name its directory by {DIR}"
        )))
    }

    fn started(object: &'static libloading::os::unix::Library) -> Result<(Library, String), Error> {
        // SAFETY: the symbol is the table, constant and as long as the library, which is never closed.
        let table = unsafe { object.get::<*const Table>(b"strait_rpipe_mpi\0") };
        let table = table.map_err(|e| Error::Unsupported(format!("no library for an MPI: {e}")))?;
        // SAFETY: the address of the table, whose first word is its version; a later one may have more
        // behind.
        let table = unsafe { &*table.into_raw().cast::<Table>() };
        if table.version != VERSION {
            let got = table.version;
            return Err(Error::Unsupported(format!(
                "a library for an MPI of version {got}, not {VERSION}: build it again"
            )));
        }
        let library = Library { table };
        let mut name = [0u8; 128];
        // SAFETY: a place of so many bytes.
        library.check(unsafe { (table.start)(name.as_mut_ptr().cast(), name.len()) }, "MPI_Init_thread")?;
        Ok((library, words(&name)))
    }

    pub fn check(&self, rc: c_int, what: &str) -> Result<(), Error> {
        if rc == 0 {
            return Ok(());
        }
        let mut text = [0u8; 512];
        // SAFETY: a place of so many bytes.
        unsafe { (self.table.text)(rc, text.as_mut_ptr().cast(), text.len()) };
        Err(Error::System(format!("{what}: {}", words(&text))))
    }

    pub fn place(&self) -> Result<(u32, u32), Error> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: two places for numbers.
        self.check(unsafe { (self.table.place)(&mut rank, &mut size) }, "MPI_Comm_rank")?;
        Ok((rank as u32, size as u32))
    }
}

fn words(text: &[u8]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_says_how_to_build_it() {
        let error = Library::load("nothing-of-this-name").unwrap_err();
        assert!(error.to_string().contains("mpicc -O2 -shared"), "{error}");
        for name in ["", "a/b"] {
            assert!(matches!(Library::load(name), Err(Error::Invalid(_))));
        }
    }
}
