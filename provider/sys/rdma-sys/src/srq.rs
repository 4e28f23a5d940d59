//! Shared receive queues.

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use std::fmt;
use std::sync::Arc;

use crate::{Error, IBV_SRQ_LIMIT, Pd, ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

/// How large a shared receive queue is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives under way.
    pub max_wr: u32,
    /// Pieces of memory of a receive.
    pub max_sge: u32,
}

struct Inner {
    raw: NonNull<ibv_srq>,
    /// Of the driver, constant.
    post: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> core::ffi::c_int,
    pd: Pd,
    init: SrqInit,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made by this library, and its queue pairs are gone: each holds this.
        if unsafe { (self.pd.context().functions().ibv_destroy_srq)(self.raw.as_ptr()) } != 0 {
            core::mem::forget(self.pd.clone());
        }
    }
}

/// A shared receive queue. Clones are the same one.
#[derive(Clone)]
pub struct Srq(Arc<Inner>);

impl Srq {
    /// A shared receive queue. `value` is what events of it carry.
    pub fn new(pd: &Pd, init: SrqInit, value: usize) -> Result<Srq, Error> {
        let post = pd.context().ops().post_srq_recv.ok_or(Error::Missing("ibv_post_srq_recv"))?;
        let attr = ibv_srq_attr { max_wr: init.max_wr, max_sge: init.max_sge, srq_limit: 0 };
        let mut wanted = ibv_srq_init_attr { srq_context: value as *mut c_void, attr };
        // SAFETY: a domain of this library; the value is only handed back.
        let raw = unsafe { (pd.context().functions().ibv_create_srq)(pd.raw(), &raw mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_srq"))?;
        let init = SrqInit { max_wr: wanted.attr.max_wr, max_sge: wanted.attr.max_sge };
        Ok(Srq(Arc::new(Inner { raw, post, pd: pd.clone(), init })))
    }

    pub(crate) fn raw(&self) -> *mut ibv_srq {
        self.0.raw.as_ptr()
    }

    /// What it has: at least what was requested.
    pub fn granted(&self) -> SrqInit {
        self.0.init
    }

    /// Has one event raised when fewer receives than `limit` are left.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let mut attr = ibv_srq_attr { srq_limit: limit, ..Default::default() };
        let modify = self.0.pd.context().functions().ibv_modify_srq;
        // SAFETY: a queue of this library.
        Error::check("ibv_modify_srq", unsafe { modify(self.raw(), &raw mut attr, IBV_SRQ_LIMIT as i32) })
    }

    /// Posts one receive, whose completion has `id`. Of most drivers ENOMEM where the queue has no room.
    ///
    /// # Safety
    /// Until its completion the memory is registered and unused by others.
    pub unsafe fn post(&self, id: u64, sges: &[ibv_sge]) -> Result<(), Error> {
        let mut wr = receive(id, sges);
        let mut bad = null_mut();
        // SAFETY: a queue of this library, and a list of one request, whose pieces are read during the call
        // alone.
        Error::check("ibv_post_srq_recv", unsafe { (self.0.post)(self.raw(), &raw mut wr, &raw mut bad) })
    }

    /// Posts receives of one piece each, given by `id` and piece, of which the first `N` at most; how many
    /// were taken.
    ///
    /// # Safety
    /// As for [`Srq::post`], of each.
    #[inline]
    pub unsafe fn post_list<const N: usize>(&self, receives: impl Iterator<Item = (u64, ibv_sge)>) -> usize {
        let (mut list, mut pieces) = ([ibv_recv_wr::default(); N], [ibv_sge::default(); N]);
        let (first, piece, mut n) = (list.as_mut_ptr(), pieces.as_mut_ptr(), 0);
        for (wr_id, one) in receives.take(N) {
            // SAFETY: `n` is less than what both have; what is next is at most their end.
            unsafe {
                let (next, sg_list) = (first.add(n + 1), piece.add(n));
                sg_list.write(one);
                first.add(n).write(ibv_recv_wr { wr_id, next, sg_list, num_sge: 1 });
            }
            n += 1;
        }
        if n == 0 {
            return 0;
        }
        // SAFETY: the last one that was written.
        unsafe { (*first.add(n - 1)).next = null_mut() };
        let mut bad = null_mut();
        // SAFETY: a queue of this library, and a list that ends in null, which is read during the call alone.
        match unsafe { (self.0.post)(self.raw(), first, &raw mut bad) } {
            0 => n,
            // The one that was refused is of this list.
            _ => (0..n).position(|at| first.wrapping_add(at) == bad).unwrap_or(0),
        }
    }
}

/// A receive request, which is good while `sges` are.
pub(crate) fn receive(id: u64, sges: &[ibv_sge]) -> ibv_recv_wr {
    let count = sges.len().try_into().unwrap_or(i32::MAX);
    ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: sges.as_ptr().cast_mut(), num_sge: count }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Srq").field(&self.0.init).finish()
    }
}
