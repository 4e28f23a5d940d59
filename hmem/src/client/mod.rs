//! Memory that a program has registered a client for: PeerDirect's peer memory client, in user space.
//!
//! The clients of a process and what is registered of them are in one place, the copy of this crate in
//! `libstrait.so` (`owner`). Those of the provider, the UCX transport and `libstrait_xpu.so` reach it
//! through a table of functions (`table`) that they look for as they look for CUDA's driver: in the
//! library of that name, if the process has loaded it. So it does not matter which came first, nor
//! whether a library was loaded with RTLD_LOCAL, and a process without `libstrait.so` pays nothing.

mod contract;
mod device;
mod entries;
mod import;
mod imports;
mod owner;
mod refused;
mod registrations;
mod revocable;
mod table;
mod twins;

pub use contract::{Client, Importer, Place, Segment};
pub use device::{DeviceMemory, Mapped};
pub use entries::{own, register};
pub use owner::Registered;
pub use refused::{Call, Refused};
pub use revocable::{Adapter, Revocable};
pub use table::{DeviceImport, FileExport, Table, WithDevices};

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use crate::error::{Codes, Error};
use crate::kind::Kind;
use crate::memory::{AdapterWrites, Allocate, Copies, Handles, Memory, Pages};
use crate::share::{Export, HandleType};

/// Those of the clients are errnos.
static CODES: Codes = Codes {
    kind: Kind::Client,
    errno: |code| code,
    text: |code, f| write!(f, "the client: {}", std::io::Error::from_raw_os_error(code)),
};

fn table() -> Result<&'static Table, Error> {
    table::get().ok_or(Error::FAULT)
}

fn answer(code: i32) -> Result<(), Error> {
    if code == 0 { Ok(()) } else { Err(Error::new(&CODES, code)) }
}

/// Whether some client of the process may have memory for a device, as far as is known.
pub fn any_serves_devices() -> bool {
    // SAFETY: the table's owner counts there, and never lets go of it.
    table::with_devices().is_some_and(|table| unsafe { &*table.for_devices }.load(Relaxed) != 0)
}

/// What is registered is kept.
struct Pin(u64);

impl Drop for Pin {
    fn drop(&mut self) {
        if let Ok(table) = table() {
            // SAFETY: `pin` gave the name out.
            unsafe { (table.unpin)(self.0) }
        }
    }
}

/// The clients' entry in the registry of kinds.
pub(crate) struct Clients;

impl Memory for Clients {
    fn kind(&self) -> Kind {
        Kind::Client
    }

    fn find(&self) -> bool {
        table::find().is_some_and(table::set)
    }

    fn describe(&self) -> Result<String, String> {
        let table = table().map_err(|_| "no libstrait.so in this process: no client can be registered")?;
        // SAFETY: the table's owner counts there, and never lets go of it.
        match unsafe { &*table.clients }.load(Relaxed) {
            0 => Err("libstrait.so is here, and no client registered".into()),
            n => {
                let mut text = [0u8; 256];
                // SAFETY: there is room for as much.
                let len = unsafe { (table.names)(text.as_mut_ptr(), text.len()) }.min(text.len());
                Ok(format!("{n} registered: {}", String::from_utf8_lossy(&text[..len])))
            }
        }
    }

    fn acquire(&self, addr: usize, len: usize) -> bool {
        let Some(table) = table::get() else { return false };
        // SAFETY: the table's owner counts there, and never lets go of it; plain numbers.
        unsafe { (*table.clients).load(Relaxed) != 0 && (table.acquire)(addr, len) != 0 }
    }

    /// A device may access what the client maps for it, and the client sees what was written then.
    fn adapter_writes(&self, _addr: usize) -> AdapterWrites {
        AdapterWrites::Seen
    }

    fn get_pages(&self, addr: usize, len: usize, write: bool) -> Result<Pages, Error> {
        let mut name = 0;
        // SAFETY: a valid place.
        answer(unsafe { (table()?.pin)(addr, len, write.into(), &mut name) })?;
        Ok(Box::new(Pin(name)))
    }
}

impl Handles for Clients {
    fn export_ipc(&self, addr: usize, len: usize, most: usize) -> Result<Vec<Export>, Error> {
        let mut files = vec![FileExport::default(); most.min(table::MOST)];
        let mut count = 0;
        let room = files.len() as u32;
        // SAFETY: valid places, and room for `room` descriptors.
        answer(unsafe { (table()?.map)(addr, len, files.as_mut_ptr(), room, &mut count) })?;
        files.truncate(count as usize);
        let export = |f: FileExport| Export {
            handle_type: HandleType::File,
            id: f.id,
            base: f.base,
            len: f.len,
            fd: f.fd,
            device: [0; 16],
            token: f.token,
        };
        Ok(files.into_iter().map(export).collect())
    }

    fn export_dmabuf(&self, addr: usize, len: usize, _pcie: bool) -> Result<(OwnedFd, u64), Error> {
        let (mut fd, mut off) = (-1, 0);
        // SAFETY: valid places.
        answer(unsafe { (table()?.dmabuf)(addr, len, &mut fd, &mut off) })?;
        // SAFETY: just opened, for this call alone.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, off))
    }
}

impl Copies for Clients {
    fn copy_now(&self, dst: usize, src: usize, len: usize) -> Result<(), Error> {
        // SAFETY: both are spans of the caller's, valid by `Span`'s invariant where they are the host's.
        answer(unsafe { (table()?.copy)(dst, src, len) })
    }
}

impl Allocate for Clients {}
