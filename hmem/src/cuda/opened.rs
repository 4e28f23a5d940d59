//! Other processes' memory, mapped here. To map it takes a millisecond or so, so it stays mapped
//! while it may be asked for again.
//!
//! An entry is found by its owner, the allocation's number there and its place: an allocation that
//! took another's place has another number, and the entry of the one that is gone is closed before
//! the new one is opened. A mapping that a copy is using stays until that is done.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::api::{
    ACCESS_READ_WRITE, AccessDesc, Error, HANDLE_POSIX_FD, IPC_LAZY_PEER_ACCESS, IpcHandle, LOCATION_DEVICE,
    NOT_FOUND,
};
use super::lane::{self, Entered};
use super::share::{Export, How};
use super::{info, loaded};

/// Most allocations of others that stay mapped.
const BOUND: usize = 512;

/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_INVALID_HANDLE`.
const INVALID_VALUE: i32 = 1;
const INVALID_HANDLE: i32 = 400;

/// An allocation of another process, mapped for one context of this one.
#[derive(Debug)]
struct Mapping {
    /// 0: it is this process's own memory, and nothing is to be closed.
    ctx: usize,
    at: u64,
    len: u64,
    how: How,
}

/// Memory of another process that this one can name: it stays mapped for as long as this lives.
#[derive(Clone, Debug)]
pub struct Opened {
    map: Arc<Mapping>,
    base: u64,
    ctx: usize,
}

impl Opened {
    /// Where `addr` of the owner is here, and how many bytes follow; `None` if it is not in there.
    pub fn place(&self, addr: u64) -> Option<(usize, usize)> {
        let off = addr.checked_sub(self.base).filter(|off| *off < self.map.len)?;
        Some(((self.map.at + off) as usize, (self.map.len - off) as usize))
    }

    /// The context it is to be copied in.
    pub fn context(&self) -> usize {
        self.ctx
    }
}

struct Entry {
    owner: u64,
    ctx: usize,
    export: Export,
    map: Arc<Mapping>,
}

fn entries() -> MutexGuard<'static, VecDeque<Entry>> {
    static ENTRIES: Mutex<VecDeque<Entry>> = Mutex::new(VecDeque::new());
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps what the process `pid` exported, for use with this process's memory at `local` (0: none in
/// particular). `owner` tells that process from others that have or had its pid. Nothing in
/// `export` is believed.
pub fn open(pid: i32, owner: u64, export: &Export, local: usize) -> Result<Opened, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    if pid == std::process::id() as i32 {
        // Its own, seen from another endpoint.
        let there = info(export.base as usize);
        if there.is_none_or(|i| (i.base, i.len, i.id) != (export.base, export.len, export.id)) {
            return Err(Error(INVALID_VALUE));
        }
        let map = Mapping { ctx: 0, at: export.base, len: export.len, how: export.how };
        return Ok(Opened { map: Arc::new(map), base: export.base, ctx: 0 });
    }
    let here = info(local).filter(|i| i.device >= 0 && i.sort != super::Sort::Host);
    let ctx = match here {
        Some(of) => lane::context_of(api, &of)?,
        None => lane::context_on(api, &export.device).or_else(|| lane::any(api)).ok_or(Error(NOT_FOUND))?,
    };
    let mut all = entries();
    let is_it = |e: &Entry| e.owner == owner && e.ctx == ctx && e.export == *export;
    if let Some(at) = all.iter().position(is_it) {
        let map = all[at].map.clone();
        if at > BOUND / 2 {
            all.swap(at, 0);
        }
        return Ok(Opened { map, base: export.base, ctx });
    }
    // Whatever else the owner had there is gone.
    let end = export.base.checked_add(export.len).ok_or(Error(INVALID_VALUE))?;
    let overlaps =
        |e: &Entry| export.base < e.export.base.saturating_add(e.export.len) && e.export.base < end;
    all.retain(|e| !(e.owner == owner && e.ctx == ctx && overlaps(e)));
    let entered = Entered::new(api, ctx)?;
    let mut opened = map(pid, export, ctx, &entered);
    if opened.is_err() && !all.is_empty() {
        // The device's address space, or the number of such mappings, may be what is short.
        all.clear();
        opened = map(pid, export, ctx, &entered);
    }
    let map = Arc::new(opened?);
    all.push_front(Entry { owner, ctx, export: *export, map: map.clone() });
    all.truncate(BOUND);
    Ok(Opened { map, base: export.base, ctx })
}

fn map(pid: i32, export: &Export, ctx: usize, entered: &Entered<'_>) -> Result<Mapping, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let mut at = 0;
    match export.how {
        How::Legacy => {
            api.ipc_open(&mut at, IpcHandle(export.token), IPC_LAZY_PEER_ACCESS)?;
            let mapping = Mapping { ctx, at, len: export.len, how: export.how };
            // Its length is the owner's word until the driver confirms it.
            let (mut base, mut len) = (0, 0);
            api.mem_range(&mut base, &mut len, at)?;
            let follow = (base + len as u64).saturating_sub(at);
            if base > at || follow < export.len {
                return Err(Error(INVALID_VALUE));
            }
            Ok(mapping)
        }
        How::Descriptor => {
            let fd = fetch(pid, export.fd)?;
            let mut handle = 0;
            let as_ptr = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
            api.mem_import(&mut handle, as_ptr, HANDLE_POSIX_FD)?;
            let len = export.len as usize;
            let mapped = (|| {
                api.mem_reserve(&mut at, len, 0, 0, 0)?;
                if let Err(e) = api.mem_map(at, len, 0, handle, 0) {
                    let _ = api.mem_unreserve(at, len);
                    return Err(e);
                }
                let mapping = Mapping { ctx, at, len: export.len, how: export.how };
                let desc =
                    AccessDesc { kind: LOCATION_DEVICE, device: entered.device()?, flags: ACCESS_READ_WRITE };
                api.mem_access(at, len, &desc, 1)?;
                Ok(mapping)
            })();
            // The mapping, if there is one, keeps it.
            let _ = api.mem_release(handle);
            mapped
        }
    }
}

/// A descriptor of another process.
fn fetch(pid: i32, fd: c_int) -> Result<OwnedFd, Error> {
    // SAFETY: plain numbers go in, and descriptors nobody else has come out.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            return Err(Error(INVALID_HANDLE));
        }
        let process = OwnedFd::from_raw_fd(process as c_int);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        if copy < 0 { Err(Error(INVALID_HANDLE)) } else { Ok(OwnedFd::from_raw_fd(copy as c_int)) }
    }
}

/// Lets go of everything of a process that is gone.
pub fn forget(owner: u64) {
    entries().retain(|e| e.owner != owner);
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(api) = loaded().filter(|_| self.ctx != 0) else { return };
        let Ok(_entered) = Entered::new(api, self.ctx) else { return };
        let len = self.len as usize;
        let _ = match self.how {
            How::Legacy => api.ipc_close(self.at),
            How::Descriptor => api.mem_unmap(self.at, len).and_then(|()| api.mem_unreserve(self.at, len)),
        };
    }
}
