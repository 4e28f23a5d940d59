//! Which atomic operations there are: fi_query_atomic(3), and what an endpoint answers too.

use hmem::{AtomicOp, Class, Datatype};
use libc::c_int;
use libfabric_sys as fi;

use crate::domain::DomainFid;
use crate::errno::Errno;
use crate::ffi::{guard, obj, put};

/// Bytes of operands one operation may have: with compare values as many again, and everything
/// around them, they fit into the smallest frame of a link.
pub(crate) const MAX_BYTES: usize = 4096;

/// The operation of those codes, and how many elements of what size one call may have.
pub(crate) fn query(
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    class: Class,
) -> Result<(AtomicOp, Datatype, fi::fi_atomic_attr), Errno> {
    let known = || {
        let op = AtomicOp::from_code(op.try_into().ok()?)?;
        let datatype = Datatype::from_code(datatype.try_into().ok()?)?;
        hmem::valid(op, datatype, class).then_some((op, datatype))
    };
    let (op, datatype) = known().ok_or(Errno::OPNOTSUPP)?;
    let size = datatype.size();
    Ok((op, datatype, fi::fi_atomic_attr { count: MAX_BYTES / size, size }))
}

/// `fi_ops_domain::query_atomic`.
pub(crate) unsafe extern "C" fn query_atomic(
    domain: *mut fi::fid_domain,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    attr: *mut fi::fi_atomic_attr,
    flags: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain.
        unsafe { obj::<DomainFid, _>(domain)? };
        let class = match flags {
            0 => Class::Base,
            fi::FI_FETCH_ATOMIC => Class::Fetch,
            fi::FI_COMPARE_ATOMIC => Class::Compare,
            _ => return Err(Errno::BADFLAGS),
        };
        let (_, _, answer) = query(datatype, op, class)?;
        // SAFETY: the application passes a place for the answer.
        unsafe { put(attr, answer) }
    })
}
