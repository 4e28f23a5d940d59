//! What tests share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_stand_in::driver::Driver;
use device_ops::Memory;
use hmem::cuda::{self, Stream};

/// The stand-in's calls and faults are the whole process's.
pub fn alone() -> (MutexGuard<'static, ()>, Driver) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Driver::start();
    cuda::find_driver();
    (guard, driver)
}

pub fn stream(cu: Driver) -> Stream {
    // SAFETY: these tests destroy no stream.
    unsafe { Stream::new(cu.stream()) }.unwrap()
}

pub fn memory(at: usize, len: usize) -> Memory {
    // SAFETY: the stand-in checks what is accessed there, and these tests free nothing early.
    unsafe { Memory::new(at, len) }
}
