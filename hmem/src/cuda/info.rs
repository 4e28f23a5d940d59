//! What the driver knows of an address.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::api::{Api, Error, TYPE_DEVICE, TYPE_HOST, attr, loaded};

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

pub(super) fn is_device(api: &Api, addr: usize) -> bool {
    ask(api, [attr::MEMORY_TYPE, attr::IS_MANAGED], addr)
        .is_ok_and(|[kind, managed]| kind as u32 == TYPE_DEVICE || managed != 0)
}

/// Whether it is host memory that is page-locked.
pub(super) fn is_host(api: &Api, addr: usize) -> bool {
    ask(api, [attr::MEMORY_TYPE], addr).is_ok_and(|[kind]| kind as u32 == TYPE_HOST)
}

/// What the driver answers about an address. Each answer gets 8 bytes, which is as long as any is: how
/// many bytes the driver writes for a truth value is not documented.
pub(super) fn ask<const N: usize>(api: &Api, which: [u32; N], addr: usize) -> Result<[u64; N], Error> {
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
