//! Memory of a client that a device registers (RDMA): dma_map for an importer that is a device.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};

use super::refused::{Call, Refused};
use super::table::{self, DeviceImport, WithDevices};
use crate::span::Span;

/// What a device registers.
#[derive(Debug)]
pub enum Mapped {
    /// A part of a dma-buf that begins there.
    Dmabuf(OwnedFd, u64),
    /// The memory at this address of this process.
    Address(usize),
}

/// Takes the memory from the device.
type Revoke = Box<dyn Fn() + Send + Sync>;

/// A client's memory that a device uses until this is dropped, or until the client takes it back.
///
/// What revokes it may be called while this is dropped, which waits for it then; so nothing is locked there
/// that it locks.
pub struct DeviceMemory {
    table: &'static WithDevices,
    registration: u64,
    import: u64,
    revoke: *mut Revoke,
}

// SAFETY: what it points to is for all threads, and the calls are.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; nothing is done by a reference.
unsafe impl Sync for DeviceMemory {}

/// A panic ends the process here: the device would go on to have the memory.
unsafe extern "C" fn revoke(arg: *mut c_void) {
    // SAFETY: what `DeviceMemory::map` has made, until its import has ended.
    unsafe { (*arg.cast::<Revoke>())() }
}

impl DeviceMemory {
    /// Has the client of this memory map it for a device, which is to `write` it or reads it alone. When the
    /// client takes it back, and this is not dropped, `revoked` is called, from any thread and once: the
    /// device accesses the memory no more when that returns.
    pub fn map(span: Span, write: bool, revoked: Revoke) -> Result<(Mapped, DeviceMemory), Refused> {
        let table = table::with_devices().ok_or(libc::ENOSYS)?;
        let arg = Box::into_raw(Box::new(revoked));
        let mut found = DeviceImport::default();
        let (addr, len) = (span.addr() as usize, span.len());
        // SAFETY: a valid place, and an argument that stays until the import has ended.
        let errno =
            unsafe { (table.import)(addr, len, write.into(), revoke, arg.cast::<c_void>(), &mut found) };
        if errno != 0 {
            // SAFETY: made above; there is no import that it could be called for.
            drop(unsafe { Box::from_raw(arg) });
            return Err(Refused { call: Call::of(found.call), errno });
        }
        let DeviceImport { registration, import, .. } = found;
        let memory = DeviceMemory { table, registration, import, revoke: arg };
        let mapped = match found.fd {
            // SAFETY: just opened, for this call alone.
            0.. => Mapped::Dmabuf(unsafe { OwnedFd::from_raw_fd(found.fd) }, found.at),
            _ => Mapped::Address(found.at as usize),
        };
        Ok((mapped, memory))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: `import` gave the numbers out. What it would call is not called behind that.
        unsafe {
            (self.table.end_import)(self.registration, self.import);
            drop(Box::from_raw(self.revoke));
        }
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMemory({}, {})", self.registration, self.import)
    }
}
