//! The memory that the ranks of a communicator share.
//!
//! Of each rank: its process, how far it is in what all do together, and a slot that the others read; of each
//! pair, how much was written and read, and a slot.

use std::ffi::CString;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Bytes of a slot.
pub(crate) const SLOT: usize = 16 << 10;
/// Words of a rank, and of a pair.
const WORDS: usize = 8;
/// How long a rank waits for the others to be there.
const MEET: Duration = Duration::from_secs(60);

pub(crate) struct Shared {
    base: *mut u8,
    len: usize,
    pub(crate) ranks: usize,
    pub(crate) rank: usize,
}

unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

/// Words of a rank.
pub(crate) const PID: usize = 0;
pub(crate) const STEP: usize = 1;
pub(crate) const VALUE: usize = 2;
/// Words of a pair.
pub(crate) const WRITTEN: usize = 0;
pub(crate) const READ: usize = 1;

impl Shared {
    /// Maps it, and waits for the other ranks.
    pub(crate) fn meet(name: &str, ranks: usize, rank: usize) -> Option<Shared> {
        let slots = ranks + ranks * ranks;
        let len = slots * (8 * WORDS + SLOT);
        let path = CString::new(format!("/{name}")).ok()?;
        let fd = unsafe { libc::shm_open(path.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600) };
        if fd < 0 {
            return None;
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let base = unsafe {
            libc::ftruncate(fd, len as i64);
            let base = libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0);
            libc::close(fd);
            base
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let shared = Shared { base: base.cast(), len, ranks, rank };
        shared.of_rank(rank, PID).store(u64::from(std::process::id()), Release);
        let begin = Instant::now();
        while (0..ranks).any(|r| shared.of_rank(r, PID).load(Acquire) == 0) {
            if begin.elapsed() > MEET {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // All have it mapped by now or, like this one, a descriptor.
        if rank == 0 {
            unsafe { libc::shm_unlink(path.as_ptr()) };
        }
        Some(shared)
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        unsafe { &*self.base.add(8 * (slot * WORDS + word)).cast::<AtomicU64>() }
    }

    fn bytes(&self, slot: usize) -> *mut u8 {
        let slots = self.ranks + self.ranks * self.ranks;
        unsafe { self.base.add(8 * WORDS * slots + SLOT * slot) }
    }

    pub(crate) fn of_rank(&self, rank: usize, word: usize) -> &AtomicU64 {
        self.word(rank, word)
    }

    pub(crate) fn slot_of_rank(&self, rank: usize) -> *mut u8 {
        self.bytes(rank)
    }

    pub(crate) fn of_pair(&self, from: usize, to: usize, word: usize) -> &AtomicU64 {
        self.word(self.ranks + from * self.ranks + to, word)
    }

    pub(crate) fn slot_of_pair(&self, from: usize, to: usize) -> *mut u8 {
        self.bytes(self.ranks + from * self.ranks + to)
    }

    /// Whether the processes of all ranks are there.
    pub(crate) fn all_alive(&self) -> bool {
        (0..self.ranks).all(|rank| {
            let pid = self.of_rank(rank, PID).load(Acquire) as i32;
            unsafe { libc::kill(pid, 0) == 0 && !is_zombie(pid) }
        })
    }
}

fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

impl Drop for Shared {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
