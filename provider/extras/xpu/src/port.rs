//! What a drain works through, and what the numbers in commands mean there.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::{ADDR_UNSPEC, CqId, EpId, FiAddr, RxId};
use hmem::Span;

use crate::layout::{self, ANY};

/// A device takes a ring for dead whose beat has not changed for some of these.
pub const BEAT: Duration = Duration::from_millis(100);

/// What the numbers of peers in commands mean.
#[derive(Debug)]
pub enum Peers {
    /// Indexes of the address vector.
    Vector,
    /// These.
    List(Vec<FiAddr>),
}

impl Peers {
    pub(crate) fn count(&self) -> u32 {
        match self {
            Peers::Vector => ANY,
            Peers::List(all) => all.len() as u32,
        }
    }

    pub(crate) fn addr(&self, peer: u32) -> FiAddr {
        match self {
            _ if peer == ANY => ADDR_UNSPEC,
            Peers::Vector => peer.into(),
            Peers::List(all) => all.get(peer as usize).copied().unwrap_or(ADDR_UNSPEC),
        }
    }

    pub(crate) fn number(&self, addr: FiAddr) -> u32 {
        match self {
            Peers::Vector => u32::try_from(addr).unwrap_or(ANY),
            Peers::List(all) => all.iter().position(|a| *a == addr).map_or(ANY, |at| at as u32),
        }
    }
}

/// The objects of the engine through which a drain works.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The endpoint.
    pub ep: EpId,
    /// Where receives are posted.
    pub rx: Option<RxId>,
    /// Where all that the endpoint does completes; the drain's alone.
    pub cq: CqId,
}

/// Memory of this process that commands may name, by number.
#[derive(Debug, Default)]
pub struct Regions {
    all: Mutex<Vec<Option<Span>>>,
    /// Grows with each change.
    changes: AtomicU64,
}

/// The regions as a drain has them, so that drains of several threads wait for no lock of each other's.
#[derive(Debug, Default)]
pub(crate) struct Known {
    all: Vec<Option<Span>>,
    changes: u64,
}

impl Known {
    /// All that there are now. Without a change since the last call that is one load.
    #[inline]
    pub(crate) fn all(&mut self, of: &Regions) -> &[Option<Span>] {
        if of.changes.load(Acquire) != self.changes {
            let all = of.all();
            self.changes = of.changes.load(Acquire);
            self.all.clone_from(&all);
        }
        &self.all
    }
}

impl Regions {
    /// One more; its number. `None`: there are as many as numbers.
    ///
    /// # Safety
    /// As for [`Span::new`], until [`Regions::remove`] has been called and no command that names it is under
    /// way.
    pub unsafe fn add(&self, span: Span) -> Option<u32> {
        let mut all = self.all();
        let free = all.iter().position(Option::is_none).unwrap_or(all.len());
        if free >= layout::NO_REGION as usize {
            return None;
        }
        if free == all.len() {
            all.push(None);
        }
        all[free] = Some(span);
        self.changes.fetch_add(1, Release);
        Some(free as u32)
    }

    /// Commands name it no more.
    pub fn remove(&self, number: u32) {
        if let Some(at) = self.all().get_mut(number as usize) {
            *at = None;
            self.changes.fetch_add(1, Release);
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Option<Span>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_knows_of_each_region_that_is_added_or_removed() {
        let (regions, mut known) = (Regions::default(), Known::default());
        assert_eq!(known.all(&regions), []);
        let span = Span::leak(8);
        for _ in 0..2 {
            // SAFETY: memory that is never freed.
            assert_eq!(unsafe { regions.add(span) }, Some(0));
            assert_eq!(known.all(&regions), [Some(span)]);
            regions.remove(0);
            assert_eq!(known.all(&regions), [None]);
        }
    }
}
