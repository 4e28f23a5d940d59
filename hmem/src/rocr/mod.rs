//! ROCm's device memory, through the HSA runtime that the application itself has loaded and started.
//! Nothing here calls hsa_init: memory exists only in a process that has called it.
//!
//! HSA does not number its allocations. One that is shared is watched by a deallocation callback, and
//! counts as another one from then on; where the runtime has no such callback nothing is shared.
//! Host memory that the runtime allocated or locked is the host's, and so is what it does not know.

mod api;

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use api::Error;
use api::{
    AGENT_DEVICE, Api, BLOCKED, DEVICE_GPU, Handle, INVALID_ALLOCATION, INVALID_ARGUMENT, Ipc, LESS,
    POINTER_HSA, POINTER_LOCKED, POINTER_UNKNOWN, PointerInfo, UNSUPPORTED, loaded,
};

use crate::error::Error as AnyError;
use crate::kind::Kind;
use crate::memory::{Allocate, Copies, Handles, Memory, Pages};
use crate::pending::{PIECE, Part, PendingCopy};
use crate::share::{Backing, Export, HandleType, Mapped, Opened, cached_export};

fn api() -> Result<&'static Api, Error> {
    loaded().ok_or(Error(UNSUPPORTED))
}

/// What the runtime knows of an address.
#[derive(Clone, Copy, Debug)]
struct Info {
    kind: u32,
    base: u64,
    len: u64,
    owner: Handle,
    /// On a GPU, and not memory of the host's.
    device: bool,
}

/// `None` for memory that the runtime does not know.
fn info(addr: usize) -> Option<Info> {
    let api = loaded()?;
    let size = size_of::<PointerInfo>() as u32;
    let (base, host_base, user) = (null_mut(), null_mut(), null_mut());
    let mut p =
        PointerInfo { size, kind: POINTER_UNKNOWN, base, host_base, len: 0, user, owner: 0, flags: 0 };
    api.pointer_info(with_exposed_provenance(addr), &mut p, null(), null_mut(), null_mut()).ok()?;
    let known = std::mem::offset_of!(PointerInfo, flags) as u32;
    if p.kind == POINTER_UNKNOWN || p.size < known {
        return None;
    }
    let mut sort = 0u32;
    let gpu = api.agent_info(p.owner, AGENT_DEVICE, (&raw mut sort).cast()).is_ok() && sort == DEVICE_GPU;
    let device = gpu && p.kind != POINTER_LOCKED;
    // For locked memory the CPU's address is another one than the agents'.
    let base = if p.kind == POINTER_LOCKED { p.host_base } else { p.base };
    Some(Info { kind: p.kind, base: base as u64, len: p.len as u64, owner: p.owner, device })
}

fn device(addr: usize) -> Result<Info, Error> {
    info(addr).filter(|i| i.device).ok_or(Error(INVALID_ALLOCATION))
}

/// The numbers of allocations that are watched, by first byte.
fn numbers() -> MutexGuard<'static, HashMap<u64, u64>> {
    static NUMBERS: OnceLock<Mutex<HashMap<u64, u64>>> = OnceLock::new();
    NUMBERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime's call when an allocation goes.
unsafe extern "C" fn gone(at: *mut c_void, number: *mut c_void) {
    let mut numbers = numbers();
    if numbers.get(&(at as u64)) == Some(&(number as u64)) {
        numbers.remove(&(at as u64));
    }
}

/// The number of the allocation at `base`, which is watched from now on.
fn number(api: &Api, base: u64) -> Result<u64, Error> {
    if let Some(n) = numbers().get(&base) {
        return Ok(*n);
    }
    static LAST: AtomicU64 = AtomicU64::new(0);
    let n = LAST.fetch_add(1, Relaxed) + 1;
    // No lock is held: the runtime may be inside a callback in another thread.
    api.on_free(with_exposed_provenance_mut(base as usize), gone, with_exposed_provenance_mut(n as usize))?;
    // Of two threads that come at once one wins; the other's callback finds nothing of its own.
    Ok(*numbers().entry(base).or_insert(n))
}

fn export(addr: usize, len: usize, most: usize) -> Result<Vec<Export>, Error> {
    let api = api()?;
    let (mut at, end) = (addr as u64, addr as u64 + len as u64);
    let mut out = Vec::new();
    while at < end {
        let of = device(at as usize)?;
        if of.kind != POINTER_HSA {
            return Err(Error(UNSUPPORTED));
        }
        if out.len() == most || of.len == 0 || of.base > at {
            return Err(Error(INVALID_ALLOCATION));
        }
        let id = number(api, of.base)?;
        out.push(cached_export((Kind::Rocr, is_still), (id, of.base, of.len), || {
            let mut ipc = Ipc::default();
            api.ipc_create(with_exposed_provenance_mut(of.base as usize), of.len as usize, &mut ipc)?;
            let mut token = [0; 64];
            for (to, word) in token.chunks_mut(4).zip(ipc.0) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            let (base, len, device) = (of.base, of.len, [0; 16]);
            Ok((Export { handle_type: HandleType::Hsa, id, base, len, fd: -1, device, token }, None))
        })?);
        at = of.base + of.len;
    }
    Ok(out)
}

/// Another process's memory, until it is dropped.
struct Attached(usize);

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(api) = loaded() {
            let _ = api.ipc_detach(with_exposed_provenance_mut(self.0));
        }
    }
}

fn import(export: &Export) -> Result<Mapped, Error> {
    let api = api()?;
    let mut ipc = Ipc::default();
    for (word, from) in ipc.0.iter_mut().zip(export.token.chunks(4)) {
        *word = u32::from_ne_bytes([from[0], from[1], from[2], from[3]]);
    }
    let len = usize::try_from(export.len).map_err(|_| Error(INVALID_ARGUMENT))?;
    let mut at = null_mut();
    // No agents named: all that can.
    api.ipc_attach(&ipc, len, 0, null(), &mut at)?;
    let at = at.expose_provenance();
    let attached = Attached(at);
    // Its length is the owner's word until the runtime confirms it.
    let there = info(at).ok_or(Error(INVALID_ALLOCATION))?;
    if there.base > at as u64 || (there.base + there.len).saturating_sub(at as u64) < export.len {
        return Err(Error(INVALID_ARGUMENT));
    }
    Ok(Mapped { at: at as u64, len: export.len, backing: Backing::Runtime(Box::new(attached)) })
}

fn copy_now(api: &Api, p: Part) -> Result<(), Error> {
    api.copy(with_exposed_provenance_mut(p.dst), with_exposed_provenance(p.src), p.len)
}

/// A copy in flight.
#[derive(Debug)]
struct Pending {
    /// What is copied piece by piece, each waited for: memory that the runtime does not know.
    todo: VecDeque<Part>,
    /// Counts down with each copy that is done, and falls below 0 if one fails.
    signal: Option<Handle>,
    _keep: Vec<Opened>,
}

impl PendingCopy for Pending {
    fn poll(&mut self) -> Result<bool, AnyError> {
        let api = api()?;
        if let Some(signal) = self.signal {
            return match api.signal_load(signal)? {
                1.. => Ok(false),
                0 => Ok(true),
                _ => Err(AnyError::os(libc::EIO)),
            };
        }
        let Some(part) = self.todo.pop_front() else { return Ok(true) };
        let n = part.len.min(PIECE);
        copy_now(api, Part { len: n, ..part })?;
        if n < part.len {
            self.todo.push_front(Part { dst: part.dst + n, src: part.src + n, len: part.len - n });
        }
        Ok(self.todo.is_empty())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let (Some(api), Some(signal)) = (loaded(), self.signal) {
            while api.signal_wait(signal, LESS, 1, u64::MAX, BLOCKED).is_ok_and(|v| v > 0) {}
            let _ = api.signal_destroy(signal);
        }
    }
}

fn start(parts: &[Part], keep: Vec<Opened>) -> Result<Pending, Error> {
    let api = api()?;
    let todo: VecDeque<Part> = parts.iter().copied().filter(|p| p.len > 0).collect();
    let agents = |p: &Part| Some((info(p.dst)?, info(p.src)?));
    let known: Option<Vec<(Info, Info)>> = todo.iter().map(agents).collect();
    let Some(known) = known else { return Ok(Pending { todo, signal: None, _keep: keep }) };
    let mut signal = 0;
    api.signal_create(todo.len() as i64, 0, null(), &mut signal)?;
    let mut pending = Pending { todo: VecDeque::new(), signal: Some(signal), _keep: keep };
    for (at, (p, (dst, src))) in todo.iter().zip(&known).enumerate() {
        let (to, from) = (with_exposed_provenance_mut(p.dst), with_exposed_provenance(p.src));
        if let Err(e) = api.copy_async(to, dst.owner, from, src.owner, p.len, 0, null(), signal) {
            // Those that are on their way take it down by one each.
            let left = (todo.len() - at) as i64;
            while api.signal_wait(signal, LESS, left + 1, u64::MAX, BLOCKED).is_ok_and(|v| v > left) {}
            let _ = api.signal_destroy(signal);
            pending.signal = None;
            return Err(e);
        }
    }
    Ok(pending)
}

/// Whether the allocation is still there.
fn is_still(export: &Export) -> bool {
    numbers().get(&export.base) == Some(&export.id)
        && info(export.base as usize).is_some_and(|i| (i.base, i.len) == (export.base, export.len))
}

/// ROCm's entry in the registry.
pub(crate) struct Rocr;

impl Memory for Rocr {
    fn kind(&self) -> Kind {
        Kind::Rocr
    }

    fn find(&self) -> bool {
        api::find()
    }

    fn describe(&self) -> Result<String, String> {
        unsafe extern "C" fn each(agent: Handle, count: *mut c_void) -> c_int {
            let mut sort = 0u32;
            let gpu = loaded()
                .is_some_and(|api| api.agent_info(agent, AGENT_DEVICE, (&raw mut sort).cast()).is_ok());
            if gpu && sort == DEVICE_GPU {
                // SAFETY: the place that was handed in.
                unsafe { *count.cast::<u32>() += 1 };
            }
            0
        }
        let api = loaded().ok_or("no libhsa-runtime64.so.1 in this process")?;
        let mut count = 0u32;
        api.iterate_agents(each, (&raw mut count).cast()).map_err(|e| e.to_string())?;
        Ok(format!("HSA runtime, {count} GPUs"))
    }

    fn error(&self, code: i32) -> AnyError {
        Error(code).into()
    }

    fn acquire(&self, addr: usize, _len: usize) -> bool {
        info(addr).is_some_and(|i| i.device)
    }

    /// Its agents have no numbers.
    fn to_adapter(&self, addr: usize, _len: usize) -> Option<(u32, u32)> {
        device(addr).ok().map(|_| (0, 0))
    }

    fn get_pages(&self, addr: usize, _len: usize, _write: bool) -> Result<Pages, AnyError> {
        info(addr).ok_or(Error(INVALID_ALLOCATION))?;
        Ok(Box::new(()))
    }
}

impl Handles for Rocr {
    fn export_ipc(&self, addr: usize, len: usize, most: usize) -> Result<Vec<Export>, AnyError> {
        Ok(export(addr, len, most)?)
    }

    fn export_dmabuf(&self, addr: usize, len: usize, _pcie: bool) -> Result<(OwnedFd, u64), AnyError> {
        let (mut fd, mut off) = (-1, 0);
        device(addr)?;
        api()?.export_dmabuf(with_exposed_provenance(addr), len, &mut fd, &mut off)?;
        // SAFETY: the runtime has just opened it, for this call alone.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, off))
    }

    fn import(&self, _pid: i32, _owner: u64, export: &Export, _ctx: usize) -> Result<Mapped, AnyError> {
        Ok(import(export)?)
    }

    fn is_still(&self, export: &Export) -> bool {
        is_still(export)
    }
}

impl Copies for Rocr {
    fn copy_now(&self, dst: usize, src: usize, len: usize) -> Result<(), AnyError> {
        if len > 0 {
            copy_now(api()?, Part { dst, src, len })?;
        }
        Ok(())
    }

    unsafe fn start(
        &self,
        parts: &[Part],
        keep: Vec<Opened>,
        _host: bool,
    ) -> Result<Box<dyn PendingCopy>, AnyError> {
        Ok(Box::new(start(parts, keep)?))
    }
}

impl Allocate for Rocr {}
