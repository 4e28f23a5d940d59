//! The handles that were made of this process's memory.
//!
//! What is remembered holds nothing but descriptors; those keep the memory alive, so they are given
//! back as soon as their allocation is found to be gone, and the oldest ones beyond a bound.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::handle::Export;
use crate::kind::Kind;

/// Most allocations remembered.
const BOUND: usize = 1024;

struct Cached {
    of: Kind,
    is_still: fn(&Export) -> bool,
    export: Export,
    /// Held open for importers.
    fd: Option<OwnedFd>,
}

fn all() -> MutexGuard<'static, VecDeque<Cached>> {
    static CACHED: Mutex<VecDeque<Cached>> = Mutex::new(VecDeque::new());
    CACHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that is never found again: an importer must not take the memory for an earlier one, nor for that
/// of the program which the process was before exec(3).
pub(crate) fn nameless() -> u64 {
    static NAMELESS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(first()));
    NAMELESS.fetch_add(1, Relaxed)
}

/// Where they begin.
fn first() -> u64 {
    1 << 63 | RandomState::new().build_hasher().finish() >> 2
}

/// The handle of the allocation `id` (0: it has no number) at `base`, made if it is not there yet. `is_still`
/// is true while the allocation of a handle of that kind is still there.
pub(crate) fn cached_export<E>(
    (of, is_still): (Kind, fn(&Export) -> bool),
    (id, base, len): (u64, u64, u64),
    make: impl FnOnce() -> Result<(Export, Option<OwnedFd>), E>,
) -> Result<Export, E> {
    let is_it = |k: &Cached| k.of == of && (k.export.id, k.export.base, k.export.len) == (id, base, len);
    if id != 0 {
        let mut all = all();
        if let Some(at) = all.iter().position(is_it) {
            // Those lately used stay longest.
            if at > BOUND / 2 {
                all.swap(at, 0);
                return Ok(all[0].export);
            }
            return Ok(all[at].export);
        }
    }
    let (mut export, fd) = make()?;
    if id == 0 {
        export.id = nameless();
    }
    if id != 0 || fd.is_some() {
        let mut all = all();
        all.retain(|k| k.fd.is_none() || (k.is_still)(&k.export));
        all.push_front(Cached { of, is_still, export, fd });
        all.truncate(BOUND);
    }
    Ok(export)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_elsewhere_each_time_and_rise() {
        assert_ne!(first(), first(), "as in a program behind exec");
        let (one, two) = (nameless(), nameless());
        assert!(one >> 63 == 1 && two > one);
        assert!((0..100).all(|_| first() >> 62 == 2), "there is room above");
    }
}
