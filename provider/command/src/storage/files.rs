//! What commands on one file and on directories have in common.

use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::fabric::Error;

/// Most bytes in memory at a time, and what is read without --size.
pub(super) const MOST: u64 = 64 << 20;

/// A name may have control characters, which a terminal would take for its own.
pub(super) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() }).collect()
}

pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(shown(&error.to_string()))
}

pub(super) fn named(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |e| failed(format!("{}: {e}", path.display()))
}

/// Gives a copy the permissions of what it was copied from, without the set-user-ID and set-group-ID bits:
/// the copy has another owner.
pub(super) fn permit(copy: &File, of: &Metadata, name: &Path) -> Result<(), Error> {
    let mode = Permissions::from_mode(of.permissions().mode() & 0o777);
    copy.set_permissions(mode).map_err(named(name))
}

/// Whether two files begin with the same bytes, as read(2) has them.
pub(super) fn same(one: &File, other: &File, name: &Path, bytes: u64) -> Result<bool, Error> {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(1 << 20) as usize;
        one.read_exact_at(&mut a[..len], at).map_err(named(name))?;
        if other.read_exact_at(&mut b[..len], at).is_err() || a[..len] != b[..len] {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
