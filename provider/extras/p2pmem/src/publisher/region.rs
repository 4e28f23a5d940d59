//! Memory that a program gives: a device's, or that of a file. It is divided here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bar::{self, Refusal};
use super::contract::{Kind, Owner, Publisher, Source};
use crate::address::Address;
use crate::error::Error;
use crate::ranges::Ranges;

/// A piece of memory from which parts are given out.
#[derive(Debug)]
pub struct Region {
    name: String,
    kind: Kind,
    function: Option<Address>,
    source: Source,
    /// Of a BAR.
    dmabuf: Option<Result<Arc<OwnedFd>, Refusal>>,
    free: Mutex<Ranges>,
    /// Of another process.
    owner: Option<Owner>,
}

impl Region {
    /// The file's bytes from `offset` on: a dma-buf, or a memfd. `function` is the PCI function that has
    /// them.
    pub fn of_file(name: &str, function: Option<Address>, fd: OwnedFd, offset: u64, len: u64) -> Region {
        let source = Source::File { fd: Arc::new(fd), offset };
        Region::new(name, Kind::File, function, source, None, len)
    }

    fn new(
        name: &str,
        kind: Kind,
        function: Option<Address>,
        source: Source,
        dmabuf: Option<Result<Arc<OwnedFd>, Refusal>>,
        len: u64,
    ) -> Region {
        // An alignment is one of the address where that is known, else of the place in the file or BAR.
        let from = if let Source::Here(addr) = source { addr as u64 } else { 0 };
        let free = Mutex::new(Ranges::new(from, len));
        Region { name: name.into(), kind, function, source, dmabuf, free, owner: None }
    }

    /// As [`Region::of_file`], of memory that a process of `owner` has published, of the kind that it says.
    pub fn of_process(
        (name, kind): (&str, Kind),
        function: Option<Address>,
        source: Source,
        len: u64,
        owner: Owner,
    ) -> Region {
        Region { owner: Some(owner), ..Region::new(name, kind, function, source, None, len) }
    }

    /// `len` bytes from `offset` on of BAR `index` of a device that VFIO has. `ioctl` is [`bar::ioctl`].
    pub fn of_bar(
        name: &str,
        function: Option<Address>,
        device: OwnedFd,
        (index, offset, len): (u32, u64, u64),
        ioctl: bar::Ioctl,
    ) -> Result<Region, Error> {
        let opened = bar::open(device.as_fd(), index, offset, len, ioctl)?;
        let source = Source::Bar { fd: Arc::new(device), place: opened.place };
        Ok(Region::new(name, Kind::Bar, function, source, Some(opened.dmabuf), len))
    }

    /// Memory of this process, of any kind that `hmem` knows: cudaMalloc's. `function` is the PCI function
    /// that has it.
    ///
    /// # Safety
    /// The memory stays until the publisher and all buffers of it are gone.
    pub unsafe fn of_memory(name: &str, function: Option<Address>, addr: usize, len: usize) -> Region {
        hmem::registry::find_runtimes();
        let kind = Kind::Memory(hmem::classify(addr, len));
        Region::new(name, kind, function, Source::Here(addr), None, len as u64)
    }

    fn free(&self) -> MutexGuard<'_, Ranges> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher for Region {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn function(&self) -> Option<Address> {
        self.function
    }

    fn size(&self) -> u64 {
        self.free().size()
    }

    fn available(&self) -> u64 {
        self.free().available()
    }

    fn longest(&self, align: u64) -> u64 {
        self.free().longest(align)
    }

    fn take(&self, len: u64, align: u64) -> Result<(u64, Source), String> {
        let mut free = self.free();
        let Some(at) = free.take(len, align) else {
            let (room, longest) = (free.available(), free.longest(align));
            return Err(format!("{room} bytes are free, {longest} of them in one piece"));
        };
        let source = match &self.source {
            Source::File { fd, offset } => Source::File { fd: fd.clone(), offset: offset + at },
            Source::Bar { fd, place } => {
                Source::Bar { fd: fd.clone(), place: place.clone().map(|place| place + at) }
            }
            Source::Here(_) => Source::Here(at as usize),
            Source::Handle { export, offset } => Source::Handle { export: *export, offset: offset + at },
            Source::Window(fd) => Source::Window(fd.clone()),
        };
        Ok((at, source))
    }

    fn owner(&self) -> Option<Owner> {
        self.owner
    }

    fn dmabuf(&self, at: u64) -> Option<Result<(OwnedFd, u64), Error>> {
        let made = self.dmabuf.as_ref()?;
        let copied = made.as_ref().map_err(|refusal| refusal.error(&self.name)).and_then(|fd| {
            let fd = fd.try_clone().map_err(|e| Error::Os("dma-buf".into(), e))?;
            Ok((fd, at))
        });
        Some(copied)
    }

    fn give(&self, at: u64, len: u64) {
        let whole = self.free().give(at, len);
        debug_assert!(whole, "{at}+{len} of {} was not taken", self.name);
    }
}
