//! Full fences: in one process, and by membarrier(2) in all of those that take part.
//!
//! Two sides that each store to a word and then load the other's need a full fence in between, so that at
//! least one of the loads sees the other side's store. Where one of the sides does that often and the other
//! seldom, the seldom one can pay for both: membarrier(2) GLOBAL_EXPEDITED puts a full barrier into every
//! running thread of every *registered* process at some point of its program.

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

/// `fence(SeqCst)`. On x86-64 that is mfence, which takes more than twice as long as any instruction with
/// a lock, and all that it orders beyond these are non-temporal accesses: which no caller leaves unordered.
#[inline]
pub fn full_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes nothing. The compiler takes it for a read and write of all memory.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(target_arch = "x86_64"))]
    fence(SeqCst);
}

/// Whose threads others' membarrier reaches: this process, or the parent of a forked child, which the kernel
/// may have copied before.
static REGISTERED: AtomicU32 = AtomicU32::new(0);

/// Registers this process: whether others' membarrier reaches its threads from now on. In a process of
/// several threads the kernel waits for a grace period of RCU: 5 to 20 ms, and seconds on a loaded host.
pub fn register() -> bool {
    const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
    let done = membarrier(REGISTER_GLOBAL_EXPEDITED);
    if done {
        REGISTERED.store(std::process::id(), Release);
    }
    done
}

/// Whether [`register`] has been done. A thread that fences no more for that reason has to fence once behind
/// this call: a membarrier of another process that began before the registration may have left it out.
pub fn is_registered() -> bool {
    let process = REGISTERED.load(Acquire);
    process != 0 && process == std::process::id()
}

/// What this process can do.
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    /// Others' membarrier reaches our threads.
    pub registered: bool,
    /// Ours reaches others'.
    pub usable: bool,
}

impl Barrier {
    /// Registers this process, and asks the kernel.
    pub fn probe() -> Barrier {
        Barrier { registered: register(), usable: membarrier(GLOBAL_EXPEDITED) }
    }

    /// Asks the kernel, and leaves it to another thread to [`register`].
    pub fn probe_unregistered() -> Barrier {
        Barrier { registered: is_registered(), usable: membarrier(GLOBAL_EXPEDITED) }
    }

    /// Between the store of the side that pays for both and its load; whether it is in force.
    pub fn heavy(self) -> bool {
        fence(SeqCst);
        !self.usable || membarrier(GLOBAL_EXPEDITED)
    }
}

const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;

fn membarrier(cmd: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, cmd, 0) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use std::time::{Duration, Instant};

    use super::*;

    /// Of two that store, and then load what the other one stores, at least one sees it.
    #[test]
    fn a_full_fence_keeps_a_load_behind_a_store() {
        const ROUNDS: u32 = 100_000;
        // Where the two share a core, a round takes a turn of each.
        let until = Instant::now() + Duration::from_secs(3);
        let last = AtomicU32::new(ROUNDS);
        #[repr(align(128))]
        struct Line(AtomicU32);
        let words = [Line(AtomicU32::new(0)), Line(AtomicU32::new(0))];
        let side = |me: usize| {
            let (mine, other) = (&words[me].0, &words[1 - me].0);
            let seen = |round| {
                for spins in 1.. {
                    if other.load(Acquire) + 1 >= round {
                        break;
                    }
                    if spins % 100 == 0 {
                        std::thread::yield_now();
                    }
                }
                mine.store(round, Relaxed);
                full_fence();
                other.load(Relaxed) >= round
            };
            let in_time = |round: &u32| {
                if me == 0 && *round % 64 == 0 && Instant::now() > until {
                    last.store(*round, Relaxed);
                    // Before the word that lets the other side go on behind this round.
                    fence(Release);
                }
                true
            };
            let may = |round: &u32| *round <= last.load(Relaxed);
            (1..=ROUNDS).take_while(in_time).take_while(may).map(seen).collect::<Vec<bool>>()
        };
        let (one, other) = std::thread::scope(|s| {
            let one = s.spawn(|| side(0));
            let other = side(1);
            (one.join().unwrap(), other)
        });
        assert!(one.iter().zip(&other).all(|(a, b)| *a || *b));
    }
}
