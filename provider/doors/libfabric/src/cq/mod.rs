//! Completion queues, fi_cq(3).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use engine::CqId;
use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use runtime::{Wait, Watched};

use crate::domain::{DomainFid, Shared};
use crate::errno::{self, Errno};
use crate::ffi::{Counted, Fid, Refs, guard, guard_or, header, known, obj, publish, put, reclaim, this};
use crate::wait::Style;
use crate::xpu::{self, XpuCtxFid};

mod entry;
mod place;
mod read;

use entry::write_error;

/// Entries of a queue whose opener leaves the size open.
const DEFAULT_SIZE: usize = 8192;

/// `struct fid_cq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CqFid {
    pub fid: fi::fid_cq,
    pub shared: Arc<Shared>,
    pub id: CqId,
    /// Endpoints bound to it.
    pub refs: Refs,
    format: fi::fi_cq_format,
    style: Style,
    threshold: bool,
    pub wait: Arc<Wait>,
    /// There was a signal of which no blocking read has heard, and one of which fi_trywait(3) has not: each
    /// has it once, or that one would keep from a read what is to end it.
    signalled: AtomicBool,
    signalled_fd: AtomicBool,
    /// Messages that the next read takes in at most, if nothing stands in the queue.
    batch: AtomicUsize,
    /// Counts reads that found nothing.
    empty: AtomicU32,
    /// Reads in a row that took what was there, and made no progress.
    taken: AtomicU32,
    /// When one of these last made progress.
    tick: AtomicU32,
    /// A device reads it.
    pub xpu: Option<xpu::Queue>,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for CqFid {
    const CLASS: usize = fi::FI_CLASS_CQ;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

// SAFETY: the raw pointers inside the fid are written once, before the object is shared, and followed
// by the application alone; everything else is synchronized by itself.
unsafe impl Send for CqFid {}
// SAFETY: as above.
unsafe impl Sync for CqFid {}

impl Counted for CqFid {
    fn refs(&self) -> &Refs {
        &self.refs
    }
}

impl CqFid {
    /// Whether an application may now sleep on the descriptor: fi_trywait(3). Not if there was a signal, as a
    /// blocking read does not.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        let quiet = self.shared.try_wait(|_| Watched::Cq(self.id), &self.wait)?;
        // One that comes from here on raises what was lowered before.
        if quiet && !self.signalled_fd.swap(false, Ordering::SeqCst) { Ok(()) } else { Err(Errno::AGAIN) }
    }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), control: Some(control), ..fi::NO_OPS };

static CQ_OPS: fi::fi_ops_cq = fi::fi_ops_cq {
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
    ..fi::NO_OPS_CQ
};

/// Of one that a device reads: the host does not.
static XPU_OPS: fi::fi_ops_cq =
    fi::fi_ops_cq { strerror: Some(strerror), export_xpu: Some(export_xpu), ..fi::NO_OPS_CQ };

/// `fi_ops_domain::cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cq_attr,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain, and NULL or attributes of its version.
        unsafe {
            let domain = obj::<DomainFid, _>(domain)?;
            open_for(domain, attr, xpu::of_cq_attr(attr, &domain.shared)?, cq, context)
        }
    })
}

/// Opens a queue; `device`: one that a device reads.
///
/// # Safety
/// `attr` is NULL or attributes, `cq` NULL or valid for a write.
pub(crate) unsafe fn open_for(
    domain: &DomainFid,
    attr: *const fi::fi_cq_attr,
    device: Option<&XpuCtxFid>,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> Result<(), Errno> {
    let (mut size, mut format, mut object, mut cond) = (0, fi::FI_CQ_FORMAT_UNSPEC, fi::FI_WAIT_NONE, 0);
    let mut flags = 0;
    if !attr.is_null() {
        // SAFETY: the caller's promise; only fields that every version has
        // are read, through places that form no reference.
        unsafe {
            (size, format) = ((*attr).size, (*attr).format);
            (object, cond, flags) = ((*attr).wait_obj, (*attr).wait_cond, (*attr).flags);
        }
    }
    // With FI_XPU or without it: the manual's text and its example differ. Where interrupts go is a hint, and
    // there are none.
    known(flags, fi::FI_AFFINITY | if device.is_some() { fi::FI_XPU } else { 0 })?;
    if format > fi::FI_CQ_FORMAT_TAGGED || cond > fi::FI_CQ_COND_THRESHOLD || cq.is_null() {
        return Err(Errno::INVAL);
    }
    let style = Style::of(object)?;
    let wait = Arc::new(Wait::default());
    if style == Style::Fd(fi::FI_WAIT_FD) {
        wait.fd()?;
    }
    let shared = domain.shared.clone();
    let format = if format == fi::FI_CQ_FORMAT_UNSPEC { fi::FI_CQ_FORMAT_CONTEXT } else { format };
    let xpu = device.map(|ctx| xpu::Queue::new(ctx, size, format)).transpose()?;
    let ops = if xpu.is_some() { &raw const XPU_OPS } else { &raw const CQ_OPS };
    let id = shared.lock().cq_open(if size == 0 { DEFAULT_SIZE } else { size });
    shared.children.inc();
    let fid = publish(Box::new(CqFid {
        fid: fi::fid_cq { fid: header::<CqFid>(context), ops: ops.cast_mut() },
        shared,
        id,
        refs: Refs::default(),
        format,
        style,
        threshold: cond == fi::FI_CQ_COND_THRESHOLD,
        wait,
        signalled: AtomicBool::new(false),
        signalled_fd: AtomicBool::new(false),
        batch: AtomicUsize::new(1),
        taken: AtomicU32::new(0),
        tick: AtomicU32::new(0),
        empty: AtomicU32::new(0),
        xpu,
    }));
    // SAFETY: the caller's promise.
    unsafe { put(cq, fid) }
}

/// `fi_ops_cq::export_xpu`.
pub(crate) unsafe extern "C" fn export_xpu(
    cq: *mut fi::fid_cq,
    flags: u64,
    to: *mut fi::fid_xpu_cq,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open queue.
        let queue = unsafe { obj::<CqFid, _>(cq)? }.xpu.as_ref().ok_or(Errno::INVAL)?;
        // SAFETY: NULL or a place for the answer, whose sole member is this.
        unsafe { xpu::export(to.cast(), fi::FI_CLASS_CQ, queue.view(), flags) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open queue and does not use it during the call.
        let cq = unsafe { obj::<CqFid, _>(fid)? };
        cq.refs.none()?;
        cq.shared.close_in(Some(&cq.wait), |engine| engine.cq_close(cq.id))?;
        cq.shared.children.dec();
        // SAFETY: as above, and no endpoint refers to it.
        drop(unsafe { reclaim(cq) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open queue, and what the command demands.
        unsafe {
            let cq = obj::<CqFid, _>(fid)?;
            cq.style.control(&cq.wait, command, arg)
        }
    })
}

unsafe extern "C" fn read(cq: *mut fi::fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the application passes an open queue and room for `count` entries.
    guard(|| unsafe { this::<CqFid, _>(cq)?.read_inlined::<false>(buf, count, std::ptr::null_mut()) })
}

unsafe extern "C" fn readfrom(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi::fi_addr_t,
) -> isize {
    // SAFETY: the application passes an open queue and room for `count` entries and addresses.
    guard(|| unsafe { obj::<CqFid, _>(cq)?.read(buf, count, src_addr) })
}

unsafe extern "C" fn sread(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the application passes an open queue and room for `count` entries.
    guard(|| unsafe { obj::<CqFid, _>(cq)?.sread(buf, count, std::ptr::null_mut(), cond, timeout) })
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi::fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the application passes an open queue and room for `count` entries and addresses.
    guard(|| unsafe { obj::<CqFid, _>(cq)?.sread(buf, count, src_addr, cond, timeout) })
}

unsafe extern "C" fn readerr(cq: *mut fi::fid_cq, buf: *mut fi::fi_cq_err_entry, flags: u64) -> isize {
    guard(|| {
        known(flags, 0)?;
        // SAFETY: the application passes an open queue.
        let cq = unsafe { obj::<CqFid, _>(cq)? };
        if buf.is_null() {
            return Err(Errno::INVAL);
        }
        let failed = cq.shared.lock().cq_error(cq.id).ok_or(Errno::AGAIN)?;
        crate::journal::failed_completion(&failed);
        // SAFETY: the application passes room for one entry of its version.
        unsafe { write_error(buf, &failed, cq.shared.api_version) };
        Ok(1usize)
    })
}

unsafe extern "C" fn signal(cq: *mut fi::fid_cq) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open queue.
        let cq = unsafe { obj::<CqFid, _>(cq)? };
        if cq.style == Style::None {
            return Err(Errno::NOSYS);
        }
        cq.signalled.store(true, Ordering::SeqCst);
        cq.signalled_fd.store(true, Ordering::SeqCst);
        cq.wait.raise();
        Ok(())
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut fi::fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the application passes NULL or room for `len` bytes.
    guard_or(c"".as_ptr(), || unsafe { errno::strerror(prov_errno, buf, len) })
}
