//! Groups of endpoints: fi_join_collective(3), and `struct fid_mc`.

use std::sync::Arc;

use engine::{Ctx, GroupId};
use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::super::endpoint::EpFid;
use crate::av::AvSetFid;
use crate::domain::Shared;
use crate::eq::{EqFid, Join, Joining};
use crate::errno::Errno;
use crate::ffi::{Fid, Ref, arg, guard, header, known, obj, publish, put, reclaim};

/// `struct fid_mc`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct McFid {
    fid: fi::fid_mc,
    shared: Arc<Shared>,
    group: GroupId,
    eq: Ref<EqFid>,
    /// What the group was made of stays until the group is left.
    _set: Ref<AvSetFid>,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `join` alone, with this table.
unsafe impl Fid for McFid {
    const CLASS: usize = fi::FI_CLASS_MC;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

// SAFETY: the raw pointers inside the fid are written once, before the object is shared, and followed
// by the application alone; everything else is synchronized by itself.
unsafe impl Send for McFid {}
// SAFETY: as above.
unsafe impl Sync for McFid {}

/// What a queue of events has of a join.
#[derive(Debug)]
struct Pending {
    shared: Arc<Shared>,
    group: GroupId,
}

impl Join for Pending {
    fn ended(&self) -> Option<Result<(), Errno>> {
        let mut engine = self.shared.lock();
        engine.progress();
        engine.joined(self.group).map(|joined| joined.err.map_or(Ok(()), |err| Err(err.into())))
    }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), ..fi::NO_OPS };

/// `fi_ops_cm::join`.
pub(in crate::ep) unsafe extern "C" fn join(
    ep: *mut fi::fid_ep,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut fi::fid_mc,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: fi_cm(3): a live fid.
        let ep = unsafe { obj::<EpFid, _>(ep) }?;
        let caps = ep.endpoint.attrs.caps;
        if flags & fi::FI_COLLECTIVE == 0 || caps & fi::FI_COLLECTIVE == 0 {
            // There is no multicast.
            return Err(Errno::NOSYS);
        }
        known(flags, fi::FI_COLLECTIVE | fi::FI_SEND | fi::FI_RECV)?;
        // SAFETY: fi_collective(3): with that flag the address is this structure, whose set is open.
        let set: &AvSetFid = unsafe { obj(arg(addr.cast::<fi::fi_collective_addr>())?.set) }?;
        let live = ep.live()?;
        if mc.is_null() {
            return Err(Errno::INVAL);
        }
        let (of_av, eq) = {
            let setup = ep.endpoint.setup();
            let of_av = setup.av.as_ref().is_some_and(|av| set.is_of(&av.shared, av.id));
            (of_av, setup.eq.as_ref().map(|eq| Ref::new(&**eq)).ok_or(Errno::NOEQ)?)
        };
        if !of_av {
            return Err(Errno::INVAL);
        }
        let shared = ep.shared().clone();
        let group = shared.lock().group_join(live.ep, &set.members(), Ctx(0))?;
        let made = publish(Box::new(McFid {
            fid: fi::fid_mc { fid: header::<McFid>(context), fi_addr: group.number() },
            shared: shared.clone(),
            group,
            eq,
            _set: Ref::new(set),
        }));
        // SAFETY: published just now, and `mc` is not NULL.
        unsafe {
            put(mc, made)?;
            let fid = made.cast::<fi::fid>().expose_provenance();
            let join = Box::new(Pending { shared, group });
            obj::<McFid, _>(made)?.eq.expect(Joining { join, fid, context: context.expose_provenance() });
        }
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open group and does not use it during the call.
        let mc = unsafe { obj::<McFid, _>(fid)? };
        match mc.shared.lock().group_close(mc.group) {
            // The endpoint was closed before.
            Ok(()) | Err(engine::Error::NotFound) => {}
            Err(err) => return Err(err.into()),
        }
        mc.eq.forget(fid.addr());
        // SAFETY: as above.
        drop(unsafe { reclaim(mc) });
        Ok(())
    })
}
