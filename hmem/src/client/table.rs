//! How a library reaches the clients in `libstrait.so`: a table of C functions, in a version of its
//! own. Errors are errnos, above 0; nothing unwinds through it.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;

use super::owner;

/// The library that has the clients, and the function in it that answers with its table.
const LIBRARY: &str = "libstrait.so.0";
const SYMBOL: &[u8] = b"strait_hmem_table_v1\0";

/// Most pieces that one buffer's handles come in.
pub(crate) const MOST: usize = 256;

/// Another process's way to a piece of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileExport {
    /// Never used again.
    pub id: u64,
    /// First byte, as an address of the owner's.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// A descriptor of the owner's.
    pub fd: i32,
    /// 0.
    pub zero: u32,
    /// Which file, and from where on.
    pub token: [u8; 64],
}

impl Default for FileExport {
    fn default() -> Self {
        FileExport { id: 0, base: 0, len: 0, fd: -1, zero: 0, token: [0; 64] }
    }
}

/// The table. Only ever appended to: `size` says how far it goes.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    /// Bytes of it.
    pub size: usize,
    /// How many clients there are.
    pub clients: *const AtomicU32,
    /// Whether `addr` is a client's.
    pub acquire: unsafe extern "C" fn(addr: usize, len: usize) -> c_int,
    /// Registers it.
    pub pin: unsafe extern "C" fn(addr: usize, len: usize, write: c_int, name: *mut u64) -> c_int,
    /// Lets go of a registration.
    pub unpin: unsafe extern "C" fn(name: u64),
    /// Copies; one side at least is a client's.
    pub copy: unsafe extern "C" fn(dst: usize, src: usize, len: usize) -> c_int,
    /// Handles for another process.
    pub map: unsafe extern "C" fn(
        addr: usize,
        len: usize,
        to: *mut FileExport,
        room: u32,
        count: *mut u32,
    ) -> c_int,
    /// A dma-buf, and where in it `addr` is.
    pub dmabuf: unsafe extern "C" fn(addr: usize, len: usize, fd: *mut c_int, off: *mut u64) -> c_int,
    /// The clients' names; answers how many bytes there are.
    pub names: unsafe extern "C" fn(to: *mut u8, room: usize) -> usize,
}

// SAFETY: what it points to is for all threads.
unsafe impl Sync for Table {}

/// That of this copy of the crate.
pub static OWN: Table = Table {
    size: size_of::<Table>(),
    clients: &raw const owner::COUNT,
    acquire,
    pin,
    unpin,
    copy,
    map,
    dmabuf,
    names,
};

/// The table of the `libstrait.so` that is in this process, if one is. Loads nothing.
pub(super) fn find() -> Option<&'static Table> {
    let library = crate::runtime::find(LIBRARY)?;
    // SAFETY: the symbol has this type, by its name.
    let table = unsafe {
        let get = library.get::<unsafe extern "C" fn() -> *const Table>(SYMBOL).ok()?;
        get().as_ref()?
    };
    (table.size >= size_of::<Table>()).then_some(table)
}

/// The body of an entry: a panic is an error as well.
fn guard(body: impl FnOnce() -> Result<(), i32>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => libc::EIO,
    }
}

unsafe extern "C" fn acquire(addr: usize, len: usize) -> c_int {
    catch_unwind(|| owner::is_a_clients(addr, len)).unwrap_or(false).into()
}

unsafe extern "C" fn pin(addr: usize, len: usize, write: c_int, name: *mut u64) -> c_int {
    guard(|| {
        let pinned = owner::pin(addr, len, write != 0)?;
        // SAFETY: the caller has a place for it.
        unsafe { name.write(pinned) };
        Ok(())
    })
}

unsafe extern "C" fn unpin(name: u64) {
    guard(|| {
        owner::unpin(name);
        Ok(())
    });
}

unsafe extern "C" fn copy(dst: usize, src: usize, len: usize) -> c_int {
    // SAFETY: the caller's promise is that of `owner::copy`.
    guard(|| unsafe { owner::copy(dst, src, len) })
}

unsafe extern "C" fn map(addr: usize, len: usize, to: *mut FileExport, room: u32, count: *mut u32) -> c_int {
    guard(|| {
        let exports = owner::map(addr, len)?;
        if exports.len() > room as usize {
            return Err(libc::E2BIG);
        }
        // SAFETY: the caller has room for as many, and a place for the number.
        unsafe {
            to.copy_from_nonoverlapping(exports.as_ptr(), exports.len());
            count.write(exports.len() as u32);
        }
        Ok(())
    })
}

unsafe extern "C" fn dmabuf(addr: usize, len: usize, fd: *mut c_int, off: *mut u64) -> c_int {
    guard(|| {
        let (file, at) = owner::export_dmabuf(addr, len)?;
        // SAFETY: the caller has places for both.
        unsafe {
            fd.write(std::os::fd::IntoRawFd::into_raw_fd(file));
            off.write(at);
        }
        Ok(())
    })
}

unsafe extern "C" fn names(to: *mut u8, room: usize) -> usize {
    let text = catch_unwind(owner::names).unwrap_or_default();
    let n = text.len().min(room);
    // SAFETY: the caller has room for as many.
    unsafe { to.copy_from_nonoverlapping(text.as_ptr(), n) };
    n
}
