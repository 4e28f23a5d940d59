//! Devices that post by themselves, fi_xpu(3): contexts, and what of queues, counters, addresses and
//! registrations a device gets. Endpoints are in `ep/xpu.rs`.
//!
//! A device's endpoint is a ring of commands, which a thread of the context drains (`xpu` in the workspace).
//! What is exported is `{fclass, prov_id, prov_ctx}`; `prov_ctx` is the address of a structure of
//! include/strait_xpu_layout.h.
//!
//! The layouts are those of libfabric 2.7. Applications of that version call the native tables; for older
//! ones the same functions are in a table of their own (`table`). Structures whose new field an older
//! application does not have are not read beyond what it has.

pub(crate) mod counter_ops;
mod objects;
mod poller;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hmem::{Kind, registry};
use libc::{c_int, c_void};
use libfabric_sys as fi;
use xpu::{Drains, Near, Regions, Words};

use crate::domain::{DomainFid, Shared};
use crate::errno::Errno;
use crate::ffi::{Counted, Fid, Refs, arg, guard, header, obj, publish, put, reclaim};
pub(crate) use objects::{Counter, Named, Queue, export, lookup, of_cntr_attr, of_cq_attr, region_desc};
pub(crate) use poller::{Poller, Streams};
#[cfg(test)]
pub(crate) use table::Table;
pub(crate) use table::{NAME, TABLE};

/// The first version whose applications have the new fields and tables.
pub(crate) const SINCE: u32 = fi::FI_VERSION(2, 7);
/// Contexts of a domain: a number that is no limit of anything.
pub(crate) const MOST: usize = 1 << 10;
/// Of a device's waits that name no time.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// `struct fid_xpu_ctx`.
#[repr(C)]
pub(crate) struct XpuCtxFid {
    fid: fi::fid_xpu_ctx,
    pub shared: Arc<Shared>,
    refs: Refs,
    pub drains: Arc<Drains>,
    pub regions: Arc<Regions>,
    names: AtomicU64,
    poller: Arc<Poller>,
    importer: Option<Importer>,
    /// The number of the CUDA device whose kernels post.
    cuda: Option<i32>,
}

/// The application's way to have its device find host memory.
#[derive(Clone, Copy)]
struct Importer {
    device: u64,
    import: unsafe extern "C" fn(u64, *mut c_void, u64, u64, *mut *mut c_void) -> c_int,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for XpuCtxFid {
    const CLASS: usize = fi::FI_CLASS_XPU_CTX;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

// SAFETY: the raw pointers inside the fid are written once, before the object is shared, and followed
// by the application alone; everything else is synchronized by itself.
unsafe impl Send for XpuCtxFid {}
// SAFETY: as above.
unsafe impl Sync for XpuCtxFid {}

impl Counted for XpuCtxFid {
    fn refs(&self) -> &Refs {
        &self.refs
    }
}

impl std::fmt::Debug for XpuCtxFid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XpuCtxFid").field("refs", &self.refs).finish_non_exhaustive()
    }
}

impl XpuCtxFid {
    /// A name for a drain.
    pub(crate) fn name(&self) -> u64 {
        self.names.fetch_add(1, Relaxed)
    }

    /// Memory of the device's for what its kernels alone write and read, if there is such.
    pub(crate) fn near(&self) -> Option<Arc<Near>> {
        Near::new(Some(self.cuda?))
    }

    /// So many words that the device finds, too.
    pub(crate) fn words(&self, words: usize) -> Result<Arc<Words>, Errno> {
        let made = match self.importer {
            None => Words::new(words),
            Some(by) => Words::imported(words, |at, bytes| {
                let (mut there, at) = (std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut(at));
                let flags = fi::FI_XPU_IMPORT_DEVICEMAP;
                // SAFETY: fi_xpu(3): the application's callback, for mapped memory of that length, and a
                // place.
                match unsafe { (by.import)(by.device, at, bytes as u64, flags, &mut there) } {
                    0 if !there.is_null() => Ok(there.addr() as u64),
                    _ => Err(xpu::Error::Invalid("the application's import of host memory failed")),
                }
            }),
        };
        made.map_err(|e| {
            log::warn!("fi_xpu: memory for a device: {e}");
            Errno(e.errno())
        })
    }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), ..fi::NO_OPS };

static CTX_OPS: fi::fi_ops_xpu_ctx =
    fi::fi_ops_xpu_ctx { query: Some(query), size: size_of::<fi::fi_ops_xpu_ctx>() };

/// Whether an application of this domain has the new fields and tables.
pub(crate) fn is_native(shared: &Shared) -> bool {
    shared.api_version >= SINCE
}

/// `fi_ops_domain::xpu_ctx`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_xpu_attr,
    ctx: *mut *mut fi::fid_xpu_ctx,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain and attributes, of one layout in all versions.
        let (domain, attr) = unsafe { (obj::<DomainFid, _>(domain)?, arg(attr)?) };
        if ctx.is_null() {
            return Err(Errno::INVAL);
        }
        let shared = domain.shared.clone();
        several_threads(&shared)?;
        check_device(attr.iface)?;
        // SAFETY: NULL or the application's table, whose size is set.
        let importer = unsafe { importer(attr) }?;
        let poller = Poller::start(&shared)?;
        shared.children.inc();
        let fid = publish(Box::new(XpuCtxFid {
            fid: fi::fid_xpu_ctx { fid: header::<XpuCtxFid>(context), ops: (&raw const CTX_OPS).cast_mut() },
            shared,
            refs: Refs::default(),
            drains: poller.drains.clone(),
            regions: Arc::default(),
            names: AtomicU64::new(0),
            poller,
            importer,
            cuda: i32::try_from(attr.device).ok().filter(|_| attr.iface == fi::FI_HMEM_CUDA),
        }));
        // SAFETY: the application passes a place for the answer.
        unsafe { put(ctx, fid) }
    })
}

/// Whether a thread of the provider may enter the domain.
fn several_threads(shared: &Shared) -> Result<(), Errno> {
    if shared.one_thread {
        log::info!(
            "a device's context or counter: a domain of FI_THREAD_DOMAIN without FI_XPU in fi_info::caps; ask for \
             FI_THREAD_SAFE"
        );
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

/// Whether the process has such devices. FI_HMEM_SYSTEM: the host plays the device.
fn check_device(iface: fi::fi_hmem_iface) -> Result<(), Errno> {
    let kind = match iface {
        fi::FI_HMEM_SYSTEM => return Ok(()),
        fi::FI_HMEM_CUDA => Kind::Cuda,
        fi::FI_HMEM_ROCR => Kind::Rocr,
        fi::FI_HMEM_ZE => Kind::Ze,
        _ => return Err(Errno::OPNOTSUPP),
    };
    if !registry::is_here(kind) {
        log::info!("fi_xpu_ctx: interface {iface} asked, whose runtime this process has not loaded");
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

/// # Safety
/// `attr.ops` is NULL or a table whose first member is its size.
unsafe fn importer(attr: &fi::fi_xpu_attr) -> Result<Option<Importer>, Errno> {
    let ops = attr.ops;
    if ops.is_null() {
        return Ok(None);
    }
    // What is behind `import` differs between versions, and is not looked at.
    let least = std::mem::offset_of!(fi::fi_xpu_ops, import) + size_of::<usize>();
    // SAFETY: the caller's promise; the place forms no reference to a table that may be shorter.
    let import = unsafe {
        if (*ops).size < least {
            return Err(Errno::INVAL);
        }
        (*ops).import
    };
    Ok(import.map(|import| Importer { device: attr.device, import }))
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open context and does not use it during the call.
        let ctx = unsafe { obj::<XpuCtxFid, _>(fid)? };
        ctx.refs.none()?;
        let shared = ctx.shared.clone();
        // SAFETY: as above, and nothing refers to it.
        drop(unsafe { reclaim(ctx) });
        shared.children.dec();
        Ok(())
    })
}

unsafe extern "C" fn query(ctx: *mut fi::fid_xpu_ctx, attr: *mut fi::fi_xpu_ctx_attr) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open context.
        unsafe { obj::<XpuCtxFid, _>(ctx)? };
        let caps = fi::FI_XPU_CAP_EP | fi::FI_XPU_CAP_CQ | fi::FI_XPU_CAP_CNTR;
        // Three members: the structure has no size, and newer versions have more.
        // SAFETY: the application passes a place for the answer.
        unsafe { put(attr, fi::fi_xpu_ctx_attr { caps, av_addr_size: 8, mr_desc_size: 8 }) }
    })
}

/// The context that an application passed, if it is one of this domain.
///
/// # Safety
/// `ctx` is NULL or a live fid.
pub(crate) unsafe fn of<'a>(
    ctx: *const fi::fid_xpu_ctx,
    shared: &Arc<Shared>,
) -> Result<&'a XpuCtxFid, Errno> {
    // SAFETY: the caller's promise.
    let ctx = unsafe { obj::<XpuCtxFid, _>(ctx)? };
    if Arc::ptr_eq(&ctx.shared, shared) { Ok(ctx) } else { Err(Errno::INVAL) }
}
