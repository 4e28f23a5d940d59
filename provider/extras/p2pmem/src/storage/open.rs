//! How a file is opened: what has no bytes by offset is refused, and what a name leads to is looked up once.

use std::fs::{FileType, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::Error;

/// The descriptor of a file or a disk, without O_DIRECT.
pub(super) fn by_path(path: &Path, write: bool, create: bool) -> Result<OwnedFd, Error> {
    // To open a device may do something already, and a socket cannot be opened at all.
    if let Some(what) = std::fs::metadata(path).ok().and_then(|of| no_file(of.file_type())) {
        return Err(refused(path, what));
    }
    let mut how = OpenOptions::new();
    how.read(true).write(write).create(create && write);
    // To open a pipe waits for its other end, and it may have come in between.
    how.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC);
    let file = how.open(path).map_err(|e| Error::Os(path.display().to_string(), e))?;
    checked(file.into(), path)
}

/// The descriptor, if it is of a file or a disk. What is read and written there waits from now on.
pub(super) fn checked(fd: OwnedFd, name: &Path) -> Result<OwnedFd, Error> {
    let failed = |e| Error::Os(name.display().to_string(), e);
    let file = std::fs::File::from(fd);
    if let Some(what) = no_file(file.metadata().map_err(failed)?.file_type()) {
        return Err(refused(name, what));
    }
    // SAFETY: flags of a descriptor of ours.
    let set = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK)
    };
    if set < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    Ok(file.into())
}

/// Another descriptor of the same file, with O_DIRECT: of what is open, whatever its name leads to by now.
pub(super) fn direct(fd: &OwnedFd, write: bool) -> Result<OwnedFd, String> {
    let mut how = OpenOptions::new();
    how.read(true).write(write).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
    let same = how.open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    same.map(OwnedFd::from).map_err(|e| format!("O_DIRECT: {e}"))
}

fn refused(name: &Path, what: &str) -> Error {
    Error::Invalid(format!("{}: {what}, no file and no disk", name.display()))
}

/// What has no bytes by offset.
fn no_file(of: FileType) -> Option<&'static str> {
    match of {
        of if of.is_dir() => Some("a directory"),
        of if of.is_fifo() => Some("a pipe"),
        of if of.is_socket() => Some("a socket"),
        of if of.is_char_device() => Some("a character device"),
        of if of.is_symlink() => Some("a symbolic link"),
        _ => None,
    }
}
