//! Memory windows of type 2: a part of a registration for one queue pair's peer.

use core::ptr::NonNull;
use std::fmt;

use crate::{
    Access, Error, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_MW_TYPE_2,
    IBV_WR_BIND_MW, Mr, Pd, ibv_mw, ibv_mw_bind_info, ibv_send_wr,
};

/// The part of a key that the program chooses.
const CHOSEN: u32 = 0xff;

/// A window, deallocated when this is dropped: then no peer reaches memory by it, bound or not.
pub struct Mw {
    raw: NonNull<ibv_mw>,
    pd: Pd,
}

// SAFETY: libibverbs' calls may be made from any thread, and the fields are constant.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

/// What a request binds: a window that was not bound before, to a part of a registration.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    mw: NonNull<ibv_mw>,
    info: ibv_mw_bind_info,
    rkey: u32,
}

impl Bind {
    /// The key by which the peer of the queue pair names the part, once the request was done.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Makes this the operation of a request, which names no memory of its own.
    pub fn put_in(&self, request: &mut ibv_send_wr) {
        request.opcode = IBV_WR_BIND_MW;
        request.anon2.bind_mw.mw = self.mw.as_ptr();
        request.anon2.bind_mw.rkey = self.rkey;
        request.anon2.bind_mw.bind_info = self.info;
    }
}

impl Pd {
    /// A window of type 2. A driver without it: [`Error::Missing`].
    pub fn window(&self) -> Result<Mw, Error> {
        const CALL: &str = "ibv_alloc_mw";
        let allocate = self.context().ops().alloc_mw.ok_or(Error::Missing(CALL))?;
        // SAFETY: a domain of this library.
        let raw = unsafe { allocate(self.raw(), IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        Ok(Mw { raw, pd: self.clone() })
    }
}

impl Mw {
    /// What binds it, for the first time, to bytes of a registration with [`Access::WINDOWS`]: `addr` as
    /// peers name the first one, and what they may do.
    pub fn bind(&self, mr: &Mr, addr: u64, length: u64, access: Access) -> Bind {
        // SAFETY: constant until it is bound.
        let own = unsafe { self.raw.as_ref() }.rkey;
        let remote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        let info = ibv_mw_bind_info { mr: mr.raw(), addr, length, mw_access_flags: access.bits() & remote };
        Bind { mw: self.raw, info, rkey: own & !CHOSEN | own.wrapping_add(1) & CHOSEN }
    }

    /// Ends it. Where that is refused it is leaked, and peers may go on to access what it is bound to.
    pub fn deallocate(self) -> Result<(), Error> {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: of this library, and its one end. `this` is not used behind a success but for the domain,
        // which is read out once.
        unsafe {
            this.end()?;
            drop(core::ptr::read(&raw const this.pd));
        }
        Ok(())
    }

    /// # Safety
    /// It is not used any more, unless this is refused.
    unsafe fn end(&self) -> Result<(), Error> {
        const CALL: &str = "ibv_dealloc_mw";
        let end = self.pd.context().ops().dealloc_mw.ok_or(Error::Missing(CALL))?;
        // SAFETY: of this library; the caller's promise.
        Error::check(CALL, unsafe { end(self.raw.as_ptr()) })
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: this is its one end.
        if unsafe { self.end() }.is_err() {
            core::mem::forget(self.pd.clone());
        }
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mw").field(&self.raw).finish()
    }
}
