//! Buffers in device memory, and the host memory with the same layout that the MPI gets in their place.

mod copies;
mod memory;
mod region;
pub(crate) mod sync;

pub(crate) use region::{NotDescribed, Resolver};

use hmem::Kind;

use crate::counts::Counts;
use crate::shape::Tree;
use copies::{User, Way};
use memory::Memory;

/// Why there is no mirror, or it was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no host memory for it.
    NoMemory,
    /// The device did not copy.
    NotCopied,
}

/// Host memory in place of a buffer.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// Held for as long as the MPI may access it.
    _memory: Memory,
    /// What is added to an offset of the buffer's for its place in host memory.
    host: usize,
    user: User,
    tree: Tree,
    /// Whether the blocks follow each other in host memory.
    is_packed: bool,
    /// Whether the call reads it, and writes it.
    reads: bool,
    writes: bool,
    counts: &'static Counts,
}

impl Mirror {
    /// For the bytes of `tree`, of the buffer at `at`, of that kind, or of several.
    pub(crate) fn new(
        at: usize,
        kind: Option<Kind>,
        tree: Tree,
        (reads, writes): (bool, bool),
        counts: &'static Counts,
    ) -> Result<Mirror, Failure> {
        /// What both are aligned to alike.
        const ALIGN: usize = 64;
        let (low, high) = tree.bounds().unwrap_or((0, 0));
        let lead = at.wrapping_add_signed(low) % ALIGN;
        let len = (high - low) as usize + lead;
        let of = kind.unwrap_or(Kind::System);
        let memory = Memory::new(len, tree.size(), of).ok_or(Failure::NoMemory)?;
        let host = (memory.at() + lead).wrapping_add_signed(low.wrapping_neg());
        Ok(Mirror {
            _memory: memory,
            host,
            user: User { at, kind },
            tree,
            is_packed: false,
            reads,
            writes,
            counts,
        })
    }

    /// The same with the blocks one behind another, where they lie too far apart.
    pub(crate) fn packed(
        at: usize,
        tree: Tree,
        (reads, writes): (bool, bool),
        counts: &'static Counts,
    ) -> Result<Mirror, Failure> {
        let memory = Memory::new(tree.size(), tree.size(), Kind::System).ok_or(Failure::NoMemory)?;
        let (host, user) = (memory.at(), User { at, kind: None });
        Ok(Mirror { _memory: memory, host, user, tree, is_packed: true, reads, writes, counts })
    }

    /// Bytes of data.
    pub(crate) fn size(&self) -> usize {
        self.tree.size()
    }

    unsafe fn copy(&self, way: Way) -> Result<(), Failure> {
        // SAFETY: the caller's promise; the mirror has room for all blocks.
        let copied = unsafe {
            if self.is_packed {
                copies::copy_packed(&self.tree, self.user, self.host, way)
            } else {
                copies::copy(&self.tree, self.user, self.host, way)
            }
        };
        copied.then_some(()).ok_or(Failure::NotCopied)
    }

    /// What the MPI gets in place of the buffer's address.
    pub(crate) fn address(&self) -> usize {
        self.host
    }

    /// The first byte of the program's buffer.
    pub(crate) fn first(&self) -> usize {
        self.user.at.wrapping_add_signed(self.tree.bounds().map_or(0, |(low, _)| low))
    }

    /// Copies what the call reads from the device.
    ///
    /// # Safety
    /// The program's buffer is valid.
    pub(crate) unsafe fn copy_in(&self) -> Result<(), Failure> {
        if !self.reads {
            return Ok(());
        }
        self.counts.add_from_device(self.tree.size());
        // SAFETY: the caller's promise.
        unsafe { self.copy(Way::Out) }
    }

    /// Copies what the call has written to the device.
    ///
    /// # Safety
    /// The program's buffer is valid.
    pub(crate) unsafe fn copy_back(&self) -> Result<(), Failure> {
        if !self.writes {
            return Ok(());
        }
        self.counts.add_to_device(self.tree.size());
        // SAFETY: as above.
        unsafe { self.copy(Way::Back) }
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
pub(crate) unsafe fn copy_out(tree: &Tree, device: usize, kind: Kind, host: usize) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let copied = unsafe { copies::copy(tree, User { at: device, kind: Some(kind) }, host, Way::Out) };
    copied.then_some(()).ok_or(Failure::NotCopied)
}

/// Copies these bytes back.
///
/// # Safety
/// They are valid on both sides.
pub(crate) unsafe fn copy_back(tree: &Tree, device: usize, kind: Kind, host: usize) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let copied = unsafe { copies::copy(tree, User { at: device, kind: Some(kind) }, host, Way::Back) };
    copied.then_some(()).ok_or(Failure::NotCopied)
}
