//! What a drain works through, and what the numbers in commands mean there.

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
pub struct Regions(Mutex<Vec<Option<Span>>>);

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
        Some(free as u32)
    }

    /// Commands name it no more.
    pub fn remove(&self, number: u32) {
        if let Some(at) = self.all().get_mut(number as usize) {
            *at = None;
        }
    }

    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Option<Span>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
