//! Keys: what a peer is told of registered memory, and what that is here.
//!
//! ```text
//! | owner: id, pid | pieces | first byte, bytes | slot | TAG | board | a handle, or where there are more |
//! ```
//!
//! A key of no pieces is one of memory that cannot be shared; UCP then takes another way.

use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, Mutex, MutexGuard};

use hmem::Error;
use hmem::share::{self, Export, How, List, ListAt, Owner};
use ucx_sys::{self as ucx, Status};

use crate::md::{DEVICE, Head, TAG_AT};

/// Bytes of a packed key.
pub(crate) const KEY: usize = 56 + Export::LEN;

/// What a key's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// Nobody else can reach it.
    None,
    One(Export),
    /// So many, which are in a list.
    Many(u32, ListAt),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) owner: Owner,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) pieces: Pieces,
}

impl Key {
    pub(super) fn pack(&self) -> [u8; KEY] {
        let mut out = [0; KEY];
        let count = match self.pieces {
            Pieces::None => 0,
            Pieces::One(export) => {
                out[56..].copy_from_slice(&export.to_bytes());
                1
            }
            Pieces::Many(count, at) => {
                out[56..60].copy_from_slice(&at.fd.to_le_bytes());
                out[64..72].copy_from_slice(&at.file[0].to_le_bytes());
                out[72..80].copy_from_slice(&at.file[1].to_le_bytes());
                count
            }
        };
        out[..8].copy_from_slice(&self.owner.id.to_le_bytes());
        out[8..12].copy_from_slice(&self.owner.pid.to_le_bytes());
        out[12..16].copy_from_slice(&count.to_le_bytes());
        out[16..24].copy_from_slice(&self.base.to_le_bytes());
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        out[TAG_AT..TAG_AT + 4].copy_from_slice(&DEVICE);
        out
    }

    /// `None` for what is no such key.
    pub(super) fn unpack(bytes: &[u8; KEY]) -> Option<Key> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let pieces = match half(12) {
            0 => Pieces::None,
            1 => Pieces::One(Export::from_bytes(bytes[56..].try_into().expect("as long"))?),
            count => Pieces::Many(count, ListAt { fd: half(56) as i32, file: [word(64), word(72)] }),
        };
        let owner = Owner { pid: half(8) as i32, id: word(0) };
        let key = Key { owner, base: word(16), len: word(24), pieces };
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

/// Processes that keys have come from, and what of theirs was found to open.
#[derive(Debug, Default)]
struct Known {
    owners: HashMap<i32, Owner>,
    opens: HashSet<(u64, How, [u8; 16])>,
}

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Nothing of this process's is used any more.
pub(super) fn forget(owner: Owner) {
    let mut known = known();
    known.owners.remove(&owner.pid);
    known.opens.retain(|(id, ..)| *id != owner.id);
    drop(known);
    share::forget(owner.id);
}

/// Whether that process lives, and has not left its pid to another one.
fn lives(owner: Owner) -> bool {
    if owner == super::myself() {
        return true;
    }
    if known().owners.get(&owner.pid) == Some(&owner) {
        return true;
    }
    let yes = Owner::now(owner.pid) == owner;
    if yes {
        known().owners.insert(owner.pid, owner);
    }
    yes
}

/// Whether memory of that kind and device can be opened here: tried once for each of a process's devices,
/// since UCP takes another way only if it is told now.
fn opens(owner: Owner, export: &Export) -> Result<(), Error> {
    let what = (owner.id, export.how, export.device);
    if known().opens.contains(&what) {
        return Ok(());
    }
    share::open(owner.pid, owner.id, export, 0)?;
    known().opens.insert(what);
    Ok(())
}

/// What `rkey_unpack` makes of a key.
pub(crate) fn unpack(bytes: &[u8; KEY]) -> Result<Box<Rkey>, Status> {
    let key = Key::unpack(bytes).ok_or(ucx::UCS_ERR_INVALID_PARAM)?;
    if !super::is_here() || !lives(key.owner) {
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
    // A stranger's word: of CUDA's memory, and of this process's no more than it is.
    for export in &exports {
        if export.how.kind() != hmem::Kind::Cuda {
            return Err(ucx::UCS_ERR_INVALID_PARAM);
        }
        if let Err(why) = opens(key.owner, export) {
            log::debug!("pid {}: its device memory cannot be opened: {why}", key.owner.pid);
            return Err(ucx::UCS_ERR_UNREACHABLE);
        }
    }
    let Key { owner, base, len, .. } = key;
    Ok(Box::new(Rkey { head: Head::DEVICE, owner, base, len, exports, packed: *bytes }))
}
