//! Buffers in device memory, and the host memory with the same layout that the MPI gets in their place.

mod copies;
pub(crate) mod device;
pub(crate) mod kernels;
mod memory;
mod region;
pub(crate) mod sync;

pub(crate) use region::{NotDescribed, Resolver};

use hmem::Kind;

use crate::counts::Counts;
use crate::shape::{Data, Tree};
use copies::{By, Place};
use device::DeviceMemory;
use kernels::{User, Way};
use memory::Memory;

/// Why there is no mirror, or it was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no host memory for it.
    NoMemory,
    /// The data lie so far apart that there is no address space for it.
    TooFar,
    /// The device did not copy.
    NotCopied,
}

/// Memory in place of a buffer: the host's, or packed on the device.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// Held for as long as the MPI may access it.
    _memory: Memory,
    /// Where the data are in host memory.
    host: Place,
    user: User,
    data: Data,
    /// Whether the call reads it, and writes it.
    reads: bool,
    writes: bool,
    /// Where what is between the blocks is copied from the device, too: bytes behind the last one.
    gaps: Option<usize>,
    counts: &'static Counts,
}

impl Mirror {
    /// For these data of the buffer at `at`, of that kind, or of several: with the same offsets. Where the
    /// MPI computes with them it may copy the gaps of elements, too: then they are those of the device.
    pub(crate) fn new(
        at: usize,
        kind: Option<Kind>,
        data: Data,
        (reads, writes): (bool, bool),
        computes: bool,
        counts: &'static Counts,
    ) -> Result<Mirror, Failure> {
        /// What both are aligned to alike.
        const ALIGN: usize = 64;
        /// The least bytes from the first to the last of data that lie far apart.
        const FAR: usize = 1 << 38;
        let (low, high) = data.tree.bounds().unwrap_or((0, 0));
        let lead = at.wrapping_add_signed(low) % ALIGN;
        let gaps = computes.then(|| data.behind());
        let len = (high - low) as usize + lead + gaps.unwrap_or(0);
        let is_far = len >= FAR;
        let parts = (is_far && !computes).then(|| {
            Memory::parts(|each| {
                data.tree.walk(&mut |offset, len| each(at.wrapping_add_signed(offset), len));
            })
        });
        let (memory, lead) = match parts.flatten() {
            Some(parts) => (parts, 0),
            None => {
                let memory = Memory::new(len, data.tree.size(), kind.unwrap_or(Kind::System));
                let failure = if is_far { Failure::TooFar } else { Failure::NoMemory };
                (memory.ok_or(failure)?, lead)
            }
        };
        let host = Place::Same((memory.at() + lead).wrapping_add_signed(low.wrapping_neg()));
        Ok(Mirror { _memory: memory, host, user: User { at, kind }, data, reads, writes, gaps, counts })
    }

    /// The same with the blocks one behind another.
    pub(crate) fn packed(
        at: usize,
        kind: Option<Kind>,
        data: Data,
        (reads, writes): (bool, bool),
        counts: &'static Counts,
    ) -> Result<Mirror, Failure> {
        let size = data.tree.size();
        let memory = Memory::new(size, size, kind.unwrap_or(Kind::System)).ok_or(Failure::NoMemory)?;
        let host = Place::Behind(memory.at());
        Ok(Mirror { _memory: memory, host, user: User { at, kind }, data, reads, writes, gaps: None, counts })
    }

    /// The same in memory of the device that the buffer is on: for kernels, and for a transport that takes
    /// device memory.
    pub(crate) fn on_device(
        at: usize,
        data: Data,
        (reads, writes): (bool, bool),
        counts: &'static Counts,
    ) -> Result<Mirror, Failure> {
        let near = at.wrapping_add_signed(data.tree.bounds().map_or(0, |(low, _)| low));
        let memory =
            DeviceMemory::new(near, data.tree.size()).map(Memory::Device).ok_or(Failure::NoMemory)?;
        let (host, user) = (Place::Device(memory.at()), User { at, kind: Some(Kind::Cuda) });
        Ok(Mirror { _memory: memory, host, user, data, reads, writes, gaps: None, counts })
    }

    /// Whether it is on the device.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.host, Place::Device(_))
    }

    /// Bytes of data.
    pub(crate) fn size(&self) -> usize {
        self.data.tree.size()
    }

    /// Whether the bytes that a message has are the first ones in host memory.
    pub(crate) fn is_in_order(&self) -> bool {
        matches!(self.host, Place::Behind(_) | Place::Device(_)) || self.data.tree.single().is_some()
    }

    /// The call does not read it: what it writes is known when it is over.
    pub(crate) fn leave_unread(&mut self) {
        self.reads = false;
    }

    unsafe fn copy(&self, way: Way, most: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise; the mirror has room for all blocks.
        let by = unsafe { copies::copy(&self.data, self.user, self.host, way, most) };
        if by == Some(By::Kernel) && !self.is_on_device() {
            self.counts.add_by_kernels(most);
        }
        by.map(|_| ()).ok_or(Failure::NotCopied)
    }

    /// What the MPI gets in place of the buffer's address.
    pub(crate) fn address(&self) -> usize {
        match self.host {
            Place::Same(host) | Place::Behind(host) | Place::Device(host) => host,
        }
    }

    /// The first byte of the program's buffer.
    pub(crate) fn first(&self) -> usize {
        self.user.at.wrapping_add_signed(self.data.tree.bounds().map_or(0, |(low, _)| low))
    }

    /// Copies what the call reads from the device.
    ///
    /// # Safety
    /// The program's buffer is valid.
    pub(crate) unsafe fn copy_in(&self) -> Result<(), Failure> {
        if !self.reads {
            return Ok(());
        }
        if !self.is_on_device() {
            self.counts.add_from_device(self.size());
        }
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(behind) = self.gaps {
                if copies::copy_out_with_gaps(&self.data.tree, behind, self.user, self.host) {
                    return Ok(());
                }
            }
            self.copy(Way::Out, self.size())
        }
    }

    /// Copies what the call has written to the device.
    ///
    /// # Safety
    /// The program's buffer is valid.
    pub(crate) unsafe fn copy_back(&self) -> Result<(), Failure> {
        // SAFETY: as above.
        unsafe { self.copy_received(self.size()) }
    }

    /// The same, of the first `len` bytes alone: a message was not longer.
    ///
    /// # Safety
    /// The program's buffer is valid; the mirror is in order, or `len` is all.
    pub(crate) unsafe fn copy_received(&self, len: usize) -> Result<(), Failure> {
        if !self.writes {
            return Ok(());
        }
        let len = len.min(self.size());
        if !self.is_on_device() {
            self.counts.add_to_device(len);
        }
        // SAFETY: as above.
        unsafe { self.copy(Way::Back, len) }
    }
}

/// The mirrors of an operation.
#[derive(Debug)]
pub(crate) struct Mirrors {
    pub(crate) all: Vec<Mirror>,
    /// The one of which only what a message has is written.
    pub(crate) received: Option<usize>,
}

impl Mirrors {
    /// Copies what the operation has written to the device; a message that it has received had so many bytes.
    ///
    /// # Safety
    /// The program's buffers are valid.
    pub(crate) unsafe fn copy_back(&self, bytes: usize) -> Result<(), Failure> {
        self.all.iter().enumerate().try_for_each(|(n, mirror)| {
            let most = if self.received == Some(n) { bytes } else { mirror.size() };
            // SAFETY: the caller's promise; the one that is received is in order.
            unsafe { mirror.copy_received(most) }
        })
    }
}

/// Host memory of which all is accessed.
#[derive(Debug)]
pub(crate) struct Host(Memory);

impl Host {
    /// `len` bytes, for copies from and to memory of that kind.
    pub(crate) fn new(len: usize, kind: Kind) -> Option<Host> {
        Memory::new(len, len, kind).map(Host)
    }

    /// The first one.
    pub(crate) fn at(&self) -> usize {
        self.0.at()
    }

    /// The first ones, which only their owner writes; they are there by its length.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: valid for the length that it was made with, and initialised by the pool or the kernel. A
        // write needs `&mut` of the owner.
        unsafe { std::slice::from_raw_parts(self.at() as *const u8, len) }
    }
}

/// Copies these bytes of device memory to the host.
///
/// # Safety
/// They are valid on both sides.
pub(crate) unsafe fn copy_out(tree: Tree, device: usize, kind: Kind, host: usize) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { copy_bytes(tree, device, kind, host, Way::Out) }
}

/// Copies these bytes back.
///
/// # Safety
/// They are valid on both sides.
pub(crate) unsafe fn copy_back(tree: Tree, device: usize, kind: Kind, host: usize) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { copy_bytes(tree, device, kind, host, Way::Back) }
}

/// Copies bytes that are no elements of a datatype.
unsafe fn copy_bytes(tree: Tree, device: usize, kind: Kind, host: usize, way: Way) -> Result<(), Failure> {
    let (user, most) = (User { at: device, kind: Some(kind) }, tree.size());
    let data = Data { tree, elements: Vec::new() };
    // SAFETY: the caller's promise.
    let by = unsafe { copies::copy(&data, user, Place::Same(host), way, most) };
    by.map(|_| ()).ok_or(Failure::NotCopied)
}
