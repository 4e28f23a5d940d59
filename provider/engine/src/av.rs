//! Address vectors.

use std::collections::HashMap;

use wire::Addr;

use crate::types::{ADDR_UNSPEC, FiAddr};

/// Names of peers by index. An index is not given out again after its removal, so that a late
/// completion can't be taken for another peer's.
#[derive(Debug, Default)]
pub(crate) struct Av {
    entries: Vec<Option<Addr>>,
    /// Indices of each address, oldest first: the oldest is the one completions report.
    by_addr: HashMap<Addr, Vec<FiAddr>>,
    pub(crate) users: usize,
}

impl Av {
    /// Returns the new index, and the one the address is known by.
    pub(crate) fn insert(&mut self, addr: Addr) -> (FiAddr, FiAddr) {
        let at = self.entries.len() as FiAddr;
        self.entries.push(Some(addr));
        let all = self.by_addr.entry(addr).or_default();
        all.push(at);
        (at, all[0])
    }

    /// Returns the address, and what it is known by now.
    pub(crate) fn remove(&mut self, at: FiAddr) -> Option<(Addr, FiAddr)> {
        let addr = self.entries.get_mut(usize::try_from(at).ok()?)?.take()?;
        let all = self.by_addr.get_mut(&addr)?;
        all.retain(|i| *i != at);
        let next = all.first().copied();
        if next.is_none() {
            self.by_addr.remove(&addr);
        }
        Some((addr, next.unwrap_or(ADDR_UNSPEC)))
    }

    pub(crate) fn lookup(&self, at: FiAddr) -> Option<Addr> {
        *self.entries.get(usize::try_from(at).ok()?)?
    }

    /// What completions and receives call the peer that `at` names.
    pub(crate) fn canonical(&self, at: FiAddr) -> FiAddr {
        let addr = self.lookup(at);
        addr.and_then(|a| self.by_addr.get(&a)?.first().copied()).unwrap_or(at)
    }

    /// Every entry: index, address, what it is known by.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FiAddr, Addr, FiAddr)> {
        (0..).zip(&self.entries).filter_map(|(at, a)| Some((at, (*a)?, self.canonical(at))))
    }
}
