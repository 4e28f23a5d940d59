//! Shared receive contexts: buffers that any of several endpoints may fill.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::context::SrxFid;
use super::options::MIN_MULTI_RECV;
use super::receiver::{AnySource, Receiver, Rx};
use super::{cm, flags, msg, opt, tagged};
use crate::domain::DomainFid;
use crate::errno::Errno;
use crate::ffi::{Fid, Refs, arg, guard, header, obj, publish, put, reclaim};

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for SrxFid {
    const CLASS: usize = fi::FI_CLASS_SRX_CTX;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), control: Some(control), ..fi::NO_OPS };
static RMA: fi::fi_ops_rma = fi::NO_OPS_RMA;
static ATOMIC: fi::fi_ops_atomic = fi::NO_OPS_ATOMIC;
static COLLECTIVE: fi::fi_ops_collective = fi::NO_OPS_COLLECTIVE;

/// fi_srx_context(3).
///
/// # Safety
/// `attr` is NULL or valid, `srx_out` is NULL or valid for a write.
pub(crate) unsafe fn open(
    domain: &DomainFid,
    attr: *const fi::fi_rx_attr,
    srx_out: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> Result<(), Errno> {
    if srx_out.is_null() {
        return Err(Errno::INVAL);
    }
    let shared = domain.shared.clone();
    // SAFETY: the caller's promise.
    let (caps, own) = unsafe { attr.as_ref() }.map_or((0, 0), |a| (a.caps, a.op_flags));
    // FI_PEER would make it another provider's.
    flags::offered(own)?;
    let id = shared.lock().srx_open();
    shared.children.inc();
    let srx = Box::new(SrxFid {
        fid: fi::fid_ep {
            fid: header::<SrxFid>(context),
            ops: (&raw const opt::SRX_OPS).cast_mut(),
            cm: (&raw const cm::NO_NAMES).cast_mut(),
            msg: (&raw const msg::SRX_OPS).cast_mut(),
            rma: (&raw const RMA).cast_mut(),
            tagged: (&raw const tagged::SRX_OPS).cast_mut(),
            atomic: (&raw const ATOMIC).cast_mut(),
            collective: (&raw const COLLECTIVE).cast_mut(),
        },
        caps: if caps == 0 { shared.caps } else { caps },
        shared,
        id,
        refs: Refs::default(),
        flags: AtomicU64::new(own),
        min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
    });
    // SAFETY: the caller's promise.
    unsafe { put(srx_out, publish(srx)) }
}

impl Receiver for SrxFid {
    fn rx(&self) -> Result<Rx<'_>, Errno> {
        let each = flags::each_rx(true, true);
        let any = AnySource::of(self.caps);
        Ok(Rx { shared: &self.shared, id: self.id, ep: None, each, any })
    }

    fn default_flags(&self) -> u64 {
        self.flags.load(Relaxed)
    }
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: fi_close(3): a live fid.
        let srx = unsafe { obj::<SrxFid, _>(fid) }?;
        srx.refs.none()?;
        srx.shared.close_in(None, |engine| engine.srx_close(srx.id))?;
        srx.shared.children.dec();
        // SAFETY: nothing uses it from now on. The pointer the application holds is the one it was
        // published as.
        drop(unsafe { reclaim::<SrxFid>(fid.cast()) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, argument: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: fi_control(3): a live fid.
        let srx = unsafe { obj::<SrxFid, _>(fid) }?;
        match command {
            fi::FI_ENABLE => Ok(()),
            // SAFETY: fi_endpoint(3): for this command the argument is a `uint64_t *`.
            fi::FI_GETOPSFLAG => unsafe { put(argument.cast(), srx.flags.load(Relaxed)) },
            fi::FI_SETOPSFLAG => {
                // SAFETY: fi_endpoint(3): for this command the argument is a `uint64_t *`.
                let own = unsafe { *arg(argument.cast::<u64>())? } & !fi::FI_RECV;
                flags::offered(own)?;
                srx.flags.store(own, Relaxed);
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    })
}
