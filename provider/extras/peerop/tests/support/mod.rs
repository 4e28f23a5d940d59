//! What tests share.
#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use cuda_stand_in::driver::Driver as Cu;
use hmem::cuda::{self, Stream};
use peerop::{Reach, TargetId, Targets};

/// The stand-in's calls and faults are the whole process's.
pub fn alone() -> (MutexGuard<'static, ()>, Cu) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Cu::start();
    cuda::find_driver();
    (guard, driver)
}

pub fn stream(cu: Cu) -> Stream {
    // SAFETY: these tests use no stream that they have destroyed.
    unsafe { Stream::new(cu.stream()) }.unwrap()
}

/// A word of memory that is there as long as the test needs it.
pub fn atomic(at: usize) -> &'static AtomicU32 {
    // SAFETY: page-locked memory of the stand-in's, or a `Memory`, that the test holds; aligned to 4.
    unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(at)) }
}

/// A thread that raises a word by 1, so often.
pub fn raise(at: usize, times: u32) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for _ in 0..times {
            std::thread::sleep(Duration::from_micros(50));
            atomic(at).fetch_add(1, SeqCst);
        }
    })
}

/// Memory of the host.
pub struct Memory(Box<[AtomicU64]>);

impl Memory {
    /// So many words of 8 bytes, all 0.
    pub fn new(words: usize) -> Memory {
        Memory((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn addr(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    pub fn register(&self, targets: &Targets) -> TargetId {
        // SAFETY: the test holds it for longer than it executes lists; all accesses are atomic.
        unsafe { targets.register(self.addr(), 8 * self.0.len(), Reach::Cpu) }.unwrap()
    }

    /// A word of 4 bytes, by its number.
    pub fn word(&self, number: usize) -> &AtomicU32 {
        assert!(number < 2 * self.0.len());
        atomic(self.addr() + 4 * number)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes()).collect()
    }
}
