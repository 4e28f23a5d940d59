//! cuFile, NVIDIA's library for files and CUDA's memory: opened at run time, the first time that a file meets CUDA's memory.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use libc::{c_int, c_void, off_t, ssize_t};
use libloading::os::unix::Library;

/// `CUfileError_t`: cuFile's code, and CUDA's if the first says so.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    code: c_int,
    cuda: c_int,
}

/// `CUfileDescr_t`.
#[repr(C)]
struct Descriptor {
    /// 1: a file descriptor.
    kind: c_int,
    handle: Handle,
    operations: *const c_void,
}

#[repr(C)]
union Handle {
    fd: c_int,
    _pointer: *mut c_void,
}

type Transfer = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, off_t, off_t) -> ssize_t;

struct Api {
    register: unsafe extern "C" fn(*mut *mut c_void, *mut Descriptor) -> Status,
    deregister: unsafe extern "C" fn(*mut c_void),
    read: Transfer,
    write: Transfer,
}

const NAME: &str = "libcufile.so.0";

/// The library, or why it cannot be used.
fn api() -> Result<&'static Api, &'static str> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(String::as_str)
}

fn load() -> Result<Api, String> {
    // SAFETY: NVIDIA's library, which a process with CUDA's memory loads as it loads CUDA's driver.
    let library = unsafe { Library::new(NAME) }.map_err(|e| format!("cuFile is not there: {e}"))?;
    // It stays: its functions are in the table for as long as the process lives.
    let library = Box::leak(Box::new(library));
    let missing = |e: libloading::Error| format!("{NAME}: {e}");
    // SAFETY: the symbols have these types by cufile.h.
    unsafe {
        let open = library.get::<unsafe extern "C" fn() -> Status>(b"cuFileDriverOpen\0").map_err(missing)?;
        let api = Api {
            register: *library.get(b"cuFileHandleRegister\0").map_err(missing)?,
            deregister: *library.get(b"cuFileHandleDeregister\0").map_err(missing)?,
            read: *library.get(b"cuFileRead\0").map_err(missing)?,
            write: *library.get(b"cuFileWrite\0").map_err(missing)?,
        };
        match open() {
            Status { code: 0, .. } => Ok(api),
            Status { code, cuda } => Err(format!("cuFileDriverOpen: error {code} (CUDA's {cuda})")),
        }
    }
}

/// A file as cuFile knows it.
pub(super) struct Registered {
    api: &'static Api,
    handle: *mut c_void,
}

// SAFETY: cuFile's functions may be called from any thread with any handle.
unsafe impl Send for Registered {}
// SAFETY: likewise.
unsafe impl Sync for Registered {}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registered")
    }
}

impl Registered {
    /// `fd` stays open for longer than what is returned.
    pub fn new(fd: &OwnedFd) -> Result<Registered, String> {
        let api = api()?;
        let mut handle = std::ptr::null_mut();
        let mut of =
            Descriptor { kind: 1, handle: Handle { fd: fd.as_raw_fd() }, operations: std::ptr::null() };
        // SAFETY: both places are valid.
        match unsafe { (api.register)(&mut handle, &mut of) } {
            Status { code: 0, .. } => Ok(Registered { api, handle }),
            Status { code, cuda } => Err(format!("cuFileHandleRegister: error {code} (CUDA's {cuda})")),
        }
    }

    /// Copies between the file and `len` bytes at `addr`, which are CUDA's: how many.
    pub fn transfer(&self, write: bool, addr: usize, len: usize, offset: u64) -> Result<usize, String> {
        let (call, name) = match write {
            true => (self.api.write, "cuFileWrite"),
            false => (self.api.read, "cuFileRead"),
        };
        let at = std::ptr::with_exposed_provenance_mut(addr);
        let offset = off_t::try_from(offset).map_err(|_| "the offset is too large")?;
        // SAFETY: `hmem` has said that the memory is CUDA's; cuFile checks its range.
        match unsafe { call(self.handle, at, len, offset, 0) } {
            -1 => Err(format!("{name}: {}", std::io::Error::last_os_error())),
            n => usize::try_from(n).map_err(|_| format!("{name}: error {}", -n)),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered, and not used any more.
        unsafe { (self.api.deregister)(self.handle) }
    }
}
