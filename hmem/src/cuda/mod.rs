//! CUDA's device memory, through the driver API of a library that the application itself has loaded.
//!
//! Nothing here loads or initialises CUDA or makes a context: memory of it exists only in a process that has
//! done both. What is made here ([`Made`]) is made where a program asks for it. Copies run in the context
//! that the memory belongs to, or in its device's primary one if that is active, and in streams of our own
//! that wait for no other. So, as in every GPU-aware message passing library: what is sent has to be there
//! when it is posted (the application synchronises first), and what was received is there when it completes.
//!
//! | module | what it holds |
//! |---|---|
//! | `api` | the driver's functions |
//! | `info` | what the driver knows of an address |
//! | `stream` | contexts, and the streams that copies run in |
//! | `copy` | copies, waited for or in flight |
//! | `to_host` | copies to host memory that is not page-locked |
//! | `export` | handles by which another process reaches the memory |
//! | `import` | memory of other processes |
//! | `make` | memory that is made here, to be shared |
//! | `pool` | the same for pools |
//! | `queue` | a program's own stream, in which work is queued for it |
//! | `own` | streams that are made here and wait for the legacy default stream |
//! | `apart` | whether streams share a hardware queue |
//! | `kernel` | kernels: modules of PTX, and launches |
//! | [`memops`] | memory operations of streams |
//! | [`graph`] | graphs of these |

mod adapter;
mod apart;
mod api;
mod copy;
mod export;
pub mod graph;
mod import;
mod info;
mod kernel;
mod make;
pub mod memops;
mod own;
mod per_context;
mod pool;
mod queue;
mod stream;
mod to_host;

use std::os::fd::OwnedFd;

use libloading::os::unix::Library;

pub use apart::{has_one_queue, share_a_queue};
pub use api::Error;
pub use export::{export, export_dmabuf, settle};
pub use info::{Info, Sort, info};
pub use kernel::{Function, NotLoaded};
pub use make::{Made, device};
pub use own::OwnStream;
pub use per_context::PerContext;
pub use queue::{Call, Stream, is_gone};
pub use stream::Relaxed as RelaxedCapture;
pub(crate) use stream::activate;

use crate::agent;
use crate::error::Error as AnyError;
use crate::kind::Kind;
use crate::memory::{AdapterWrites, Allocate, Copies, Exportable, Handles, Memory, Pages};
use crate::pending::{Part, PendingCopy};
use crate::presence;
use crate::share::{Export, HandleType, Mapped, Opened};
use api::{attr, loaded};
use info::{ask, is_device, is_host};

/// Whether this process has CUDA's driver. Asks the dynamic linker; for calls that set something up.
pub fn find_driver() -> bool {
    presence::find_now(&Cuda)
}

/// Loads the driver and starts it, in a process that is there to copy.
pub(crate) fn load() -> Result<(), AnyError> {
    // SAFETY: its initialisers are the driver's, which the user of this process runs as well.
    let library = unsafe { Library::open(Some("libcuda.so.1"), libc::RTLD_NOW) };
    std::mem::forget(library.map_err(|_| AnyError::os(libc::ENOENT))?);
    find_driver();
    copy::write_short_copies_by_values();
    Ok(loaded().ok_or(Error(api::NOT_FOUND))?.init(0)?)
}

/// CUDA's entry in the registry.
pub(crate) struct Cuda;

impl Memory for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda
    }

    fn find(&self) -> bool {
        api::find()
    }

    fn describe(&self) -> Result<String, String> {
        describe()
    }

    fn error(&self, code: i32) -> AnyError {
        Error(code).into()
    }

    fn acquire(&self, addr: usize, len: usize) -> bool {
        if agent::is_on() { agent::is_registered(addr) } else { self.acquire_to_register(addr, len) }
    }

    fn acquire_to_register(&self, addr: usize, _len: usize) -> bool {
        loaded().is_some_and(|api| is_device(api, addr))
    }

    fn get_pages(&self, addr: usize, len: usize, _write: bool) -> Result<Pages, AnyError> {
        let of = info(addr).ok_or(Error(api::NOT_FOUND))?;
        match of.sort {
            Sort::Host => Ok(Box::new(())),
            _ => Ok(Box::new(agent::register(addr, len, |addr, len, most| Ok(export(addr, len, most)?))?)),
        }
    }

    fn number(&self, addr: usize) -> Option<u64> {
        if agent::is_on() {
            return agent::number(addr);
        }
        let [id] = ask(loaded()?, [attr::BUFFER_ID], addr).ok()?;
        Some(id).filter(|id| *id != 0)
    }

    fn device_in_turns(&self, addr: usize) -> Option<[u8; 16]> {
        if agent::is_on() {
            return None;
        }
        let of = info(addr).filter(|i| !matches!(i.sort, Sort::Managed | Sort::Host) && i.device >= 0)?;
        let api = loaded()?;
        if stream::is_by_mps(api, of.device) {
            return None;
        }
        stream::uuid_of(api, of.device).ok()
    }

    fn to_adapter(&self, addr: usize, len: usize) -> Option<(u32, u32)> {
        if agent::is_on() {
            return None;
        }
        let device = u32::try_from(export::device_of_all(addr, len)?).ok()?;
        settle(addr);
        Some((0, device))
    }

    fn adapter_writes(&self, addr: usize) -> AdapterWrites {
        if agent::is_on() { AdapterWrites::Unknown } else { adapter::writes(addr) }
    }

    fn current_pci(&self) -> Option<String> {
        if agent::is_on() { None } else { adapter::current_pci() }
    }

    fn flush_adapter_writes(&self, addr: usize) -> Result<(), AnyError> {
        if agent::is_on() { Err(AnyError::UNSUPPORTED) } else { Ok(adapter::flush(addr)?) }
    }
}

impl Handles for Cuda {
    fn export_ipc(&self, addr: usize, len: usize, most: usize) -> Result<Vec<Export>, AnyError> {
        if agent::is_on() { agent::exports(addr, len, most) } else { Ok(export(addr, len, most)?) }
    }

    fn export_dmabuf(&self, addr: usize, len: usize, pcie: bool) -> Result<(OwnedFd, u64), AnyError> {
        Ok(export_dmabuf(addr, len, pcie)?)
    }

    fn context(&self, export: &Export, local: usize) -> Result<usize, AnyError> {
        if agent::is_on() { Ok(agent::CONTEXT) } else { Ok(import::context(export, local)?) }
    }

    fn place_id(&self, ctx: usize) -> u64 {
        if agent::is_on() {
            return 0;
        }
        loaded().map_or(0, |api| stream::id_of(api, ctx))
    }

    fn import(&self, pid: i32, owner: u64, export: &Export, ctx: usize) -> Result<Mapped, AnyError> {
        if let Some(agent) = agent::active() {
            return agent::import(agent, pid, export);
        }
        match export.handle_type {
            HandleType::Pool => Ok(pool::import(pid, owner, export, ctx)?),
            _ => Ok(import::import(pid, export, ctx)?),
        }
    }

    fn forget(&self, owner: u64) {
        pool::forget(owner);
    }

    fn is_still(&self, export: &Export) -> bool {
        if agent::is_on() { agent::is_still(export) } else { export::is_still(export) }
    }
}

impl Copies for Cuda {
    fn copy_now(&self, dst: usize, src: usize, len: usize) -> Result<(), AnyError> {
        if let Some(agent) = agent::active() {
            return agent::copy_now(agent, dst, src, len);
        }
        Ok(copy::copy_now(dst, src, len)?)
    }

    unsafe fn lock_host(&self, addr: usize, len: usize) -> Option<Pages> {
        if agent::is_on() {
            return None;
        }
        Some(Box::new(stream::Locked::new(loaded()?, addr, len).ok()?))
    }

    fn is_host_locked(&self, addr: usize) -> bool {
        agent::is_on() || loaded().is_some_and(|api| is_host(api, addr))
    }

    unsafe fn start(
        &self,
        parts: &[Part],
        keep: Vec<Opened>,
        host: bool,
    ) -> Result<Box<dyn PendingCopy>, AnyError> {
        if let Some(agent) = agent::active() {
            return agent::start_copy(agent, parts, keep);
        }
        let ctx = keep.first().map_or(0, Opened::context);
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { copy::start(parts, ctx, keep, host)? }))
    }

    unsafe fn start_to_host(
        &self,
        parts: &[Part],
        keep: Vec<Opened>,
    ) -> Result<Box<dyn PendingCopy>, AnyError> {
        if let Some(agent) = agent::active() {
            return agent::start_copy(agent, parts, keep);
        }
        let ctx = keep.first().map_or(0, Opened::context);
        // SAFETY: the caller's promise.
        Ok(unsafe { to_host::start_to_host(parts, ctx, keep, &Cuda)? })
    }
}

impl Allocate for Cuda {
    fn place(&self, addr: usize) -> Option<usize> {
        stream::context_of(loaded()?, &info(addr)?).ok()
    }

    fn make_exportable(&self, near: usize, len: usize) -> Result<Exportable, AnyError> {
        let made = make::Plain::new(near, len)?;
        Ok(Exportable { addr: made.addr(), number: made.number(), _keep: Box::new(made) })
    }

    fn make_for_kernels(&self, device: Option<i32>, len: usize) -> Result<Exportable, AnyError> {
        if agent::is_on() {
            return Err(AnyError::UNSUPPORTED);
        }
        let made = make::Plain::for_kernels(device, len)?;
        let zeroes = vec![0u8; len];
        copy::copy_now(made.addr(), zeroes.as_ptr().expose_provenance(), len)?;
        Ok(Exportable { addr: made.addr(), number: made.number(), _keep: Box::new(made) })
    }
}

/// What there is of CUDA in this process, for people: the driver's version and how many devices, or
/// in `Err` why none.
pub fn describe() -> Result<String, String> {
    if !find_driver() {
        return Err("no libcuda.so.1 in this process".into());
    }
    let api = loaded().ok_or("no libcuda.so.1 in this process")?;
    let (mut version, mut devices) = (0, 0);
    api.driver_version(&mut version).map_err(|e| e.to_string())?;
    api.device_count(&mut devices).map_err(|e| e.to_string())?;
    Ok(format!("driver API {}.{}, {devices} devices", version / 1000, version % 1000 / 10))
}

/// Bytes a second that a copy between two devices of this process is about to reach: what NVLink of the first
/// one's generation carries in one direction, by NVIDIA's data sheets, if NVLink is found; else what PCIe
/// does. For estimates.
pub fn peer_bandwidth() -> f64 {
    const PCIE: f64 = 12e9;
    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR,
    // CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    const GENERATION: [i32; 2] = [75, 76];
    const NATIVE_ATOMICS: i32 = 3;
    if !find_driver() {
        return PCIE;
    }
    let Some(api) = loaded() else { return PCIE };
    let device = |n: i32| {
        let mut device = 0;
        api.device_get(&mut device, n).ok().map(|()| device)
    };
    let Some(first) = device(0) else { return PCIE };
    let mut generation = [0; 2];
    for (to, which) in generation.iter_mut().zip(GENERATION) {
        if api.device_attr(to, which, first).is_err() {
            return PCIE;
        }
    }
    // Over PCIe there are none. A process that sees one device cannot ask.
    let mut atomics = 0;
    let linked = device(1).is_none_or(|other| {
        api.peer_attr(&mut atomics, NATIVE_ATOMICS, first, other).is_err() || atomics != 0
    });
    match generation {
        _ if !linked => PCIE,
        [6, 0] => 80e9,
        [7, 0] => 150e9,
        [8, 0] => 300e9,
        [9, 0] => 450e9,
        [10, _] => 900e9,
        _ => PCIE,
    }
}
