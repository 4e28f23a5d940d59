//! Event queues, fi_eq(3).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use runtime::{Deadline, Wait};

use crate::errno::{self, Errno};
use crate::fabric::{FabricFid, FabricShared};
use crate::ffi::{Counted, Fid, Refs, guard, guard_or, header, known, obj, publish, put, reclaim};
use crate::wait::Style;

/// `struct fid_eq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EqFid {
    pub fid: fi::fid_eq,
    /// Endpoints, domains, address vectors bound to it.
    pub refs: Refs,
    fabric: Arc<FabricShared>,
    writable: bool,
    style: Style,
    wait: Wait,
    events: Mutex<VecDeque<Event>>,
    /// Joins that are not over.
    joins: Mutex<Vec<Joining>>,
}

/// A join of a group.
pub(crate) trait Join: std::fmt::Debug + Send + Sync {
    /// Makes progress. How it ended, once.
    fn ended(&self) -> Option<Result<(), Errno>>;
}

/// A join whose end is an event: a call that reads the queue makes progress with it.
#[derive(Debug)]
pub(crate) struct Joining {
    pub join: Box<dyn Join>,
    /// Numbers, as in [`Failure`].
    pub fid: usize,
    pub context: usize,
}

#[derive(Debug)]
enum Event {
    Plain(u32, Box<[u8]>),
    Error(Failure),
}

/// `struct fi_eq_err_entry` without its data, of which there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// Numbers, not pointers: nothing here follows them.
    pub fid: usize,
    pub context: usize,
    pub data: u64,
    pub err: Errno,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for EqFid {
    const CLASS: usize = fi::FI_CLASS_EQ;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

// SAFETY: the raw pointers inside the fid are written once, before the object is shared, and followed
// by the application alone; everything else is synchronized by itself.
unsafe impl Send for EqFid {}
// SAFETY: as above.
unsafe impl Sync for EqFid {}

impl Counted for EqFid {
    fn refs(&self) -> &Refs {
        &self.refs
    }
}

impl EqFid {
    /// Queues an event that consists of a `fi_eq_entry`.
    pub(crate) fn post(&self, event: u32, fid: *const fi::fid, context: *mut c_void, data: u64) {
        let mut bytes = Vec::with_capacity(size_of::<fi::fi_eq_entry>());
        for word in [fid.expose_provenance() as u64, context.expose_provenance() as u64, data] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        self.push(Event::Plain(event, bytes.into()));
    }

    /// Queues an error.
    pub(crate) fn post_error(&self, failure: Failure) {
        self.push(Event::Error(failure));
    }

    fn push(&self, event: Event) {
        let mut events = self.events();
        events.push_back(event);
        // With the lock: another thread may take the event, and lower this, next.
        self.wait.raise();
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the head off, and the wake-up back with the last one.
    fn pop(&self, events: &mut VecDeque<Event>) {
        events.pop_front();
        if events.is_empty() {
            self.wait.lower();
        }
    }

    /// Nothing wakes a thread that sleeps when a join makes progress: none is to sleep meanwhile.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        if self.events().is_empty() && self.joins().is_empty() { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn joins(&self) -> MutexGuard<'_, Vec<Joining>> {
        self.joins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of a join is to be an event.
    pub(crate) fn expect(&self, joining: Joining) {
        self.joins().push(joining);
    }

    /// The group is left.
    pub(crate) fn forget(&self, fid: usize) {
        self.joins().retain(|joining| joining.fid != fid);
    }

    /// Makes progress with joins. Whether some are not over.
    fn join(&self) -> bool {
        let mut joins = self.joins();
        joins.retain(|&Joining { ref join, fid, context }| {
            match join.ended() {
                None => return true,
                Some(Ok(())) => {
                    let (fid, context) = (fid as *const fi::fid, context as *mut c_void);
                    self.post(fi::FI_JOIN_COMPLETE, fid, context, 0);
                }
                Some(Err(err)) => self.post_error(Failure { fid, context, data: 0, err }),
            }
            false
        });
        !joins.is_empty()
    }

    /// # Safety
    /// `event` is valid for a write, `buf` for `len` bytes of them.
    unsafe fn read(&self, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> Result<usize, Errno> {
        known(flags, fi::FI_PEEK)?;
        self.join();
        let mut events = self.events();
        match events.front() {
            None => Err(Errno::AGAIN),
            Some(Event::Error(_)) => Err(Errno::AVAIL),
            Some(Event::Plain(_, bytes)) if bytes.len() > len || buf.is_null() => Err(Errno::TOOSMALL),
            Some(Event::Plain(code, bytes)) => {
                let n = bytes.len();
                // SAFETY: the caller's promise, and `n <= len`.
                unsafe {
                    put(event, *code)?;
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), n);
                }
                if flags & fi::FI_PEEK == 0 {
                    self.pop(&mut events);
                }
                Ok(n)
            }
        }
    }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), control: Some(control), ..fi::NO_OPS };

static EQ_OPS: fi::fi_ops_eq = fi::fi_ops_eq {
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
    ..fi::NO_OPS_EQ
};

/// `fi_ops_fabric::eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    attr: *mut fi::fi_eq_attr,
    eq: *mut *mut fi::fid_eq,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open fabric and NULL or attributes, of one layout in all
        // versions.
        let (fabric, attr) = unsafe { (obj::<FabricFid, _>(fabric)?, attr.as_ref()) };
        // Where interrupts go is a hint, and there are none.
        known(attr.map_or(0, |a| a.flags), fi::FI_WRITE | fi::FI_AFFINITY)?;
        let style = Style::of(attr.map_or(fi::FI_WAIT_NONE, |a| a.wait_obj))?;
        if eq.is_null() {
            return Err(Errno::INVAL);
        }
        let wait = Wait::default();
        if style == Style::Fd(fi::FI_WAIT_FD) {
            wait.fd()?;
        }
        fabric.shared.children.inc();
        let fid = publish(Box::new(EqFid {
            fid: fi::fid_eq { fid: header::<EqFid>(context), ops: (&raw const EQ_OPS).cast_mut() },
            refs: Refs::default(),
            fabric: fabric.shared.clone(),
            writable: attr.is_some_and(|a| a.flags & fi::FI_WRITE != 0),
            style,
            wait,
            events: Mutex::default(),
            joins: Mutex::default(),
        }));
        // SAFETY: the application passes a place for the answer.
        unsafe { put(eq, fid) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open queue and does not use it during the call.
        let eq = unsafe { obj::<EqFid, _>(fid)? };
        eq.refs.none()?;
        // SAFETY: as above, and nothing refers to it.
        let eq = unsafe { reclaim(eq) };
        eq.fabric.children.dec();
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open queue, and what the command demands.
        unsafe {
            let eq = obj::<EqFid, _>(fid)?;
            eq.style.control(&eq.wait, command, arg)
        }
    })
}

unsafe extern "C" fn read(
    eq: *mut fi::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: the application passes an open queue, and places for the event.
    guard(|| unsafe { obj::<EqFid, _>(eq)?.read(event, buf, len, flags) })
}

unsafe extern "C" fn sread(
    eq: *mut fi::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: the application passes an open queue.
        let eq = unsafe { obj::<EqFid, _>(eq)? };
        if eq.style == Style::None {
            return Err(Errno::NOSYS);
        }
        let until = Deadline::after_ms(timeout);
        loop {
            // SAFETY: the application passes places for the event.
            match unsafe { eq.read(event, buf, len, flags) } {
                Err(Errno::AGAIN) if until.passed() => return Err(Errno::AGAIN),
                Err(Errno::AGAIN) if eq.style == Style::Yield || !eq.joins().is_empty() => {
                    std::thread::yield_now()
                }
                // A raise stands until the last event is taken.
                Err(Errno::AGAIN) => eq.wait.sleep(until)?,
                done => return done,
            }
        }
    })
}

unsafe extern "C" fn readerr(eq: *mut fi::fid_eq, buf: *mut fi::fi_eq_err_entry, flags: u64) -> isize {
    guard(|| {
        // SAFETY: the application passes an open queue.
        let eq = unsafe { obj::<EqFid, _>(eq)? };
        known(flags, fi::FI_PEEK)?;
        eq.join();
        let mut events = eq.events();
        let Some(Event::Error(f)) = events.front() else { return Err(Errno::AGAIN) };
        // SAFETY: the application passes room for an entry, of one layout in all versions.
        let entry = unsafe { buf.as_mut() }.ok_or(Errno::INVAL)?;
        let own = entry.err_data_size > 0 && eq.fabric.api_version >= fi::FI_VERSION(1, 5);
        *entry = fi::fi_eq_err_entry {
            fid: f.fid as *mut fi::fid,
            context: f.context as *mut c_void,
            data: f.data,
            err: f.err.0,
            prov_errno: f.err.0,
            err_data: if own { entry.err_data } else { std::ptr::null_mut() },
            err_data_size: 0,
        };
        if flags & fi::FI_PEEK == 0 {
            eq.pop(&mut events);
        }
        Ok(size_of::<fi::fi_eq_err_entry>())
    })
}

unsafe extern "C" fn write(
    eq: *mut fi::fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: the application passes an open queue.
        let eq = unsafe { obj::<EqFid, _>(eq)? };
        known(flags, 0)?;
        if !eq.writable || buf.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the application passes `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) };
        eq.push(Event::Plain(event, bytes.into()));
        Ok(len)
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut fi::fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the application passes NULL or room for `len` bytes.
    guard_or(c"".as_ptr(), || unsafe { errno::strerror(prov_errno, buf, len) })
}
