//! CUDA's device memory, through the driver API of a library that the application itself has loaded.
//!
//! Nothing here loads or initialises CUDA or makes a context: memory that there is to be asked about
//! was made by somebody who had both. Copies run in the context that the memory belongs to, or in
//! its device's primary one if that is active, and in streams of our own that wait for no other.
//! So, as in every GPU-aware message passing library: what is sent has to be there when it is
//! posted (the application synchronises first), and what was received is there when it completes.
//!
//! | module | what it holds |
//! |---|---|
//! | `api` | the driver's functions |
//! | `lane` | contexts, and the streams that copies run in |
//! | `copy` | copies, waited for or in flight |
//! | `export` | handles by which another process reaches the memory |
//! | `import` | memory of other processes |
//! | `pool` | the same for pools |

mod api;
mod copy;
mod export;
mod import;
mod lane;
mod pool;

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub use api::Error;
pub use export::{export, export_dmabuf};

use crate::flight::{Flight, Part};
use crate::registry::{self, Memory, Pages};
use crate::share::{Export, How, Mapped, Opened};
use crate::{Kind, presence};
use api::{Api, TYPE_DEVICE, TYPE_HOST, attr};

/// How an allocation was made, which decides how others may reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// cuMemAlloc, cudaMalloc.
    Plain,
    /// cuMemMap: memory mapped by hand, PyTorch's expandable segments among it.
    Mapped,
    /// cuMemAllocAsync, cudaMallocAsync.
    Pool,
    /// cuMemAllocManaged: the CPU may touch it.
    Managed,
    /// Page-locked host memory.
    Host,
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// How it was made.
    pub sort: Sort,
    /// First byte of its allocation.
    pub base: u64,
    /// Bytes of its allocation.
    pub len: u64,
    /// The allocation's number; no other ever has it in this process. 0: the driver does not say.
    pub id: u64,
    /// The device's number in this process.
    pub device: i32,
    /// Its context, as a number; 0 where it belongs to none.
    pub context: usize,
    /// Its pool, as a number, if it is of one.
    pub pool: usize,
}

static API: OnceLock<Api> = OnceLock::new();

/// The driver, if it is known to be in the process.
#[inline]
fn loaded() -> Option<&'static Api> {
    if presence::is_here(Kind::Cuda) { API.get() } else { None }
}

/// Looks for the driver now, whatever was found before. For calls that set something up.
pub fn look() -> bool {
    registry::is_here(Kind::Cuda)
}

/// CUDA's entry in the registry.
pub(crate) struct Cuda;

impl Memory for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda
    }

    fn find(&self) -> bool {
        let Some(api) = Api::find() else { return false };
        // Two threads may find it at once: either table will do.
        let _ = API.set(api);
        true
    }

    fn describe(&self) -> Result<String, String> {
        describe()
    }

    fn acquire(&self, addr: usize, _len: usize) -> bool {
        loaded().is_some_and(|api| is_device(api, addr))
    }

    fn get_pages(&self, addr: usize, _len: usize, _write: bool) -> Result<Pages, crate::Error> {
        info(addr).ok_or(Error(api::NOT_FOUND))?;
        Ok(Box::new(()))
    }

    fn dma_map(&self, addr: usize, len: usize, most: usize) -> Result<Vec<Export>, crate::Error> {
        Ok(export(addr, len, most)?)
    }

    fn number(&self, addr: usize) -> Option<u64> {
        let [id] = ask(loaded()?, [attr::BUFFER_ID], addr).ok()?;
        Some(id).filter(|id| *id != 0)
    }

    fn export_dmabuf(&self, addr: usize, len: usize, pcie: bool) -> Result<(OwnedFd, u64), crate::Error> {
        Ok((export_dmabuf(addr, len, pcie)?, 0))
    }

    fn copy_now(&self, dst: usize, src: usize, len: usize) -> Result<(), crate::Error> {
        Ok(copy::copy_now(dst, src, len)?)
    }

    unsafe fn lock_host(&self, addr: usize, len: usize) -> Option<Pages> {
        Some(Box::new(lane::Locked::new(loaded()?, addr, len).ok()?))
    }

    fn context(&self, export: &Export, local: usize) -> Result<usize, crate::Error> {
        Ok(import::context(export, local)?)
    }

    fn import(&self, pid: i32, owner: u64, export: &Export, ctx: usize) -> Result<Mapped, crate::Error> {
        match export.how {
            How::Pool => Ok(pool::import(pid, owner, export, ctx)?),
            _ => Ok(import::import(pid, export, ctx)?),
        }
    }

    fn forget(&self, owner: u64) {
        pool::forget(owner);
    }

    fn is_still(&self, export: &Export) -> bool {
        export::is_still(export)
    }

    unsafe fn start(
        &self,
        parts: &[Part],
        keep: Vec<Opened>,
        host: bool,
    ) -> Result<Box<dyn Flight>, crate::Error> {
        let ctx = keep.first().map_or(0, Opened::context);
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { copy::start(parts, ctx, keep, host)? }))
    }
}

fn is_device(api: &Api, addr: usize) -> bool {
    ask(api, [attr::MEMORY_TYPE, attr::IS_MANAGED], addr)
        .is_ok_and(|[kind, managed]| kind as u32 == TYPE_DEVICE || managed != 0)
}

/// What the driver answers about an address. Each answer gets 8 bytes, which is as long as any is: how
/// many bytes the driver writes for a truth value is told nowhere.
fn ask<const N: usize>(api: &Api, which: [u32; N], addr: usize) -> Result<[u64; N], api::Error> {
    let mut answers = [0u64; N];
    let first = answers.as_mut_ptr();
    // SAFETY: `n` is below `N`.
    let to: [*mut c_void; N] = std::array::from_fn(|n| unsafe { first.add(n) }.cast());
    api.pointer_get(N as u32, which.as_ptr(), to.as_ptr(), addr as u64)?;
    Ok(answers)
}

/// What the driver knows of an address; `None` for memory that is not its.
pub fn info(addr: usize) -> Option<Info> {
    let api = loaded()?;
    let most = [
        attr::MEMORY_TYPE,
        attr::IS_MANAGED,
        attr::CONTEXT,
        attr::DEVICE_ORDINAL,
        attr::RANGE_START,
        attr::RANGE_SIZE,
        attr::BUFFER_ID,
        attr::LEGACY_IPC,
        attr::MEMPOOL,
    ];
    // A driver of before 11.3 has no pools, and refuses to be asked about them.
    static NO_POOLS: AtomicBool = AtomicBool::new(false);
    let all = if NO_POOLS.load(Relaxed) { None } else { ask(api, most, addr).ok() };
    let without = || {
        let [a, b, c, d, e, f, g, h] = ask(api, *most.first_chunk::<8>()?, addr).ok()?;
        NO_POOLS.store(true, Relaxed);
        Some([a, b, c, d, e, f, g, h, 0])
    };
    let [kind, managed, context, device, mut base, mut len, id, legacy, pool] = all.or_else(without)?;
    let (kind, device, context) = (kind as u32, device as i32, context as usize);
    let sort = match kind {
        _ if managed != 0 => Sort::Managed,
        TYPE_HOST => Sort::Host,
        TYPE_DEVICE if pool != 0 => Sort::Pool,
        TYPE_DEVICE if legacy != 0 => Sort::Plain,
        TYPE_DEVICE => Sort::Mapped,
        _ => return None,
    };
    if sort == Sort::Managed && kind == 0 {
        return None;
    }
    if sort == Sort::Mapped {
        // The range is all that was reserved; what is mapped there is what can be shared.
        let mapped = ask(api, [attr::MAPPING_BASE, attr::MAPPING_SIZE], addr);
        if let Ok([at, size @ (1..)]) = mapped {
            (base, len) = (at, size);
        }
    }
    Some(Info { sort, base, len, id, device, context, pool: pool as usize })
}

/// What there is of CUDA in this process, for people: the driver's version and how many devices, or
/// in `Err` why none.
pub fn describe() -> Result<String, String> {
    if !look() {
        return Err("no libcuda.so.1 in this process".into());
    }
    let api = loaded().ok_or("no libcuda.so.1 in this process")?;
    let (mut version, mut devices) = (0, 0);
    api.driver_version(&mut version).map_err(|e| e.to_string())?;
    api.device_count(&mut devices).map_err(|e| e.to_string())?;
    Ok(format!("driver API {}.{}, {devices} devices", version / 1000, version % 1000 / 10))
}

/// Bytes a second that a copy between two devices of this process is about to reach: what NVLink of the
/// first one's generation carries in one direction, by NVIDIA's data sheets, if there is NVLink as far as can
/// be told; else what PCIe does. For estimates.
pub fn peer_bandwidth() -> f64 {
    const PCIE: f64 = 12e9;
    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    const GENERATION: [i32; 2] = [75, 76];
    const NATIVE_ATOMICS: i32 = 3;
    if !look() {
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
    // Over PCIe there are none. Who sees one device cannot ask.
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
