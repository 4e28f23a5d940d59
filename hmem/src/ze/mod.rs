//! Level Zero's device memory, through the loader that the application itself has loaded and initialised.
//! Nothing here calls zeInit: until the application has, there is no driver to be had. The application's
//! contexts cannot be found, so there is one of ours for each driver, made with the first query of a buffer.
//! It costs little and knows all memory of the driver.
//!
//! An allocation is known by the `id` of its properties. Some drivers give the address as `id`, so that a
//! later allocation there has the same one: their memory is not shared, and all of it is staged. Host memory
//! that Level Zero allocated is the host's; what it migrates between the two (`zeMemAllocShared`) is a
//! device's, and staged.

mod api;
mod queue;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::OnceLock;

use api::{
    AllocProps, Api, ContextDesc, DMA_BUF, ExportFd, Handle, INVALID_ARGUMENT, Ipc, MEMORY_DEVICE,
    MEMORY_SHARED, NOT_READY, UNSUPPORTED_FEATURE, loaded, stype,
};
use queue::Queues;

pub use api::Error;

use crate::error::Error as AnyError;
use crate::kind::Kind;
use crate::memory::{Allocate, Copies, Handles, Memory, Pages};
use crate::pending::{Part, PendingCopy};
use crate::share::{Backing, Export, HandleType, Mapped, Opened, cached_export, fetch, inode};

fn api() -> Result<&'static Api, Error> {
    loaded().ok_or(Error(UNSUPPORTED_FEATURE))
}

/// A driver, and the context of ours in it; as numbers, since they are for all threads.
#[derive(Clone, Copy)]
struct Driver {
    driver: usize,
    ctx: usize,
}

/// All drivers: none as long as the application has not initialised Level Zero.
fn drivers(api: &Api) -> Result<&'static [Driver], Error> {
    static DRIVERS: OnceLock<Vec<Driver>> = OnceLock::new();
    if let Some(all) = DRIVERS.get() {
        return Ok(all);
    }
    let mut handles = [null_mut(); 16];
    let mut count = handles.len() as u32;
    api.driver_get(&mut count, handles.as_mut_ptr())?;
    let desc = ContextDesc { stype: stype::CONTEXT_DESC, next: null(), flags: 0 };
    let mut all = Vec::new();
    for driver in handles.into_iter().take(count as usize) {
        let mut ctx = null_mut();
        api.context_create(driver, &desc, &mut ctx)?;
        all.push(Driver { driver: driver as usize, ctx: ctx as usize });
    }
    Ok(DRIVERS.get_or_init(|| all))
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug)]
struct Info {
    ctx: usize,
    device: usize,
    kind: u32,
    base: u64,
    len: u64,
    /// 0: the driver does not number allocations.
    id: u64,
}

fn ask(api: &Api, of: Driver, addr: usize) -> Option<(AllocProps, Handle)> {
    let mut props = AllocProps { stype: stype::ALLOC_PROPS, next: null_mut(), kind: 0, id: 0, page: 0 };
    let mut device = null_mut();
    api.alloc_props(of.ctx as Handle, with_exposed_provenance(addr), &mut props, &mut device).ok()?;
    matches!(props.kind, MEMORY_DEVICE | MEMORY_SHARED).then_some((props, device))
}

/// `None` for memory that is not a device's.
fn info(addr: usize) -> Option<Info> {
    let api = loaded()?;
    let (of, (props, device)) = drivers(api).ok()?.iter().find_map(|of| Some((*of, ask(api, *of, addr)?)))?;
    let (mut base, mut len) = (null_mut(), 0);
    api.range(of.ctx as Handle, with_exposed_provenance(addr), &mut base, &mut len).ok()?;
    let base = base as u64;
    let id = if props.id == base { 0 } else { props.id };
    Some(Info { ctx: of.ctx, device: device as usize, kind: props.kind, base, len: len as u64, id })
}

fn known(addr: usize) -> Result<Info, Error> {
    info(addr).ok_or(Error(INVALID_ARGUMENT))
}

/// A device for memory that is none's in particular.
fn any_device(api: &Api) -> Result<(usize, usize), Error> {
    for of in drivers(api)? {
        let (mut device, mut count) = (null_mut(), 1);
        if api.device_get(of.driver as Handle, &mut count, &mut device).is_ok() && count > 0 {
            return Ok((of.ctx, device as usize));
        }
    }
    Err(Error(UNSUPPORTED_FEATURE))
}

/// Where a copy between these two is done.
fn queues_for(api: &Api, dst: usize, src: usize) -> Result<&'static Queues, Error> {
    let of = [dst, src].into_iter().find_map(|at| info(at).filter(|i| i.device != 0));
    let (ctx, device) = of.map_or_else(|| any_device(api), |i| Ok((i.ctx, i.device)))?;
    queue::of(api, ctx, device)
}

fn to(at: usize) -> *mut c_void {
    with_exposed_provenance_mut(at)
}

fn export(addr: usize, len: usize, most: usize) -> Result<Vec<Export>, AnyError> {
    let api = api()?;
    let (mut at, end) = (addr as u64, addr as u64 + len as u64);
    let mut out = Vec::new();
    while at < end {
        let of = known(at as usize)?;
        if of.kind != MEMORY_DEVICE || of.id == 0 {
            return Err(Error(UNSUPPORTED_FEATURE).into());
        }
        if out.len() == most || of.len == 0 || of.base > at {
            return Err(Error(INVALID_ARGUMENT).into());
        }
        out.push(cached_export((Kind::Ze, is_still), (of.id, of.base, of.len), || make(api, &of))?);
        at = of.base + of.len;
    }
    Ok(out)
}

fn make(api: &Api, of: &Info) -> Result<(Export, Option<OwnedFd>), AnyError> {
    let mut ipc = Ipc([0; 64]);
    api.ipc_get(of.ctx as Handle, with_exposed_provenance(of.base as usize), &mut ipc)?;
    // The descriptor in it; drivers of before these functions have it in the first bytes.
    let mut fd = 0;
    if api.ipc_to_fd(of.ctx as Handle, ipc, &mut fd).is_err() {
        fd = i32::from_ne_bytes([ipc.0[0], ipc.0[1], ipc.0[2], ipc.0[3]]) as u64;
    }
    let fd = i32::try_from(fd).ok().filter(|fd| *fd > 0).ok_or(Error(UNSUPPORTED_FEATURE))?;
    // SAFETY: the driver says that it is open; if it is not, the kernel says so.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|_| AnyError::last_os())?;
    let mut device = [0; 16];
    for (to, word) in device.chunks_mut(8).zip(inode(fd.as_raw_fd())?) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    let (id, base, len, token) = (of.id, of.base, of.len, ipc.0);
    Ok((Export { handle_type: HandleType::Ze, id, base, len, fd: fd.as_raw_fd(), device, token }, Some(fd)))
}

/// Whether the allocation is still there.
fn is_still(export: &Export) -> bool {
    let same = |i: Info| (i.id, i.base, i.len) == (export.id, export.base, export.len);
    info(export.base as usize).is_some_and(same)
}

/// Another process's memory, until it is dropped.
struct Opening {
    ctx: usize,
    at: usize,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(api) = loaded() {
            let _ = api.ipc_close(self.ctx as Handle, with_exposed_provenance(self.at));
        }
    }
}

fn import(pid: i32, export: &Export, device: usize) -> Result<Mapped, AnyError> {
    let api = api()?;
    let ctx = context_of(api, device)?;
    let fd = fetch(pid, export.fd)?;
    let mut place = [0; 16];
    for (to, word) in place.chunks_mut(8).zip(inode(fd.as_raw_fd())?) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    // The number may be another file's by now.
    if place != export.device {
        return Err(AnyError::os(libc::ESTALE));
    }
    let mut ipc = Ipc(export.token);
    if api.fd_to_ipc(ctx as Handle, fd.as_raw_fd() as u64, &mut ipc).is_err() {
        ipc.0[..4].copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
    }
    let mut at = null_mut();
    api.ipc_open(ctx as Handle, device as Handle, ipc, 0, &mut at)?;
    let at = at.expose_provenance();
    let opening = Opening { ctx, at };
    // Its length is the owner's word until the driver confirms it.
    let (mut base, mut len) = (null_mut(), 0);
    api.range(ctx as Handle, with_exposed_provenance(at), &mut base, &mut len)?;
    if base as u64 > at as u64 || (base as u64 + len as u64).saturating_sub(at as u64) < export.len {
        return Err(Error(INVALID_ARGUMENT).into());
    }
    Ok(Mapped { at: at as u64, len: export.len, backing: Backing::Runtime(Box::new(opening)) })
}

/// Which driver a device is of, and which of its devices that is.
fn find_device(api: &Api, device: usize) -> Result<Option<(usize, usize)>, Error> {
    for (driver, of) in drivers(api)?.iter().enumerate() {
        let mut devices = [null_mut(); 64];
        let mut count = devices.len() as u32;
        api.device_get(of.driver as Handle, &mut count, devices.as_mut_ptr())?;
        let mut of_driver = devices[..(count as usize).min(64)].iter();
        if let Some(at) = of_driver.position(|d| *d == device as Handle) {
            return Ok(Some((driver, at)));
        }
    }
    Ok(None)
}

/// The context of the driver that a device is of.
fn context_of(api: &Api, device: usize) -> Result<usize, Error> {
    // A part of a device is not among them.
    let driver = find_device(api, device)?.map_or(0, |(driver, _)| driver);
    drivers(api)?.get(driver).map(|of| of.ctx).ok_or(Error(UNSUPPORTED_FEATURE))
}

/// A copy in flight: one part after the other.
struct Pending {
    queues: &'static Queues,
    todo: VecDeque<Part>,
    event: Option<usize>,
    _keep: Vec<Opened>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("todo", &self.todo).field("event", &self.event).finish()
    }
}

impl Pending {
    fn issue(&mut self, api: &Api) -> Result<(), Error> {
        if let Some(p) = self.todo.front() {
            self.event = self.queues.start(api, to(p.dst), to(p.src), p.len)?;
            if self.event.is_some() {
                self.todo.pop_front();
            }
        }
        Ok(())
    }
}

impl PendingCopy for Pending {
    fn poll(&mut self) -> Result<bool, AnyError> {
        let api = api()?;
        if let Some(event) = self.event {
            match api.event_query(event as Handle) {
                Ok(()) => {
                    self.event = None;
                    self.queues.give_back(api, event);
                }
                Err(Error(NOT_READY)) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        self.issue(api)?;
        Ok(self.event.is_none() && self.todo.is_empty())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let (Some(api), Some(event)) = (loaded(), self.event) {
            let _ = api.event_wait(event as Handle, u64::MAX);
            self.queues.give_back(api, event);
        }
    }
}

/// Level Zero's entry in the registry.
pub(crate) struct Ze;

impl Memory for Ze {
    fn kind(&self) -> Kind {
        Kind::Ze
    }

    fn find(&self) -> bool {
        api::find()
    }

    fn describe(&self) -> Result<String, String> {
        let api = loaded().ok_or("no libze_loader.so.1 in this process")?;
        let (mut count, mut devices) = (0, 0);
        api.driver_get(&mut count, null_mut()).map_err(|e| e.to_string())?;
        let mut handles = vec![null_mut(); count as usize];
        api.driver_get(&mut count, handles.as_mut_ptr()).map_err(|e| e.to_string())?;
        for driver in handles {
            let mut n = 0;
            api.device_get(driver, &mut n, null_mut()).map_err(|e| e.to_string())?;
            devices += n;
        }
        Ok(format!("Level Zero, {count} drivers, {devices} devices"))
    }

    fn error(&self, code: i32) -> AnyError {
        Error(code).into()
    }

    fn acquire(&self, addr: usize, _len: usize) -> bool {
        let Some(api) = loaded() else { return false };
        drivers(api).is_ok_and(|all| all.iter().any(|of| ask(api, *of, addr).is_some()))
    }

    fn get_pages(&self, addr: usize, _len: usize, _write: bool) -> Result<Pages, AnyError> {
        known(addr)?;
        Ok(Box::new(()))
    }

    fn to_adapter(&self, addr: usize, _len: usize) -> Option<(u32, u32)> {
        // What is shared moves between the device and the host.
        let of = info(addr).filter(|of| of.kind == MEMORY_DEVICE)?;
        let (driver, device) = find_device(loaded()?, of.device).ok()??;
        Some((driver as u32, device as u32))
    }
}

impl Handles for Ze {
    fn export_ipc(&self, addr: usize, len: usize, most: usize) -> Result<Vec<Export>, AnyError> {
        export(addr, len, most)
    }

    fn export_dmabuf(&self, addr: usize, _len: usize, _pcie: bool) -> Result<(OwnedFd, u64), AnyError> {
        let (api, of) = (api()?, known(addr)?);
        let mut fd = ExportFd { stype: stype::EXPORT_FD, next: null_mut(), flags: DMA_BUF, fd: -1 };
        let next = (&raw mut fd).cast();
        let mut props = AllocProps { stype: stype::ALLOC_PROPS, next, kind: 0, id: 0, page: 0 };
        api.alloc_props(of.ctx as Handle, with_exposed_provenance(addr), &mut props, null_mut())?;
        if fd.fd < 0 {
            return Err(Error(UNSUPPORTED_FEATURE).into());
        }
        // The driver may hand the same one out again.
        // SAFETY: the driver says that it is open; if it is not, the kernel says so.
        let own = unsafe { BorrowedFd::borrow_raw(fd.fd) }.try_clone_to_owned();
        Ok((own.map_err(|_| AnyError::last_os())?, addr as u64 - of.base))
    }

    /// The device, which is what a mapping is made for.
    fn context(&self, _export: &Export, local: usize) -> Result<usize, AnyError> {
        let api = api()?;
        match info(local).filter(|i| i.device != 0) {
            Some(of) => Ok(of.device),
            None => Ok(any_device(api)?.1),
        }
    }

    fn import(&self, pid: i32, _owner: u64, export: &Export, ctx: usize) -> Result<Mapped, AnyError> {
        import(pid, export, ctx)
    }

    fn is_still(&self, export: &Export) -> bool {
        is_still(export)
    }
}

impl Copies for Ze {
    fn copy_now(&self, dst: usize, src: usize, len: usize) -> Result<(), AnyError> {
        if len > 0 {
            let api = api()?;
            queues_for(api, dst, src)?.copy_now(api, to(dst), to(src), len)?;
        }
        Ok(())
    }

    unsafe fn start(
        &self,
        parts: &[Part],
        keep: Vec<Opened>,
        _host: bool,
    ) -> Result<Box<dyn PendingCopy>, AnyError> {
        let api = api()?;
        let todo: VecDeque<Part> = parts.iter().copied().filter(|p| p.len > 0).collect();
        let (dst, src) = todo.front().map_or((0, 0), |p| (p.dst, p.src));
        let mut pending = Pending { queues: queues_for(api, dst, src)?, todo, event: None, _keep: keep };
        pending.issue(api)?;
        Ok(Box::new(pending))
    }
}

impl Allocate for Ze {}
