//! Sets of addresses, fi_av_set(3): who takes part in collective operations, in order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{c_int, c_void};
use libfabric_sys as fi;

use engine::AvId;

use crate::domain::Shared;
use crate::errno::Errno;
use crate::ffi::{Counted, Fid, Refs, guard, header, known, obj, publish, put, reclaim};

/// Collective operations that a set can be for. Each set is for all.
const FOR: u64 = fi::FI_BARRIER_SET
    | fi::FI_BROADCAST_SET
    | fi::FI_ALLTOALL_SET
    | fi::FI_ALLREDUCE_SET
    | fi::FI_ALLGATHER_SET
    | fi::FI_REDUCE_SCATTER_SET
    | fi::FI_REDUCE_SET
    | fi::FI_SCATTER_SET
    | fi::FI_GATHER_SET;

/// A reference to the address vector.
pub(super) type Kept = Box<dyn std::any::Any + Send + Sync>;

/// `struct fid_av_set`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AvSetFid {
    fid: fi::fid_av_set,
    shared: Arc<Shared>,
    /// The vector that its addresses are of, and what keeps that open.
    av: AvId,
    _kept: Kept,
    /// Groups that were joined by it.
    refs: Refs,
    members: Mutex<Vec<fi::fi_addr_t>>,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for AvSetFid {
    const CLASS: usize = fi::FI_CLASS_AV_SET;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

// SAFETY: the raw pointers inside the fid are written once, before the object is shared, and followed
// by the application alone; everything else is synchronized by itself.
unsafe impl Send for AvSetFid {}
// SAFETY: as above.
unsafe impl Sync for AvSetFid {}

impl Counted for AvSetFid {
    fn refs(&self) -> &Refs {
        &self.refs
    }
}

impl AvSetFid {
    fn lock(&self) -> MutexGuard<'_, Vec<fi::fi_addr_t>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its addresses now.
    pub(crate) fn members(&self) -> Vec<fi::fi_addr_t> {
        self.lock().clone()
    }

    /// Whether its addresses are of that vector.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>, av: AvId) -> bool {
        Arc::ptr_eq(&self.shared, shared) && self.av == av
    }

    /// What names the set where an address of a group may stand.
    pub(crate) fn address(&self) -> fi::fi_addr_t {
        (&raw const self.fid).addr() as fi::fi_addr_t
    }

    fn insert(&self, addr: fi::fi_addr_t) -> Result<(), Errno> {
        let known = self.shared.lock().av_lookup(self.av, addr).is_some();
        let mut members = self.lock();
        if !known || members.contains(&addr) {
            return Err(Errno::INVAL);
        }
        members.push(addr);
        Ok(())
    }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), ..fi::NO_OPS };

static SET_OPS: fi::fi_ops_av_set = fi::fi_ops_av_set {
    set_union: Some(set_union),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(addr),
    ..fi::NO_OPS_AV_SET
};

/// The addresses that a set begins with.
fn first_members(attr: &fi::fi_av_set_attr, all: Vec<fi::fi_addr_t>) -> Result<Vec<fi::fi_addr_t>, Errno> {
    known(attr.flags, FOR | fi::FI_UNIVERSE)?;
    if attr.comm_key_size > 0 {
        // Membership that a fabric's manager has set up: there is none.
        return Err(Errno::NOSYS);
    }
    if attr.flags & fi::FI_UNIVERSE != 0 {
        return Ok(all);
    }
    let (start, end) = (attr.start_addr, attr.end_addr);
    if start == fi::FI_ADDR_NOTAVAIL && end == fi::FI_ADDR_NOTAVAIL {
        return Ok(Vec::new());
    }
    if start == fi::FI_ADDR_NOTAVAIL || end == fi::FI_ADDR_NOTAVAIL || start > end {
        return Err(Errno::INVAL);
    }
    let step = attr.stride.max(1);
    let members: Vec<_> =
        all.into_iter().filter(|at| (start..=end).contains(at) && (at - start) % step == 0).collect();
    if attr.count > 0 && members.len() > attr.count { Err(Errno::INVAL) } else { Ok(members) }
}

/// Makes a set of addresses of a vector, which `kept` keeps open.
pub(super) fn make(
    shared: &Arc<Shared>,
    av: AvId,
    kept: Kept,
    attr: &fi::fi_av_set_attr,
    context: *mut c_void,
) -> Result<*mut fi::fid_av_set, Errno> {
    let all = shared.lock().av_indices(av);
    let members = Mutex::new(first_members(attr, all)?);
    Ok(publish(Box::new(AvSetFid {
        fid: fi::fid_av_set { fid: header::<AvSetFid>(context), ops: (&raw const SET_OPS).cast_mut() },
        shared: shared.clone(),
        av,
        _kept: kept,
        refs: Refs::default(),
        members,
    })))
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open set and does not use it during the call.
        let set = unsafe { obj::<AvSetFid, _>(fid)? };
        set.refs.none()?;
        // SAFETY: as above, and nothing refers to it.
        drop(unsafe { reclaim(set) });
        Ok(())
    })
}

/// Changes a set by another one of the same vector.
///
/// # Safety
/// Both are NULL or live fids.
unsafe fn change(
    dst: *mut fi::fid_av_set,
    src: *const fi::fid_av_set,
    how: impl FnOnce(&mut Vec<fi::fi_addr_t>, &[fi::fi_addr_t]),
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (dst, src) = unsafe { (obj::<AvSetFid, _>(dst)?, obj::<AvSetFid, _>(src)?) };
        if !dst.is_of(&src.shared, src.av) {
            return Err(Errno::INVAL);
        }
        // They may be one.
        let others = src.members();
        how(&mut dst.lock(), &others);
        Ok(())
    })
}

unsafe extern "C" fn set_union(dst: *mut fi::fid_av_set, src: *const fi::fid_av_set) -> c_int {
    // SAFETY: the application passes open sets.
    unsafe {
        change(dst, src, |dst, src| {
            let new: Vec<_> = src.iter().filter(|at| !dst.contains(at)).copied().collect();
            dst.extend(new);
        })
    }
}

unsafe extern "C" fn intersect(dst: *mut fi::fid_av_set, src: *const fi::fid_av_set) -> c_int {
    // SAFETY: the application passes open sets.
    unsafe { change(dst, src, |dst, src| dst.retain(|at| src.contains(at))) }
}

unsafe extern "C" fn diff(dst: *mut fi::fid_av_set, src: *const fi::fid_av_set) -> c_int {
    // SAFETY: the application passes open sets.
    unsafe { change(dst, src, |dst, src| dst.retain(|at| !src.contains(at))) }
}

unsafe extern "C" fn insert(set: *mut fi::fid_av_set, addr: fi::fi_addr_t) -> c_int {
    // SAFETY: the application passes an open set.
    guard(|| unsafe { obj::<AvSetFid, _>(set)? }.insert(addr))
}

unsafe extern "C" fn remove(set: *mut fi::fid_av_set, addr: fi::fi_addr_t) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open set.
        let mut members = unsafe { obj::<AvSetFid, _>(set)? }.lock();
        let at = members.iter().position(|m| *m == addr).ok_or(Errno::INVAL)?;
        members.remove(at);
        Ok(())
    })
}

unsafe extern "C" fn addr(set: *mut fi::fid_av_set, coll_addr: *mut fi::fi_addr_t) -> c_int {
    // SAFETY: the application passes an open set, and a place for the answer.
    guard(|| unsafe { put(coll_addr, obj::<AvSetFid, _>(set)?.address()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(start_addr: u64, end_addr: u64, stride: u64) -> fi::fi_av_set_attr {
        fi::fi_av_set_attr { start_addr, end_addr, stride, ..Default::default() }
    }

    #[test]
    fn a_set_begins_with_the_addresses_of_its_range() {
        let first = |attr: &fi::fi_av_set_attr| first_members(attr, vec![0, 1, 2, 4, 5, 7]);
        const NONE: u64 = fi::FI_ADDR_NOTAVAIL;
        assert_eq!(first(&attr(0, 7, 1)), Ok(vec![0, 1, 2, 4, 5, 7]));
        assert_eq!(first(&attr(1, 5, 2)), Ok(vec![1, 5]));
        assert_eq!(first(&attr(2, 2, 0)), Ok(vec![2]));
        assert_eq!(first(&attr(0, u64::MAX - 1, 1)).map(|all| all.len()), Ok(6));
        assert_eq!(first(&attr(NONE, NONE, 0)), Ok(vec![]));
        let universe = fi::fi_av_set_attr { flags: fi::FI_UNIVERSE, ..attr(NONE, NONE, 0) };
        assert_eq!(first(&universe).map(|all| all.len()), Ok(6));
        for (bad, why) in [
            (attr(5, 1, 1), Errno::INVAL),
            (attr(0, NONE, 1), Errno::INVAL),
            (fi::fi_av_set_attr { count: 2, ..attr(0, 7, 1) }, Errno::INVAL),
            (fi::fi_av_set_attr { comm_key_size: 4, ..attr(0, 7, 1) }, Errno::NOSYS),
            (fi::fi_av_set_attr { flags: fi::FI_PEEK, ..attr(0, 7, 1) }, Errno::BADFLAGS),
        ] {
            assert_eq!(first(&bad), Err(why));
        }
    }
}
