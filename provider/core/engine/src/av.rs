//! Address vectors.

use std::collections::HashMap;

use wire::Addr;

use crate::types::{ADDR_UNSPEC, FiAddr};

/// Names of peers by index. An index is not given out again after its removal, so that a late
/// completion can't be taken for another peer's.
#[derive(Debug, Default)]
pub(crate) struct Av {
    entries: Vec<Option<Addr>>,
    /// What each index is known by: the oldest of its address. Itself where there is no address.
    known: Vec<FiAddr>,
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
        self.known.push(all[0]);
        (at, all[0])
    }

    /// Returns the address, and what it is known by now.
    pub(crate) fn remove(&mut self, at: FiAddr) -> Option<(Addr, FiAddr)> {
        let addr = self.entries.get_mut(usize::try_from(at).ok()?)?.take()?;
        let all = self.by_addr.get_mut(&addr)?;
        all.retain(|i| *i != at);
        let next = all.first().copied();
        self.known[at as usize] = at;
        for other in all.iter() {
            self.known[*other as usize] = all[0];
        }
        if next.is_none() {
            self.by_addr.remove(&addr);
        }
        Some((addr, next.unwrap_or(ADDR_UNSPEC)))
    }

    pub(crate) fn lookup(&self, at: FiAddr) -> Option<Addr> {
        *self.entries.get(usize::try_from(at).ok()?)?
    }

    /// What completions and receives call the peer that `at` names.
    #[inline]
    pub(crate) fn canonical(&self, at: FiAddr) -> FiAddr {
        usize::try_from(at).ok().and_then(|i| self.known.get(i).copied()).unwrap_or(at)
    }

    /// Every entry: index, address, what it is known by.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FiAddr, Addr, FiAddr)> {
        (0..).zip(&self.entries).filter_map(|(at, a)| Some((at, (*a)?, self.canonical(at))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_by_its_oldest_index() {
        let (mut av, addr) = (Av::default(), |n: u16| Addr::new(([127, 0, 0, 1], n).into()));
        let at = [addr(1), addr(2), addr(1), addr(1)].map(|a| av.insert(a).0);
        assert_eq!(at.map(|i| av.canonical(i)), [0, 1, 0, 0]);
        assert_eq!(av.remove(0), Some((addr(1), 2)));
        assert_eq!(at.map(|i| av.canonical(i)), [0, 1, 2, 2]);
        assert_eq!(av.remove(3), Some((addr(1), 2)));
        assert_eq!(av.remove(2), Some((addr(1), ADDR_UNSPEC)));
        assert_eq!(at.map(|i| av.canonical(i)), [0, 1, 2, 3]);
        assert_eq!((av.remove(2), av.canonical(99), av.canonical(ADDR_UNSPEC)), (None, 99, ADDR_UNSPEC));
    }
}
