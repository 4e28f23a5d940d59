//! Files and directories by descriptors of directories: below what the caller has named no link is followed,
//! and nothing is looked up a second time by its whole path.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::files::{failed, named};
use crate::fabric::Error;

/// Which file it is: its file system, and its number there.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(of: &Metadata) -> Identity {
    (of.dev(), of.ino())
}

/// An open directory.
pub(super) struct Dir {
    file: File,
    /// For errors.
    path: PathBuf,
}

const DIRECTORY: i32 = libc::O_RDONLY | libc::O_DIRECTORY;

fn open_at(dir: i32, name: &OsStr, flags: i32) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    // SAFETY: a C string.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOCTTY, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: openat(2) has returned it just now: nothing else closes it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

impl Dir {
    /// One that the caller has named: links are followed.
    pub fn named(path: &Path) -> Result<Dir, Error> {
        let file = open_at(libc::AT_FDCWD, path.as_os_str(), DIRECTORY).map_err(named(path))?;
        Ok(Dir { file, path: path.to_owned() })
    }

    /// That of a path's last part, and the part.
    pub fn of(path: &Path) -> Result<(Dir, &OsStr), Error> {
        let name = path.file_name().ok_or_else(|| failed(format!("{}: no name", path.display())))?;
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        Ok((Dir::named(parent.unwrap_or(Path::new(".")))?, name))
    }

    /// One below this one, directory by directory.
    pub fn below(&self, path: &Path) -> Result<Dir, Error> {
        let mut dir =
            Dir { file: self.file.try_clone().map_err(named(&self.path))?, path: self.path.clone() };
        for part in path.iter() {
            dir.path.push(part);
            let next = open_at(dir.file.as_raw_fd(), part, DIRECTORY | libc::O_NOFOLLOW);
            dir.file = next.map_err(named(&dir.path))?;
        }
        Ok(dir)
    }

    /// The directory of a path's last part below this one, and the part.
    fn parent<'p>(&self, path: &'p Path) -> Result<(Dir, &'p OsStr), Error> {
        let dir = self.below(path.parent().unwrap_or(Path::new("")))?;
        Ok((dir, path.file_name().unwrap_or_default()))
    }

    fn open(&self, path: &Path, flags: i32) -> Result<File, Error> {
        let (dir, name) = self.parent(path)?;
        let whole = self.path.join(path);
        open_at(dir.file.as_raw_fd(), name, flags | libc::O_NOFOLLOW).map_err(named(&whole))
    }

    /// A file below this one, and none that has taken its place since: `None` is any.
    pub fn file(&self, path: &Path, write: bool, made: Option<Identity>) -> Result<File, Error> {
        let access = if write { libc::O_RDWR } else { libc::O_RDONLY };
        // To open a pipe waits for its other end.
        let file = self.open(path, access | libc::O_NONBLOCK)?;
        let whole = self.path.join(path);
        let of = file.metadata().map_err(named(&whole))?;
        if !of.is_file() || made.is_some_and(|made| made != identity(&of)) {
            return Err(failed(format!("{}: it was changed meanwhile", whole.display())));
        }
        Ok(file)
    }

    /// Makes a file that was not there, for this user alone.
    pub fn make_file(&self, path: &Path) -> Result<File, Error> {
        self.open(path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)
    }

    /// Makes a directory that was not there, for this user alone.
    pub fn make_dir(&self, path: &Path) -> Result<Dir, Error> {
        let (dir, name) = self.parent(path)?;
        let whole = self.path.join(path);
        let text = CString::new(name.as_bytes()).map_err(|e| named(&whole)(e.into()))?;
        // SAFETY: a C string.
        if unsafe { libc::mkdirat(dir.file.as_raw_fd(), text.as_ptr(), 0o700) } != 0 {
            return Err(named(&whole)(io::Error::last_os_error()));
        }
        dir.below(Path::new(name))
    }

    /// Whether this user has made it, as far as the file system says: what the user makes there has the same
    /// owner.
    pub fn is_own(&self) -> Result<bool, Error> {
        let name = format!(".strait-{}", std::process::id());
        let file = self.make_file(Path::new(&name))?;
        self.remove(OsStr::new(&name)).map_err(named(&self.path))?;
        Ok(file.metadata().map_err(named(&self.path))?.uid() == self.metadata()?.uid())
    }

    /// Removes a file.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        let name = CString::new(name.as_bytes())?;
        // SAFETY: a C string.
        match unsafe { libc::unlinkat(self.file.as_raw_fd(), name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn metadata(&self) -> Result<Metadata, Error> {
        self.file.metadata().map_err(named(&self.path))
    }

    pub fn set_mode(&self, mode: u32) -> Result<(), Error> {
        self.file.set_permissions(Permissions::from_mode(mode)).map_err(named(&self.path))
    }

    /// What has the name: a link itself, and not its target.
    pub fn stat(&self, name: &OsStr) -> Result<libc::stat, Error> {
        let whole = self.path.join(name);
        let name = CString::new(name.as_bytes()).map_err(|e| named(&whole)(e.into()))?;
        // SAFETY: zeros are a value of it.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        let (fd, links) = (self.file.as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: a C string, and a valid place.
        match unsafe { libc::fstatat(fd, name.as_ptr(), &raw mut found, links) } {
            0 => Ok(found),
            _ => Err(named(&whole)(io::Error::last_os_error())),
        }
    }

    /// What is in it, in an order that does not change.
    pub fn names(&self) -> Result<Vec<OsString>, Error> {
        // It has a position of its own, which fdopendir's closedir closes.
        let own = open_at(self.file.as_raw_fd(), OsStr::new("."), DIRECTORY).map_err(named(&self.path))?;
        let fd = own.into_raw_fd();
        // SAFETY: a descriptor that nothing else uses.
        let stream = unsafe { libc::fdopendir(fd) };
        if stream.is_null() {
            let e = io::Error::last_os_error();
            // SAFETY: fdopendir(3) has failed, so that nothing else closes it.
            unsafe { libc::close(fd) };
            return Err(named(&self.path)(e));
        }
        let mut names = Vec::new();
        let end = loop {
            // SAFETY: errno is this thread's; the stream is open, and no other thread's.
            let entry = unsafe {
                *libc::__errno_location() = 0;
                libc::readdir(stream)
            };
            if entry.is_null() {
                break io::Error::last_os_error();
            }
            // SAFETY: an entry's name is a C string, until the next one is read.
            let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) }.to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        };
        // SAFETY: it is used no more.
        unsafe { libc::closedir(stream) };
        if end.raw_os_error() != Some(0) {
            return Err(named(&self.path)(end));
        }
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_followed_and_nothing_that_has_taken_a_files_place_is_opened() {
        let top = std::env::temp_dir().join(format!("strait-dir-{}", std::process::id()));
        std::fs::create_dir_all(top.join("real")).unwrap();
        std::fs::write(top.join("real/file"), "x").unwrap();
        symlink("real", top.join("linked")).unwrap();
        symlink("file", top.join("real/link")).unwrap();
        let dir = Dir::named(&top).unwrap();
        let file = |path: &str, made| dir.file(Path::new(path), false, made);
        let made = identity(&file("real/file", None).unwrap().metadata().unwrap());
        assert!(
            file("real/file", Some(made)).is_ok() && file("real/file", Some((made.0, made.1 + 1))).is_err()
        );
        for path in ["linked/file", "real/link"] {
            assert!(file(path, None).is_err(), "{path}");
        }
        assert!(dir.below(Path::new("linked")).is_err() && dir.below(Path::new("real")).is_ok());
        for path in ["real/link", "real/file", "linked/new"] {
            assert!(
                dir.make_file(Path::new(path)).is_err() && dir.make_dir(Path::new(path)).is_err(),
                "{path}"
            );
        }
        let fresh = dir.make_dir(Path::new("real/fresh")).unwrap();
        assert!(fresh.is_own().unwrap() && fresh.names().unwrap().is_empty());
        assert_eq!(dir.below(Path::new("real")).unwrap().names().unwrap(), ["file", "fresh", "link"]);
        std::fs::remove_dir_all(&top).unwrap();
    }
}
