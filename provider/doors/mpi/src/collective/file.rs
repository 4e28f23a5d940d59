//! A file of /dev/shm that ranks find by a name which each derives by itself, and map.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use ipc::Mapping;

/// A file, while it has a name.
#[derive(Debug)]
pub(super) struct NamedFile(Option<String>);

impl NamedFile {
    /// The file of that name, made if there is none, and its memory of `len` bytes; `None` where there is no
    /// memory for it, or where it is not this user's alone.
    pub(super) fn open(name: u128, len: usize) -> Option<(NamedFile, Mapping)> {
        let path = format!("/dev/shm/strait-mpi-{name:032x}");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&path).ok()?;
        let is = file.metadata().ok()?;
        // SAFETY: takes nothing.
        if is.uid() != unsafe { libc::geteuid() } || is.mode() & 0o077 != 0 || !is.is_file() {
            return None;
        }
        if reserve(&file, len).is_none() {
            let _ = std::fs::remove_file(&path);
            return None;
        }
        let memory = Mapping::new(&file, len, None).ok()?;
        Some((NamedFile(Some(path)), memory))
    }

    /// Nothing opens the file any more.
    pub(super) fn unlink(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Gives a file its length and its memory: where that is not to be had now, a store would end the process by
/// SIGBUS.
fn reserve(file: &File, len: usize) -> Option<()> {
    let len = libc::off_t::try_from(len).ok()?;
    // SAFETY: a descriptor that is open.
    let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
    (failed == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a file system of one page in the place of /dev/shm for this thread alone; `None`: it may not.
    fn with_little_memory() -> Option<()> {
        let none = std::ptr::null();
        let (tmpfs, shm, size) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr(), c"size=4096".as_ptr());
        // SAFETY: strings that end in NUL; the mounts of this thread alone become others.
        unsafe {
            let is_alone = libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0;
            (is_alone && libc::mount(tmpfs, shm, tmpfs, 0, size.cast()) == 0).then_some(())
        }
    }

    #[test]
    fn a_full_file_system_is_no_board_and_no_fault() {
        let small = std::thread::spawn(|| {
            with_little_memory()?;
            std::fs::write("/dev/shm/all", [1; 4096]).unwrap();
            let name = u128::from_ne_bytes(ipc::random().unwrap());
            let made = NamedFile::open(name, 4096).is_some();
            Some((made, std::fs::read_dir("/dev/shm").unwrap().count()))
        });
        match small.join().unwrap() {
            Some(found) => assert_eq!(found, (false, 1)),
            None => eprintln!("skipped: this user makes no mount namespace"),
        }
    }

    #[test]
    fn a_file_that_others_may_write_is_not_taken() {
        use std::os::unix::fs::PermissionsExt;
        let name = u128::from_ne_bytes(ipc::random().unwrap());
        let path = format!("/dev/shm/strait-mpi-{name:032x}");
        let file = std::fs::File::create(&path).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o622)).unwrap();
        assert!(NamedFile::open(name, 4096).is_none());
        std::fs::remove_file(&path).unwrap();
    }
}
