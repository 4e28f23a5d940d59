//! The clients of this process, and what is registered of their memory.
//!
//! A registration is made when an address is found to be a client's, and serves every later operation
//! inside it. What a client has invalidated is not used any more when
//! [`Registered::invalidate`] returns; a registration of it that is still open (`fid_mr`) yields an
//! error from then on, even if other memory comes to the same address, until that is closed.
//!
//! No lock is held while a client is called but that of the registration itself, and, in acquire, the
//! list of clients, for reading. What a client must not do from within its own callbacks is refused
//! with EDEADLK.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::contract::{Client, Importer, Place, Segment};
use super::table::{FileExport, MOST};
use crate::presence;
use crate::share::{File, describe_file};

/// Most registrations kept for later.
const BOUND: usize = 256;

/// How many clients there are.
pub(super) static COUNT: AtomicU32 = AtomicU32::new(0);

static CLIENTS: RwLock<Vec<Arc<Plugged>>> = RwLock::new(Vec::new());
static ALL: RwLock<Vec<Arc<Registration>>> = RwLock::new(Vec::new());
/// What was invalidated while it was registered: name, how often, address, length.
static STALE: Mutex<Vec<(u64, u32, usize, usize)>> = Mutex::new(Vec::new());

struct Plugged {
    id: u64,
    client: Box<dyn Client>,
}

/// A piece of memory, as this process reaches it.
enum Reached {
    Cpu(usize),
    File { map: File, fd: OwnedFd, off: u64 },
    Opaque,
}

struct Pinned {
    segments: Vec<Segment>,
    reached: Vec<Reached>,
}

#[derive(Default)]
struct State {
    pinned: Option<Arc<Pinned>>,
    /// How many use it just now, and how many have it registered.
    using: u32,
    pins: u32,
    dead: bool,
}

struct Registration {
    name: u64,
    by: Arc<Plugged>,
    ctx: usize,
    addr: usize,
    len: usize,
    write: bool,
    state: Mutex<State>,
    calm: Condvar,
}

thread_local! {
    /// Whether a client is being called in this thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls a client.
fn call<T>(body: impl FnOnce() -> T) -> T {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _reset = Reset(INSIDE.replace(true));
    body()
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reading<T>(l: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    l.read().unwrap_or_else(PoisonError::into_inner)
}

fn new_name() -> u64 {
    static NAMES: AtomicU64 = AtomicU64::new(1);
    NAMES.fetch_add(1, Relaxed)
}

/// A client that is registered, as its owner holds it.
#[derive(Debug)]
pub struct Registered(u64);

/// Registers a client; the table is known.
pub(super) fn register(client: Box<dyn Client>) -> Result<Registered, i32> {
    if INSIDE.get() {
        return Err(libc::EDEADLK);
    }
    let id = new_name();
    CLIENTS.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(Plugged { id, client }));
    // The first one: other copies of this crate may still think that this library is not loaded.
    if COUNT.fetch_add(1, Relaxed) == 0 {
        presence::outlive_answers();
    }
    Ok(Registered(id))
}

impl Registered {
    /// Ends it: when this returns, the client is not called any more. What is registered of its memory
    /// is invalidated first.
    pub fn unregister(&self) -> Result<(), i32> {
        if INSIDE.get() {
            return Err(libc::EDEADLK);
        }
        {
            let mut clients = CLIENTS.write().unwrap_or_else(PoisonError::into_inner);
            let at = clients.iter().position(|c| c.id == self.0).ok_or(libc::ENOENT)?;
            clients.remove(at);
        }
        COUNT.fetch_sub(1, Relaxed);
        let its: Vec<u64> = reading(&ALL).iter().filter(|r| r.by.id == self.0).map(|r| r.name).collect();
        for name in its {
            let _ = self.invalidate(name);
        }
        Ok(())
    }

    /// The client takes the memory away that it was asked for under this name. ENOENT: it is not registered
    /// any more.
    pub fn invalidate(&self, name: u64) -> Result<(), i32> {
        if INSIDE.get() {
            return Err(libc::EDEADLK);
        }
        let gone = {
            let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
            let is_it = |r: &Arc<Registration>| r.name == name && r.by.id == self.0;
            let at = all.iter().position(is_it).ok_or(libc::ENOENT)?;
            let gone = all.remove(at);
            // In one step with the other list: it is in one of them at any time.
            let pins = {
                let mut state = lock(&gone.state);
                state.dead = true;
                state.pins
            };
            if pins > 0 {
                lock(&STALE).push((name, pins, gone.addr, gone.len));
            }
            gone
        };
        let mut state = lock(&gone.state);
        while state.using > 0 {
            state = gone.calm.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let pinned = state.pinned.take();
        drop(state);
        gone.undo(pinned);
        Ok(())
    }
}

/// A registration in use; until this is dropped it stays as it is.
struct InUse(Arc<Registration>);

/// Likewise, with its pages, which are let go of first.
struct Held {
    pinned: Arc<Pinned>,
    of: InUse,
}

impl Drop for InUse {
    fn drop(&mut self) {
        lock(&self.0.state).using -= 1;
        self.0.calm.notify_all();
    }
}

impl Registration {
    fn covers(&self, addr: usize, len: usize) -> bool {
        let off = addr.wrapping_sub(self.addr);
        off < self.len.max(1) && len <= self.len - off
    }

    fn use_it(self: &Arc<Self>) -> Option<InUse> {
        let mut state = lock(&self.state);
        if state.dead {
            return None;
        }
        state.using += 1;
        Some(InUse(self.clone()))
    }

    /// Gives everything back to the client.
    fn undo(&self, pinned: Option<Arc<Pinned>>) {
        let client = &*self.by.client;
        if let Some(pinned) = pinned {
            let segments = pinned.segments.clone();
            drop(pinned);
            call(|| {
                client.dma_unmap(self.ctx, Importer::Process, &segments);
                client.put_pages(self.ctx, &segments);
            });
        }
        call(|| client.release(self.ctx));
    }

    /// Its pages, asked for if they have not been.
    fn pinned(&self) -> Result<Arc<Pinned>, i32> {
        let mut state = lock(&self.state);
        if let Some(pinned) = &state.pinned {
            return Ok(pinned.clone());
        }
        let client = &*self.by.client;
        let mut segments = call(|| client.get_pages(self.ctx, self.addr, self.len, self.write, self.name))?;
        if let Err(e) = call(|| client.dma_map(self.ctx, Importer::Process, &mut segments)) {
            call(|| client.put_pages(self.ctx, &segments));
            return Err(e);
        }
        let total = segments.iter().try_fold(0usize, |t, s| t.checked_add(s.len));
        let reached = segments.iter().map(reach).collect::<Result<Vec<_>, i32>>();
        match reached {
            Ok(reached) if total == Some(self.len) && segments.len() <= MOST => {
                let pinned = Arc::new(Pinned { segments, reached });
                state.pinned = Some(pinned.clone());
                Ok(pinned)
            }
            // What it says is not what was asked for.
            wrong => {
                call(|| {
                    client.dma_unmap(self.ctx, Importer::Process, &segments);
                    client.put_pages(self.ctx, &segments);
                });
                Err(wrong.err().unwrap_or(libc::EINVAL))
            }
        }
    }
}

fn reach(s: &Segment) -> Result<Reached, i32> {
    match s.place {
        Place::Cpu(at) => Ok(Reached::Cpu(at)),
        Place::Opaque => Ok(Reached::Opaque),
        Place::File(fd, off) if fd >= 0 => {
            // A descriptor of its own: its number cannot be reused for another file while the description is in use.
            // SAFETY: the client says that it is open; if it is not, the kernel says so.
            let again = || unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
            let failed = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EBADF);
            let fd = again().map_err(failed)?;
            let map = File::map(again().map_err(failed)?, off, s.len as u64).map_err(|e| e.code)?;
            Ok(Reached::File { map, fd, off })
        }
        Place::File(..) => Err(libc::EBADF),
    }
}

fn find(addr: usize, len: usize, write: bool) -> Option<InUse> {
    let fits = |r: &&Arc<Registration>| r.covers(addr, len) && (r.write || !write);
    reading(&ALL).iter().rev().filter(fits).find_map(|r| r.use_it())
}

/// The registration that `addr..addr+len` is in, made if there is none.
fn registration(addr: usize, len: usize, write: bool) -> Result<InUse, i32> {
    if INSIDE.get() {
        return Err(libc::EDEADLK);
    }
    if let Some(found) = find(addr, len, write) {
        return Ok(found);
    }
    let end = addr.checked_add(len).ok_or(libc::EFAULT)?;
    if lock(&STALE).iter().any(|(_, _, at, n)| addr < at + n && *at < end) {
        return Err(libc::ESTALE);
    }
    let mut acquired = None;
    // Until the registration is on the list: `unregister` has to find it there.
    let clients = reading(&CLIENTS);
    for by in clients.iter() {
        if let Some(ctx) = call(|| by.client.acquire(addr, len))? {
            acquired = Some((by.clone(), ctx));
            break;
        }
    }
    let (by, ctx) = acquired.ok_or(libc::EFAULT)?;
    let state = Mutex::new(State { using: 1, ..State::default() });
    let new = Registration { name: new_name(), by, ctx, addr, len, write, state, calm: Condvar::new() };
    let new = Arc::new(new);
    let old = {
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        all.push(new.clone());
        // Whose state is locked is in use.
        let idle =
            |r: &Arc<Registration>| r.state.try_lock().is_ok_and(|state| state.using == 0 && state.pins == 0);
        let at = if all.len() > BOUND { all.iter().position(idle) } else { None };
        at.map(|at| all.remove(at))
    };
    drop(clients);
    if let Some(old) = old {
        // It was not in use; if it was found before it was off the list, it is now, and that is waited for.
        retire(&old);
    }
    Ok(InUse(new))
}

/// Ends a registration that is off the list, when it is not in use any more.
fn retire(old: &Registration) {
    let mut state = lock(&old.state);
    state.dead = true;
    while state.using > 0 {
        state = old.calm.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    let pinned = state.pinned.take();
    drop(state);
    old.undo(pinned);
}

/// The same with its pages. A registration that gets none is not kept.
fn with_pages(addr: usize, len: usize, write: bool) -> Result<Held, i32> {
    let of = registration(addr, len, write)?;
    match of.0.pinned() {
        Ok(pinned) => Ok(Held { pinned, of }),
        Err(e) => {
            let failed = of.0.clone();
            drop(of);
            let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
            let at = all.iter().position(|r| Arc::ptr_eq(r, &failed));
            let last = at.map(|at| all.remove(at));
            drop(all);
            if let Some(last) = last {
                retire(&last);
            }
            Err(e)
        }
    }
}

/// Whether `addr` is a client's; also, if the client says that it cannot be used now.
pub(super) fn is_a_clients(addr: usize, len: usize) -> bool {
    len > 0 && !INSIDE.get() && !matches!(registration(addr, len, true), Err(libc::EFAULT))
}

/// Registers `addr..addr+len`, and names the registration.
pub(super) fn pin(addr: usize, len: usize, write: bool) -> Result<u64, i32> {
    let held = with_pages(addr, len, write)?;
    lock(&held.of.0.state).pins += 1;
    Ok(held.of.0.name)
}

/// Lets go of it.
pub(super) fn unpin(name: u64) {
    // Under the first list's lock: it is not on its way from one to the other.
    let all = reading(&ALL);
    if let Some(r) = all.iter().find(|r| r.name == name) {
        lock(&r.state).pins -= 1;
        return;
    }
    let mut stale = lock(&STALE);
    if let Some(at) = stale.iter().position(|(n, ..)| *n == name) {
        stale[at].1 -= 1;
        if stale[at].1 == 0 {
            stale.remove(at);
        }
    }
}

/// Copies. One side is a client's at least, and the other one host memory if it is no client's.
///
/// # Safety
/// Host memory on one of the sides is valid for the copy.
pub(super) unsafe fn copy(dst: usize, src: usize, len: usize) -> Result<(), i32> {
    if len == 0 {
        return Ok(());
    }
    let from = match with_pages(src, len, false) {
        Ok(from) => Some(from),
        Err(libc::EFAULT) => None,
        Err(e) => return Err(e),
    };
    let to = match with_pages(dst, len, true) {
        Ok(to) => Some(to),
        Err(libc::EFAULT) => None,
        Err(e) => return Err(e),
    };
    let host = |at: usize| std::ptr::with_exposed_provenance_mut::<u8>(at);
    match (&to, &from) {
        (None, None) => Err(libc::EFAULT),
        // SAFETY: the caller's promise.
        (Some(to), None) => unsafe { one(to, dst, host(src), len, false) },
        // SAFETY: likewise.
        (None, Some(from)) => unsafe { one(from, src, host(dst), len, true) },
        (Some(to), Some(from)) => {
            let mut bytes = vec![0u8; len.min(1 << 20)];
            for off in (0..len).step_by(bytes.len()) {
                let n = bytes.len().min(len - off);
                // SAFETY: a place of ours, of as many bytes.
                unsafe {
                    one(from, src + off, bytes.as_mut_ptr(), n, true)?;
                    one(to, dst + off, bytes.as_mut_ptr(), n, false)?;
                }
            }
            Ok(())
        }
    }
}

/// # Safety
/// `host` is valid for reads of `len` bytes, or, `to_host`, for writes.
unsafe fn one(
    Held { pinned, of }: &Held,
    addr: usize,
    host: *mut u8,
    len: usize,
    to_host: bool,
) -> Result<(), i32> {
    let r = &*of.0;
    // SAFETY: the caller's promise.
    if let Some(done) = call(|| unsafe { r.by.client.copy(r.ctx, addr, host, len, to_host) }) {
        return done;
    }
    let (mut off, mut done) = (addr - r.addr, 0);
    for (s, reached) in pinned.segments.iter().zip(&pinned.reached) {
        if off >= s.len {
            off -= s.len;
            continue;
        }
        let n = (s.len - off).min(len - done);
        let (at, _access) = match reached {
            Reached::Cpu(at) => (*at, None),
            Reached::File { map, .. } => (map.at(), map.cpu_access(!to_host).map_err(|e| e.code)?),
            Reached::Opaque => return Err(libc::EOPNOTSUPP),
        };
        let at = std::ptr::with_exposed_provenance_mut::<u8>(at + off);
        // SAFETY: the client says that the segment is there, or it is mapped here, and stays while it is
        // in use; the host's side is the caller's promise.
        unsafe {
            let host = host.add(done);
            if to_host { std::ptr::copy(at, host, n) } else { std::ptr::copy(host, at, n) }
        }
        (off, done) = (0, done + n);
        if done == len {
            break;
        }
    }
    Ok(())
}

/// Handles for another process.
pub(super) fn map(addr: usize, len: usize) -> Result<Vec<FileExport>, i32> {
    let Held { pinned, of } = with_pages(addr, len, true)?;
    let (mut base, mut out) = (of.0.addr, Vec::new());
    for (i, (s, reached)) in pinned.segments.iter().zip(&pinned.reached).enumerate() {
        if base < addr + len && addr < base + s.len {
            let Reached::File { fd, off, .. } = reached else { return Err(libc::EOPNOTSUPP) };
            let id = of.0.name * MOST as u64 + i as u64;
            let e = describe_file(fd.as_fd(), *off, id, base as u64, s.len as u64).map_err(|e| e.code)?;
            out.push(FileExport { id, base: e.base, len: e.len, fd: e.fd, zero: 0, token: e.token });
        }
        base += s.len;
    }
    Ok(out)
}

/// A dma-buf of it.
pub(super) fn export_dmabuf(addr: usize, len: usize) -> Result<(OwnedFd, u64), i32> {
    let Held { of, .. } = with_pages(addr, len, true)?;
    call(|| of.0.by.client.export_dmabuf(of.0.ctx, addr, len))
}

/// The clients' names.
pub(super) fn names() -> String {
    let names: Vec<String> = reading(&CLIENTS).iter().map(|c| c.client.name()).collect();
    names.join(", ")
}
