//! The calls that NCCL has too, and their arguments.

use device_ops::Memory;
use device_ops::nccl::{Comm, Element, Library as Nccl, NcclError, Rank, Vendor, element};
use hmem::Kind;

use super::element::{op_of, type_of};
use crate::args::{Args, Style};
use crate::buffer::Resolver;
use crate::library::{Library, pmpi};
use crate::posted::{Plan, What};
use crate::row::Row;

/// One rank's call, with device memory.
#[derive(Debug)]
pub(super) struct Call {
    what: What,
    /// Addresses of what is sent and what is received.
    from: usize,
    to: usize,
    /// Elements of a reduction; bytes of a block.
    count: usize,
    element: Option<Element>,
    root: usize,
    pub(super) device: i32,
}

impl Plan {
    /// The arguments that are a block's count and its datatype.
    fn counted(&self, args: &Args<'_>) -> (usize, usize) {
        match self.in_place {
            Some(other) if args.is_in_place(args.words[other.at]) => (other.count, other.datatype),
            _ => (self.count, self.datatype),
        }
    }

    /// Bytes of a block: count times the datatype's size, the same at all ranks.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid; so below.
    pub(super) unsafe fn bytes(&self, args: &Args<'_>) -> Option<usize> {
        // SAFETY: the caller's promise.
        unsafe {
            let count = args.count(self.counted(args).0);
            if count == 0 {
                return None;
            }
            Some(count.saturating_mul(self.size(args)?))
        }
    }

    /// Bytes of its datatype.
    pub(super) unsafe fn size(&self, args: &Args<'_>) -> Option<usize> {
        let mut size = 0i64;
        // SAFETY: a valid place; the caller's promise.
        unsafe { pmpi!("Type_size_x", args.datatype(self.counted(args).1), &raw mut size) }.ok()?;
        usize::try_from(size).ok()
    }

    /// What NCCL is called with, if the buffers are memory of one device without gaps and it has the
    /// operation.
    pub(super) unsafe fn call(
        &self,
        library: &Library,
        row: &'static Row,
        args: &Args<'_>,
        at: Rank,
    ) -> Option<Call> {
        // Addresses with a meaning are others in Fortran.
        if args.style == Style::Fortran {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let root = self.root.map_or(0, |root| args.int(root));
            let root = usize::try_from(root).ok().filter(|root| *root < at.size)?;
            let bytes = self.bytes(args)?;
            let (mut count, mut of) = (bytes, None);
            if let Some(op) = self.op {
                let op = op_of(library, args.abi.handle_in(args.words[op]))?;
                let ty = type_of(library, args.datatype(self.datatype))?;
                of = Some(element(op, ty, Nccl::open(Vendor::Nvidia).ok()?.version())?);
                count = args.count(self.count);
            }
            let device = one_device(row, args, allocated_on)?;
            let is_in_place = args.is_in_place(args.words[0]);
            let (from, to) = match self.what {
                What::Bcast => (args.words[0], args.words[0]),
                What::Reduce if at.rank != root => (args.words[0], args.words[0]),
                What::Reduce | What::Allreduce if is_in_place => (args.words[1], args.words[1]),
                What::Reduce | What::Allreduce => (args.words[0], args.words[1]),
                What::Allgather if is_in_place => (args.words[3] + at.rank * bytes, args.words[3]),
                // NCCL has no such form of these two.
                What::ReduceScatterBlock | What::Alltoall if is_in_place => return None,
                What::ReduceScatterBlock => (args.words[0], args.words[1]),
                What::Allgather | What::Alltoall => (args.words[0], args.words[3]),
                _ => return None,
            };
            Some(Call { what: self.what, from, to, count, element: of, root, device })
        }
    }
}

/// The device of one allocation that has all of `len` bytes.
fn allocated_on(at: usize, len: usize) -> Option<i32> {
    let is_one = |info: &hmem::cuda::Info| at as u64 + len as u64 <= info.base + info.len;
    hmem::cuda::info(at).filter(is_one).map(|info| info.device)
}

/// The device that has all buffers of a call, which have no gaps; `device_of` finds that of CUDA's memory.
///
/// # Safety
/// The arguments are those of the row's call, and valid.
pub(super) unsafe fn one_device(
    row: &'static Row,
    args: &Args<'_>,
    device_of: impl Fn(usize, usize) -> Option<i32>,
) -> Option<i32> {
    let (mut resolver, mut device) = (Resolver::new(args, row.on), None);
    for buf in row.bufs {
        let word = args.words[usize::from(buf.at)];
        if args.is_in_place(word) {
            continue;
        }
        // SAFETY: the caller's promise.
        let Some(described) = unsafe { resolver.describe(buf) }.ok()? else { continue };
        let (begin, len) = described.data.tree.single()?;
        if begin != 0 || crate::host::is_no_address(word) || crate::host::is_host(word) {
            return None;
        }
        let on = (hmem::classify(word, len) == Kind::Cuda).then(|| device_of(word, len)).flatten()?;
        if device.is_some_and(|device| device != on) {
            return None;
        }
        device = Some(on);
    }
    device
}

impl Call {
    /// An address of the device that it is on.
    pub(super) fn near(&self) -> usize {
        self.from
    }

    /// Begins it, together with all other ranks.
    ///
    /// # Safety
    /// The buffers are valid until it is over.
    pub(super) unsafe fn begin(&self, comm: &Comm) -> Result<(), NcclError> {
        let ranks = comm.at().size;
        // SAFETY: the caller's promise, for as long as MPI says. `Plan::call` saw that each is so long.
        let memory = |at: usize, len: usize| unsafe { Memory::new(at, len) };
        let n = self.count;
        let len = |of: Element| n.saturating_mul(of.extent());
        match (self.what, self.element) {
            (What::Bcast, _) => comm.broadcast(memory(self.from, n), n, self.root),
            (What::Allgather, _) => {
                comm.all_gather(memory(self.from, n), memory(self.to, n.saturating_mul(ranks)), n)
            }
            (What::Alltoall, _) => comm.group(|group| {
                (0..ranks).try_for_each(|rank| {
                    group.send(memory(self.from + rank * n, n), n, rank)?;
                    group.recv(memory(self.to + rank * n, n), n, rank)
                })
            }),
            (What::Allreduce, Some(of)) => {
                comm.all_reduce(of, memory(self.from, len(of)), memory(self.to, len(of)), n)
            }
            (What::Reduce, Some(of)) => {
                comm.reduce(of, memory(self.from, len(of)), memory(self.to, len(of)), n, self.root)
            }
            (What::ReduceScatterBlock, Some(of)) => {
                let all = len(of).saturating_mul(ranks);
                comm.reduce_scatter(of, memory(self.from, all), memory(self.to, len(of)), n)
            }
            _ => Err(NcclError::Argument("not a collective of NCCL's".to_owned())),
        }
    }
}
