//! How another process reaches this one's device memory: a handle for each allocation.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::api::{
    Api, DMA_BUF_PCIE, Error, HANDLE_POSIX_FD, IpcHandle, NOT_FOUND, RANGE_DMA_BUF, attr, loaded,
};
use super::info::{Info, Sort, ask, info};
use super::pool;
use super::stream::{Entered, context_of, uuid_of};
use crate::kind::Kind;
use crate::share::{Export, HandleType, cached_export};

/// The allocations that `addr..addr+len` is of, in order: at most `most`, each with its handle. An
/// error is why one of them cannot be shared.
pub fn export(addr: usize, len: usize, most: usize) -> Result<Vec<Export>, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let (mut at, end) = (addr as u64, addr as u64 + len as u64);
    let mut out = Vec::new();
    while at < end {
        let of = info(at as usize).ok_or(Error(NOT_FOUND))?;
        if out.len() == most || of.len == 0 || of.base > at {
            return Err(Error(NOT_FOUND));
        }
        out.push(cached_export((Kind::Cuda, is_still), (of.id, of.base, of.len), || make(api, &of))?);
        at = of.base + of.len;
    }
    Ok(out)
}

/// Whether the allocation is still there.
pub(super) fn is_still(e: &Export) -> bool {
    let nameless = e.id >> 63 == 1;
    let same = |i: Info| (i.base, i.len) == (e.base, e.len) && (i.id == e.id || nameless);
    info(e.base as usize).is_some_and(same)
}

/// The device that all of `addr..addr+len` is on, if it is on one and stays there. Memory that was mapped by
/// hand may be of several devices, one behind the other.
pub(super) fn device_of_all(addr: usize, len: usize) -> Option<i32> {
    let (mut at, end) = (addr as u64, addr as u64 + len.max(1) as u64);
    let mut device = None;
    while at < end {
        let of = info(at as usize).filter(|i| !matches!(i.sort, Sort::Managed | Sort::Host))?;
        if of.base > at || of.base + of.len <= at || *device.get_or_insert(of.device) != of.device {
            return None;
        }
        at = of.base + of.len;
    }
    device
}

/// From now on what the application does to it by CUDA's synchronous calls is done when the call returns;
/// what was not done before is waited for. Memory that was mapped by hand has no such attribute
/// (CUDA_ERROR_NOT_SUPPORTED, also if it was made for GPUDirect RDMA). The flag of a context for all its
/// memory (CU_CTX_SYNC_MEMOPS) is left to the application: to set it waits until all that runs in the context
/// is over, and a kernel there may be waiting for a message.
fn set_synchronous(api: &Api, of: &Info) {
    if of.sort != Sort::Mapped {
        let on = 1u32;
        let _ = api.pointer_set((&raw const on).cast(), attr::SYNC_MEMOPS, of.base);
    }
}

/// Waits for what the application has done to the memory of a device there by CUDA's synchronous calls: a
/// copy from memory that is not page-locked returns before the bytes have arrived, and a copy on another
/// stream does not wait for them. Memory that was mapped by hand (cuMemMap) has no such wait.
pub fn settle(addr: usize) {
    let (Some(api), Some(of)) = (loaded(), info(addr)) else { return };
    if let Ok(_entered) = context_of(api, &of).and_then(|ctx| Entered::new(api, ctx)) {
        set_synchronous(api, &of);
    }
}

fn make(api: &Api, of: &Info) -> Result<(Export, Option<OwnedFd>), Error> {
    let entered = Entered::new(api, context_of(api, of)?)?;
    let mut export = Export {
        handle_type: HandleType::Legacy,
        id: of.id,
        base: of.base,
        len: of.len,
        fd: -1,
        device: uuid_of(api, of.device.max(0))?,
        token: [0; 64],
    };
    set_synchronous(api, of);
    let fd = match of.sort {
        Sort::Plain => {
            let mut handle = IpcHandle([0; 64]);
            api.ipc_get(&mut handle, of.base)?;
            export.token = handle.0;
            None
        }
        Sort::Mapped => {
            let fd = descriptor(api, of.base)?;
            export.handle_type = HandleType::Descriptor;
            export.fd = fd.as_raw_fd();
            Some(fd)
        }
        Sort::Pool => {
            // To try it with a pool that was not made for it is an error, which tools that look for errors
            // report.
            let allowed =
                ask(api, [attr::HANDLE_TYPES], of.base as usize).map_or(HANDLE_POSIX_FD, |[a]| a as u32);
            if allowed & HANDLE_POSIX_FD == 0 {
                return Err(Error(NOT_SUPPORTED));
            }
            export.handle_type = HandleType::Pool;
            export.fd = pool::export(api, of, &mut export.token)?;
            None
        }
        // CUDA has no handle for it.
        Sort::Managed | Sort::Host => return Err(Error(NOT_SUPPORTED)),
    };
    drop(entered);
    Ok((export, fd))
}

/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(super) const NOT_SUPPORTED: i32 = 801;

fn descriptor(api: &Api, base: u64) -> Result<OwnedFd, Error> {
    let (mut handle, mut fd) = (0, -1);
    api.mem_retain(&mut handle, std::ptr::with_exposed_provenance_mut(base as usize))?;
    let exported = api.mem_export(&mut fd, handle, HANDLE_POSIX_FD, 0);
    let _ = api.mem_release(handle);
    exported?;
    // SAFETY: the driver has just opened it, for this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn page_size() -> usize {
    // SAFETY: asks for a constant.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// A dma-buf of the memory: what a network card or another driver can be given, and where in it `addr` is.
/// With `pcie`, one that is sure to be reachable over PCIe. It has whole pages of the host's alone, and is of
/// one device.
pub fn export_dmabuf(addr: usize, len: usize, pcie: bool) -> Result<(OwnedFd, u64), Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let of = info(addr).ok_or(Error(NOT_FOUND))?;
    device_of_all(addr, len).ok_or(Error(NOT_SUPPORTED))?;
    let page = page_size();
    let (first, end) = (addr / page * page, addr.saturating_add(len).next_multiple_of(page));
    let _entered = Entered::new(api, context_of(api, &of)?)?;
    let mut fd = -1i32;
    let flags = if pcie { DMA_BUF_PCIE } else { 0 };
    api.range_handle((&raw mut fd).cast(), first as u64, end - first, RANGE_DMA_BUF, flags)?;
    // SAFETY: the driver has just opened it, for this call alone.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, (addr - first) as u64))
}
