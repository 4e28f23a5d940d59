//! What the ranks of a communicator do together. All of it is queued in the communicator's stream.

use std::ffi::c_void;

use super::comm::Comm;
use super::error::NcclError;
use super::library::Handle;
use super::table::{BYTE, Element};
use crate::memory::Memory;

fn at(memory: Memory) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(memory.origin() as usize)
}

/// A product that is an argument, and a buffer's length.
fn bytes(factors: &[usize]) -> Result<i64, NcclError> {
    let all = factors.iter().try_fold(1usize, |n, f| n.checked_mul(*f));
    let all = all.and_then(|n| i64::try_from(n).ok());
    all.ok_or_else(|| NcclError::Argument(format!("{factors:?} elements, ranks and bytes are no buffer")))
}

fn fits(what: &str, memory: Memory, len: i64) -> Result<(), NcclError> {
    memory.check(what, 0, len).map_err(|e| NcclError::Argument(e.to_string()))
}

/// Sends and receives that are begun together.
#[derive(Debug)]
pub struct Group<'a>(&'a Comm);

impl Comm {
    fn call(&self, name: &'static str, call: impl FnOnce(Handle) -> i32) -> Result<(), NcclError> {
        self.usable()?;
        let stream = std::ptr::with_exposed_provenance_mut(self.stream().handle());
        let code = self.within(|| call(stream))?;
        self.begun(name, code)
    }

    fn peer(&self, rank: usize) -> Result<i32, NcclError> {
        match i32::try_from(rank) {
            Ok(n) if rank < self.at.size => Ok(n),
            _ => Err(NcclError::Argument(format!("rank {rank} is none of {}", self.at.size))),
        }
    }

    /// MPI_Allreduce. `to` may be `from`.
    pub fn all_reduce(&self, of: Element, from: Memory, to: Memory, n: usize) -> Result<(), NcclError> {
        let len = bytes(&[n, of.bytes])?;
        fits("send buffer", from, len)?;
        fits("receive buffer", to, len)?;
        let f = self.library.functions.all_reduce;
        // SAFETY: `Memory`'s promise, for bytes that are inside; the communicator is alive.
        self.call("ncclAllReduce", |s| unsafe {
            f(at(from), at(to), n * of.each, of.ty, of.op, self.handle, s)
        })
    }

    /// MPI_Reduce. `to` is written at the root alone.
    pub fn reduce(
        &self,
        of: Element,
        from: Memory,
        to: Memory,
        n: usize,
        root: usize,
    ) -> Result<(), NcclError> {
        let (len, root_code) = (bytes(&[n, of.bytes])?, self.peer(root)?);
        fits("send buffer", from, len)?;
        if root == self.at.rank {
            fits("receive buffer", to, len)?;
        }
        let f = self.library.functions.reduce;
        // SAFETY: as in `all_reduce`; `to` is written at the root.
        self.call("ncclReduce", |s| unsafe {
            f(at(from), at(to), n * of.each, of.ty, of.op, root_code, self.handle, s)
        })
    }

    /// MPI_Bcast of so many bytes.
    pub fn broadcast(&self, buffer: Memory, len: usize, root: usize) -> Result<(), NcclError> {
        fits("buffer", buffer, bytes(&[len])?)?;
        let (f, root) = (self.library.functions.broadcast, self.peer(root)?);
        // SAFETY: as in `all_reduce`.
        self.call("ncclBroadcast", |s| unsafe { f(at(buffer), at(buffer), len, BYTE, root, self.handle, s) })
    }

    /// MPI_Allgather of so many bytes of each rank. In place where `from` is this rank's part of `to`.
    pub fn all_gather(&self, from: Memory, to: Memory, len: usize) -> Result<(), NcclError> {
        fits("send buffer", from, bytes(&[len])?)?;
        fits("receive buffer", to, bytes(&[len, self.at.size])?)?;
        let f = self.library.functions.all_gather;
        // SAFETY: as in `all_reduce`.
        self.call("ncclAllGather", |s| unsafe { f(at(from), at(to), len, BYTE, self.handle, s) })
    }

    /// MPI_Reduce_scatter_block of `n` elements for each rank. In place where `to` is this rank's part of
    /// `from`.
    pub fn reduce_scatter(&self, of: Element, from: Memory, to: Memory, n: usize) -> Result<(), NcclError> {
        fits("send buffer", from, bytes(&[n, of.bytes, self.at.size])?)?;
        fits("receive buffer", to, bytes(&[n, of.bytes])?)?;
        let f = self.library.functions.reduce_scatter;
        // SAFETY: as in `all_reduce`.
        self.call("ncclReduceScatter", |s| unsafe {
            f(at(from), at(to), n * of.each, of.ty, of.op, self.handle, s)
        })
    }

    /// Begins sends and receives together, as a rank must that does both: what `work` calls is begun when it
    /// returns.
    pub fn group(&self, work: impl FnOnce(&Group<'_>) -> Result<(), NcclError>) -> Result<(), NcclError> {
        self.usable()?;
        let of = &self.library.functions;
        // SAFETY: takes nothing.
        self.library.check("ncclGroupStart", self.within(|| unsafe { (of.group_start)() })?)?;
        let worked = work(&Group(self));
        // SAFETY: the group was started, by this thread.
        let ended = self.within(|| unsafe { (of.group_end)() })?;
        if worked.is_err() {
            self.fail();
        }
        worked?;
        self.begun("ncclGroupEnd", ended)
    }
}

impl Group<'_> {
    fn call(&self, name: &'static str, call: impl FnOnce(Handle) -> i32) -> Result<(), NcclError> {
        let stream = std::ptr::with_exposed_provenance_mut(self.0.stream().handle());
        self.0.library.check(name, self.0.within(|| call(stream))?)
    }

    /// Sends so many bytes.
    pub fn send(&self, from: Memory, len: usize, to: usize) -> Result<(), NcclError> {
        fits("send buffer", from, bytes(&[len])?)?;
        let (f, to) = (self.0.library.functions.send, self.0.peer(to)?);
        // SAFETY: `Memory`'s promise, for bytes that are inside; the communicator is alive.
        self.call("ncclSend", |s| unsafe { f(at(from), len, BYTE, to, self.0.handle, s) })
    }

    /// Receives so many bytes.
    pub fn recv(&self, to: Memory, len: usize, from: usize) -> Result<(), NcclError> {
        fits("receive buffer", to, bytes(&[len])?)?;
        let (f, from) = (self.0.library.functions.recv, self.0.peer(from)?);
        // SAFETY: as in `send`.
        self.call("ncclRecv", |s| unsafe { f(at(to), len, BYTE, from, self.0.handle, s) })
    }
}
