//! What a client is: the calls that its memory's owner answers.

use std::os::fd::OwnedFd;

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

/// What is to reach the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importer {
    /// Another process of this host, or the CPU.
    Process,
    /// An adapter (RDMA).
    Device,
}

/// What the owner of memory answers. Errors are errnos, above 0.
///
/// For each registration the calls come in this order: acquire, get_pages, dma_map, any number of
/// copies, dma_unmap, put_pages, release. Different registrations' calls may come at once, from any
/// thread.
pub trait Client: Send + Sync {
    /// What it is called.
    fn name(&self) -> String;

    /// Whether adapters may get its memory, as dma_map for a device says. Asked once. Without it no callback
    /// is called for a device.
    fn serves_devices(&self) -> bool {
        false
    }

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

    /// Copies between the memory and `host`; `None` if it leaves that to the caller.
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
