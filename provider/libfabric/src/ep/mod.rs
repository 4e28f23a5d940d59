//! Endpoints: from what an application posts to one call of the engine.
//!
//! | module | what it holds |
//! |---|---|
//! | `bind` | what an endpoint is put together from, and `fi_enable` |
//! | `msg`, `tagged`, `rma`, `atomic` | the calls that move data |
//! | `post` | the way they all end in |
//! | `flags`, `iov` | flags and vectors of the ABI as the engine's |
//! | `srx` | shared receive contexts |
//! | `trigger` | `FI_TRIGGER`, and the domain's deferred work |
//! | `opt`, `cm` | options and names |
//!
//! The link is open from `fi_endpoint` on, so that the endpoint has its name; the engine gets to
//! know the endpoint in `fi_enable`, when what it is bound to is complete.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use engine::{EpId, RxId};
use libc::{c_int, c_void};
use libfabric_sys as fi;

use crate::domain::{DomainFid, Shared};
use crate::errno::Errno;
use crate::ffi::{Fid, arg, guard, header, obj, publish, put, reclaim};
use crate::info::ep::{EpAttrs, ep_attrs};
use bind::Setup;

pub(crate) mod atomic;
mod bind;
mod cm;
mod flags;
mod iov;
mod msg;
mod opt;
mod post;
mod rma;
pub(crate) mod srx;
mod tagged;
#[cfg(test)]
mod tests;
pub(crate) mod trigger;

/// `struct fid_ep`: an endpoint, or an alias of one.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EpFid {
    fid: fi::fid_ep,
    endpoint: Arc<Endpoint>,
    /// What calls without flags run with: all that sets an alias apart.
    tx_flags: AtomicU64,
    rx_flags: AtomicU64,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `EpFid::publish` alone, with this table.
unsafe impl Fid for EpFid {
    const CLASS: usize = fi::FI_CLASS_EP;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

/// What an endpoint and its aliases have in common.
#[derive(Debug)]
pub(crate) struct Endpoint {
    shared: Arc<Shared>,
    attrs: EpAttrs,
    live: OnceLock<Live>,
    setup: Mutex<Setup>,
    fids: Fids,
}

/// How many fids there are of one endpoint.
#[derive(Debug)]
struct Fids(Mutex<usize>);

impl Fids {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    fn add(&self) {
        *self.lock() += 1;
    }

    /// One fewer. For the last one, and for no other, `last` is called; where that fails, the fid stays. Of several
    /// that are closed at once, exactly one is the last.
    fn take<E>(&self, last: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut fids = self.lock();
        if *fids == 1 {
            last()?;
        }
        *fids -= 1;
        Ok(())
    }
}

/// An endpoint that is enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    ep: EpId,
    rx: RxId,
    /// Its queues were bound without `FI_SELECTIVE_COMPLETION`.
    tx_always: bool,
    rx_always: bool,
    /// Nothing would tell of a receive.
    deaf: bool,
}

static OPS: fi::fi_ops =
    fi::fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi::NO_OPS };

/// fi_endpoint(3): opens the link too.
///
/// # Safety
/// `info` and what it points to are valid, `ep_out` is NULL or valid for a write.
pub(crate) unsafe fn open(
    domain: &DomainFid,
    info: *const fi::fi_info,
    ep_out: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let attrs = unsafe { ep_attrs(arg(info)?, domain.shared.api_version) }?;
    if ep_out.is_null() {
        return Err(Errno::INVAL);
    }
    let setup = Mutex::new(Setup::open(&attrs)?);
    let (tx, rx) = (attrs.tx_op_flags, attrs.rx_op_flags);
    let shared = domain.shared.clone();
    shared.children.inc();
    let fids = Fids(Mutex::new(1));
    let endpoint = Arc::new(Endpoint { shared, attrs, live: OnceLock::new(), setup, fids });
    let fid = EpFid::publish(endpoint, tx, rx, context);
    // SAFETY: the caller's promise.
    unsafe { put(ep_out, fid) }
}

impl EpFid {
    fn publish(
        endpoint: Arc<Endpoint>,
        tx_flags: u64,
        rx_flags: u64,
        context: *mut c_void,
    ) -> *mut fi::fid_ep {
        publish(Box::new(EpFid {
            fid: fi::fid_ep {
                fid: header::<EpFid>(context),
                ops: (&raw const opt::EP_OPS).cast_mut(),
                cm: (&raw const cm::OPS).cast_mut(),
                msg: (&raw const msg::OPS).cast_mut(),
                rma: (&raw const rma::OPS).cast_mut(),
                tagged: (&raw const tagged::OPS).cast_mut(),
                atomic: (&raw const atomic::OPS).cast_mut(),
                collective: (&raw const COLLECTIVE).cast_mut(),
            },
            endpoint,
            tx_flags: AtomicU64::new(tx_flags),
            rx_flags: AtomicU64::new(rx_flags),
        }))
    }

    /// As it is once enabled; until then nothing may be posted.
    #[inline]
    fn live(&self) -> Result<&Live, Errno> {
        self.endpoint.live.get().ok_or(Errno::OPBADSTATE)
    }

    /// Which of the two defaults a control flag is about, and the flags next to that.
    fn side(&self, flags: u64) -> Result<(&AtomicU64, u64), Errno> {
        const SIDES: u64 = fi::FI_TRANSMIT | fi::FI_RECV;
        let rest = flags & !SIDES;
        match flags & SIDES {
            fi::FI_TRANSMIT => Ok((&self.tx_flags, rest)),
            fi::FI_RECV => Ok((&self.rx_flags, rest)),
            _ => Err(Errno::INVAL),
        }
    }

    /// fi_ep_alias(3).
    fn alias(&self, flags: u64) -> Result<*mut fi::fid_ep, Errno> {
        let (_, own) = self.side(flags)?;
        let (mut tx, mut rx) = (self.tx_flags.load(Relaxed), self.rx_flags.load(Relaxed));
        *(if flags & fi::FI_TRANSMIT != 0 { &mut tx } else { &mut rx }) = own;
        self.endpoint.fids.add();
        Ok(EpFid::publish(self.endpoint.clone(), tx, rx, self.fid.fid.context))
    }
}

static COLLECTIVE: fi::fi_ops_collective = fi::NO_OPS_COLLECTIVE;

impl Endpoint {
    fn setup(&self) -> MutexGuard<'_, Setup> {
        // Each change to it is whole, or was not made.
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it in the engine. FI_EBUSY: a peer is stopped while it accesses memory of ours, so that this
    /// has to be tried again.
    fn shut(&self) -> Result<(), Errno> {
        // Sleepers let go of the link's descriptor before the engine closes it.
        self.setup().sleep_no_more();
        if let Some(live) = self.live.get() {
            match self.shared.take_back(|engine| engine.ep_close(live.ep)) {
                // It was closed before.
                Err(engine::Error::NotFound) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<Endpoint>();
};

impl Drop for Endpoint {
    fn drop(&mut self) {
        // What the endpoint was bound to may be closed only after that: `setup` is dropped behind this.
        let _ = self.shut();
        self.shared.children.dec();
    }
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: fi_close(3): a live fid, which nobody uses from now on. The pointer the
        // application holds is the one the object was published as.
        unsafe {
            let ep = obj::<EpFid, _>(fid)?;
            ep.endpoint.fids.take(|| ep.endpoint.shut())?;
            drop(reclaim::<EpFid>(fid.cast()));
        }
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, to: *mut fi::fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: fi_ep_bind(3): two live fids.
        unsafe { bind::bind(&obj::<EpFid, _>(fid)?.endpoint, to, flags) }
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, argument: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: fi_control(3): a live fid.
        let ep = unsafe { obj::<EpFid, _>(fid) }?;
        match command {
            fi::FI_ENABLE => bind::enable(&ep.endpoint),
            fi::FI_GETOPSFLAG => {
                let flags = argument.cast::<u64>();
                // SAFETY: fi_endpoint(3): for this command the argument is a `uint64_t *`.
                let (side, _) = ep.side(unsafe { *arg(flags)? })?;
                // SAFETY: as above, and it is for the answer.
                unsafe { put(flags, side.load(Relaxed)) }
            }
            fi::FI_SETOPSFLAG => {
                // SAFETY: fi_endpoint(3): for this command the argument is a `uint64_t *`.
                let (side, rest) = ep.side(unsafe { *arg(argument.cast::<u64>())? })?;
                side.store(rest, Relaxed);
                Ok(())
            }
            fi::FI_ALIAS => {
                // SAFETY: fi_endpoint(3): for this command the argument is a `struct fi_alias *`.
                let alias = unsafe { arg(argument.cast::<fi::fi_alias>()) }?;
                if alias.fid.is_null() {
                    return Err(Errno::INVAL);
                }
                let made = ep.alias(alias.flags)?;
                // SAFETY: as above: it names the place for the alias.
                unsafe { put(alias.fid, made.cast()) }
            }
            _ => Err(Errno::NOSYS),
        }
    })
}
