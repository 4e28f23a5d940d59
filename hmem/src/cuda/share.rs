//! How another process reaches this one's device memory: a handle for each allocation.
//!
//! An allocation's number (its buffer id) never comes again, so what is remembered under it cannot
//! be taken for a later allocation at the same address. What is remembered holds nothing but
//! descriptors, of memory mapped by hand; those keep the memory alive, so they are given back as
//! soon as their allocation is found to be gone, and the oldest ones beyond a bound.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::api::{Api, DMA_BUF_PCIE, Error, HANDLE_POSIX_FD, IpcHandle, NOT_FOUND, RANGE_DMA_BUF, attr};
use super::lane::{Entered, context_of};
use super::{Info, Sort, info, loaded};

/// Most allocations remembered.
const BOUND: usize = 1024;

/// What kind of handle it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum How {
    /// `token` is a `CUipcMemHandle`.
    Legacy = 1,
    /// `fd` is a shareable handle, a descriptor in the exporting process.
    Descriptor = 2,
}

impl How {
    /// The one with this number.
    pub fn from_u8(v: u8) -> Option<How> {
        match v {
            1 => Some(How::Legacy),
            2 => Some(How::Descriptor),
            _ => None,
        }
    }
}

/// An allocation as another process is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// What kind of handle this is.
    pub how: How,
    /// The allocation's number in the exporting process.
    pub id: u64,
    /// First byte of it there.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Of [`How::Descriptor`].
    pub fd: i32,
    /// The device it is on.
    pub device: [u8; 16],
    /// Of [`How::Legacy`].
    pub token: [u8; 64],
}

struct Kept {
    export: Export,
    /// Held open for whoever imports it.
    fd: Option<Arc<OwnedFd>>,
}

fn kept() -> MutexGuard<'static, VecDeque<Kept>> {
    static KEPT: Mutex<VecDeque<Kept>> = Mutex::new(VecDeque::new());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

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
        out.push(one(api, &of)?);
        at = of.base + of.len;
    }
    Ok(out)
}

fn one(api: &Api, of: &Info) -> Result<Export, Error> {
    let same = |k: &Kept| k.export.id == of.id && k.export.base == of.base && k.export.len == of.len;
    if of.id != 0 {
        let mut kept = kept();
        if let Some(at) = kept.iter().position(same) {
            // Those lately used stay longest.
            if at > BOUND / 2 {
                kept.swap(at, 0);
                return Ok(kept[0].export);
            }
            return Ok(kept[at].export);
        }
    }
    let new = make(api, of)?;
    let export = new.export;
    let mut kept = kept();
    if of.id != 0 || new.fd.is_some() {
        kept.retain(|k| k.fd.is_none() || is_alive(&k.export));
        kept.push_front(new);
        kept.truncate(BOUND);
    }
    Ok(export)
}

/// Whether the allocation is still there.
fn is_alive(e: &Export) -> bool {
    let nameless = e.id >> 63 == 1;
    let same = |i: Info| (i.base, i.len) == (e.base, e.len) && (i.id == e.id || nameless);
    info(e.base as usize).is_some_and(same)
}

fn make(api: &Api, of: &Info) -> Result<Kept, Error> {
    let entered = Entered::new(api, context_of(api, of)?)?;
    let mut export = Export {
        how: How::Legacy,
        id: of.id,
        base: of.base,
        len: of.len,
        fd: -1,
        device: [0; 16],
        token: [0; 64],
    };
    api.device_uuid(&mut export.device, of.device.max(0))?;
    // So that what the application does to it synchronously is done when the call is.
    let on = 1u32;
    let _ = api.pointer_set((&raw const on).cast(), attr::SYNC_MEMOPS, of.base);
    if export.id == 0 {
        // A number that is never found again: whoever opens it must not take it for an earlier one.
        static NAMELESS: AtomicU64 = AtomicU64::new(1 << 63);
        export.id = NAMELESS.fetch_add(1, Relaxed);
    }
    let fd = match of.sort {
        Sort::Plain => {
            let mut handle = IpcHandle([0; 64]);
            api.ipc_get(&mut handle, of.base)?;
            export.token = handle.0;
            None
        }
        Sort::Mapped => {
            let fd = descriptor(api, of.base)?;
            export.how = How::Descriptor;
            export.fd = fd.as_raw_fd();
            Some(Arc::new(fd))
        }
        // A pool has to be made for sharing, and the ones that CUDA makes by default are not.
        Sort::Pool | Sort::Managed | Sort::Host => return Err(Error(NOT_SUPPORTED)),
    };
    drop(entered);
    Ok(Kept { export, fd })
}

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;

fn descriptor(api: &Api, base: u64) -> Result<OwnedFd, Error> {
    let (mut handle, mut fd) = (0, -1);
    api.mem_retain(&mut handle, std::ptr::with_exposed_provenance_mut(base as usize))?;
    let exported = api.mem_export(&mut fd, handle, HANDLE_POSIX_FD, 0);
    let _ = api.mem_release(handle);
    exported?;
    // SAFETY: the driver has just opened it, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A dma-buf of the memory: what a network card or another driver can be given. With `pcie`, one
/// that is sure to be reachable over PCIe.
pub fn export_dmabuf(addr: usize, len: usize, pcie: bool) -> Result<OwnedFd, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let of = info(addr).ok_or(Error(NOT_FOUND))?;
    let _entered = Entered::new(api, context_of(api, &of)?)?;
    let mut fd = -1i32;
    let flags = if pcie { DMA_BUF_PCIE } else { 0 };
    api.range_handle((&raw mut fd).cast(), addr as u64, len, RANGE_DMA_BUF, flags)?;
    // SAFETY: the driver has just opened it, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
