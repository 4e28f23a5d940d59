//! How many endpoints of a process have kernels that wait.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// That an endpoint's kernels may wait: a device runs some 128 kernels at a time, and those that wait are not
/// to be all of them.
#[derive(Debug)]
pub(super) struct Permit(());

/// Endpoints of a process.
const PERMITS: usize = 16;
static PERMITS_TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Permit {
    pub(super) fn take() -> Option<Permit> {
        let next = |taken| (taken < PERMITS).then_some(taken + 1);
        PERMITS_TAKEN.fetch_update(AcqRel, Acquire, next).ok().map(|_| Permit(()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        PERMITS_TAKEN.fetch_sub(1, Release);
    }
}
