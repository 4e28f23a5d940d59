//! Keys: what a peer is told of registered memory, and what that is here.
//!
//! ```text
//! | owner: id, pid | pieces | first byte, bytes | guard: slot, descriptor, TAG, file, window | handle or list |
//! ```
//!
//! A key of no pieces is one of memory that cannot be shared; UCP then takes another way. One of memory that
//! may be taken back names a slot on a board ([`crate::region`]); a process that unpacks it fetches the board.

use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hmem::Error;
use hmem::share::{self, Export, FileAt, HandleType, List, Owner};
use link::{Hazards, WindowId};
use ucx_sys::{self as ucx, Status};

use crate::region::{Slot, regions};
use crate::rkey::{DEVICE, Head, TAG_AT};

/// Bytes of a packed key.
pub(crate) const KEY: usize = HANDLE + Export::LEN;
const HANDLE: usize = 80;

/// Before what did not open is tried again: an attempt may take a millisecond, and costs others their place.
const AGAIN: Duration = Duration::from_secs(1);
/// Most of those remembered.
const REFUSED: usize = 1024;

/// What a key's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// No other process can reach it.
    None,
    One(Export),
    /// So many, which are in a list.
    Many(u32, FileAt),
}

/// A slot on its owner's board, and where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) slot: Slot,
    pub(super) maker: u64,
    pub(super) board: FileAt,
}

impl Guard {
    pub(super) fn window(&self) -> WindowId {
        WindowId { maker: self.maker, number: self.slot.board.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) owner: Owner,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) pieces: Pieces,
    pub(super) guard: Option<Guard>,
}

impl Key {
    pub(super) fn pack(&self) -> [u8; KEY] {
        let mut out = [0; KEY];
        let mut half = |at: usize, v: u32| out[at..at + 4].copy_from_slice(&v.to_le_bytes());
        half(8, self.owner.pid as u32);
        match self.pieces {
            Pieces::None => {}
            Pieces::One(_) => half(12, 1),
            Pieces::Many(count, at) => {
                half(12, count);
                half(HANDLE, at.fd as u32);
            }
        }
        if let Some(guard) = &self.guard {
            half(32, guard.slot.index);
            half(36, guard.slot.generation);
            half(40, guard.board.fd as u32);
            half(72, guard.slot.board);
        }
        let mut word = |at: usize, v: u64| out[at..at + 8].copy_from_slice(&v.to_le_bytes());
        word(0, self.owner.id);
        word(16, self.base);
        word(24, self.len);
        if let Some(guard) = &self.guard {
            word(48, guard.board.file[0]);
            word(56, guard.board.file[1]);
            word(64, guard.maker);
        }
        match self.pieces {
            Pieces::None => {}
            Pieces::One(export) => out[HANDLE..].copy_from_slice(&export.to_bytes()),
            Pieces::Many(_, at) => {
                word(HANDLE + 8, at.file[0]);
                word(HANDLE + 16, at.file[1]);
            }
        }
        out[TAG_AT..TAG_AT + 4].copy_from_slice(&DEVICE);
        out
    }

    /// `None` for what is no such key.
    pub(super) fn unpack(bytes: &[u8; KEY]) -> Option<Key> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let pieces = match half(12) {
            0 => Pieces::None,
            1 => Pieces::One(Export::from_bytes(bytes[HANDLE..].try_into().expect("as long"))?),
            count => {
                let file = [word(HANDLE + 8), word(HANDLE + 16)];
                Pieces::Many(count, FileAt { fd: half(HANDLE) as i32, file })
            }
        };
        let guard = Guard {
            slot: Slot { board: half(72), index: half(32), generation: half(36) },
            maker: word(64),
            board: FileAt { fd: half(40) as i32, file: [word(48), word(56)] },
        };
        let guard = (guard.slot.board != 0).then_some(guard);
        let owner = Owner { pid: half(8) as i32, id: word(0) };
        let key = Key { owner, base: word(16), len: word(24), pieces, guard };
        let sane =
            bytes[TAG_AT..TAG_AT + 4] == DEVICE && owner.pid > 0 && key.base.checked_add(key.len).is_some();
        sane.then_some(key)
    }
}

/// A peer's memory as `uct_rkey_t` stands for it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Rkey {
    head: Head,
    pub(super) owner: Owner,
    base: u64,
    len: u64,
    exports: Vec<Export>,
    /// What has to be looked at before each access, where the memory may be taken back.
    pub(super) guard: Option<(WindowId, Slot, Hazards)>,
    packed: [u8; KEY],
}

impl Rkey {
    /// Whether all of `addr..addr+len` is the key's.
    pub(super) fn covers(&self, addr: u64, len: usize) -> bool {
        let off = addr.wrapping_sub(self.base);
        off <= self.len && len as u64 <= self.len - off
    }

    /// The allocation that an address of the peer's is in.
    pub(super) fn find(&self, addr: u64) -> Option<&Export> {
        self.exports.iter().find(|e| addr.wrapping_sub(e.base) < e.len)
    }

    pub(crate) fn packed(&self) -> &[u8] {
        &self.packed
    }
}

/// Processes that keys have come from, and what is known of their memory: those pools, and the devices they are on, that were found
/// to open, and what did not open.
#[derive(Debug, Default)]
struct Known {
    owners: HashMap<i32, Owner>,
    pools: HashSet<(u64, [u8; 16], i32)>,
    /// Allocations that were not opened, and when that was last tried.
    refused: HashMap<(u64, u64), Instant>,
}

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Nothing of this process's is used any more.
pub(super) fn forget(owner: Owner) {
    let mut known = known();
    known.owners.remove(&owner.pid);
    known.pools.retain(|(id, ..)| *id != owner.id);
    known.refused.retain(|(id, _), _| *id != owner.id);
    drop(known);
    share::forget(owner.id);
}

/// Whether that process lives, and has not left its pid to another one.
fn lives(owner: Owner) -> bool {
    if known().owners.get(&owner.pid) == Some(&owner) {
        return true;
    }
    let yes = owner == super::myself() || Owner::now(owner.pid) == owner;
    if yes {
        known().owners.insert(owner.pid, owner);
    }
    yes
}

/// Whether this can be opened here: tried now, since UCP takes another way only if it is told now. What is
/// not kept open is tried once for each of a process's pools and devices.
fn opens(owner: Owner, export: &Export) -> Result<(), Error> {
    let what = (owner.id, export.device, export.fd);
    let pool = export.handle_type == HandleType::Pool;
    if share::is_open(owner.id, export) || pool && known().pools.contains(&what) {
        return Ok(());
    }
    let which = (owner.id, export.id);
    if known().refused.get(&which).is_some_and(|when| when.elapsed() < AGAIN) {
        return Err(Error::os(libc::EAGAIN));
    }
    if let Err(why) = share::open(owner.pid, owner.id, export, 0) {
        let mut known = known();
        if known.refused.len() >= REFUSED {
            known.refused.clear();
        }
        known.refused.insert(which, Instant::now());
        return Err(why);
    }
    if pool {
        known().pools.insert(what);
    }
    Ok(())
}

/// The board of a key.
fn board(owner: Owner, guard: Guard) -> Result<Hazards, Status> {
    let regions = regions().map_err(|_| ucx::UCS_ERR_IO_ERROR)?;
    let window = regions.windows.fetch(guard.window(), owner.pid, guard.board).map_err(|why| {
        log::debug!("pid {}: its board cannot be reached: {why}", owner.pid);
        ucx::UCS_ERR_UNREACHABLE
    })?;
    Hazards::new(window).ok_or(ucx::UCS_ERR_INVALID_PARAM)
}

/// What `rkey_unpack` makes of a key.
pub(crate) fn unpack(bytes: &[u8; KEY]) -> Result<Box<Rkey>, Status> {
    let key = Key::unpack(bytes).ok_or(ucx::UCS_ERR_INVALID_PARAM)?;
    if !lives(key.owner) {
        return Err(ucx::UCS_ERR_UNREACHABLE);
    }
    let exports = match key.pieces {
        Pieces::None => return Err(ucx::UCS_ERR_UNREACHABLE),
        Pieces::One(export) => vec![export],
        Pieces::Many(count, at) => List::fetch(key.owner, at, count as usize).map_err(|e| {
            log::debug!("no list of handles from pid {}: {e}", key.owner.pid);
            ucx::UCS_ERR_UNREACHABLE
        })?,
    };
    // A stranger's word.
    for export in &exports {
        if export.handle_type.kind() != hmem::Kind::Cuda {
            return Err(ucx::UCS_ERR_INVALID_PARAM);
        }
        if let Err(why) = opens(key.owner, export) {
            log::debug!("pid {}: its device memory cannot be opened: {why}", key.owner.pid);
            return Err(ucx::UCS_ERR_UNREACHABLE);
        }
    }
    let guard = match key.guard {
        None => None,
        Some(guard) => Some((guard.window(), guard.slot, board(key.owner, guard)?)),
    };
    let Key { owner, base, len, .. } = key;
    Ok(Box::new(Rkey { head: Head::DEVICE, owner, base, len, exports, guard, packed: *bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pieces: Pieces, guard: Option<Guard>) -> Key {
        Key { owner: Owner { pid: 77, id: 1 << 60 }, base: 0x7000_0000, len: 12345, pieces, guard }
    }

    fn keys() -> Vec<Key> {
        let (device, token) = ([3; 16], [4; 64]);
        let one = Export {
            handle_type: HandleType::Legacy,
            id: 9,
            base: 0x7000_0000,
            len: 1 << 21,
            fd: -1,
            device,
            token,
        };
        let at = FileAt { fd: 12, file: [5, 6] };
        let slot = Slot { board: 1, index: 2, generation: u32::MAX };
        let guard = Guard { slot, maker: u64::MAX, board: FileAt { fd: 8, file: [7, 10] } };
        let pieces = [Pieces::None, Pieces::One(one), Pieces::Many(3, at)];
        pieces.into_iter().flat_map(|p| [key(p, None), key(p, Some(guard))]).collect()
    }

    #[test]
    fn keys_survive_packing() {
        for key in keys() {
            assert_eq!(Key::unpack(&key.pack()), Some(key));
        }
    }

    #[test]
    fn garbage_is_no_key() {
        let good = keys()[2].pack();
        // The tag, the sort of handle, lengths that go beyond the end of all addresses, no pid.
        for (at, n, value) in
            [(TAG_AT, 4, 0), (HANDLE, 1, 0), (24, 8, 0xff), (HANDLE + 24, 8, 0xff), (8, 4, 0)]
        {
            let mut bad = good;
            bad[at..at + n].fill(value);
            assert_eq!(Key::unpack(&bad), None, "byte {at}");
        }
        assert!(Key::unpack(&good).is_some());
    }

    #[test]
    fn a_key_is_good_for_its_memory_only() {
        let key = keys()[2];
        let Pieces::One(one) = key.pieces else { panic!() };
        let Key { owner, base, len, .. } = key;
        let rkey = Rkey {
            head: Head::DEVICE,
            owner,
            base,
            len,
            exports: vec![one],
            guard: None,
            packed: key.pack(),
        };
        assert!(rkey.covers(base, 12345) && rkey.covers(base + 12345, 0) && rkey.covers(base + 12344, 1));
        assert!(!rkey.covers(base - 1, 2) && !rkey.covers(base + 1, 12345) && !rkey.covers(base, usize::MAX));
        assert!(rkey.find(base + (1 << 21) - 1).is_some() && rkey.find(base + (1 << 21)).is_none());
    }

    #[test]
    fn what_is_not_there_is_not_reached() {
        // No driver in this process; nor is there such a process.
        for key in keys() {
            assert_eq!(unpack(&key.pack()).err(), Some(ucx::UCS_ERR_UNREACHABLE));
        }
    }
}
