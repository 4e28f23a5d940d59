//! Which collective operations there are: fi_query_collective(3).

use engine::CollectiveKind as Kind;
use hmem::{AtomicOp, Datatype};
use libc::c_int;
use libfabric_sys as fi;

use crate::domain::DomainFid;
use crate::errno::Errno;
use crate::ffi::{guard, known, obj};
use crate::info::answer::MAX_MSG_SIZE;

/// Members of a group. Each keeps an address of every other.
const MAX_MEMBERS: usize = 1 << 20;

pub(super) fn kind_of(coll: fi::fi_collective_op) -> Result<Kind, Errno> {
    Ok(match coll {
        fi::FI_BARRIER => Kind::Barrier,
        fi::FI_BROADCAST => Kind::Broadcast,
        fi::FI_ALLTOALL => Kind::AllToAll,
        fi::FI_ALLREDUCE => Kind::AllReduce,
        fi::FI_ALLGATHER => Kind::AllGather,
        fi::FI_REDUCE_SCATTER => Kind::ReduceScatter,
        fi::FI_REDUCE => Kind::Reduce,
        fi::FI_SCATTER => Kind::Scatter,
        fi::FI_GATHER => Kind::Gather,
        _ => return Err(Errno::OPNOTSUPP),
    })
}

/// A datatype by its code: those of atomics, in the same order.
pub(super) fn datatype_of(code: fi::fi_datatype) -> Result<Datatype, Errno> {
    let datatype = code.try_into().ok().and_then(Datatype::from_code).ok_or(Errno::OPNOTSUPP)?;
    // Where the processor has no such type, atomics have none either.
    let there = hmem::valid(AtomicOp::AtomicWrite, datatype, hmem::Class::Base);
    if there { Ok(datatype) } else { Err(Errno::OPNOTSUPP) }
}

/// What reduces elements of that type.
pub(super) fn operator_of(code: fi::fi_op, datatype: Datatype) -> Result<AtomicOp, Errno> {
    let op = code.try_into().ok().and_then(AtomicOp::from_code).ok_or(Errno::OPNOTSUPP)?;
    if hmem::reduces(op, datatype) { Ok(op) } else { Err(Errno::OPNOTSUPP) }
}

/// Elements of one call, and the bytes of one.
fn answer(coll: fi::fi_collective_op, attr: &fi::fi_collective_attr) -> Result<fi::fi_atomic_attr, Errno> {
    let kind = kind_of(coll)?;
    if attr.mode != 0 {
        return Err(Errno::INVAL);
    }
    if kind == Kind::Barrier {
        return Ok(fi::fi_atomic_attr { count: 0, size: 0 });
    }
    let datatype = datatype_of(attr.datatype)?;
    if kind.reduces() {
        operator_of(attr.op, datatype)?;
    }
    let size = datatype.size();
    Ok(fi::fi_atomic_attr { count: MAX_MSG_SIZE / size, size })
}

/// `fi_ops_domain::query_collective`.
pub(crate) unsafe extern "C" fn query_collective(
    domain: *mut fi::fid_domain,
    coll: fi::fi_collective_op,
    attr: *mut fi::fi_collective_attr,
    flags: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain, and attributes, which are for the answer too.
        let (_, attr) = unsafe { (obj::<DomainFid, _>(domain)?, attr.as_mut().ok_or(Errno::INVAL)?) };
        known(flags, 0)?;
        attr.datatype_attr = answer(coll, attr)?;
        attr.max_members = MAX_MEMBERS;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(op: fi::fi_op, datatype: fi::fi_datatype) -> fi::fi_collective_attr {
        fi::fi_collective_attr { op, datatype, ..Default::default() }
    }

    #[test]
    fn all_operations_are_there_and_reduce_what_atomics_compute() {
        for coll in fi::FI_BARRIER..=fi::FI_GATHER {
            assert!(answer(coll, &attr(fi::FI_SUM, fi::FI_DOUBLE)).is_ok(), "{coll}");
        }
        let reduces = |op, datatype| answer(fi::FI_ALLREDUCE, &attr(op, datatype)).map(|a| a.size);
        assert_eq!(reduces(fi::FI_BXOR, fi::FI_UINT16), Ok(2));
        assert_eq!(reduces(fi::FI_BXOR, fi::FI_DOUBLE), Err(Errno::OPNOTSUPP));
        for op in [fi::FI_ATOMIC_READ, fi::FI_ATOMIC_WRITE, fi::FI_CSWAP, fi::FI_NOOP] {
            assert_eq!(reduces(op, fi::FI_UINT64), Err(Errno::OPNOTSUPP));
        }
        // What is only moved has no operation.
        assert!(answer(fi::FI_ALLGATHER, &attr(fi::FI_NOOP, fi::FI_UINT64)).is_ok());
        assert!(answer(fi::FI_BARRIER, &attr(fi::FI_NOOP, fi::FI_VOID)).is_ok());
        assert_eq!(answer(fi::FI_GATHER, &attr(fi::FI_NOOP, fi::FI_VOID)).err(), Some(Errno::OPNOTSUPP));
        assert_eq!(answer(fi::FI_GATHER + 1, &attr(fi::FI_SUM, fi::FI_UINT8)).err(), Some(Errno::OPNOTSUPP));
        let reserved = fi::fi_collective_attr { mode: 1, ..attr(fi::FI_SUM, fi::FI_UINT8) };
        assert_eq!(answer(fi::FI_ALLREDUCE, &reserved).err(), Some(Errno::INVAL));
    }
}
