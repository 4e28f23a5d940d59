//! What commands on one file and on directories have in common.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::fabric::Error;

/// Most bytes in memory at a time, and what is read without --size.
pub(super) const MOST: u64 = 64 << 20;

pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}

pub(super) fn named(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |e| failed(format!("{}: {e}", path.display()))
}

/// Makes a file that was not there.
pub(super) fn make(path: &Path) -> Result<(), Error> {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    made.map(drop).map_err(named(path))
}

/// Whether two files begin with the same bytes, as read(2) has them.
pub(super) fn same(one: &Path, other: &Path, bytes: u64) -> Result<bool, Error> {
    let files =
        [std::fs::File::open(one).map_err(named(one))?, std::fs::File::open(other).map_err(named(other))?];
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(1 << 20) as usize;
        files[0].read_exact_at(&mut a[..len], at).map_err(named(one))?;
        if files[1].read_exact_at(&mut b[..len], at).is_err() || a[..len] != b[..len] {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
