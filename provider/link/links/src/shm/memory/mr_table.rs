//! The published MR table: what an endpoint has registered, where its peers can find it. So a peer that may
//! access our memory reads and writes it without our help.
//!
//! A sealed memfd that its owner writes and peers map read-only; the descriptor comes with the
//! welcome. A table of entries, found by key with a few probes. An entry is a sequence lock: the
//! owner makes its first word odd, changes the rest, makes it even again. Readers load all, then the
//! first word once more, and start over if it moved.
//!
//! The orders that matter: each word of an entry is stored with Release, so none is seen before the
//! odd number, and loaded with Acquire, so the second load of the number comes after all of them.
//!
//! A reader trusts nothing. What it finds only says which of the owner's addresses to ask the kernel for, and
//! an owner that writes wrong ones has its own memory changed. It reads an entry so many times and no more.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ipc::Mapping;
use ipc::memfd::{self, Unfit, Writers};
use ipc::word::Word;
use link_api::{Region, RegionVersion};

/// Entries of a table, a power of two.
const ENTRIES: u32 = 1024;
/// Words of an entry: number, state, then key, address and length in halves.
const WORDS: usize = 8;
/// Places a key may be at.
const PROBES: u32 = 16;
/// Most reads of an entry that is being changed.
const READS: u32 = 100;

/// Bits of an entry's state.
const USED: u32 = 1;
const LIVE: u32 = 2;
const READ: u32 = 4;
const WRITE: u32 = 8;
const VIRT: u32 = 16;
const MUST_OBSERVE: u32 = 32;

/// One entry, as words that both sides reach.
pub(crate) trait Entry {
    type Word: Word;
    /// Word `at`, which is below [`WORDS`].
    fn word(&self, at: usize) -> &Self::Word;
}

/// Writes an entry. Only its owner does.
fn write<E: Entry, const N: usize>(entry: &E, body: [u32; N]) {
    let number = entry.word(0).load(Relaxed);
    entry.word(0).store(number.wrapping_add(1), Relaxed);
    for (at, v) in (1..).zip(body) {
        entry.word(at).store(v, Release);
    }
    entry.word(0).store(number.wrapping_add(2), Release);
}

/// Reads an entry: all of it as it was at one time, and its number then. `None`: it did not stand still for
/// any of so many reads.
fn read<E: Entry, const N: usize>(entry: &E, reads: u32) -> Option<([u32; N], u32)> {
    for _ in 0..reads {
        let number = entry.word(0).load(Acquire);
        if number % 2 == 0 {
            let mut body = [0; N];
            for (at, v) in (1..).zip(&mut body) {
                *v = entry.word(at).load(Acquire);
            }
            if entry.word(0).load(Relaxed) == number {
                return Some((body, number));
            }
        }
        std::hint::spin_loop();
    }
    None
}

/// The probes for a key.
pub(in crate::shm) fn places(key: u64) -> impl Iterator<Item = u32> {
    let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32;
    (0..PROBES).map(move |n| first.wrapping_add(n) % ENTRIES)
}

fn body(state: u32, key: u64, addr: u64, len: u64) -> [u32; WORDS - 1] {
    let half = |v: u64| [v as u32, (v >> 32) as u32];
    let ([a, b], [c, d], [e, f]) = (half(key), half(addr), half(len));
    [state, a, b, c, d, e, f]
}

/// An entry in a mapping.
struct Mapped<'a>(&'a Mapping, u32);

impl Entry for Mapped<'_> {
    type Word = AtomicU32;
    fn word(&self, at: usize) -> &AtomicU32 {
        let at = (self.1 as usize * WORDS + at) * 4;
        assert!(at + 4 <= SIZE);
        // SAFETY: inside by the line above, since each table has `SIZE` bytes, and a multiple of 4.
        unsafe { self.0.word(at) }
    }
}

pub(in crate::shm) const SIZE: usize = ENTRIES as usize * WORDS * 4;

/// Our own table.
#[derive(Debug)]
pub(in crate::shm) struct MrTable {
    memory: Mapping,
    fd: OwnedFd,
    /// Where each key is.
    at: HashMap<u64, u32>,
    taken: Box<[bool]>,
}

impl MrTable {
    pub(in crate::shm) fn create() -> io::Result<MrTable> {
        let fd = memfd::create(c"strait", SIZE, Writers::UntilSealed)?;
        let memory = Mapping::new(&fd, SIZE, None)?;
        memfd::seal(&fd);
        Ok(MrTable { memory, fd, at: HashMap::new(), taken: vec![false; ENTRIES as usize].into() })
    }

    /// For peers.
    pub(in crate::shm) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Publishes a registration, or what has become of it. Where there is no room peers do not see it,
    /// and ask by frames.
    pub(in crate::shm) fn publish(&mut self, e: &Region) {
        let free = || places(e.key).find(|at| !self.taken[*at as usize]);
        let Some(at) = self.at.get(&e.key).copied().or_else(free) else { return };
        self.taken[at as usize] = true;
        self.at.insert(e.key, at);
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        let state = USED
            | LIVE
            | bit(e.read, READ)
            | bit(e.write, WRITE)
            | bit(e.virt_addr, VIRT)
            | bit(e.target_must_observe, MUST_OBSERVE);
        write(&Mapped(&self.memory, at), body(state, e.key, e.addr, e.len));
    }

    /// Withdraws it; where it was. Its place is not used again before it was given back.
    pub(in crate::shm) fn withdraw(&mut self, key: u64) -> Option<u32> {
        let at = *self.at.get(&key)?;
        write(&Mapped(&self.memory, at), body(USED, 0, 0, 0));
        Some(at)
    }

    /// Gives back the place of a registration that is withdrawn, and that no peer accesses any more.
    pub(in crate::shm) fn give_back(&mut self, key: u64) {
        if let Some(at) = self.at.remove(&key) {
            self.taken[at as usize] = false;
        }
    }

    /// Withdraws all registrations.
    pub(in crate::shm) fn withdraw_all(&mut self) {
        for at in self.at.values() {
            write(&Mapped(&self.memory, *at), body(USED, 0, 0, 0));
        }
    }
}

/// A peer's table.
#[derive(Debug)]
pub(in crate::shm) struct PeerMrTable(Mapping);

impl PeerMrTable {
    pub(in crate::shm) fn adopt(fd: &OwnedFd) -> Result<PeerMrTable, Unfit> {
        memfd::adopt_read_only(fd, SIZE..=SIZE).map(PeerMrTable)
    }

    /// Whether the registration of a ticket is published, and as it was.
    #[inline]
    pub(in crate::shm) fn shows(&self, ticket: RegionVersion) -> bool {
        // A ticket comes from `find`, so its place is one of the table's.
        Mapped(&self.0, ticket.place % ENTRIES).word(0).load(Acquire) == ticket.number
    }

    /// What the peer publishes under a key.
    pub(in crate::shm) fn find(&self, key: u64) -> Option<(Region, RegionVersion)> {
        for at in places(key) {
            let ([state, a, b, c, d, e, f], number) = read(&Mapped(&self.0, at), READS)?;
            let whole = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
            if state & USED == 0 {
                return None;
            }
            if state & LIVE != 0 && whole(a, b) == key {
                let exposed = Region {
                    key,
                    addr: whole(c, d),
                    len: whole(e, f),
                    read: state & READ != 0,
                    write: state & WRITE != 0,
                    virt_addr: state & VIRT != 0,
                    target_must_observe: state & MUST_OBSERVE != 0,
                };
                return Some((exposed, RegionVersion { place: at, number }));
            }
        }
        None
    }
}

#[cfg(all(test, loom))]
#[path = "mr_table_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn exposed(key: u64) -> Region {
        let (addr, len) = (key.wrapping_mul(3), key ^ u64::MAX);
        Region {
            key,
            addr,
            len,
            read: key % 2 == 0,
            write: key % 3 == 0,
            virt_addr: true,
            target_must_observe: false,
        }
    }

    #[test]
    fn a_published_registration_is_found_until_it_is_withdrawn() {
        let mut table = MrTable::create().unwrap();
        let view = PeerMrTable::adopt(&table.fd.try_clone().unwrap()).unwrap();
        assert_eq!(view.find(7), None);
        // Far more than there is room for: some are not published, none is wrong.
        let keys: Vec<u64> = (0..5000).map(|n: u64| n * n).collect();
        keys.iter().for_each(|k| table.publish(&exposed(*k)));
        let published: Vec<u64> = keys.iter().copied().filter(|k| view.find(*k).is_some()).collect();
        assert!(published.len() > 900, "{}", published.len());
        let found = |k: u64| view.find(k).map(|(e, _)| e);
        published.iter().for_each(|k| assert_eq!(found(*k), Some(exposed(*k))));
        let other = Region { target_must_observe: true, ..exposed(published[3]) };
        let (_, before) = view.find(published[3]).unwrap();
        assert!(view.shows(before));
        table.publish(&other);
        let (now, after) = view.find(published[3]).unwrap();
        assert_eq!(now, other);
        assert!(!view.shows(before) && view.shows(after), "a ticket is of one version");
        for k in &keys {
            table.withdraw(*k);
            table.give_back(*k);
        }
        assert!(keys.iter().all(|k| view.find(*k).is_none()) && !view.shows(after));
        table.publish(&exposed(1));
        assert_eq!(found(1), Some(exposed(1)));
        table.withdraw_all();
        assert_eq!(found(1), None);
    }

    #[test]
    fn an_entry_that_never_stands_still_is_not_found() {
        let table = MrTable::create().unwrap();
        let view = PeerMrTable::adopt(&table.fd.try_clone().unwrap()).unwrap();
        for at in places(5) {
            Mapped(&table.memory, at).word(0).store(1, Relaxed);
        }
        assert_eq!(view.find(5), None);
    }

    #[test]
    fn peers_cannot_write_the_table() {
        let table = MrTable::create().unwrap();
        // SAFETY: a mapping that replaces none; it is refused.
        let map = |prot| unsafe {
            use std::os::fd::AsRawFd;
            libc::mmap(std::ptr::null_mut(), SIZE, prot, libc::MAP_SHARED, table.fd.as_raw_fd(), 0)
        };
        assert_eq!(map(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
        assert_ne!(map(libc::PROT_READ), libc::MAP_FAILED);
    }
}
