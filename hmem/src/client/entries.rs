//! The table of this copy of the crate: how other libraries reach the clients that are registered here.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::contract::Client;
use super::owner::{self, Registered, Source};
use super::table::{self, DeviceImport, FileExport, Table, WithDevices};
use crate::kind::Kind;
use crate::presence;

static OWN: WithDevices = WithDevices {
    table: Table {
        size: size_of::<WithDevices>(),
        clients: &raw const owner::COUNT,
        acquire,
        pin,
        unpin,
        copy,
        map,
        dmabuf,
        names,
    },
    for_devices: &raw const owner::FOR_DEVICES,
    import,
    end_import,
};

/// It, as `strait_hmem_table_v1` gives it: a pointer that reaches what was appended, too.
pub fn own() -> *const Table {
    (&raw const OWN).cast()
}

/// Registers a client in this copy of the crate. From now on the process's buffers are looked at with it in
/// mind.
pub fn register(client: Box<dyn Client>) -> Result<Registered, i32> {
    table::set(own());
    presence::is_here_now(Kind::Client);
    owner::register(client)
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

/// The argument of a function that revokes.
struct Arg(*mut c_void);

// SAFETY: the importer says that it is called from any thread.
unsafe impl Send for Arg {}

impl Arg {
    /// # Safety
    /// It is `revoke`'s argument, and that may be called.
    unsafe fn hand_to(self, revoke: unsafe extern "C" fn(*mut c_void)) {
        // SAFETY: the caller's promise.
        unsafe { revoke(self.0) }
    }
}

unsafe extern "C" fn import(
    addr: usize,
    len: usize,
    write: c_int,
    revoke: unsafe extern "C" fn(*mut c_void),
    arg: *mut c_void,
    to: *mut DeviceImport,
) -> c_int {
    guard(|| {
        let arg = Arg(arg);
        // SAFETY: as the caller promises until it ends the import, which waits for this.
        let revoke = Box::new(move || unsafe { arg.hand_to(revoke) });
        let found = owner::import((addr, len), write != 0, revoke);
        let (answer, outcome) = match found {
            Ok((source, registration, import)) => {
                let (fd, at) = match source {
                    Source::Dmabuf(fd, at) => (std::os::fd::IntoRawFd::into_raw_fd(fd), at),
                    Source::Address(at) => (-1, at as u64),
                };
                (DeviceImport { registration, import, at, fd, call: 0 }, Ok(()))
            }
            Err(refused) => {
                (DeviceImport { call: refused.call as u32, ..DeviceImport::default() }, Err(refused.errno))
            }
        };
        // SAFETY: the caller has a place for it.
        unsafe { to.write(answer) };
        outcome
    })
}

unsafe extern "C" fn end_import(registration: u64, import: u64) {
    guard(|| {
        owner::end_import(registration, import);
        Ok(())
    });
}

unsafe extern "C" fn names(to: *mut u8, room: usize) -> usize {
    let text = catch_unwind(owner::names).unwrap_or_default();
    let n = text.len().min(room);
    // SAFETY: the caller has room for as many.
    unsafe { to.copy_from_nonoverlapping(text.as_ptr(), n) };
    n
}
