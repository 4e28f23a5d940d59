//! Protection domains and registrations.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use rdma_sys as ibv;

use crate::buffers::is_mapped;
use crate::entry::{enter, enter_or_null, profile_of, set_errno};
use crate::objects::{Backing, Mr};
use crate::pinned::Pinned;
use crate::state::lock;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv::ibv_context) -> *mut ibv::ibv_pd {
    if !enter_or_null("ibv_alloc_pd") {
        return null_mut();
    }
    let mut state = lock();
    let Some(device) = state.device_of(context) else {
        set_errno(libc::EINVAL);
        return null_mut();
    };
    let handle = state.number();
    let pd = Box::into_raw(Box::new(ibv::ibv_pd { context, handle }));
    state.pds.insert(pd as usize, device);
    pd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv::ibv_pd) -> c_int {
    if let Err(errno) = enter("ibv_dealloc_pd") {
        return errno;
    }
    let (mut state, at) = (lock(), pd as usize);
    let used = state.mrs.values().any(|m| m.pd == at)
        || state.qps.values().any(|q| q.pd == at)
        || state.srqs.values().any(|s| s.pd == at)
        || state.windows.values().any(|w| w.pd == at);
    if used {
        return libc::EBUSY;
    }
    if state.pds.remove(&at).is_none() {
        return libc::EINVAL;
    }
    drop(unsafe { Box::from_raw(pd) });
    0
}

/// Remote writers and atomics need that the device may write.
fn is_sound(access: u32) -> bool {
    let remote = access & (ibv::IBV_ACCESS_REMOTE_WRITE | ibv::IBV_ACCESS_REMOTE_ATOMIC) != 0;
    !remote || access & ibv::IBV_ACCESS_LOCAL_WRITE != 0
}

fn add(
    pd: *mut ibv::ibv_pd,
    addr: *mut c_void,
    iova: u64,
    len: usize,
    access: u32,
    backing: Backing,
) -> *mut ibv::ibv_mr {
    let context = unsafe { (*pd).context };
    let profile = profile_of(context);
    let mut state = lock();
    let device = state.pds.get(&(pd as usize)).copied();
    let count = state.mrs.values().filter(|m| state.pds.get(&m.pd).copied() == device).count();
    if device.is_none() || count >= profile.limits.mr as usize {
        set_errno(if device.is_none() { libc::EINVAL } else { libc::ENOMEM });
        return null_mut();
    }
    // Never the same again within a run, and none that a test guesses by counting.
    let handle = state.number();
    let key = handle.wrapping_mul(0x9e37_79b1) | 1;
    let mr = ibv::ibv_mr { context, pd, addr, length: len, handle, lkey: key, rkey: key };
    let is_page = access & ibv::IBV_ACCESS_ON_DEMAND != 0 && profile.is("odpwrong");
    state.mrs.insert(key, Mr { pd: pd as usize, iova, len: len as u64, access, is_page, backing });
    Box::into_raw(Box::new(mr))
}

/// Of the longer ones the limit of locked memory may leave no room.
const PINNED_MOST: usize = 1 << 20;

fn refuse(errno: c_int) -> *mut ibv::ibv_mr {
    set_errno(errno);
    null_mut()
}

fn register(
    call: &str,
    pd: *mut ibv::ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> *mut ibv::ibv_mr {
    if !enter_or_null(call) {
        return null_mut();
    }
    let profile = profile_of(unsafe { (*pd).context });
    if len == 0 || !is_sound(access) || len as u64 > profile.limits.mrsize {
        return refuse(libc::EINVAL);
    }
    let on_demand = access & ibv::IBV_ACCESS_ON_DEMAND != 0;
    if on_demand && profile.is("noodp") {
        return refuse(libc::EOPNOTSUPP);
    }
    let (first, end) = (addr as u64, addr as u64 + len as u64);
    let has_pages = !lock().no_pages.iter().any(|(other, last)| first < *last && *other < end);
    let is_pinned = has_pages && is_mapped(first, len);
    if !on_demand && !is_pinned {
        let peers = lock().peer_memory;
        let found = peers.map(|of| (of, (of.find)(first, len) as u64)).filter(|(_, at)| *at != 0);
        let Some((of, at)) = found else { return refuse(libc::EFAULT) };
        return add(pd, addr, iova, len, access, Backing::Peer { first, at, id: (of.id)(first), of });
    }
    if profile.is("pins") && !on_demand && len <= PINNED_MOST {
        return match Pinned::new(first, len) {
            Ok(pages) => add(pd, addr, iova, len, access, Backing::Pinned(first, pages)),
            Err(errno) => refuse(errno),
        };
    }
    add(pd, addr, iova, len, access, Backing::Host(first))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv::ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv::ibv_mr {
    // The old call knows no optional flags.
    if access as u32 >= ibv::IBV_ACCESS_OPTIONAL_FIRST {
        return refuse(libc::EINVAL);
    }
    register("ibv_reg_mr", pd, addr, len, addr as u64, access as u32)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv::ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv::ibv_mr {
    if (iova ^ addr as u64) % 4096 != 0 {
        return refuse(libc::EINVAL);
    }
    register("ibv_reg_mr_iova2", pd, addr, len, iova, access)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv::ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv::ibv_mr {
    if !enter_or_null("ibv_reg_dmabuf_mr") {
        return null_mut();
    }
    let (profile, access) = (profile_of(unsafe { (*pd).context }), access as u32);
    if profile.is("nodmabuf") {
        return refuse(libc::EOPNOTSUPP);
    }
    // As the kernel does.
    let refused = ibv::IBV_ACCESS_ON_DEMAND | ibv::IBV_ACCESS_MW_BIND;
    if access & refused != 0 || !is_sound(access) || (offset ^ iova) % 4096 != 0 || len == 0 {
        return refuse(libc::EINVAL);
    }
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return refuse(libc::EBADF);
    }
    let from = u64::try_from(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }).unwrap_or(0);
    let offset = offset.saturating_add(from);
    let end = offset.checked_add(len as u64).filter(|end| *end <= stat.st_size as u64);
    let Some(end) = end else { return refuse(libc::EINVAL) };
    let (from, prot) = (offset & !4095, libc::PROT_READ | libc::PROT_WRITE);
    let map_len = (end - from) as usize;
    let map = match profile.is("nomap") {
        true => libc::MAP_FAILED,
        false => unsafe { libc::mmap(null_mut(), map_len, prot, libc::MAP_SHARED, fd, from as i64) },
    };
    if map == libc::MAP_FAILED {
        let Some(of) = lock().device_memory else { return null_mut() };
        return add(
            pd,
            null_mut(),
            iova,
            len,
            access,
            Backing::Device { first: iova, id: (of.id)(iova), of },
        );
    }
    let (map, skip, inode) = (map as usize, (offset - from) as usize, stat.st_ino);
    let backing = Backing::Dmabuf { map, map_len, skip, inode, revoked: false };
    add(pd, null_mut(), iova, len, access, backing)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv::ibv_mr) -> c_int {
    if let Err(errno) = enter("ibv_dereg_mr") {
        return errno;
    }
    let (mut state, lkey) = (lock(), unsafe { (*mr).lkey });
    if state.has_windows(lkey) {
        return libc::EBUSY;
    }
    let Some(gone) = state.mrs.remove(&lkey) else { return libc::EINVAL };
    state.miss(lkey);
    drop(state);
    if let Backing::Dmabuf { map, map_len, .. } = gone.backing {
        unsafe { libc::munmap(map as *mut c_void, map_len) };
    }
    drop(unsafe { Box::from_raw(mr) });
    0
}
