//! Endpoints: from what an application posts to one call of the engine.
//!
//! | module | what it holds |
//! |---|---|
//! | `endpoint`, `context`, `setup`, `options` | endpoints, shared receive contexts, and their parts |
//! | `bind` | `fi_ep_bind` and `fi_enable` |
//! | `links`, `link_ops` | the links of an endpoint; fi_open_ops(3) for them |
//! | `msg`, `tagged`, `rma`, `atomic` | the calls that move data |
//! | `collective` | groups, and the calls of their members |
//! | `post` | the way they all end in |
//! | `receiver` | what receives are posted to |
//! | `flags`, `iov` | flags and vectors of the ABI as the engine's |
//! | `srx` | shared receive contexts: opened and closed |
//! | `xpu` | endpoints of devices |
//! | `trigger` | `FI_TRIGGER`, and the domain's deferred work |
//! | `opt`, `cm` | options and names |
//!
//! The link is open from `fi_endpoint` on, so that the endpoint has its name; the engine gets to
//! know the endpoint in `fi_enable`, when what it is bound to is complete.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void};
use libfabric_sys as fi;

use crate::domain::DomainFid;
use crate::errno::Errno;
use crate::ffi::{Fid, arg, guard, header, obj, publish, put, reclaim};
use crate::info::ep::ep_attrs;
use crate::xpu::XpuCtxFid;
use endpoint::{Endpoint, EpFid, Fids};
use setup::Setup;

pub(crate) use bind::export_xpu;
pub(crate) use collective::query_collective;
pub(crate) use link_ops::{LINK_OPS, NAME as LINK_OPS_NAME};

pub(crate) mod atomic;
mod bind;
mod cm;
mod collective;
mod context;
mod endpoint;
mod flags;
pub(crate) mod iov;
mod link_ops;
mod links;
mod msg;
mod opt;
mod options;
mod post;
mod receiver;
mod rma;
mod setup;
pub(crate) mod srx;
mod tagged;
#[cfg(test)]
mod tests;
pub(crate) mod trigger;
mod xpu;

// SAFETY: `#[repr(C)]` with the fid first, made in `EpFid::publish` alone, with this table.
unsafe impl Fid for EpFid {
    const CLASS: usize = fi::FI_CLASS_EP;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

static OPS: fi::fi_ops = fi::fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(link_ops::ops_open),
    ..fi::NO_OPS
};

/// fi_endpoint(3): opens the link too.
///
/// # Safety
/// `info` and what it points to are valid, `ep_out` is NULL or valid for a write.
pub(crate) unsafe fn open(
    domain: &DomainFid,
    info: *const fi::fi_info,
    ep_out: *mut *mut fi::fid_ep,
    context: *mut c_void,
    device: Option<&XpuCtxFid>,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let mut attrs = unsafe { ep_attrs(arg(info)?, domain.shared.api_version) }?;
    attrs.auth_key = attrs.auth_key.or_else(|| domain.shared.auth_key.clone());
    if ep_out.is_null() {
        return Err(Errno::INVAL);
    }
    flags::offered(attrs.tx_op_flags | attrs.rx_op_flags)?;
    let setup = Mutex::new(Setup::new(links::open_link(attrs.bind, attrs.auth_key.as_ref())?, &attrs)?);
    crate::journal::endpoint(&setup.lock().unwrap_or_else(PoisonError::into_inner).name);
    let (tx, rx) = (attrs.tx_op_flags, attrs.rx_op_flags);
    let shared = domain.shared.clone();
    links::settle_at_exit(&shared);
    shared.children.inc();
    let fids = Fids(Mutex::new(1));
    let xpu = device.map(xpu::XpuEp::new);
    let endpoint = Arc::new(Endpoint { shared, attrs, live: OnceLock::new(), setup, fids, xpu });
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
        let calls = match (&endpoint.xpu, endpoint.attrs.caps & fi::FI_COLLECTIVE) {
            (Some(_), _) => &DEVICE,
            (None, 0) => &HOST,
            (None, _) => &COLLECTIVE,
        };
        publish(Box::new(EpFid {
            fid: fi::fid_ep {
                fid: header::<EpFid>(context),
                ops: (&raw const opt::EP_OPS).cast_mut(),
                cm: (&raw const cm::OPS).cast_mut(),
                msg: (&raw const *calls.msg).cast_mut(),
                rma: (&raw const *calls.rma).cast_mut(),
                tagged: (&raw const *calls.tagged).cast_mut(),
                atomic: (&raw const *calls.atomic).cast_mut(),
                collective: (&raw const *calls.collective).cast_mut(),
            },
            endpoint,
            tx_flags: AtomicU64::new(tx_flags),
            rx_flags: AtomicU64::new(rx_flags),
        }))
    }

    /// fi_ep_alias(3).
    fn alias(&self, flags: u64) -> Result<*mut fi::fid_ep, Errno> {
        let (_, own) = self.side(flags)?;
        flags::offered(own)?;
        let (mut tx, mut rx) = (self.tx_flags.load(Relaxed), self.rx_flags.load(Relaxed));
        *(if flags & fi::FI_TRANSMIT != 0 { &mut tx } else { &mut rx }) = own;
        self.endpoint.fids.add();
        Ok(EpFid::publish(self.endpoint.clone(), tx, rx, self.fid.fid.context))
    }
}

/// The calls that post.
struct Calls {
    msg: &'static fi::fi_ops_msg,
    rma: &'static fi::fi_ops_rma,
    tagged: &'static fi::fi_ops_tagged,
    atomic: &'static fi::fi_ops_atomic,
    collective: &'static fi::fi_ops_collective,
}

static HOST: Calls = Calls {
    msg: &msg::OPS,
    rma: &rma::OPS,
    tagged: &tagged::OPS,
    atomic: &atomic::OPS,
    collective: &fi::NO_OPS_COLLECTIVE,
};
/// With FI_COLLECTIVE.
static COLLECTIVE: Calls = Calls { collective: &collective::OPS, ..HOST };
/// Of a device's endpoint the host posts nothing.
static DEVICE: Calls = Calls {
    msg: &fi::NO_OPS_MSG,
    rma: &fi::NO_OPS_RMA,
    tagged: &fi::NO_OPS_TAGGED,
    atomic: &fi::NO_OPS_ATOMIC,
    collective: &fi::NO_OPS_COLLECTIVE,
};

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: fi_close(3): a live fid, which nothing uses from now on. The pointer the
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
                flags::offered(rest)?;
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
