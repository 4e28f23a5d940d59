//! How a library reaches the clients in `libstrait.so`: a table of C functions, in a version of its
//! own. Errors are errnos, above 0; nothing unwinds through it.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use crate::loaded_library;

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

/// What a device registers of a client's memory, or the callback that refused it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceImport {
    /// The registration, and the number of this import of it.
    pub registration: u64,
    /// See `registration`.
    pub import: u64,
    /// An offset in `fd`, or an address.
    pub at: u64,
    /// A new descriptor of a dma-buf, or -1: the memory is registered by its address.
    pub fd: i32,
    /// Of a refusal: a number of [`super::Call`].
    pub call: u32,
}

impl Default for DeviceImport {
    fn default() -> Self {
        DeviceImport { registration: 0, import: 0, at: 0, fd: -1, call: 0 }
    }
}

/// The table with what was appended to it.
#[repr(C)]
#[derive(Debug)]
pub struct WithDevices {
    /// The first version. Its `size` is that of all.
    pub table: Table,
    /// How many clients may have memory for a device, as far as is known.
    pub for_devices: *const AtomicU32,
    /// Has a device use the memory. `revoke` is called with `arg`, once at most and from any thread, when the
    /// client takes the memory back: the device accesses it no more when that returns. It calls nothing here.
    pub import: unsafe extern "C" fn(
        addr: usize,
        len: usize,
        write: c_int,
        revoke: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
        to: *mut DeviceImport,
    ) -> c_int,
    /// The device uses it no more: `revoke` is not called from now on, and no call of it runs.
    pub end_import: unsafe extern "C" fn(registration: u64, import: u64),
}

// SAFETY: what it points to is for all threads.
unsafe impl Sync for WithDevices {}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// The table, if it is known.
pub(super) fn get() -> Option<&'static Table> {
    // SAFETY: null, or a table that is never changed.
    unsafe { TABLE.load(Acquire).as_ref() }
}

/// The same with what devices need, which that of an older library lacks.
pub(super) fn with_devices() -> Option<&'static WithDevices> {
    // SAFETY: null, or a table that is never changed, by a pointer that reaches all of it.
    unsafe { all_of(TABLE.load(Acquire)) }
}

/// # Safety
/// It is null, or a table that is never changed, as long as its `size` says.
unsafe fn all_of(table: *const Table) -> Option<&'static WithDevices> {
    // SAFETY: the caller's promise.
    let size = unsafe { table.as_ref() }?.size;
    // SAFETY: it says that it goes as far.
    (size >= size_of::<WithDevices>()).then(|| unsafe { &*table.cast::<WithDevices>() })
}

/// The table is known from now on: a pointer that reaches all of it.
pub(super) fn set(table: *const Table) -> bool {
    // Where two copies of the crate have clients, the first one stays: what it has named ends there.
    let _ = TABLE.compare_exchange(null_mut(), table.cast_mut(), Release, Relaxed);
    true
}

/// The table of the `libstrait.so` that is in this process, if one is. Loads nothing.
pub(super) fn find() -> Option<*const Table> {
    let library = loaded_library::find(LIBRARY)?;
    // SAFETY: the symbol has this type, by its name.
    let table = unsafe {
        let get = library.get::<unsafe extern "C" fn() -> *const Table>(SYMBOL).ok()?;
        get()
    };
    // SAFETY: null, or a table that is never changed.
    let size = unsafe { table.as_ref() }?.size;
    (size >= size_of::<Table>()).then_some(table)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_an_older_library_has_nothing_for_devices() {
        let own = super::super::entries::own();
        // SAFETY: that of this copy of the crate, and a copy of its first version, which stays.
        unsafe {
            assert!(all_of(own).is_some() && all_of(std::ptr::null()).is_none());
            let older: &'static mut Table = Box::leak(Box::new(own.read()));
            older.size = size_of::<Table>();
            assert!(all_of(older).is_none());
        }
    }
}
