//! Packed keys of registered memory, and what they are in the process that unpacks them.
//!
//! A key of no pieces is one of memory that cannot be shared; UCP then takes another way. One of memory that
//! may be taken back names a slot on a board ([`crate::md::region`]); a process that unpacks it fetches the
//! board.

use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hmem::Error;
use hmem::share::{self, Export, FileAt, HandleType, List, Owner};
use link::{RevocationTable, WindowId};
use ucx_sys::{self as ucx, Status};
use wire::ucx::{DeviceKey, FileId, HandleList};

use crate::md::keyhead::Head;
use crate::md::region::{Slot, regions};

/// Bytes of a packed key.
pub(crate) const KEY: usize = DeviceKey::LEN;

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
        let (allocations, handle) = match self.pieces {
            Pieces::None => (0, [0; Export::LEN]),
            Pieces::One(export) => (1, export.to_bytes()),
            Pieces::Many(count, FileAt { fd, file }) => {
                let (fd, zero) = ((fd as u32).into(), 0.into());
                (count, zerocopy::transmute!(HandleList { fd, zero, file: file_id(file), rest: [0; 88] }))
            }
        };
        let wire::ucx::Slot { board, index, generation } = Slot::to_wire(self.guard.map(|guard| guard.slot));
        let at = self.guard.map_or(FileAt { fd: 0, file: [0; 2] }, |guard| guard.board);
        zerocopy::transmute!(DeviceKey {
            owner: self.owner.id.into(),
            pid: (self.owner.pid as u32).into(),
            allocations: allocations.into(),
            base: self.base.into(),
            len: self.len.into(),
            index,
            generation,
            board_fd: (at.fd as u32).into(),
            tag: DeviceKey::TAG,
            board_file: file_id(at.file),
            maker: self.guard.map_or(0, |guard| guard.maker).into(),
            board,
            zero: 0.into(),
            handle,
        })
    }

    /// `None` for what is no such key.
    pub(super) fn unpack(bytes: &[u8; KEY]) -> Option<Key> {
        let key: DeviceKey = zerocopy::transmute!(*bytes);
        let at = |fd: u32, file: FileId| FileAt { fd: fd as i32, file: file.file.map(|word| word.get()) };
        let pieces = match key.allocations.get() {
            0 => Pieces::None,
            1 => Pieces::One(Export::from_bytes(&key.handle)?),
            count => {
                let HandleList { fd, file, .. } = zerocopy::transmute!(key.handle);
                Pieces::Many(count, at(fd.get(), file))
            }
        };
        let DeviceKey { board, index, generation, .. } = key;
        let guard = Slot::from_wire(wire::ucx::Slot { board, index, generation }).map(|slot| Guard {
            slot,
            maker: key.maker.get(),
            board: at(key.board_fd.get(), key.board_file),
        });
        let owner = Owner { pid: key.pid.get() as i32, id: key.owner.get() };
        let (base, len) = (key.base.get(), key.len.get());
        let sane = key.tag == DeviceKey::TAG && owner.pid > 0 && base.checked_add(len).is_some();
        sane.then_some(Key { owner, base, len, pieces, guard })
    }
}

fn file_id(file: [u64; 2]) -> FileId {
    FileId { file: file.map(Into::into) }
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
    pub(super) guard: Option<(WindowId, Slot, RevocationTable)>,
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

/// Processes that keys have come from, and what is known of their memory: those pools, and the devices they
/// are on, that were found to open, and what did not open.
#[derive(Debug, Default)]
struct Known {
    owners: HashMap<i32, Owner>,
    pools: HashSet<(u64, [u8; 16], i32)>,
    /// Allocations that were not opened, and when that was last tried.
    refused: HashMap<(u64, u64), Instant>,
    /// The boards that were fetched.
    boards: HashSet<(u64, WindowId)>,
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
    let boards: Vec<_> =
        known.boards.iter().filter(|(id, _)| *id == owner.id).map(|(_, board)| *board).collect();
    known.boards.retain(|(id, _)| *id != owner.id);
    drop(known);
    share::forget(owner.id);
    unmap(boards);
}

/// Unmaps boards that no key and no interface uses.
fn unmap(boards: impl IntoIterator<Item = WindowId>) {
    if let Ok(regions) = regions() {
        boards.into_iter().for_each(|board| regions.windows.unmap(board));
    }
}

/// What `rkey_release` does.
pub(crate) fn release(key: Box<Rkey>) {
    let (owner, board) = (key.owner, key.guard.as_ref().map(|(board, ..)| *board));
    drop(key);
    // Of a process of which nothing else is used it may have been the last one.
    if known().owners.get(&owner.pid) != Some(&owner) {
        unmap(board);
    }
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

/// Whether this can be opened here: tried now, since UCP takes another way only if the unpacking fails. What
/// is not kept open is tried once for each of a process's pools and devices.
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
fn board(owner: Owner, guard: Guard) -> Result<RevocationTable, Status> {
    let regions = regions().map_err(|_| ucx::UCS_ERR_IO_ERROR)?;
    let window = regions.windows.fetch(guard.window(), owner.pid, guard.board).map_err(|why| {
        log::debug!("pid {}: its board cannot be reached: {why}", owner.pid);
        ucx::UCS_ERR_UNREACHABLE
    })?;
    known().boards.insert((owner.id, guard.window()));
    RevocationTable::new(window).ok_or(ucx::UCS_ERR_INVALID_PARAM)
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
    use wire::ucx::TAG_AT;

    use super::*;

    const HANDLE: usize = std::mem::offset_of!(DeviceKey, handle);

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
