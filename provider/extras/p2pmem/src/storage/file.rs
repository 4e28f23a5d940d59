//! A file, and how its bytes get into memory and out of it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hmem::{Kind, Span, guard};

use super::bounce::{Buffers, CHUNK, Sets, WORKERS};
use super::cufile::Registered;
use super::open;
use super::report::{Report, Tally, Way};
use super::workers::Workers;
use crate::error::Error;
use crate::peer;

/// How a file is opened, and which ways may be taken.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub write: bool,
    /// Makes it if it is not there.
    pub create: bool,
    /// [`Way::Direct`], and O_DIRECT for what goes through host memory.
    pub direct: bool,
    pub cufile: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { write: false, create: false, direct: true, cufile: true }
    }
}

/// One transfer of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// From memory to the file.
    pub write: bool,
    pub addr: usize,
    pub len: usize,
    /// Where in the file.
    pub offset: u64,
}

/// A file. Its methods may be called from any thread.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    /// Goes before the descriptors that it is of.
    cufile: Option<OnceLock<Result<Registered, String>>>,
    cached: OwnedFd,
    /// With O_DIRECT; else why there is none.
    direct: Result<OwnedFd, String>,
    /// What addresses, lengths and offsets are multiples of with O_DIRECT.
    block: usize,
    pub(super) buffers: Arc<Buffers>,
    pub(super) tally: Tally,
    pub(super) workers: Workers,
    /// Of pieces that streams wait for: these do not stand behind transfers that call CUDA.
    pub(super) piece_workers: Workers,
    /// Where what is queued on streams will have written to.
    ahead: AtomicU64,
    pub(super) sets: Sets,
}

/// What memory a transfer is with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sort {
    Host,
    /// Memory of a device's that is mapped: it may go away.
    Window,
    Device(Kind),
}

/// What has come of a transfer, and why not by a better way.
pub(super) type Done = Result<(usize, Way, String), io::Error>;

impl File {
    pub fn open(path: &Path, options: Options) -> Result<File, Error> {
        File::new(open::by_path(path, options.write, options.create)?, path, options)
    }

    /// A file that is open already, to be read, and written if the options say so. Errors have the name.
    pub fn of(fd: OwnedFd, name: &Path, options: Options) -> Result<File, Error> {
        File::new(open::checked(fd, name)?, name, options)
    }

    fn new(cached: OwnedFd, path: &Path, options: Options) -> Result<File, Error> {
        let direct = match options.direct {
            true => open::direct(&cached, options.write),
            false => Err("O_DIRECT is not wanted".into()),
        };
        let block = block(&cached);
        let cufile = options.cufile.then(OnceLock::new);
        // Windows may go away while they are copied.
        guard::hold(true);
        hmem::registry::find_runtimes();
        Ok(File {
            path: path.to_owned(),
            cached,
            direct,
            block,
            cufile,
            buffers: Buffers::of_all(),
            tally: Tally::default(),
            workers: Workers::default(),
            piece_workers: Workers::default(),
            ahead: AtomicU64::new(0),
            sets: Sets::default(),
        })
    }

    /// What has gone, and by which ways.
    pub fn report(&self) -> Report {
        self.tally.report()
    }

    /// Reads into memory; how many bytes, fewer at the end of the file.
    ///
    /// # Safety
    /// `addr..addr+len` is memory of any kind that may be written, and stays until this returns.
    pub unsafe fn read(&self, addr: usize, len: usize, offset: u64) -> Result<usize, Error> {
        self.transfer(&Op { write: false, addr, len, offset })
    }

    /// Writes from memory; how many bytes.
    ///
    /// # Safety
    /// `addr..addr+len` is memory of any kind that may be read, and stays until this returns.
    pub unsafe fn write(&self, addr: usize, len: usize, offset: u64) -> Result<usize, Error> {
        self.transfer(&Op { write: true, addr, len, offset })
    }

    /// Several transfers at once, in any order. What each has come to, in theirs.
    ///
    /// # Safety
    /// As of [`File::read`] and [`File::write`], for each of them.
    pub unsafe fn batch(&self, ops: &[Op]) -> Vec<Result<usize, Error>> {
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<Option<Result<usize, Error>>>> = Mutex::new(ops.iter().map(|_| None).collect());
        let work = || {
            while let Some((n, op)) = {
                let n = next.fetch_add(1, Relaxed);
                ops.get(n).map(|op| (n, op))
            } {
                let result = self.transfer(op);
                done.lock().unwrap_or_else(PoisonError::into_inner)[n] = Some(result);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..ops.len().min(WORKERS) {
                // Where there is no thread to be had this one does it all.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.into_iter()
            .map(|result| result.unwrap_or_else(|| Err(Error::Invalid("not begun".into()))))
            .collect()
    }

    pub(super) fn transfer(&self, op: &Op) -> Result<usize, Error> {
        self.check(op)?;
        let what = if op.write { "write" } else { "read" };
        let (bytes, way, why) = self.best(op, &sort(op)).map_err(|e| self.failed(what, e))?;
        self.tally.took(way, why);
        Ok(bytes)
    }

    /// An error that names the file.
    fn failed(&self, what: &str, e: io::Error) -> Error {
        Error::Os(format!("{}: {what}", self.path.display()), e)
    }

    /// Whether it could be one.
    pub(super) fn check(&self, op: &Op) -> Result<(), Error> {
        let end = op.addr.checked_add(op.len).filter(|_| op.len <= isize::MAX as usize);
        let last = op.offset.checked_add(op.len as u64).filter(|end| i64::try_from(*end).is_ok());
        if end.is_none() || last.is_none() || (op.addr == 0 && op.len > 0) {
            return Err(Error::Invalid(format!(
                "{}: {} bytes at {:#x}, offset {}: that is no memory, or no file",
                self.path.display(),
                op.len,
                op.addr,
                op.offset
            )));
        }
        Ok(())
    }

    /// How much of it there is, once what was queued before it is done: reads end with the file.
    pub(super) fn there_is(&self, op: &Op) -> usize {
        let last = op.offset + op.len as u64;
        if op.write {
            self.ahead.fetch_max(last, Relaxed);
            return op.len;
        }
        // SAFETY: a descriptor of ours; nothing reads by its position.
        let size = unsafe { libc::lseek(self.cached.as_raw_fd(), 0, libc::SEEK_END) };
        let size = u64::try_from(size).unwrap_or(u64::MAX).max(self.ahead.load(Relaxed));
        size.min(last).saturating_sub(op.offset) as usize
    }

    /// By the best way that there is.
    pub(super) fn best(&self, op: &Op, sort: &Sort) -> Done {
        match sort {
            Sort::Host => match self.directly(op) {
                Ok(bytes) => self.rest(op, bytes, &Sort::Host, String::new()),
                Err(why) => self.cached(op, 0, why),
            },
            Sort::Window => match self.directly(op) {
                Ok(bytes) => self.rest(op, bytes, &Sort::Window, String::new()),
                Err(why) => self.bounced(op, 0, &Sort::Window, why),
            },
            Sort::Device(Kind::Cuda) => match self.by_cufile(op) {
                Ok(bytes) => Ok((bytes, Way::Cufile, "O_DIRECT does not reach CUDA's memory".into())),
                Err(why) => self.bounced(op, 0, &Sort::Device(Kind::Cuda), why),
            },
            sort => {
                self.bounced(op, 0, sort, "no interface of Linux reads files into this kind of memory".into())
            }
        }
    }

    /// What of it is whole blocks, with O_DIRECT; in `Err`, why nothing.
    fn directly(&self, op: &Op) -> Result<usize, String> {
        let fd = self.direct.as_ref().map_err(Clone::clone)?;
        let whole = op.len / self.block * self.block;
        if op.addr % self.block != 0 || op.offset % self.block as u64 != 0 || whole == 0 {
            return Err(format!("address, offset and length are no multiples of {} bytes", self.block));
        }
        match all(fd.as_raw_fd(), op.write, op.addr, whole, op.offset) {
            Ok(bytes) => {
                self.tally.add(Way::Direct, bytes);
                Ok(bytes)
            }
            Err((_, e)) => Err(match e.raw_os_error() {
                // The kernel's word for a disk that does not reach a window.
                Some(libc::EREMOTEIO | libc::EINVAL | libc::EIO) => {
                    format!("O_DIRECT: {e}: the disk may not reach this memory (`strait topo`)")
                }
                _ => format!("O_DIRECT: {e}"),
            }),
        }
    }

    /// What O_DIRECT has left: the part of a block at the end.
    fn rest(&self, op: &Op, bytes: usize, sort: &Sort, why: String) -> Done {
        if bytes < op.len / self.block * self.block || bytes == op.len {
            return Ok((bytes, Way::Direct, why));
        }
        let why = format!("{} bytes at the end are no whole block", op.len - bytes);
        match sort {
            Sort::Host => self.cached(op, bytes, why),
            sort => self.bounced(op, bytes, sort, why),
        }
    }

    fn by_cufile(&self, op: &Op) -> Result<usize, String> {
        let bytes = self.registered()?.transfer(op.write, op.addr, op.len, op.offset)?;
        self.tally.add(Way::Cufile, bytes);
        Ok(bytes)
    }

    /// The file as cuFile knows it, or why it does not.
    pub(super) fn registered(&self) -> Result<&Registered, String> {
        let once = self.cufile.as_ref().ok_or("cuFile is not wanted")?;
        let register = || match &self.direct {
            Ok(direct) => Registered::new(&[direct, &self.cached]),
            Err(_) => Registered::new(&[&self.cached]),
        };
        once.get_or_init(register).as_ref().map_err(Clone::clone)
    }

    fn cached(&self, op: &Op, from: usize, why: String) -> Done {
        let (addr, offset) = (op.addr + from, op.offset + from as u64);
        let bytes =
            all(self.cached.as_raw_fd(), op.write, addr, op.len - from, offset).map_err(|(_, e)| e)?;
        self.tally.add(Way::Cached, bytes);
        Ok((from + bytes, Way::Cached, why))
    }

    /// Through host memory, by as many workers as there are pieces: while one waits for the disk another one
    /// copies.
    fn bounced(&self, op: &Op, from: usize, sort: &Sort, why: String) -> Done {
        let len = op.len - from;
        let (next, end, failed) = (AtomicUsize::new(0), AtomicUsize::new(len), Mutex::new(None));
        let work = || {
            let kind = if let Sort::Device(kind) = sort { *kind } else { Kind::System };
            let Some(mut buffer) = self.buffers.take(kind) else {
                failed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(io::ErrorKind::OutOfMemory.into());
                return;
            };
            loop {
                let at = next.fetch_add(CHUNK, Relaxed);
                if at >= end.load(Relaxed) {
                    break;
                }
                let n = CHUNK.min(len - at);
                let one = Op {
                    write: op.write,
                    addr: op.addr + from + at,
                    len: n,
                    offset: op.offset + (from + at) as u64,
                };
                match self.piece(&one, &mut buffer.bytes()[..n], sort) {
                    Ok(done) if done == n => {}
                    // The file ends here.
                    Ok(done) => drop(end.fetch_min(at + done, Relaxed)),
                    Err(e) => {
                        end.fetch_min(at, Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                        break;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..len.div_ceil(CHUNK).min(WORKERS) {
                // Where there is no thread to be had this one does it all.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(e);
        }
        let bytes = end.into_inner();
        self.tally.add(Way::Bounce, bytes);
        Ok((from + bytes, Way::Bounce, why))
    }

    /// A piece that a buffer has room for.
    fn piece(&self, op: &Op, buffer: &mut [u8], sort: &Sort) -> io::Result<usize> {
        let kind = if let Sort::Device(kind) = sort { *kind } else { Kind::System };
        // SAFETY: what the caller of `read` or `write` has promised; a window may vanish, and is accessed so.
        let span = unsafe { Span::new(op.addr, op.len, kind) };
        let span = if let Sort::Window = sort { span.for_peers() } else { span };
        let gone = || io::Error::from_raw_os_error(libc::EIO);
        if op.write {
            if hmem::read(&[span], 0, buffer) != buffer.len() {
                return Err(gone());
            }
            return self.disk(true, buffer, op.offset);
        }
        let bytes = self.disk(false, buffer, op.offset)?;
        if hmem::write(&[span], 0, &buffer[..bytes]) != bytes {
            return Err(gone());
        }
        Ok(bytes)
    }

    /// Between the file and a buffer: by O_DIRECT as far as it is whole blocks.
    pub(super) fn disk(&self, write: bool, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (addr, mut done) = (buffer.as_mut_ptr().expose_provenance(), 0);
        if let Ok(fd) = &self.direct {
            if !write {
                // What the page cache has is there sooner than from the disk.
                done = in_page_cache(&self.cached, buffer, offset);
                if done == buffer.len() {
                    return Ok(done);
                }
                done -= done % self.block;
            }
            let whole = (buffer.len() - done) / self.block * self.block;
            if whole > 0 && offset % self.block as u64 == 0 {
                match all(fd.as_raw_fd(), write, addr + done, whole, offset + done as u64) {
                    Ok(bytes) if bytes < whole => return Ok(done + bytes),
                    Ok(bytes) => done += bytes,
                    // It may have been in part: the page cache does all of it again.
                    Err(_) => {}
                }
            }
        }
        let rest =
            all(self.cached.as_raw_fd(), write, addr + done, buffer.len() - done, offset + done as u64);
        rest.map(|bytes| done + bytes).map_err(|(_, e)| e)
    }
}

impl AsFd for File {
    /// The descriptor without O_DIRECT.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.cached.as_fd()
    }
}

/// Reads as much as the page cache has from the offset on, and waits for no disk: how many bytes.
fn in_page_cache(fd: &OwnedFd, buffer: &mut [u8], offset: u64) -> usize {
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let offset = offset as libc::off_t;
    // SAFETY: one part, which is a buffer of this process that nothing else uses meanwhile.
    let n = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT) };
    // A file system without that is one whose page cache is not asked.
    usize::try_from(n).unwrap_or(0)
}

pub(super) fn sort(op: &Op) -> Sort {
    if peer::is_window(op.addr, op.len.max(1)) {
        return Sort::Window;
    }
    match hmem::classify(op.addr, op.len) {
        Kind::System => Sort::Host,
        kind => Sort::Device(kind),
    }
}

/// What addresses, offsets and lengths have to be multiples of with O_DIRECT.
fn block(fd: &OwnedFd) -> usize {
    const DIO: u32 = libc::STATX_DIOALIGN;
    // SAFETY: zeros are a value of it.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path means the descriptor, and `found` is a valid place.
    let known =
        unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, DIO, &mut found) } == 0;
    let most = found.stx_dio_mem_align.max(found.stx_dio_offset_align) as usize;
    // Kernels before 6.1 do not say; no disk's block is longer than a page.
    if known && found.stx_mask & DIO != 0 && most.is_power_of_two() { most } else { 4096 }
}

/// Reads or writes until all is done or the file ends: how many bytes. In `Err`, how many before the error.
fn all(fd: RawFd, write: bool, addr: usize, len: usize, offset: u64) -> Result<usize, (usize, io::Error)> {
    let mut done = 0;
    while done < len {
        let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(addr + done);
        let offset = (offset + done as u64) as libc::off_t;
        // SAFETY: memory of the caller's promise, or a buffer's; where it is not mapped the kernel says so.
        let n = unsafe {
            if write {
                libc::pwrite(fd, at, len - done, offset)
            } else {
                libc::pread(fd, at, len - done, offset)
            }
        };
        match n {
            0 => break,
            n if n > 0 => done += n as usize,
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err((done, e)),
            },
        }
    }
    Ok(done)
}
