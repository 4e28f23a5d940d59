//! What the stand-ins for devices' runtimes have in common.
//!
//! A device's memory is a memfd mapped twice. The address that a program gets is PROT_NONE, so a CPU
//! that touches it dies, and another process's process_vm_readv(2) gets nowhere; only copies know the
//! other mapping. Handles for other processes are real ones: a memfd of the exporting process.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc,
    reason = "a test's library: every function trusts its caller as a runtime does"
)]

pub mod fault;
pub mod memory;
pub mod program;

use std::time::{Duration, Instant};

/// Work that is done by the first call that asks when its time has come.
#[derive(Debug)]
pub struct Work {
    /// Where to, where from, and how much.
    pub copy: (usize, usize, usize),
    due: Instant,
}

impl Work {
    /// It takes `NAME_STAND_IN_DELAY_US`.
    pub fn new(name: &str, dst: usize, src: usize, len: usize) -> Work {
        let text = std::env::var(format!("{name}_STAND_IN_DELAY_US")).unwrap_or_default();
        let delay = Duration::from_micros(text.parse().unwrap_or(0));
        Work { copy: (dst, src, len), due: Instant::now() + delay }
    }

    /// Does it, if its time has come, or after waiting for that. `None`: not yet.
    pub fn run(&self, wait: bool) -> Option<bool> {
        let left = self.due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            if !wait {
                return None;
            }
            std::thread::sleep(left);
        }
        let (dst, src, len) = self.copy;
        Some(memory::copy(dst, src, len))
    }
}
