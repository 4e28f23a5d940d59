//! The access domain: one engine under one lock, and everything opened in it.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use engine::{CntrId, Config, CqId};
use libc::{c_int, c_void};
use libfabric_sys as fi;

use crate::auto::Auto;
use crate::eq::EqFid;
use crate::errno::Errno;
use crate::fabric::{FabricFid, FabricShared};
use crate::ffi::{Fid, Hold, Refs, arg, guard, header, obj, publish, put, reclaim};
use crate::info::answer;
use crate::wait::Wait;
use crate::{atomic, av, cntr, cq, ep, hmem_ops, lock, mr, param};

pub(crate) type Engine = engine::Domain<link::Links>;

/// `struct fid_domain`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DomainFid {
    pub fid: fi::fid_domain,
    pub shared: Arc<Shared>,
    /// Where registrations complete, once a queue is bound for that.
    pub mr_eq: OnceLock<Hold<EqFid>>,
    eq: OnceLock<Hold<EqFid>>,
    fabric: Arc<FabricShared>,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for DomainFid {
    const CLASS: usize = fi::FI_CLASS_DOMAIN;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

/// What a domain and everything opened in it have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    lock: lock::Lock<State>,
    /// What the application's headers are, as it told fi_getinfo.
    pub api_version: u32,
    pub caps: u64,
    pub addr_format: u32,
    /// Registrations get keys of the engine's choice.
    pub prov_key: bool,
    /// The registration modes it was opened with.
    pub mr_mode: c_int,
    /// Objects open in the domain (endpoints and shared receive contexts too).
    pub children: Refs,
    auto: Option<Auto>,
}

/// What is under the lock.
struct State {
    engine: Engine,
    /// Leaving takes more than unlocking: somebody sleeps, or there is a progress thread.
    watched: bool,
    /// Those who sleep, or are about to, and for what: each is woken once.
    sleepers: Vec<(Watched, Arc<Wait>)>,
}

/// What a sleeper sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// An entry.
    Cq(CqId),
    /// A change from these values of the counter and its errors.
    Cntr(CntrId, u64, u64),
}

impl Shared {
    /// Enters the domain. What happens to completion queues and counters while the guard lives wakes
    /// their sleepers when it goes.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_> {
        Guard { state: self.lock.lock(), auto: self.auto.as_ref() }
    }

    /// As [`Shared::lock`], for a call by which the application makes progress itself.
    #[inline(always)]
    pub(crate) fn lock_to_poll(&self) -> Guard<'_> {
        if let Some(auto) = &self.auto {
            auto.polled();
        }
        self.lock()
    }

    /// As [`Shared::lock`], for the progress thread, which needs no waking.
    pub(crate) fn lock_for_auto(&self) -> Guard<'_> {
        Guard { state: self.lock.lock(), auto: None }
    }

    pub(crate) fn auto(&self) -> Option<&Auto> {
        self.auto.as_ref()
    }

    /// Includes an endpoint's link in what the progress thread sleeps on, if there is one.
    pub(crate) fn attach(&self, fd: c_int) -> Result<(), Errno> {
        if let Some(auto) = &self.auto {
            auto.wait.attach(fd)?;
            auto.kick();
        }
        Ok(())
    }

    /// The opposite.
    pub(crate) fn detach(&self, fd: c_int) {
        if let Some(auto) = &self.auto {
            auto.wait.detach(fd);
        }
    }
}

impl State {
    #[cold]
    fn wake(&mut self) {
        let engine = &self.engine;
        self.sleepers.retain(|(what, wait)| {
            let sleeps_on = match *what {
                Watched::Cq(cq) => engine.cq_is_empty(cq),
                Watched::Cntr(c, n, errs) => engine.cntr_read(c) == n && engine.cntr_readerr(c) == errs,
            };
            if !sleeps_on {
                wait.raise();
            }
            sleeps_on
        });
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("sleepers", &self.sleepers).finish_non_exhaustive()
    }
}

/// The engine, for the one who is in.
pub(crate) struct Guard<'a> {
    state: lock::Guard<'a, State>,
    auto: Option<&'a Auto>,
}

impl Guard<'_> {
    /// Leaves: the end of those calls that count, who need not ask whether they panic.
    #[inline(always)]
    pub(crate) fn leave(self) {
        if !self.state.watched {
            // Nothing but the lock is given back, below.
            let this = ManuallyDrop::new(self);
            this.state.leave();
        }
    }

    #[cold]
    fn tell(&mut self) {
        if !self.state.sleepers.is_empty() && !std::thread::panicking() {
            self.state.wake();
        }
        if let Some(auto) = self.auto {
            auto.kick();
        } else {
            self.state.watched = !self.state.sleepers.is_empty();
        }
    }

    /// Registers a sleeper and has peers wake it. `false`: there is something to do first.
    pub(crate) fn watch(&mut self, what: Watched, wait: &Arc<Wait>) -> bool {
        self.unwatch(wait);
        let quiet = self.state.engine.arm();
        if quiet {
            self.state.sleepers.push((what, wait.clone()));
            self.state.watched = true;
        }
        quiet
    }

    /// Whoever it was does not sleep any more.
    pub(crate) fn unwatch(&mut self, wait: &Arc<Wait>) {
        self.state.sleepers.retain(|(_, w)| !Arc::ptr_eq(w, wait));
    }
}

impl Deref for Guard<'_> {
    type Target = Engine;
    #[inline]
    fn deref(&self) -> &Engine {
        &self.state.engine
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.state.engine
    }
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.state.watched {
            self.tell();
        }
    }
}

static OPS: fi::fi_ops = fi::fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(hmem_ops::ops_open),
    ..fi::NO_OPS
};

static DOMAIN_OPS: fi::fi_ops_domain = fi::fi_ops_domain {
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    endpoint: Some(endpoint),
    cntr_open: Some(cntr::open),
    srx_ctx: Some(srx_ctx),
    query_atomic: Some(atomic::query_atomic),
    ..fi::NO_OPS_DOMAIN
};

/// `fi_ops_fabric::domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
    domain: *mut *mut fi::fid_domain,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open fabric and a valid info, as fi_domain(3) demands.
        let (fabric, info) = unsafe { (obj::<FabricFid, _>(fabric)?, arg(info)?) };
        // SAFETY: as above.
        let wanted = unsafe { Wanted::read(info) }?;
        if domain.is_null() {
            return Err(Errno::INVAL);
        }
        let shared = wanted.open(fabric.shared.api_version)?;
        fabric.shared.children.inc();
        let fid = publish(Box::new(DomainFid {
            fid: fi::fid_domain {
                fid: header::<DomainFid>(context),
                ops: (&raw const DOMAIN_OPS).cast_mut(),
                mr: (&raw const mr::MR_OPS).cast_mut(),
            },
            shared,
            mr_eq: OnceLock::new(),
            eq: OnceLock::new(),
            fabric: fabric.shared.clone(),
        }));
        // SAFETY: the application passes a place for the answer.
        unsafe { put(domain, fid) }
    })
}

/// What a domain takes from the `fi_info` it is opened with.
#[derive(Debug)]
struct Wanted {
    caps: u64,
    addr_format: u32,
    orders: u64,
    threading: fi::fi_threading,
    data_progress: fi::fi_progress,
    mr_mode: c_int,
}

impl Wanted {
    /// # Safety
    /// `info` and its attributes are valid.
    unsafe fn read(info: &fi::fi_info) -> Result<Wanted, Errno> {
        let d = info.domain_attr;
        if d.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise; only fields that every version has are read, through places
        // that form no reference to a structure that may be shorter than ours.
        unsafe {
            let name = (*d).name;
            if !name.is_null() {
                let name = std::ffi::CStr::from_ptr(name).to_bytes();
                if !name.eq_ignore_ascii_case(answer::NAME.as_bytes()) {
                    return Err(Errno::INVAL);
                }
            }
            Ok(Wanted {
                caps: info.caps,
                addr_format: info.addr_format,
                orders: info.tx_attr.as_ref().map_or(0, |a| a.msg_order)
                    | info.rx_attr.as_ref().map_or(0, |a| a.msg_order),
                threading: (*d).threading,
                data_progress: (*d).anon1.data_progress,
                mr_mode: (*d).mr_mode,
            })
        }
    }

    fn open(&self, api_version: u32) -> Result<Arc<Shared>, Errno> {
        let (virt_addr, prov_key) = answer::mr_semantics(self.mr_mode);
        let auto_progress = self.data_progress == fi::FI_PROGRESS_AUTO;
        let mut engine = Engine::new(Config { virt_addr, rma_order: self.orders & answer::RMA_ORDERS != 0 });
        engine.set_unexpected_most(param::get().unexpected_size);
        // The one model in which the application keeps calls on a domain apart itself, and no
        // thread of ours is there to disturb it.
        let unshared = self.threading == fi::FI_THREAD_DOMAIN && !auto_progress;
        let shared = Arc::new(Shared {
            lock: lock::Lock::new(State { engine, watched: auto_progress, sleepers: Vec::new() }, !unshared),
            api_version,
            caps: self.caps,
            addr_format: self.addr_format,
            mr_mode: self.mr_mode,
            prov_key,
            children: Refs::default(),
            auto: auto_progress.then(Auto::default),
        });
        crate::auto::start(&shared)?;
        Ok(shared)
    }
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain and does not use it during the call.
        let domain = unsafe { obj::<DomainFid, _>(fid)? };
        domain.shared.children.none()?;
        if let Some(auto) = domain.shared.auto() {
            auto.stop();
        }
        // SAFETY: as above, and nothing opened in it is left.
        let domain = unsafe { reclaim(domain) };
        domain.fabric.children.dec();
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, to: *mut fi::fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: the application passes open objects.
        let (domain, eq) = unsafe { (obj::<DomainFid, _>(fid)?, obj::<EqFid, _>(to)?) };
        let place = match flags {
            0 => &domain.eq,
            fi::FI_REG_MR => &domain.mr_eq,
            _ => return Err(Errno::BADFLAGS),
        };
        place.set(Hold::new(eq)).map_err(|_| Errno::INVAL)
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain.
        let domain = unsafe { obj::<DomainFid, _>(fid)? };
        let work = arg.cast::<fi::fi_deferred_work>();
        match command {
            // SAFETY: the application passes work that fi_trigger(3) describes.
            fi::FI_QUEUE_WORK => unsafe { ep::trigger::queue(domain, work) },
            fi::FI_CANCEL_WORK => ep::trigger::cancel(domain, work),
            fi::FI_FLUSH_WORK => ep::trigger::flush(domain),
            _ => Err(Errno::NOSYS),
        }
    })
}

unsafe extern "C" fn endpoint(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ep: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain, a valid info, and a place for the answer.
    guard(|| unsafe { ep::open(obj::<DomainFid, _>(domain)?, info, ep, context) })
}

unsafe extern "C" fn srx_ctx(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_rx_attr,
    rx_ep: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain, valid attributes, and a place for the answer.
    guard(|| unsafe { ep::srx::open(obj::<DomainFid, _>(domain)?, attr, rx_ep, context) })
}
