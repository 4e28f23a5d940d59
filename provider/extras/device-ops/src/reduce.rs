//! Reductions.

use hmem::cuda::Stream;

use crate::error::{Error, driver};
use crate::kernels::Kernel;
use crate::memory::Memory;
use crate::ptx::{Access, ReduceKernel};
use crate::types::{Op, Type};

/// Bytes of so many elements that are reduced.
pub(crate) fn bytes(op: Op, ty: Type, count: u64) -> Result<i64, Error> {
    if !op.takes(ty) {
        return Err(Error::Undefined(op, ty));
    }
    let len = count.checked_mul(ty.extent()).and_then(|len| i64::try_from(len).ok());
    len.ok_or_else(|| Error::Argument(format!("{count} elements of {ty:?} are no buffer")))
}

/// Queues `to[i] = a[i] op b[i]` for `count` elements. `to` may be `a` or `b`, and must not overlap them
/// otherwise. In terms of MPI_Reduce_local, `a` is `inbuf`, and `b` and `to` are `inoutbuf`.
///
/// Results are those of C's operators: no fused multiply-add, no subnormal number becomes 0, and of equal
/// arguments they are the same on each device. Which NaN comes out of a sum or product is not specified.
/// Every comparison with a NaN is false: of a minimum or maximum with one comes `b`.
pub fn reduce(
    stream: Stream,
    op: Op,
    ty: Type,
    to: Memory,
    a: Memory,
    b: Memory,
    count: u64,
) -> Result<(), Error> {
    let len = bytes(op, ty, count)?;
    for (what, memory) in [("result", to), ("first operand", a), ("second operand", b)] {
        memory.check(what, 0, len)?;
    }
    if to.overlaps(&a, len as u64) || to.overlaps(&b, len as u64) {
        return Err(Error::Argument(
            "the result overlaps an operand: pass it apart, or at the same address".into(),
        ));
    }
    if let Some(from) = moved(op, ty, a, b) {
        return if from == to.origin() || len == 0 {
            Ok(())
        } else {
            // SAFETY: `Memory`'s promise, for bytes that are inside.
            unsafe { stream.copy(to.origin() as usize, from as usize, len as usize) }
                .map_err(driver("copying elements"))
        };
    }
    let kernel = kernel_for(op, ty, to.origin() | a.origin() | b.origin());
    let arguments = [to.origin(), a.origin(), b.origin(), count];
    // SAFETY: `Memory`'s promise, for bytes that are inside; the parameters are as the kernel's text has
    // them.
    unsafe { Kernel::Reduce(kernel).launch(stream, count.div_ceil(kernel.elements()), &arguments) }
}

/// What the operation moves as it is; elements with gaps are moved number by number.
fn moved(op: Op, ty: Type, a: Memory, b: Memory) -> Option<u64> {
    match op {
        Op::Replace if !ty.has_gap() => Some(a.origin()),
        Op::NoOp if !ty.has_gap() => Some(b.origin()),
        _ => None,
    }
}

/// The kernel for buffers at addresses of which these are all bits.
pub(crate) fn kernel_for(op: Op, ty: Type, addresses: u64) -> ReduceKernel {
    ReduceKernel { op, ty, access: access(ty, addresses) }
}

/// How elements at addresses of which these are all bits are accessed.
pub(crate) fn access(ty: Type, addresses: u64) -> Access {
    let natural = ty.lanes().iter().map(|(_, lane)| u64::from(lane.bytes())).max().unwrap_or(1);
    if addresses % 16 == 0 && !ty.is_pair() {
        Access::Wide
    } else if addresses % natural == 0 {
        Access::Aligned
    } else {
        Access::Bytes
    }
}
