//! Completion queues, fi_cq(3).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use engine::{CqId, PollFast, Report};
use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use link::turns;
use runtime::{Wait, Watched};

use crate::domain::{DomainFid, Engine, Guard, Shared};
use crate::errno::{self, Errno};
use crate::ffi::{Counted, Fid, Refs, guard, guard_or, header, known, obj, publish, put, reclaim, this};
use crate::wait::Style;
use crate::xpu::{self, XpuCtxFid};

mod entry;
mod place;
mod sread;

use entry::write_error;
use place::Place;

/// Entries of a queue whose opener leaves the size open.
const DEFAULT_SIZE: usize = 8192;

/// After how many reads that found nothing one lets another process have the core, where there may be one for
/// each.
const PATIENCE: u32 = 4096;
/// Most messages taken in by one read that finds the queue empty.
const BATCH: usize = 32;
/// After so many reads in a row that found the queue filled the next one may make progress all the same.
const TAKEN_IN_A_ROW: u32 = 15;
/// Work with messages that no receive is for (`Domain::kept`) after which a read looks at no further ring,
/// but says that there is nothing. No sleep begins there: to arm an endpoint is to look at its rings.
const DETOURS: u32 = 128;

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

    /// Takes up to `count` entries into `buf`, and their sources into `from` unless that is NULL.
    ///
    /// # Safety
    /// `buf` has room for `count` entries of the queue's format, `from` is NULL or has for as many
    /// addresses.
    #[inline(never)]
    pub(super) unsafe fn read(
        &self,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.read_inlined::<true>(buf, count, from) }
    }

    /// Reads entries; `SOURCES`: `from` may be something else than NULL. With one caller for each, so that
    /// what becomes of a message is compiled in one piece: an entry that is passed on in memory is read back
    /// before it has left the store buffer.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    unsafe fn read_inlined<const SOURCES: bool>(
        &self,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        let mut engine = self.shared.lock_to_poll();
        if !engine.cq_is_empty(self.id) {
            // SAFETY: the caller's promise.
            return unsafe { self.read_standing::<SOURCES>(engine, buf, count, from) };
        }
        self.taken.store(0, Ordering::Relaxed);
        // No ring is looked at: there is nothing to wait for.
        if engine.rests() {
            engine.leave();
            self.batch.store(1, Ordering::Relaxed);
            return Err(Errno::AGAIN);
        }
        // SAFETY: the caller's promise.
        unsafe { self.read_next::<SOURCES>(engine, buf, count, from) }
    }

    /// Reads a queue that has entries.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    unsafe fn read_standing<const SOURCES: bool>(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        let from = if SOURCES { from } else { std::ptr::null_mut() };
        if count == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.read_any(engine, buf, count, from) };
        }
        self.progress_at_last(&mut engine);
        // SAFETY: the caller's promise.
        unsafe { self.take(engine, buf, count, from) }
    }

    /// Reads a queue that has none.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    unsafe fn read_next<const SOURCES: bool>(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        let from = if SOURCES { from } else { std::ptr::null_mut() };
        // A stream of messages is read by batches; a single one is handed on at once.
        let batch = self.batch.load(Ordering::Relaxed);
        let most = count.min(batch);
        if most == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.read_any(engine, buf, count, from) };
        }
        // SAFETY: the caller promised room for one.
        let first = engine.poll_fast(self.id, &mut unsafe { self.place(buf, from, 0) });
        if first == PollFast::Message && most == 1 {
            engine.leave();
            self.batch.store(if batch == 1 { 2 } else { 1 }, Ordering::Relaxed);
            return Ok(1);
        }
        if first == PollFast::Nothing {
            engine.leave();
            self.batch.store(1, Ordering::Relaxed);
            self.wait_a_little();
            return Err(Errno::AGAIN);
        }
        // SAFETY: `most` is no more than `count`, for which the caller promised room.
        let n = match unsafe { self.poll_on(&mut engine, first, buf, most, from) } {
            Some(n) => n,
            // SAFETY: the caller's promise.
            None => return unsafe { self.read_any(engine, buf, count, from) },
        };
        engine.leave();
        if n == 0 {
            self.batch.store(1, Ordering::Relaxed);
            self.wait_a_little();
            return Err(Errno::AGAIN);
        }
        self.batch.store(if n == batch { (2 * n).min(BATCH) } else { n }, Ordering::Relaxed);
        Ok(n)
    }

    /// Goes on behind the first poll of a read, which has found this: up to how many messages the read has taken,
    /// or `None` if there is none and the general way is to look.
    ///
    /// # Safety
    /// As for [`CqFid::read`], `most` in the place of `count`.
    #[inline(never)]
    unsafe fn poll_on(
        &self,
        engine: &mut Engine,
        first: PollFast,
        buf: *mut c_void,
        most: usize,
        from: *mut fi::fi_addr_t,
    ) -> Option<usize> {
        let (mut n, mut detours, mut found) = (0, 0, first);
        loop {
            match found {
                PollFast::Message => n += 1,
                PollFast::Other | PollFast::Unknown if n == 0 => return None,
                PollFast::Kept => {
                    detours += engine.kept();
                    // Answers may have completed operations.
                    if n == 0 && !engine.cq_is_empty(self.id) {
                        return None;
                    }
                    // What is waited for may be in the next ring. A caller that gets nothing perhaps lets
                    // another process have the core.
                    if n > 0 || detours >= DETOURS {
                        return Some(n);
                    }
                }
                _ => return Some(n),
            }
            if n >= most {
                return Some(n);
            }
            // SAFETY: `n < most`, for which the caller promised room.
            found = engine.poll_fast(self.id, &mut unsafe { self.place(buf, from, n) });
        }
    }

    /// A read that finds entries takes them, and makes no progress. So that a program hears of its peers
    /// whose every read finds the completion of what it has just posted, one of some such reads in a row
    /// makes progress first.
    #[inline(always)]
    fn progress_at_last(&self, engine: &mut Engine) {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken < TAKEN_IN_A_ROW {
            return self.taken.store(taken + 1, Ordering::Relaxed);
        }
        self.progress_between(engine);
    }

    /// Makes progress unless that was done within this tick of the kernel's clock: between the messages of a
    /// stream it would take longer than they do, and end what the engine has found out about it.
    #[cold]
    #[inline(never)]
    fn progress_between(&self, engine: &mut Engine) {
        self.taken.store(0, Ordering::Relaxed);
        let tick = (turns::tick() / 1_000_000) as u32;
        if self.tick.swap(tick, Ordering::Relaxed) != tick {
            engine.progress();
        }
    }

    /// Takes entries of a queue that has some; the caller has room for one at least.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    unsafe fn take(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        // SAFETY: `n < count`, for which the caller promised room.
        let n = engine.cq_take(self.id, count, |n, c| unsafe { self.place(buf, from, n) }.report(c));
        engine.leave();
        // The first has failed.
        if n == 0 { Err(Errno::AVAIL) } else { Ok(n) }
    }

    /// Reads what is there, an error, too. With room for none it makes progress all the same, whatever stands
    /// in the queue: fi_cq(3) has that for applications which only want to drive their endpoints.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(never)]
    unsafe fn read_any(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        if count == 0 {
            engine.progress();
        }
        let some = !engine.cq_is_empty(self.id) || (count > 0 && engine.progress_for(self.id, count));
        if some && count > 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.take(engine, buf, count, from) };
        }
        engine.leave();
        if some {
            return Ok(0);
        }
        self.wait_a_little();
        Err(Errno::AGAIN)
    }

    /// Where entry `n` goes.
    ///
    /// # Safety
    /// `buf` has room for more than `n` entries of the queue's format, `from` is NULL or has for as many
    /// addresses, until the place is gone.
    #[inline(always)]
    unsafe fn place(&self, buf: *mut c_void, from: *mut fi::fi_addr_t, n: usize) -> Place {
        // SAFETY: the caller's promise.
        unsafe { Place::new(self.format, buf, from, n) }
    }

    /// Nothing was found. Where there are more processes than cores, a peer may need this one.
    #[inline]
    fn wait_a_little(&self) {
        link::speculation_barrier();
        let n = self.empty.load(Ordering::Relaxed).wrapping_add(1);
        self.empty.store(n, Ordering::Relaxed);
        if n % turns::POLLS == 0 && turns::yields(n, PATIENCE) {
            std::thread::yield_now();
        }
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
