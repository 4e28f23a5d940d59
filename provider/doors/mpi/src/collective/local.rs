//! MPI_Reduce_local of device memory by a kernel of the device.

use device_ops::{Memory, reduce};

use super::element::computed;
use crate::args::Args;
use crate::buffer::kernels::{self, Work};
use crate::buffer::{Failure, sync};
use crate::counts::Path;
use crate::library::Library;
use crate::row::Row;

/// Does the call if it is MPI_Reduce_local with a predefined operation and type, and both buffers are memory
/// of one device; `None` where it did not. What it does not do is the MPI's, with its errors.
///
/// # Safety
/// The arguments are those of the row's call, and valid.
pub(crate) unsafe fn run(
    library: &Library,
    row: &'static Row,
    args: &Args<'_>,
) -> Option<Result<(), Failure>> {
    if row.name != "MPI_Reduce_local" || !kernels::are_on() {
        return None;
    }
    // SAFETY: by the call: input, input and output, count, datatype, operation.
    let (from, to, count, computed) = unsafe {
        let computed = computed(library, args.op(4), args.datatype(3));
        (args.words[0], args.words[1], args.count(2), computed)
    };
    let (op, ty) = computed?;
    let len = count.checked_mul(ty.extent() as usize).filter(|len| *len > 0)?;
    let [device, other] = [from, to].map(|at| {
        let is_device = !crate::host::is_host(at) && hmem::classify(at, len) == hmem::Kind::Cuda;
        is_device.then(|| kernels::device_of(at, len)).flatten()
    });
    if device.is_none() || device != other {
        return None;
    }
    sync::wait_for(to);
    let work = kernels::run(to, |stream| {
        // SAFETY: the caller's promise, until the stream is waited for.
        let (a, b) = unsafe { (Memory::new(from, len), Memory::new(to, len)) };
        reduce(stream, op, ty, b, a, b, count as u64)
    });
    match work {
        Work::NotBegun => None,
        Work::Failed => Some(Err(Failure::NotCopied)),
        Work::Done => {
            row.counts.add(Path::Kernel);
            Some(Ok(()))
        }
    }
}
