//! What a shared receive context is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use engine::RxId;
use libc::c_int;
use libfabric_sys as fi;

use super::options::{HasOptions, RawValue, Value};
use crate::domain::Shared;
use crate::errno::Errno;
use crate::ffi::{Counted, Refs};

/// `struct fid_ep` of class `FI_CLASS_SRX_CTX`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SrxFid {
    pub(super) fid: fi::fid_ep,
    pub(super) shared: Arc<Shared>,
    pub(super) id: RxId,
    /// Endpoints bound to it.
    pub(super) refs: Refs,
    pub(super) caps: u64,
    pub(super) flags: AtomicU64,
    pub(super) min_multi_recv: AtomicUsize,
}

// SAFETY: the fid is never written again, and everything else is made to be shared.
unsafe impl Sync for SrxFid {}

impl Counted for SrxFid {
    fn refs(&self) -> &Refs {
        &self.refs
    }
}

impl SrxFid {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn id(&self) -> RxId {
        self.id
    }

    pub(super) fn min_multi_recv(&self) -> usize {
        self.min_multi_recv.load(Relaxed)
    }

    fn set_min_multi_recv(&self, bytes: usize) {
        self.min_multi_recv.store(bytes, Relaxed);
        self.shared.lock().rx_set_min_multi_recv(self.id, bytes);
    }
}

impl HasOptions for SrxFid {
    fn get(&self, name: c_int) -> Result<Value, Errno> {
        match name {
            fi::FI_OPT_MIN_MULTI_RECV => Ok(Value::Size(self.min_multi_recv())),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set(&self, name: c_int, new: &RawValue) -> Result<(), Errno> {
        match name {
            fi::FI_OPT_MIN_MULTI_RECV => {
                self.set_min_multi_recv(new.size()?);
                Ok(())
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }
}
