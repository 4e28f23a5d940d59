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
    ACCESS_READ_WRITE, AccessDesc, Api, Error, HANDLE_POSIX_FD, Handle, LOCATION_DEVICE, NOT_FOUND, loaded,
};
use super::info::{Info, info};
use super::stream::{Entered, StreamUse, give_back, slot};
use crate::share::{Backing, Export, Mapped, fetch};

/// Most pools kept, ours and others'.
const BOUND: usize = 64;
/// Allocations of a pool by which it is known again.
const WITNESSES: usize = 4;

/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_INVALID_HANDLE`.
const INVALID_VALUE: i32 = 1;
const INVALID_HANDLE: i32 = 400;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool of ours that was exported. Descriptors stay open, also of a pool that is gone or was exported anew:
/// exported handles of its allocations name them.
struct Ours {
    pool: usize,
    fd: OwnedFd,
    /// Allocations of it: number and place.
    witnesses: Vec<(u64, u64)>,
}

impl Ours {
    /// Whether it is still the pool of that name. A pool made after another one was destroyed may have its
    /// name; it has none of its allocations.
    fn is_still(&self) -> bool {
        let lives =
            |&(id, base): &(u64, u64)| info(base as usize).is_some_and(|i| (i.id, i.pool) == (id, self.pool));
        self.witnesses.iter().any(lives)
    }
}

/// The number of the descriptor of the allocation's pool, and in `token` its pointer. In a context.
pub(super) fn export(api: &Api, of: &Info, token: &mut [u8; 64]) -> Result<i32, Error> {
    static POOLS: Mutex<Vec<Ours>> = Mutex::new(Vec::new());
    let mut pools = lock(&POOLS);
    let known = pools.iter().position(|p| p.pool == of.pool).filter(|&at| pools[at].is_still());
    let at = match known {
        Some(at) => at,
        None => {
            let mut fd = -1;
            api.pool_export(&mut fd, of.pool as Handle, HANDLE_POSIX_FD, 0)?;
            // SAFETY: the driver has just opened it, for this call alone.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            pools.insert(0, Ours { pool: of.pool, fd, witnesses: Vec::new() });
            pools.truncate(BOUND);
            0
        }
    };
    // The driver refuses pointers of a pool that was not exported before.
    api.pool_export_ptr(token, of.base)?;
    let ours = &mut pools[at];
    if ours.witnesses.len() == WITNESSES {
        // The oldest is the most likely to stay; of the others, the youngest comes anew.
        ours.witnesses.pop();
    }
    ours.witnesses.push((of.id, of.base));
    Ok(ours.fd.as_raw_fd())
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
        let Ok(slot) = slot(api, &entered, StreamUse::Waited) else { return };
        let stream = slot.stream as Handle;
        // The owner may free it once this has returned: the stream has to be done with it by then.
        let _ = api.free_async(self.at, stream).and_then(|()| api.stream_wait(stream));
        give_back(api, &slot);
    }
}

/// Maps an allocation of another process's pool for `ctx`.
pub(super) fn import(pid: i32, owner: u64, export: &Export, ctx: usize) -> Result<Mapped, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let entered = Entered::new(api, ctx)?;
    let mut at = 0;
    let mut take = || {
        let pool = pool_of(api, pid, owner, export, &entered)?;
        api.pool_import_ptr(&mut at, pool as Handle, &export.token)
    };
    match take() {
        Ok(()) => {}
        // The descriptor may have been another pool's before.
        Err(Error(INVALID_VALUE)) => {
            lock(&THEIRS).retain(|p| (p.owner, p.fd, p.ctx) != (owner, export.fd, ctx));
            take()?;
        }
        Err(why) => return Err(why),
    }
    let pointer = Pointer { ctx, at };
    // Its length is the owner's word until the driver confirms it.
    let (mut base, mut len) = (0, 0);
    api.mem_range(&mut base, &mut len, at)?;
    if base > at || (base + len as u64).saturating_sub(at) < export.len {
        return Err(Error(INVALID_VALUE));
    }
    Ok(Mapped { at, len: export.len, backing: Backing::Runtime(Box::new(pointer)) })
}
