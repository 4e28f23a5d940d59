//! Memory windows of type 2, bound to a queue pair.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_sys as ibv;

use crate::buffers::Refused;
use crate::entry::{enter, enter_or_null, profile_of, set_errno};
use crate::objects::{Bound, Local, Mr, Window};
use crate::state::{State, lock};

const REMOTE: u32 =
    ibv::IBV_ACCESS_REMOTE_READ | ibv::IBV_ACCESS_REMOTE_WRITE | ibv::IBV_ACCESS_REMOTE_ATOMIC;
/// The part of a key that the program chooses.
const CHOSEN: u32 = 0xff;

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv::ibv_pd, kind: u32) -> *mut ibv::ibv_mw {
    if !enter_or_null("ibv_alloc_mw") {
        return null_mut();
    }
    let context = unsafe { (*pd).context };
    let profile = profile_of(context);
    let mut state = lock();
    let errno = if profile.is("nomw") {
        libc::EOPNOTSUPP
    } else if kind != ibv::IBV_MW_TYPE_2 || !state.pds.contains_key(&(pd as usize)) {
        libc::EINVAL
    } else if state.windows.len() >= profile.limits.mw as usize {
        libc::ENOMEM
    } else {
        0
    };
    if errno != 0 {
        set_errno(errno);
        return null_mut();
    }
    let handle = state.number();
    // Above the part that the program chooses never the same again.
    let rkey = handle.wrapping_mul(0x9e37_7900) & !CHOSEN;
    let raw = Box::into_raw(Box::new(ibv::ibv_mw { context, pd, rkey, handle, type_: kind }));
    state.windows.insert(rkey, Window { raw: raw as usize, pd: pd as usize, bound: None });
    raw
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv::ibv_mw) -> c_int {
    if let Err(errno) = enter("ibv_dealloc_mw") {
        return errno;
    }
    let mut state = lock();
    let Some(key) = state.key_of(mw as usize) else { return libc::EINVAL };
    state.windows.remove(&key);
    drop(unsafe { Box::from_raw(mw) });
    0
}

/// What ibv_post_send(3) refuses of a request to bind.
pub unsafe fn bind(wr: &ibv::ibv_send_wr, qpn: u32) -> Result<Local, c_int> {
    let ibv::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info } = unsafe { wr.anon2.bind_mw };
    let known = !mw.is_null() && !bind_info.mr.is_null();
    if !known || wr.num_sge != 0 || wr.send_flags & ibv::IBV_SEND_INLINE != 0 {
        return Err(libc::EINVAL);
    }
    let ibv::ibv_mw_bind_info { mr, addr, length: len, mw_access_flags: access } = bind_info;
    let to = Bound { qpn, lkey: unsafe { (*mr).lkey }, addr, len, access };
    Ok(Local::Bind { window: mw as usize, rkey, to })
}

impl State {
    fn key_of(&self, raw: usize) -> Option<u32> {
        self.windows.iter().find(|(_, window)| window.raw == raw).map(|(key, _)| *key)
    }

    /// Does to a window what a request of a queue pair says; of a refusal the status.
    pub fn local(&mut self, qpn: u32, what: Local) -> Result<(), u32> {
        let pd = self.qps[&qpn].pd;
        match what {
            Local::Bind { window, rkey, to } => {
                let refused = ibv::IBV_WC_MW_BIND_ERR;
                let key = self.key_of(window).ok_or(refused)?;
                if !self.may_bind(pd, key, rkey, &to) {
                    return Err(refused);
                }
                let found = self.windows.remove(&key).ok_or(refused)?;
                self.windows.insert(rkey, Window { bound: Some(to), ..found });
                Ok(())
            }
            Local::Invalidate(rkey) => {
                let found = self.windows.get_mut(&rkey);
                let own = found.filter(|w| w.bound.is_some_and(|bound| bound.qpn == qpn));
                own.ok_or(ibv::IBV_WC_MW_BIND_ERR)?.bound = None;
                Ok(())
            }
        }
    }

    /// The rules of ibv_bind_mw(3) and of windows of type 2: one is bound once until it is invalidated, by a key
    /// that differs in the chosen part alone, within one domain, to no more than the registration has and allows.
    fn may_bind(&self, pd: usize, key: u32, rkey: u32, to: &Bound) -> bool {
        let (Some(window), Some(mr)) = (self.windows.get(&key), self.mrs.get(&to.lkey)) else { return false };
        let is_inside = to
            .addr
            .checked_add(to.len)
            .is_some_and(|end| to.len > 0 && to.addr >= mr.iova && end <= mr.iova + mr.len);
        let writes = to.access & (ibv::IBV_ACCESS_REMOTE_WRITE | ibv::IBV_ACCESS_REMOTE_ATOMIC) != 0;
        window.bound.is_none()
            && (window.pd, mr.pd) == (pd, pd)
            && rkey & !CHOSEN == key & !CHOSEN
            && rkey != key
            && is_inside
            && to.access & !REMOTE == 0
            && mr.access & ibv::IBV_ACCESS_MW_BIND != 0
            && (!writes || mr.access & ibv::IBV_ACCESS_LOCAL_WRITE != 0)
    }

    /// The registration that a request of a peer's reaches by this queue pair, if its key, or the window that has
    /// this key, grants all of this.
    pub fn granted_to_peer(
        &self,
        qpn: u32,
        key: u32,
        addr: u64,
        len: u64,
        access: u32,
    ) -> Result<&Mr, Refused> {
        let pd = self.qps.get(&qpn).ok_or(Refused)?.pd;
        let Some(window) = self.windows.get(&key) else { return self.granted(pd, key, addr, len, access) };
        let bound = window.bound.filter(|bound| bound.qpn == qpn && window.pd == pd).ok_or(Refused)?;
        let end = addr.checked_add(len).ok_or(Refused)?;
        let is_granted =
            addr >= bound.addr && end <= bound.addr + bound.len && bound.access & access == access;
        is_granted.then(|| self.mrs.get(&bound.lkey)).flatten().ok_or(Refused)
    }

    /// Whether a window is bound to this registration.
    pub fn has_windows(&self, lkey: u32) -> bool {
        self.windows.values().any(|window| window.bound.is_some_and(|bound| bound.lkey == lkey))
    }
}
