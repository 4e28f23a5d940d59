//! cuFile, NVIDIA's library for files and CUDA's memory: opened at run time, the first time that a file meets
//! CUDA's memory.

use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hmem::cuda::RelaxedCapture;
use libc::{c_int, c_void, off_t, ssize_t};
use libloading::os::unix::Library;

use super::cufile_words::words;

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

/// On a stream. What stands behind pointers is looked at when its turn comes.
type Queue = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut usize,
    *mut off_t,
    *mut off_t,
    *mut ssize_t,
    *mut c_void,
) -> Status;

struct Api {
    register: unsafe extern "C" fn(*mut *mut c_void, *mut Descriptor) -> Status,
    deregister: unsafe extern "C" fn(*mut c_void),
    read: Transfer,
    write: Transfer,
    /// Since CUDA 12.2.
    queue_read: Option<Queue>,
    queue_write: Option<Queue>,
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
            queue_read: library.get(b"cuFileReadAsync\0").ok().map(|f| *f),
            queue_write: library.get(b"cuFileWriteAsync\0").ok().map(|f| *f),
        };
        match open() {
            Status { code: 0, .. } => Ok(api),
            status => Err(format!("cuFileDriverOpen: {}", words(status.code, status.cuda))),
        }
    }
}

/// A file as cuFile knows it.
pub(super) struct Registered {
    api: &'static Api,
    handle: *mut c_void,
    /// A transfer on a stream has failed: no others are queued.
    refuses: AtomicBool,
}

// SAFETY: cuFile's functions may be called from any thread with any handle.
unsafe impl Send for Registered {}
// SAFETY: cuFile's functions may be called from any thread with any handle.
unsafe impl Sync for Registered {}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registered")
    }
}

impl Registered {
    /// The file by the first of these descriptors that cuFile takes. They stay open for longer than what is
    /// returned.
    pub fn new(descriptors: &[&OwnedFd]) -> Result<Registered, String> {
        // cuFileDriverOpen allocates memory of CUDA's, which would end a capture of the application's.
        let _relaxed = RelaxedCapture::here();
        let api = api()?;
        let mut why = None;
        for fd in descriptors {
            match Registered::of(api, fd) {
                Ok(registered) => return Ok(registered),
                Err(e) => drop(why.get_or_insert(e)),
            }
        }
        Err(why.unwrap_or_default())
    }

    fn of(api: &'static Api, fd: &OwnedFd) -> Result<Registered, String> {
        let mut handle = std::ptr::null_mut();
        let mut of =
            Descriptor { kind: 1, handle: Handle { fd: fd.as_raw_fd() }, operations: std::ptr::null() };
        // SAFETY: both places are valid.
        match unsafe { (api.register)(&mut handle, &mut of) } {
            Status { code: 0, .. } => Ok(Registered { api, handle, refuses: AtomicBool::new(false) }),
            status => Err(format!("cuFileHandleRegister: {}", words(status.code, status.cuda))),
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
        let _relaxed = RelaxedCapture::here();
        // SAFETY: `hmem` has said that the memory is CUDA's; cuFile checks its range.
        match unsafe { call(self.handle, at, len, offset, 0) } {
            -1 => Err(format!("{name}: {}", std::io::Error::last_os_error())),
            n => usize::try_from(n).map_err(|_| format!("{name}: {}", words(code_of(n), 0))),
        }
    }
}

/// A transfer that is queued on a stream: what cuFile reads when its turn comes, and what it has come to.
#[derive(Debug)]
pub(super) struct Queued(Box<UnsafeCell<Slot>>);

#[derive(Debug)]
struct Slot {
    len: usize,
    offset: off_t,
    skip: off_t,
    bytes: ssize_t,
}

// SAFETY: cuFile alone writes it until it is done, and it is looked at then.
unsafe impl Send for Queued {}
// SAFETY: cuFile alone writes it until it is done, and it is looked at then.
unsafe impl Sync for Queued {}

impl Registered {
    /// Queues a transfer on a stream.
    ///
    /// # Safety
    /// `stream` is one, and `addr..addr+len` is CUDA's and stays until the transfer is done; what is returned
    /// is kept until then.
    pub unsafe fn queue(
        &self,
        write: bool,
        addr: usize,
        len: usize,
        offset: u64,
        stream: usize,
    ) -> Result<Queued, String> {
        let (call, name) = match write {
            true => (self.api.queue_write, "cuFileWriteAsync"),
            false => (self.api.queue_read, "cuFileReadAsync"),
        };
        let call = call.ok_or_else(|| format!("{NAME} has no {name}"))?;
        if self.refuses.load(Relaxed) {
            return Err(format!("{name} has failed before"));
        }
        let offset = off_t::try_from(offset).map_err(|_| "the offset is too large")?;
        let queued = Queued(Box::new(UnsafeCell::new(Slot { len, offset, skip: 0, bytes: 0 })));
        let slot = queued.0.get();
        // SAFETY: the places stay where they are until it is done; the rest is the caller's promise.
        let status = unsafe {
            call(
                self.handle,
                std::ptr::with_exposed_provenance_mut(addr),
                &raw mut (*slot).len,
                &raw mut (*slot).offset,
                &raw mut (*slot).skip,
                &raw mut (*slot).bytes,
                std::ptr::without_provenance_mut(stream),
            )
        };
        match status {
            Status { code: 0, .. } => Ok(queued),
            status => Err(format!("{name}: {}", words(status.code, status.cuda))),
        }
    }

    /// What has come of one that the stream has done.
    ///
    /// # Safety
    /// It is done.
    pub unsafe fn result(&self, queued: &Queued) -> Result<usize, String> {
        // SAFETY: cuFile writes it no more.
        let bytes = unsafe { (&raw const (*queued.0.get()).bytes).read_volatile() };
        usize::try_from(bytes).map_err(|_| {
            self.refuses.store(true, Relaxed);
            words(code_of(bytes), 0)
        })
    }
}

/// What a count below 0 means: -1 is errno's, others are codes.
fn code_of(count: ssize_t) -> c_int {
    c_int::try_from(-count).unwrap_or(0)
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _relaxed = RelaxedCapture::here();
        // SAFETY: registered, and not used any more.
        unsafe { (self.api.deregister)(self.handle) }
    }
}
