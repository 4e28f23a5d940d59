//! Other processes' memory, mapped here. To map it takes about 1 ms, so mappings are kept for later copies.
//!
//! An entry is found by its owner, the allocation's number there and its place: an allocation that
//! took another's place has another number, and the entry of the one that is gone is closed before
//! the new one is opened. A mapping that a copy is using stays until that is done.
//!
//! What two processes have for each other alone is not kept: its owner frees it once it is closed here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::file;
use super::handle::{Export, HandleType};
use super::mapped::{Backing, Mapped};
use super::opened::Opened;
use crate::error::Error;
use crate::kind::Kind;
use crate::registry;

/// Most allocations of others that stay mapped.
const BOUND: usize = 512;

struct Entry {
    owner: u64,
    ctx: usize,
    /// See [`crate::memory::Handles::place_id`].
    place: u64,
    export: Export,
    map: Arc<Mapped>,
}

fn entries() -> MutexGuard<'static, VecDeque<Entry>> {
    static ENTRIES: Mutex<VecDeque<Entry>> = Mutex::new(VecDeque::new());
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps what the process `pid` exported, for use with this process's memory at `local` (0: none in
/// particular). `owner` is the process's own among all that have or had its pid. Nothing in `export` is
/// trusted.
pub fn open(pid: i32, owner: u64, export: &Export, local: usize) -> Result<Opened, Error> {
    open_for(pid, owner, export, local, true)
}

/// The same, closed once what is returned is dropped. It is open nowhere else in this process.
pub fn open_uncached(pid: i32, owner: u64, export: &Export, local: usize) -> Result<Opened, Error> {
    open_for(pid, owner, export, local, false)
}

fn open_for(pid: i32, owner: u64, export: &Export, local: usize, keeps: bool) -> Result<Opened, Error> {
    let kind = export.handle_type.kind();
    let memory = registry::of(kind);
    let opened = |map, ctx| Opened { map, base: export.base, ctx, kind };
    if pid == std::process::id() as i32 && kind != Kind::System {
        // Its own, seen from another endpoint.
        if !memory.is_still(export) {
            return Err(Error::os(libc::ESTALE));
        }
        let map = Mapped { at: export.base, len: export.len, backing: Backing::Own };
        return Ok(opened(Arc::new(map), 0));
    }
    let ctx = memory.context(export, local)?;
    if export.handle_type == HandleType::Pool {
        return mapped_for_copy(owner, ctx, export, || memory.import(pid, owner, export, ctx))
            .map(|m| opened(m, ctx));
    }
    let mut all = entries();
    let place = memory.place_id(ctx);
    let is_it = |e: &Entry| (e.owner, e.ctx, e.place) == (owner, ctx, place) && e.export == *export;
    if let Some(at) = all.iter().position(is_it).filter(|_| keeps) {
        let map = all[at].map.clone();
        if at > BOUND / 2 {
            all.swap(at, 0);
        }
        return Ok(opened(map, ctx));
    }
    // Whatever else the owner had there is gone.
    let end = export.base.checked_add(export.len).ok_or(Error::os(libc::EINVAL))?;
    let overlaps =
        |e: &Entry| export.base < e.export.base.saturating_add(e.export.len) && e.export.base < end;
    all.retain(|e| !(e.owner == owner && e.ctx == ctx && overlaps(e)));
    let map = || match kind {
        Kind::System => file::import(pid, export).map(Mapped::from),
        _ => memory.import(pid, owner, export, ctx),
    };
    let mut mapped = map();
    if mapped.is_err() && !all.is_empty() {
        // The device's address space, or the number of such mappings, may be what is short.
        all.clear();
        mapped = map();
    }
    let map = Arc::new(mapped?);
    if keeps {
        all.push_front(Entry { owner, ctx, place, export: *export, map: map.clone() });
        all.truncate(BOUND);
    }
    Ok(opened(map, ctx))
}

/// Whether that is mapped here already, for use with whatever memory of this process.
pub fn is_open(owner: u64, export: &Export) -> bool {
    entries().iter().any(|e| e.owner == owner && e.export == *export)
}

/// A mapping that stays only as long as a copy uses it.
struct CopyMapping {
    owner: u64,
    ctx: usize,
    export: Export,
    map: Weak<Mapped>,
}

fn mapped_for_copy(
    owner: u64,
    ctx: usize,
    export: &Export,
    map: impl FnOnce() -> Result<Mapped, Error>,
) -> Result<Arc<Mapped>, Error> {
    static MAPPED: Mutex<Vec<CopyMapping>> = Mutex::new(Vec::new());
    let mut all = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|l| l.map.strong_count() > 0);
    let is_it = |l: &&CopyMapping| (l.owner, l.ctx) == (owner, ctx) && l.export == *export;
    if let Some(map) = all.iter().find(is_it).and_then(|l| l.map.upgrade()) {
        return Ok(map);
    }
    let map = Arc::new(map()?);
    all.push(CopyMapping { owner, ctx, export: *export, map: Arc::downgrade(&map) });
    Ok(map)
}

/// Lets go of everything of a process that is gone.
pub fn forget(owner: u64) {
    registry::forget(owner);
    entries().retain(|e| e.owner != owner);
}
