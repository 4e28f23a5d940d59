//! How many blocks of kernels that wait the endpoints of a process have.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// That an endpoint's kernels may wait, each by [`crate::slots::BLOCKS`] blocks: a device runs some 128
/// kernels at a time, an H200 264 of these blocks, and those that wait for the peer are not to be all of
/// them. With a second one the endpoint's long puts have twice as many blocks.
#[derive(Debug)]
pub(crate) struct Permit {
    has_two: OnceLock<bool>,
}

/// Of a process.
const PERMITS: usize = 16;
static PERMITS_TAKEN: AtomicUsize = AtomicUsize::new(0);

fn take_one() -> bool {
    let next = |taken| (taken < PERMITS).then_some(taken + 1);
    PERMITS_TAKEN.fetch_update(AcqRel, Acquire, next).is_ok()
}

impl Permit {
    pub(super) fn take() -> Option<Permit> {
        take_one().then(|| Permit { has_two: OnceLock::new() })
    }

    /// Whether it is two: a second one is taken by the first call, if one is left.
    pub(crate) fn is_two(&self) -> bool {
        *self.has_two.get_or_init(take_one)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let taken = 1 + usize::from(self.has_two.get() == Some(&true));
        PERMITS_TAKEN.fetch_sub(taken, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::list::{Item, List, Put};
    use crate::shared::Core;

    /// Blocks of puts of an endpoint.
    fn blocks_of(permit: Option<Permit>) -> [u32; 3] {
        let mut shared = crate::watch::tests::direct();
        let peer = shared.peer.get_mut().unwrap();
        (peer.permit, peer.regions) = (permit, vec![(1 << 30, 1 << 30)]);
        let core = Arc::new(Core::new(Arc::new(shared)));
        let mut list = List::of_lane(core.clone(), 5, 3);
        for (len, signal) in [(1 << 20, Some(0)), (4 << 20, None), (4 << 20, Some(0))] {
            let before = PERMITS_TAKEN.load(Acquire);
            // SAFETY: nothing executes it.
            unsafe { list.put(&Put { local: 1 << 20, len, region: 0, offset: 0, signal }).unwrap() };
            let is_to_wait = len >= 2 << 20 && signal.is_some();
            assert!(is_to_wait || PERMITS_TAKEN.load(Acquire) == before);
        }
        let blocks = |item: &Item| match item {
            Item::Pass(p) => p.slots.blocks(),
            _ => 0,
        };
        <[u32; 3]>::try_from(list.items.iter().map(blocks).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn there_are_16_of_which_an_endpoint_has_one_or_two_as_long_as_it_is_there() {
        let all: Vec<Permit> = std::iter::from_fn(Permit::take).collect();
        assert_eq!(all.len(), PERMITS);
        assert!(!all[0].is_two(), "none is left");
        drop(all);
        let several: Vec<Permit> = (0..9).filter_map(|_| Permit::take()).collect();
        let two: Vec<bool> = several.iter().map(Permit::is_two).collect();
        assert_eq!(two, [true, true, true, true, true, true, true, false, false]);
        assert!(several[0].is_two() && Permit::take().is_none());
        drop(several);
        assert_eq!(blocks_of(Permit::take()), [16, 32, 32]);
        let others: Vec<Permit> = (1..PERMITS).filter_map(|_| Permit::take()).collect();
        assert_eq!(blocks_of(Permit::take()), [16, 32, 16], "none is left");
        drop(others);
        assert_eq!(std::iter::from_fn(Permit::take).collect::<Vec<_>>().len(), PERMITS);
    }
}
