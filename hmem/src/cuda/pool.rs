//! Memory of pools (cudaMallocAsync, cudaMallocFromPoolAsync) in other processes.
//!
//! A pool can be shared if it was made for that: `cudaMemPoolCreate` with a handle type of POSIX file
//! descriptors. Those that CUDA has by default are not, and their memory is staged. By the manual an
//! importer has to free a pointer before its owner does, so it is imported for the time of a transfer,
//! which the owner waits for; the pool it is of stays imported.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::api::{
    ACCESS_READ_WRITE, AccessDesc, Api, Error, HANDLE_POSIX_FD, Handle, LOCATION_DEVICE, NOT_FOUND,
};
use super::lane::{Entered, Line, give_back, slot};
use super::{Info, loaded};
use crate::share::{Export, Hold, Mapped, fetch};

/// Most pools kept, ours and others'.
const BOUND: usize = 64;

/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_INVALID_HANDLE`.
const INVALID_VALUE: i32 = 1;
const INVALID_HANDLE: i32 = 400;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the descriptor of the allocation's pool, and in `token` its pointer. In a context.
pub(super) fn export(api: &Api, of: &Info, token: &mut [u8; 64]) -> Result<i32, Error> {
    static POOLS: Mutex<Vec<(usize, OwnedFd)>> = Mutex::new(Vec::new());
    let mut pools = lock(&POOLS);
    let known = pools.iter().find(|(pool, _)| *pool == of.pool).map(|(_, fd)| fd.as_raw_fd());
    let fd = match known {
        Some(fd) => fd,
        None => {
            let mut fd = -1;
            api.pool_export(&mut fd, of.pool as Handle, HANDLE_POSIX_FD, 0)?;
            // SAFETY: the driver has just opened it, for us.
            pools.insert(0, (of.pool, unsafe { OwnedFd::from_raw_fd(fd) }));
            pools.truncate(BOUND);
            fd
        }
    };
    if let Err(e) = api.pool_export_ptr(token, of.base) {
        // Perhaps another pool came under the name of one that is gone.
        pools.retain(|(pool, _)| *pool != of.pool);
        return Err(e);
    }
    Ok(fd)
}

/// A pool of another process.
struct Theirs {
    owner: u64,
    fd: i32,
    ctx: usize,
    pool: usize,
}

impl Drop for Theirs {
    fn drop(&mut self) {
        if let Some(api) = loaded() {
            // What of its memory is in use here stays.
            let _ = api.pool_destroy(self.pool as Handle);
        }
    }
}

static THEIRS: Mutex<Vec<Theirs>> = Mutex::new(Vec::new());

/// Lets go of the pools of a process that is gone.
pub(super) fn forget(owner: u64) {
    lock(&THEIRS).retain(|p| p.owner != owner);
}

fn pool_of(api: &Api, pid: i32, owner: u64, export: &Export, entered: &Entered<'_>) -> Result<usize, Error> {
    let mut all = lock(&THEIRS);
    let is_it = |p: &&Theirs| (p.owner, p.fd, p.ctx) == (owner, export.fd, entered.ctx);
    if let Some(found) = all.iter().find(is_it) {
        return Ok(found.pool);
    }
    let fd = fetch(pid, export.fd).map_err(|_| Error(INVALID_HANDLE))?;
    let mut pool = null_mut();
    let as_ptr = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
    api.pool_import(&mut pool, as_ptr, HANDLE_POSIX_FD, 0)?;
    let theirs = Theirs { owner, fd: export.fd, ctx: entered.ctx, pool: pool as usize };
    let desc = AccessDesc { kind: LOCATION_DEVICE, device: entered.device()?, flags: ACCESS_READ_WRITE };
    // On the pool's own device it goes without.
    let _ = api.pool_access(pool, &desc, 1);
    let pool = theirs.pool;
    all.insert(0, theirs);
    all.truncate(BOUND);
    Ok(pool)
}

/// A pointer of another process, until it is dropped.
struct Pointer {
    ctx: usize,
    at: u64,
}

impl Drop for Pointer {
    fn drop(&mut self) {
        let Some(api) = loaded() else { return };
        let Ok(entered) = Entered::new(api, self.ctx) else { return };
        let Ok(slot) = slot(api, &entered, Line::Waited) else { return };
        let stream = slot.stream as Handle;
        // The owner may free it as soon as it hears that we are done.
        let _ = api.free_async(self.at, stream).and_then(|()| api.stream_wait(stream));
        give_back(api, &slot);
    }
}

/// Maps an allocation of another process's pool for `ctx`.
pub(super) fn import(pid: i32, owner: u64, export: &Export, ctx: usize) -> Result<Mapped, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let entered = Entered::new(api, ctx)?;
    let pool = pool_of(api, pid, owner, export, &entered)?;
    let mut at = 0;
    api.pool_import_ptr(&mut at, pool as Handle, &export.token)?;
    let pointer = Pointer { ctx, at };
    // Its length is the owner's word until the driver confirms it.
    let (mut base, mut len) = (0, 0);
    api.mem_range(&mut base, &mut len, at)?;
    if base > at || (base + len as u64).saturating_sub(at) < export.len {
        return Err(Error(INVALID_VALUE));
    }
    Ok(Mapped { at, len: export.len, hold: Hold::Runtime(Box::new(pointer)) })
}
