//! Memory that a program has registered a client for: PeerDirect's peer memory client, in user space.
//!
//! The clients of a process and what is registered of them are in one place, the copy of this crate in
//! `libstrait.so` ([`owner`]). Other copies, in the provider and in the UCX transport, reach it
//! through a table of functions ([`table`]) that they look for as they look for CUDA's driver: in the
//! library of that name, if the process has loaded it. So it does not matter which came first, nor
//! whether a library was loaded with RTLD_LOCAL, and a process without `libstrait.so` pays nothing.

pub mod owner;
pub mod table;

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use crate::registry::{Memory, Pages};
use crate::share::{Export, How};
use crate::{Error, Kind, presence};
use table::{FileExport, Table};

/// A piece of a client's memory, and where it is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bytes.
    pub len: usize,
    /// Where they are.
    pub place: Place,
}

/// Where a piece of memory is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Here, for the CPU of this process alone.
    Cpu(usize),
    /// In a file that may be mapped, from this byte on: a dma-buf, or a memfd that cannot shrink.
    File(i32, u64),
    /// Only the client itself can copy it.
    Opaque,
}

/// Who is to reach the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importer {
    /// Another process of this host, or the CPU.
    Process,
    /// A device that takes dma-bufs.
    Device,
}

/// Somebody's memory: what its owner answers. Errors are errnos, above 0.
///
/// For each registration the calls come in this order: acquire, get_pages, dma_map, any number of
/// copies, dma_unmap, put_pages, release. Different registrations' calls may come at once, from any
/// thread.
pub trait Client: Send + Sync {
    /// What it is called.
    fn name(&self) -> String;

    /// Whether `addr` is its: then, what it calls this registration. An error means that it is, but
    /// cannot be used.
    fn acquire(&self, addr: usize, len: usize) -> Result<Option<usize>, i32>;

    /// Pins the memory and says where it is, in order and without a gap. `name` is what the client
    /// invalidates it by.
    fn get_pages(
        &self,
        ctx: usize,
        addr: usize,
        len: usize,
        write: bool,
        name: u64,
    ) -> Result<Vec<Segment>, i32>;

    /// Makes it reachable for that one; may change the segments.
    fn dma_map(&self, ctx: usize, by: Importer, segments: &mut Vec<Segment>) -> Result<(), i32>;

    /// The opposite.
    fn dma_unmap(&self, ctx: usize, by: Importer, segments: &[Segment]);

    /// The opposite of `get_pages`.
    fn put_pages(&self, ctx: usize, segments: &[Segment]);

    /// The opposite of `acquire`.
    fn release(&self, ctx: usize);

    /// Copies between the memory and `host`; `None` if it leaves that to whoever asks.
    ///
    /// # Safety
    /// `host` is valid for reads of `len` bytes, or, `to_host`, for writes.
    unsafe fn copy(
        &self,
        ctx: usize,
        addr: usize,
        host: *mut u8,
        len: usize,
        to_host: bool,
    ) -> Option<Result<(), i32>>;

    /// A dma-buf of the memory, and where in it `addr` is.
    fn export_dmabuf(&self, ctx: usize, addr: usize, len: usize) -> Result<(OwnedFd, u64), i32>;
}

static TABLE: OnceLock<&'static Table> = OnceLock::new();

fn table() -> Result<&'static Table, Error> {
    TABLE.get().copied().ok_or(Error::FAULT)
}

fn answer(code: i32) -> Result<(), Error> {
    if code == 0 { Ok(()) } else { Err(Error { of: Kind::Client, code }) }
}

/// Clients live in this copy of the crate from now on.
pub(crate) fn own() {
    let _ = TABLE.set(&table::OWN);
    presence::is_here_now(Kind::Client);
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
        let Some(found) = table::find() else { return false };
        let _ = TABLE.set(found);
        true
    }

    fn describe(&self) -> Result<String, String> {
        let table = table().map_err(|_| "no libstrait.so in this process: nobody can have registered")?;
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
        let Some(table) = TABLE.get() else { return false };
        // SAFETY: the table's owner counts there, and never lets go of it; plain numbers.
        unsafe { (*table.clients).load(Relaxed) != 0 && (table.acquire)(addr, len) != 0 }
    }

    fn get_pages(&self, addr: usize, len: usize, write: bool) -> Result<Pages, Error> {
        let mut name = 0;
        // SAFETY: a valid place.
        answer(unsafe { (table()?.pin)(addr, len, write.into(), &mut name) })?;
        Ok(Box::new(Pin(name)))
    }

    fn dma_map(&self, addr: usize, len: usize, most: usize) -> Result<Vec<Export>, Error> {
        let mut files = vec![FileExport::default(); most.min(table::MOST)];
        let mut count = 0;
        let room = files.len() as u32;
        // SAFETY: valid places, and as much room as is told.
        answer(unsafe { (table()?.map)(addr, len, files.as_mut_ptr(), room, &mut count) })?;
        files.truncate(count as usize);
        let export = |f: FileExport| Export {
            how: How::File,
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
        // SAFETY: just opened, for us.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, off))
    }

    fn copy_now(&self, dst: usize, src: usize, len: usize) -> Result<(), Error> {
        // SAFETY: both are spans of whoever asks, valid by `Span`'s invariant where they are the host's.
        answer(unsafe { (table()?.copy)(dst, src, len) })
    }
}
