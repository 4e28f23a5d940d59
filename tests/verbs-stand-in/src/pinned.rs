//! Pages that stay the device's whatever the process does, as those that a driver has pinned: buffers that
//! are registered with io_uring, for which the kernel pins them.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const OF_QUEUES: i64 = 0;
const OF_ENTRIES: i64 = 0x1000_0000;
const REGISTER_BUFFERS: libc::c_ulong = 0;
const UNREGISTER_BUFFERS: libc::c_ulong = 1;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const WAIT: libc::c_ulong = 1;

/// `struct io_uring_sqe`, as far as a read or a write of a registered buffer uses it.
#[repr(C)]
struct Request {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    rw_flags: u32,
    id: u64,
    buffer: u16,
    rest: [u16; 11],
}

/// A ring of one request.
#[derive(Debug)]
struct Ring {
    fd: OwnedFd,
    queues: Mapped,
    entries: Mapped,
    /// Of `struct io_uring_params`: where words are in `queues`.
    at: [u32; 30],
}

#[derive(Debug)]
struct Mapped(NonNull<u8>, usize);

// It is memory of the process's alone.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(fd: &OwnedFd, off: i64, len: usize) -> Result<Mapped, i32> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let at = unsafe { libc::mmap(null_mut(), len, prot, flags, fd.as_raw_fd(), off) };
        if at == libc::MAP_FAILED {
            Err(errno())
        } else {
            Ok(Mapped(NonNull::new(at.cast()).ok_or(libc::EFAULT)?, len))
        }
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(at as usize).cast()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1) };
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn opened(fd: i64) -> Result<OwnedFd, i32> {
    if fd < 0 { Err(errno()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }) }
}

impl Ring {
    fn new(addr: u64, len: usize) -> Result<Ring, i32> {
        let mut at = [0u32; 30];
        let fd = opened(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, at.as_mut_ptr()) })?;
        let (requests, completions) = (at[0], at[1]);
        let queues = (at[16] + requests * 4).max(at[25] + completions * 16) as usize;
        let queues = Mapped::new(&fd, OF_QUEUES, queues)?;
        let entries = Mapped::new(&fd, OF_ENTRIES, requests as usize * 64)?;
        let buffer = libc::iovec { iov_base: addr as *mut _, iov_len: len };
        let call = libc::SYS_io_uring_register;
        match unsafe { libc::syscall(call, fd.as_raw_fd(), REGISTER_BUFFERS, &raw const buffer, 1) } {
            0 => Ok(Ring { fd, queues, entries, at }),
            _ => Err(errno()),
        }
    }

    /// How many bytes went between the buffer and the start of a file.
    fn does(&self, opcode: u8, file: &OwnedFd, addr: u64, len: usize) -> Option<usize> {
        let (fd, len) = (file.as_raw_fd(), u32::try_from(len).ok()?);
        let (head, mask) = (self.queues.word(self.at[20]), self.queues.word(self.at[22]));
        let (next, tail) = (head.load(Ordering::Relaxed), self.queues.word(self.at[11]));
        let number = tail.load(Ordering::Relaxed);
        let (flags, priority, off, rw_flags, id, buffer) = (0, 0, 0, 0, number.into(), 0);
        let request =
            Request { opcode, flags, priority, fd, off, addr, len, rw_flags, id, buffer, rest: [0; 11] };
        unsafe { self.entries.0.as_ptr().cast::<Request>().write_volatile(request) };
        self.queues.word(self.at[16]).store(0, Ordering::Relaxed);
        tail.fetch_add(1, Ordering::Release);
        let none = null_mut::<libc::c_void>();
        let call = libc::SYS_io_uring_enter;
        let mut to_submit = 1;
        // A signal may end the wait behind a request that was submitted.
        while self.queues.word(self.at[21]).load(Ordering::Acquire) == next {
            match unsafe { libc::syscall(call, self.fd.as_raw_fd(), to_submit, 1, WAIT, none, 0) } {
                1 => to_submit = 0,
                0 if to_submit == 0 => {}
                n if n < 0 && errno() == libc::EINTR => {}
                _ => return None,
            }
        }
        let entry = self.at[25] + (next & mask.load(Ordering::Relaxed)) * 16;
        let (of, done) = (self.queues.word(entry), self.queues.word(entry + 8).load(Ordering::Relaxed));
        let is_its = of.load(Ordering::Relaxed) == number;
        head.store(next.wrapping_add(1), Ordering::Release);
        if is_its { usize::try_from(done as i32).ok() } else { None }
    }
}

/// The kernel gives the pages of a ring that is closed back later, by a thread of its own.
impl Drop for Ring {
    fn drop(&mut self) {
        let (call, none) = (libc::SYS_io_uring_register, null_mut::<libc::c_void>());
        unsafe { libc::syscall(call, self.fd.as_raw_fd(), UNREGISTER_BUFFERS, none, 0) };
    }
}

/// Memory of the process, as its pages were when this was made.
#[derive(Debug)]
pub struct Pinned {
    ring: Ring,
    /// By which bytes go to the pages and from them.
    file: OwnedFd,
}

impl Pinned {
    pub fn new(addr: u64, len: usize) -> Result<Pinned, i32> {
        let file = opened(unsafe { libc::memfd_create(c"pinned".as_ptr(), libc::MFD_CLOEXEC) }.into())?;
        Ok(Pinned { ring: Ring::new(addr, len)?, file })
    }

    /// Of the pages that were at `addr`.
    pub fn read(&self, addr: u64, to: &mut [u8]) -> bool {
        let (len, fd) = (to.len(), self.file.as_raw_fd());
        len == 0
            || self.ring.does(WRITE_FIXED, &self.file, addr, len) == Some(len)
                && unsafe { libc::pread(fd, to.as_mut_ptr().cast(), len, 0) } == len as isize
    }

    pub fn write(&self, addr: u64, from: &[u8]) -> bool {
        let (len, fd) = (from.len(), self.file.as_raw_fd());
        len == 0
            || unsafe { libc::pwrite(fd, from.as_ptr().cast(), len, 0) } == len as isize
                && self.ring.does(READ_FIXED, &self.file, addr, len) == Some(len)
    }
}
