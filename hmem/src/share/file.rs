//! Memory that a descriptor stands for and the CPU may map: dma-bufs and memfds.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use ipc::memfd::{self, Unfit};
use ipc::pidfd;

use super::handle::{Export, HandleType};
use crate::error::Error;

/// `DMA_BUF_MAGIC`, by linux/magic.h.
const DMA_BUF_MAGIC: i64 = 0x444d_4142;
/// `DMA_BUF_IOCTL_SYNC`: _IOW('b', 0, __u64), by linux/dma-buf.h.
const DMA_BUF_SYNC: u64 = 0x4008_6200;
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

const PAGE: u64 = 4096;

/// A file, mapped.
pub(crate) struct File {
    at: usize,
    len: usize,
    /// Bytes before the first requested one.
    skip: usize,
    /// Where the CPU has to say when it begins and ends.
    dmabuf: Option<OwnedFd>,
}

fn stat(fd: i32) -> Result<libc::stat, Error> {
    // SAFETY: all zeroes is a valid one.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place.
    if unsafe { libc::fstat(fd, &mut st) } < 0 { Err(Error::last_os()) } else { Ok(st) }
}

/// Which file it is: device and inode.
pub(crate) fn inode(fd: i32) -> Result<[u64; 2], Error> {
    stat(fd).map(|st| [st.st_dev, st.st_ino])
}

/// Whether it is a dma-buf, or memory that cannot shrink, so that what is mapped of it stays; an error if it
/// is neither. A dma-buf cannot shrink at all.
fn is_dmabuf(fd: BorrowedFd<'_>) -> Result<bool, Error> {
    // SAFETY: all zeroes is a valid one.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), &mut fs) } < 0 {
        return Err(Error::last_os());
    }
    if fs.f_type as i64 == DMA_BUF_MAGIC {
        return Ok(true);
    }
    match memfd::vet(fd, memfd::NO_SHRINK, ..) {
        Ok(_) => Ok(false),
        Err(Unfit::Kind | Unfit::Seals) => Err(Error::os(libc::EPERM)),
        Err(Unfit::Size | Unfit::NoRoom(_)) => Err(Error::os(libc::EINVAL)),
    }
}

/// Whether it is a dma-buf, as [`is_dmabuf`] says; an error also if it has not these bytes.
pub(crate) fn vet(fd: BorrowedFd<'_>, off: u64, len: u64) -> Result<bool, Error> {
    let dmabuf = is_dmabuf(fd)?;
    let invalid = Error::os(libc::EINVAL);
    let end = off.checked_add(len).ok_or(invalid)?;
    let size = if dmabuf {
        // A dma-buf has its size by lseek(2) alone, and no position. SAFETY: plain numbers.
        unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) }
    } else {
        stat(fd.as_raw_fd())?.st_size
    };
    if len == 0 || size < 0 || end > size as u64 { Err(invalid) } else { Ok(dmabuf) }
}

/// A descriptor of another process, or of this one.
pub(crate) fn fetch(pid: i32, fd: i32) -> Result<OwnedFd, Error> {
    if pid == std::process::id() as i32 && fd >= 0 {
        // SAFETY: it is copied by a call that checks the number.
        return unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|_| Error::last_os());
    }
    pidfd::fetch(pid, fd).map_err(|e| Error::os(e.raw_os_error().unwrap_or(libc::EIO)))
}

/// A descriptor of a process, as another process finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAt {
    /// Its number there.
    pub fd: i32,
    /// Device and inode of what it is.
    pub file: [u64; 2],
}

impl FileAt {
    /// One of this process's, as long as that stays open.
    pub fn of(fd: &impl AsFd) -> Result<FileAt, Error> {
        let fd = fd.as_fd().as_raw_fd();
        Ok(FileAt { fd, file: inode(fd)? })
    }

    /// A descriptor for the same, of the process `pid`. What is in there is that process's word.
    pub fn fetch(self, pid: i32) -> Result<OwnedFd, Error> {
        let fd = fetch(pid, self.fd)?;
        // The number may be another file's by now.
        if inode(fd.as_raw_fd())? != self.file {
            return Err(Error::os(libc::ESTALE));
        }
        Ok(fd)
    }
}

/// The handle of `len` bytes of a file from `off` on, which its owner knows as `base`. `fd` stays open
/// as long as it is to be reached.
pub(crate) fn describe(fd: BorrowedFd<'_>, off: u64, id: u64, base: u64, len: u64) -> Result<Export, Error> {
    is_dmabuf(fd)?;
    let fd = fd.as_raw_fd();
    let [dev, ino] = inode(fd)?;
    let mut token = [0; 64];
    for (to, word) in token.chunks_mut(8).zip([off, dev, ino]) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(Export { handle_type: HandleType::File, id, base, len, fd, device: [0; 16], token })
}

/// The handle of the first `len` bytes of a memfd that cannot shrink, which this process knows as `base`. It
/// stays open as long as it is to be reached.
pub fn export_file(fd: &impl AsFd, base: u64, len: u64) -> Result<Export, Error> {
    let fd = fd.as_fd();
    // No other file has the number while this one is open.
    let [_, id] = inode(fd.as_raw_fd())?;
    describe(fd, 0, id, base, len)
}

/// Maps what another process described. Nothing in `export` is trusted.
pub(crate) fn import(pid: i32, export: &Export) -> Result<File, Error> {
    let word = |n: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&export.token[8 * n..8 * n + 8]);
        u64::from_ne_bytes(bytes)
    };
    let at = FileAt { fd: export.fd, file: [word(1), word(2)] };
    File::map(at.fetch(pid)?, word(0), export.len)
}

impl File {
    /// Maps `len` bytes of it from `off` on.
    pub(crate) fn map(fd: OwnedFd, off: u64, len: u64) -> Result<File, Error> {
        let dmabuf = vet(fd.as_fd(), off, len)?;
        let skip = off % PAGE;
        let bytes = usize::try_from(len + skip).map_err(|_| Error::os(libc::EINVAL))?;
        let map = |prot| {
            let (fd, from) = (fd.as_raw_fd(), (off - skip) as libc::off_t);
            // SAFETY: a new mapping, where the kernel finds room.
            unsafe { libc::mmap(ptr::null_mut(), bytes, prot, libc::MAP_SHARED, fd, from) }
        };
        let at = map(libc::PROT_READ | libc::PROT_WRITE);
        if at == libc::MAP_FAILED {
            return Err(Error::last_os());
        }
        let skip = skip as usize;
        Ok(File { at: at.expose_provenance(), skip, len: bytes, dmabuf: dmabuf.then_some(fd) })
    }

    /// The first requested byte.
    pub(crate) fn at(&self) -> usize {
        self.at + self.skip
    }

    /// Bytes from there on.
    pub(crate) fn len(&self) -> usize {
        self.len - self.skip
    }

    /// From here until it is dropped the CPU uses the memory.
    pub(crate) fn cpu_access(&self, write: bool) -> Result<Option<Access<'_>>, Error> {
        let Some(fd) = &self.dmabuf else { return Ok(None) };
        let what = if write { SYNC_WRITE } else { SYNC_READ };
        sync(fd, what)?;
        Ok(Some(Access { fd, what }))
    }
}

fn sync(fd: &OwnedFd, flags: u64) -> Result<(), Error> {
    // SAFETY: the call reads one u64.
    if unsafe { libc::ioctl(fd.as_raw_fd(), DMA_BUF_SYNC as _, &raw const flags) } < 0 {
        return Err(Error::last_os());
    }
    Ok(())
}

/// A dma-buf in use by the CPU.
pub(crate) struct Access<'a> {
    fd: &'a OwnedFd,
    what: u64,
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        let _ = sync(self.fd, self.what | SYNC_END);
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: `map` mapped that much there, and every use of it held this.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.at), self.len) };
    }
}
