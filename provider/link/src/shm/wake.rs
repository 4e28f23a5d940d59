//! Waking a side that sleeps.
//!
//! Two questions of the same shape: the consumer sleeps until there is a frame, the producer until
//! there is room. The sleeper says so in a word (`bell`, `want`), then looks once more; the other
//! side does its deed (publishes a frame, tells its position), then looks at that word. One of the
//! two looks must see the other's store, so between store and look each side needs a full fence.
//!
//! For `want` both simply fence: room is told of only once per quarter of the ring.
//!
//! For `bell` a fence per frame would cost as much as the rest of a send. The sleeper therefore
//! runs membarrier(2) GLOBAL_EXPEDITED, which puts a full barrier into every running thread of
//! every *registered* process at some point of its program, and a sender leaves the fence out if
//!
//! * its own process is registered (it did that at open; else it fences always), and
//! * the consumer has promised, by a bit in `bell`, to use membarrier and nothing less. The bit is
//!   0 until the consumer adopts the ring and stays set then. A sender that does not see it yet
//!   fences, which is right whatever the consumer does.
//!
//! So neither side has to be told what the other's kernel or seccomp filter allows.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{compiler_fence, fence};

use super::ring::{Mem, Word};

/// `fence(SeqCst)`. On x86-64 that is mfence, which takes more than twice as long as any instruction with
/// a lock, and all that it orders beyond these are non-temporal accesses: which nobody leaves unordered.
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

/// Bit of `bell`: the consumer sleeps.
const ARMED: u32 = 1;
/// Bit of `bell`: the consumer uses membarrier(2) between arming and looking.
const PROMISED: u32 = 2;

/// What this process can do; found out once per endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barrier {
    /// Others' membarrier reaches our threads.
    pub(crate) registered: bool,
    /// Ours reaches others'.
    pub(crate) usable: bool,
}

impl Barrier {
    pub(crate) fn probe() -> Barrier {
        const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
        Barrier { registered: membarrier(REGISTER_GLOBAL_EXPEDITED), usable: membarrier(GLOBAL_EXPEDITED) }
    }

    /// Between the sleeper's store and its look; whether it is in force.
    pub(crate) fn heavy(self) -> bool {
        fence(SeqCst);
        !self.usable || membarrier(GLOBAL_EXPEDITED)
    }
}

const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;

fn membarrier(cmd: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, cmd, 0) == 0 }
}

/// Consumer: takes note of what it can do, or disarms.
pub(crate) fn promise<M: Mem>(mem: &M, barrier: Barrier) {
    mem.bell().store(if barrier.usable { PROMISED } else { 0 }, Relaxed);
}

/// Consumer: asks to be woken. A fence of the right sort and a look at the ring must follow.
pub(crate) fn arm<M: Mem>(mem: &M, barrier: Barrier) {
    mem.bell().store(ARMED | if barrier.usable { PROMISED } else { 0 }, Relaxed);
}

/// Producer, after it published: whether it must wake the consumer.
#[inline(always)]
pub(crate) fn must_ring<M: Mem>(mem: &M, registered: bool) -> bool {
    if registered {
        compiler_fence(SeqCst);
        if mem.bell().load(Relaxed) == PROMISED {
            return false;
        }
    }
    must_ring_fenced(mem)
}

#[cold]
fn must_ring_fenced<M: Mem>(mem: &M) -> bool {
    mem.fence();
    mem.bell().load(Relaxed) & ARMED != 0 && mem.bell().fetch_and(!ARMED, Relaxed) & ARMED != 0
}

/// Producer: asks to be told of room. A look for room must follow.
pub(crate) fn want_room<M: Mem>(mem: &M) {
    mem.want().store(1, Relaxed);
    mem.fence();
}

/// Consumer, after it told its position: whether it must wake the producer.
pub(crate) fn room_wanted<M: Mem>(mem: &M) -> bool {
    mem.fence();
    mem.want().load(Relaxed) != 0 && mem.want().fetch_and(0, Relaxed) != 0
}

#[cfg(all(test, loom))]
#[path = "wake_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::{Acquire, Release};
    use std::time::{Duration, Instant};

    use super::*;

    /// Of two that store, and then look at what the other one stores, at least one sees it.
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
