//! What an interface and its endpoints are.

use std::os::fd::OwnedFd;

use hmem::share::Owner;
use ucx_sys::{self as ucx, BaseIface, Completion};

use super::copies::Copies;
use crate::rma::served::Served;

/// An endpoint as UCX holds it: `uct_ep_t` is the first field.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ep {
    pub(super) iface: *mut Iface,
    pub(super) owner: Owner,
    /// Copies in flight.
    pub(super) outstanding: u32,
    /// What comes next starts when all before it is done.
    pub(super) fenced: bool,
    /// To be completed when `outstanding` is 0.
    pub(super) flushes: Vec<*mut Completion>,
}

impl Ep {
    /// # Safety
    /// `ep` must be one of these. The answer must be gone before UCX is called back.
    pub(super) unsafe fn of<'a>(ep: ucx::Ep) -> &'a mut Ep {
        // SAFETY: the caller's promise.
        unsafe { &mut *ep.cast::<Ep>() }
    }

    pub(super) fn fence(&mut self) {
        self.fenced = self.outstanding > 0;
    }
}

/// An interface as UCX holds it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Iface {
    pub(super) base: BaseIface,
    pub(super) copies: Copies<Ep>,
    pub(super) eps: Vec<*mut Ep>,
    pub(super) served: &'static Served,
    /// Never becomes readable: arming it fails with UCS_ERR_BUSY while copies are pending.
    pub(super) event: OwnedFd,
    /// Bytes a second between two devices.
    pub(super) bandwidth: f64,
}

impl Iface {
    /// # Safety
    /// `iface` must be one of these. The answer must be gone before UCX is called back.
    pub(super) unsafe fn of<'a>(iface: ucx::Iface) -> &'a mut Iface {
        // SAFETY: the caller's promise.
        unsafe { &mut *iface.cast::<Iface>() }
    }

    /// Whether an endpoint is (still) one of ours.
    pub(super) fn has(&self, ep: *mut Ep) -> bool {
        self.eps.contains(&ep)
    }
}
