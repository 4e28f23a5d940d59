//! Memory behind a descriptor: made and sealed here, or sent by another process and checked before it is
//! mapped.
//!
//! The danger is SIGBUS: a page of a mapping that its file does not have, or that cannot be had at a touch.
//! [`vet`] has the rules against both, for every descriptor that comes from elsewhere.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::{Mapping, cvt};

/// The file cannot become smaller: what may be mapped stays.
pub const NO_SHRINK: libc::c_int = libc::F_SEAL_SHRINK;
/// Its size is what it is, and no seal is added.
pub const FIXED: libc::c_int = SIZE | libc::F_SEAL_SEAL;
/// It cannot be mapped anew to be written. Kernels before 5.1 have no such seal; there, a peer of the same
/// user could write.
const NO_WRITE: libc::c_int = libc::F_SEAL_FUTURE_WRITE;
const SIZE: libc::c_int = NO_SHRINK | libc::F_SEAL_GROW;

/// Which mappings can write to memory that is made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Those of every process that has the descriptor.
    All,
    /// Those that are there when [`seal`] is called.
    UntilSealed,
}

/// Makes `len` bytes, all zero, of a fixed size. The name is for people (/proc/PID/maps).
pub fn create(name: &CStr, len: usize, writers: Writers) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; memfd_create(2) takes nothing else from memory.
    let fd = cvt(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: a descriptor just made, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    if len as u64 > longest_file() {
        // What the call would fail with if SIGXFSZ had not ended the process before.
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    // SAFETY: `ftruncate` touches no memory of ours.
    cvt(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
    add_seals(&fd, if writers == Writers::All { FIXED } else { SIZE })?;
    Ok(fd)
}

/// How long a file may become here (RLIMIT_FSIZE).
fn longest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if known { limit.rlim_cur } else { u64::MAX }
}

/// What maps the memory of [`Writers::UntilSealed`] from now on can only read it.
pub fn seal(fd: &OwnedFd) {
    let _ = add_seals(fd, NO_WRITE | libc::F_SEAL_SEAL);
}

fn add_seals(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: F_ADD_SEALS touches no memory of ours.
    cvt(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// Why memory of another process was not taken.
#[derive(Debug)]
pub enum Unfit {
    /// It is no memfd of ordinary pages.
    Kind,
    /// It is not sealed as agreed.
    Seals,
    /// It has another size than was agreed on.
    Size,
    /// It cannot be mapped here, now.
    NoRoom(io::Error),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfit::Kind => "its memory is no memfd of ordinary pages",
            Unfit::Seals => "its memory is not sealed, so that it could shrink",
            Unfit::Size => "its memory has another size than was agreed on",
            Unfit::NoRoom(e) => return write!(f, "its memory cannot be mapped: {e}"),
        })
    }
}

/// Checks a descriptor that another process sent or named; its size in bytes. `seals` are those that it must
/// have, of which [`NO_SHRINK`] is always one, and `size` has the sizes that are as agreed, of which 0 is
/// never one.
///
/// If this is `Ok`, so many bytes can be mapped, and an access to them never ends in SIGBUS for what another
/// process does to the file:
///
/// 1. It is on tmpfs, so its pages are ordinary ones. Huge pages can run out at a touch, also when they are
///    sealed; a pipe, a socket or a file of a disk is none of that type.
/// 2. F_SEAL_SHRINK is set, and no seal is ever taken back (fcntl(2)): the file has at no later time less
///    bytes than when its size is read, which happens afterwards. Only a memfd has that seal, or one made as
///    a memfd is: other files of tmpfs answer F_SEAL_SEAL alone.
/// 3. A hole in the file (fallocate(2)) is filled with zeros at a touch.
pub fn vet(fd: impl AsFd, seals: libc::c_int, size: impl RangeBounds<usize>) -> Result<usize, Unfit> {
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: both structs are plain data, for which zeros are a value.
    let (mut stat, mut fs): (libc::stat, libc::statfs) = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the answer.
    if unsafe { libc::fstatfs(raw, &mut fs) } < 0 || fs.f_type != libc::TMPFS_MAGIC {
        return Err(Unfit::Kind);
    }
    let seals = seals | NO_SHRINK;
    // SAFETY: F_GET_SEALS touches no memory of ours.
    let has = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
    if has < 0 || has & seals != seals {
        return Err(Unfit::Seals);
    }
    // SAFETY: a valid place for the answer.
    let ok = unsafe { libc::fstat(raw, &mut stat) } == 0;
    match usize::try_from(stat.st_size) {
        Ok(len) if ok && len > 0 && size.contains(&len) => Ok(len),
        _ => Err(Unfit::Size),
    }
}

/// Checks and maps memory that another process sent, whose size and seals are [`FIXED`], to be read and
/// written.
pub fn adopt(fd: impl AsFd, size: impl RangeBounds<usize>) -> Result<Mapping, Unfit> {
    let len = vet(&fd, FIXED, size)?;
    Mapping::new(fd, len, None).map_err(Unfit::NoRoom)
}

/// Checks and maps memory that another process sent, to be read.
pub fn adopt_read_only(fd: impl AsFd, size: impl RangeBounds<usize>) -> Result<Mapping, Unfit> {
    let len = vet(&fd, FIXED, size)?;
    Mapping::read_only(fd, len).map_err(Unfit::NoRoom)
}

#[cfg(all(test, not(loom)))]
mod tests;
