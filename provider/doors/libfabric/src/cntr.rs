//! Counters, fi_cntr(3).

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use engine::CntrId;
use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use runtime::{Deadline, Step, Wait, Watched};

use crate::domain::{DomainFid, Engine, Shared};
use crate::errno::Errno;
use crate::ffi::{Counted, Fid, Refs, guard, guard_or, header, known, obj, open_ops, publish, put, reclaim};
use crate::wait::Style;
use crate::xpu::counter_ops::{self, CntrOps, HasWords};
use crate::xpu::{self, XpuCtxFid};

/// `struct fid_cntr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CntrFid {
    pub fid: fi::fid_cntr,
    pub shared: Arc<Shared>,
    pub id: CntrId,
    /// Endpoints and registrations bound to it.
    pub refs: Refs,
    style: Style,
    pub wait: Arc<Wait>,
    /// What the application read last: the value, the error value, and the number of the thread that read
    /// these first (0: none). Changed with the engine's lock, as both values are.
    last: [AtomicU64; 3],
    sleepers: Sleepers,
    /// The errors that the application knows of: it has read them, waited until they came, or set them.
    /// Others end a wait, those too that come between a call and the wait, or with the wait's first poll.
    /// Changed with the engine's lock, as the errors are.
    known_errors: AtomicU64,
    /// A device reads it and adds to it: from the start, or from the first call of [`STREAM_OPS`] on.
    pub xpu: OnceLock<xpu::Counter>,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for CntrFid {
    const CLASS: usize = fi::FI_CLASS_CNTR;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

// SAFETY: the raw pointers inside the fid are written once, before the object is shared, and followed
// by the application alone; everything else is synchronized by itself.
unsafe impl Send for CntrFid {}
// SAFETY: as above.
unsafe impl Sync for CntrFid {}

impl Counted for CntrFid {
    fn refs(&self) -> &Refs {
        &self.refs
    }
}

impl CntrFid {
    /// Whether an application may now sleep on the descriptor: fi_trywait(3). FI_EAGAIN if the counter has
    /// changed since it was last read, or if another thread read the change: this one may have read the value
    /// before. FI_EAGAIN also while another thread that may sleep on the descriptor has not read the counter
    /// since the change: this call would clear that thread's wake-up.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        let (mut knows, mut others_know) = (false, false);
        let quiet = self.shared.try_wait(
            |engine| {
                self.sleepers.is_back();
                let [n, errs, by] = self.last.each_ref().map(|last| last.load(Relaxed));
                knows = by == 0 || by == this_thread();
                others_know =
                    self.sleepers.all_know((engine.cntr_read(self.id), engine.cntr_readerr(self.id)));
                let may = knows && others_know;
                if may {
                    self.sleepers.goes((n, errs));
                }
                // The thread is registered only where it may sleep: a counter that has changed registers
                // none.
                Watched::Cntr(self.id, if may { n } else { !engine.cntr_read(self.id) }, errs)
            },
            &self.wait,
        )?;
        if quiet {
            return Ok(());
        }
        if !others_know {
            std::thread::sleep(YIELD);
        }
        // FI_EAGAIN has the thread read the counter, once for each change.
        let engine = self.shared.lock();
        self.last[2].store(0, Relaxed);
        self.read_noted(&engine);
        Err(Errno::AGAIN)
    }

    /// The counter and its errors, noted as read by the application.
    fn read_noted(&self, engine: &Engine) -> (u64, u64) {
        let (n, errs) = (engine.cntr_read(self.id), engine.cntr_readerr(self.id));
        self.sleepers.is_back();
        let [last, last_errs, by] = &self.last;
        if by.load(Relaxed) == 0 || (last.load(Relaxed), last_errs.load(Relaxed)) != (n, errs) {
            last.store(n, Relaxed);
            last_errs.store(errs, Relaxed);
            by.store(this_thread(), Relaxed);
        }
        (n, errs)
    }

    /// Makes progress first.
    fn read_now(&self) -> (u64, u64) {
        self.read_with(|_, _| false)
    }

    /// Makes progress first; the application knows of the errors then if `knows` is true for the value and
    /// them.
    fn read_with(&self, knows: impl FnOnce(u64, u64) -> bool) -> (u64, u64) {
        let mut engine = self.shared.lock_to_poll();
        self.take_device(&mut engine);
        engine.progress();
        let (n, errs) = self.read_noted(&engine);
        if knows(n, errs) {
            self.known_errors.store(errs, Relaxed);
        }
        (n, errs)
    }

    fn wait_for(&self, threshold: u64, timeout: c_int) -> Result<(), Errno> {
        let known = self.known_errors.load(Relaxed);
        let ended = self.shared.block(&self.wait, self.style.idle(), Deadline::after_ms(timeout), || {
            let (n, errs) = self.read_with(|n, errs| n < threshold && errs != known);
            if n >= threshold {
                return Step::Done(Ok(()));
            }
            if errs != known {
                return Step::Done(Err(Errno::AVAIL));
            }
            Step::Wait(Watched::Cntr(self.id, n, errs))
        })?;
        ended.unwrap_or(Err(Errno::TIMEDOUT))
    }

    /// What a device has added counts from now on.
    #[inline]
    fn take_device(&self, engine: &mut Engine) {
        if let Some(device) = self.xpu.get() {
            device.side.take(engine);
        }
    }

    /// Calls with the engine, and the counter's name in it.
    fn change(&self, how: impl FnOnce(&mut Engine, CntrId)) -> Result<(), Errno> {
        let mut engine = self.shared.lock();
        self.take_device(&mut engine);
        how(&mut engine, self.id);
        Ok(())
    }

    /// Errors that the application adds or sets it knows of. Threads that wait already hear of them.
    fn add_errors(&self, value: u64) -> Result<(), Errno> {
        let mut engine = self.shared.lock();
        engine.cntr_adderr(self.id, value);
        self.known_errors.fetch_add(value, Relaxed);
        Ok(())
    }

    fn set_errors(&self, value: u64) -> Result<(), Errno> {
        let mut engine = self.shared.lock();
        self.take_device(&mut engine);
        engine.cntr_seterr(self.id, value);
        self.known_errors.store(value, Relaxed);
        Ok(())
    }
}

static OPS: fi::fi_ops =
    fi::fi_ops { close: Some(close), control: Some(control), ops_open: Some(ops_open), ..fi::NO_OPS };

/// `FI_STRAIT_CNTR_OPS`.
static STREAM_OPS: CntrOps = counter_ops::table::<CntrFid>();

impl HasWords for CntrFid {
    fn words(&self) -> Result<&xpu::Counter, Errno> {
        if let Some(counter) = self.xpu.get() {
            return Ok(counter);
        }
        let made = xpu::Counter::without_context(&self.shared, self.id)?;
        // Where two threads come here at once, both have those of the first.
        Ok(self.xpu.get_or_init(|| made))
    }
}

static CNTR_OPS: fi::fi_ops_cntr = fi::fi_ops_cntr {
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
    ..fi::NO_OPS_CNTR
};

/// Of one that a device reads and adds to.
static XPU_OPS: fi::fi_ops_cntr = fi::fi_ops_cntr { export_xpu: Some(export_xpu), ..CNTR_OPS };

/// `fi_ops::ops_open` of a counter.
unsafe extern "C" fn ops_open(
    _fid: *mut fi::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    let table = |n: &CStr| {
        [counter_ops::NAME, counter_ops::FIRST_NAME].contains(&n).then(|| (&raw const STREAM_OPS).cast())
    };
    // SAFETY: the application passes a string, and a place for the answer.
    unsafe { open_ops(name, flags, ops, table) }
}

/// `fi_ops_domain::cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cntr_attr,
    cntr: *mut *mut fi::fid_cntr,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain, and NULL or attributes of its version.
        unsafe {
            let domain = obj::<DomainFid, _>(domain)?;
            open_for(domain, attr, xpu::of_cntr_attr(attr, &domain.shared)?, cntr, context)
        }
    })
}

/// Opens a counter; `device`: one that a device reads.
///
/// # Safety
/// `attr` is NULL or attributes, `cntr` NULL or valid for a write.
pub(crate) unsafe fn open_for(
    domain: &DomainFid,
    attr: *const fi::fi_cntr_attr,
    device: Option<&XpuCtxFid>,
    cntr: *mut *mut fi::fid_cntr,
    context: *mut c_void,
) -> Result<(), Errno> {
    let (mut events, mut object, mut flags) = (fi::FI_CNTR_EVENTS_COMP, fi::FI_WAIT_UNSPEC, 0);
    if !attr.is_null() {
        // SAFETY: the caller's promise; only fields that every version has
        // are read, through places that form no reference.
        unsafe { (events, object, flags) = ((*attr).events, (*attr).wait_obj, (*attr).flags) };
    }
    if events != fi::FI_CNTR_EVENTS_COMP {
        log::info!("fi_cntr_open: counting bytes asked, counting completions offered");
        return Err(Errno::NOSYS);
    }
    // With FI_XPU or without it: the manual's text and its example differ.
    known(flags, if device.is_some() { fi::FI_XPU } else { 0 })?;
    if cntr.is_null() {
        return Err(Errno::INVAL);
    }
    let style = match Style::of(object)? {
        Style::Fd(_) => Style::Fd(fi::FI_WAIT_FD),
        other => other,
    };
    let wait = Arc::new(Wait::default());
    if object == fi::FI_WAIT_FD {
        wait.fd()?;
    }
    let shared = domain.shared.clone();
    let id = shared.lock().cntr_open();
    shared.children.inc();
    let xpu = device.map(|ctx| xpu::Counter::new(ctx, id)).transpose();
    let xpu = xpu.inspect_err(|_| {
        let _ = shared.close_in(None, |engine| engine.cntr_close(id));
        shared.children.dec();
    })?;
    let ops = if xpu.is_some() { &raw const XPU_OPS } else { &raw const CNTR_OPS }.cast_mut();
    let fid = publish(Box::new(CntrFid {
        fid: fi::fid_cntr { fid: header::<CntrFid>(context), ops },
        shared,
        id,
        refs: Refs::default(),
        style,
        wait,
        last: Default::default(),
        sleepers: Sleepers::default(),
        known_errors: AtomicU64::new(0),
        xpu: xpu.map(OnceLock::from).unwrap_or_default(),
    }));
    // SAFETY: the caller's promise.
    unsafe { put(cntr, fid) }
}

/// `fi_ops_cntr::export_xpu`.
pub(crate) unsafe extern "C" fn export_xpu(
    cntr: *mut fi::fid_cntr,
    flags: u64,
    to: *mut fi::fid_xpu_cntr,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open counter.
        let counter = unsafe { obj::<CntrFid, _>(cntr)? }.xpu.get().ok_or(Errno::INVAL)?;
        // SAFETY: NULL or a place for the answer, whose sole member is this.
        unsafe { xpu::export(to.cast(), fi::FI_CLASS_CNTR, counter.side.device(), flags) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open counter and does not use it during the call.
        let cntr = unsafe { obj::<CntrFid, _>(fid)? };
        cntr.refs.none()?;
        cntr.shared.close_in(Some(&cntr.wait), |engine| match cntr.xpu.get() {
            Some(device) => device.side.close(engine),
            None => engine.cntr_close(cntr.id),
        })?;
        if let Some(device) = cntr.xpu.get() {
            device.release(&cntr.shared);
        }
        cntr.shared.children.dec();
        // SAFETY: as above, and nothing refers to it.
        drop(unsafe { reclaim(cntr) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open counter, and what the command demands.
        unsafe {
            let cntr = obj::<CntrFid, _>(fid)?;
            cntr.style.control(&cntr.wait, command, arg)
        }
    })
}

unsafe extern "C" fn read(cntr: *mut fi::fid_cntr) -> u64 {
    guard_or(0, || {
        // SAFETY: the application passes an open counter.
        unsafe { obj::<CntrFid, _>(cntr) }.map_or(0, |cntr| cntr.read_now().0)
    })
}

unsafe extern "C" fn readerr(cntr: *mut fi::fid_cntr) -> u64 {
    guard_or(0, || {
        // SAFETY: the application passes an open counter.
        unsafe { obj::<CntrFid, _>(cntr) }.map_or(0, |cntr| cntr.read_with(|_, _| true).1)
    })
}

unsafe extern "C" fn add(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    // SAFETY: the application passes an open counter.
    guard(|| unsafe { obj::<CntrFid, _>(cntr)? }.change(|e, id| e.cntr_add(id, value)))
}

unsafe extern "C" fn set(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    // SAFETY: the application passes an open counter.
    guard(|| unsafe { obj::<CntrFid, _>(cntr)? }.change(|e, id| e.cntr_set(id, value)))
}

unsafe extern "C" fn adderr(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    // SAFETY: the application passes an open counter.
    guard(|| unsafe { obj::<CntrFid, _>(cntr)? }.add_errors(value))
}

unsafe extern "C" fn seterr(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    // SAFETY: the application passes an open counter.
    guard(|| unsafe { obj::<CntrFid, _>(cntr)? }.set_errors(value))
}

unsafe extern "C" fn wait(cntr: *mut fi::fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: the application passes an open counter.
    guard(|| unsafe { obj::<CntrFid, _>(cntr)? }.wait_for(threshold, timeout))
}

/// How long a thread leaves the core to those that have yet to read the counter.
const YIELD: Duration = Duration::from_micros(50);
/// How long it does so at most: a thread that was allowed to sleep may never read the counter again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The threads that may sleep on the descriptor, and have not read the counter since. Used with the engine's
/// lock.
#[derive(Debug, Default)]
struct Sleepers {
    some: AtomicBool,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// Each thread with the values that it read.
    threads: Vec<(u64, (u64, u64))>,
    /// Since when one of them keeps others from sleeping.
    since: Option<Instant>,
}

impl Sleepers {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread may sleep.
    fn goes(&self, last: (u64, u64)) {
        self.list().threads.push((this_thread(), last));
        self.some.store(true, Relaxed);
    }

    /// This thread does not sleep.
    #[inline]
    fn is_back(&self) {
        if self.some.load(Relaxed) {
            let threads = &mut self.list().threads;
            threads.retain(|(thread, _)| *thread != this_thread());
            self.some.store(!threads.is_empty(), Relaxed);
        }
    }

    /// Whether all threads of the list have read the present values.
    fn all_know(&self, now: (u64, u64)) -> bool {
        let list = &mut *self.list();
        if list.threads.iter().all(|(_, last)| *last == now) {
            list.since = None;
        } else if list.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return false;
        } else {
            list.threads.retain(|(_, last)| *last == now);
            list.since = None;
        }
        true
    }
}

/// A number of this thread's own, not 0.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static THIS: u64 = NEXT.fetch_add(1, Relaxed));
    THIS.with(|this| *this)
}
