//! Waking a side that sleeps.
//!
//! Two questions of the same shape: the consumer sleeps until there is a frame, the producer until
//! there is room. The sleeper says so in a word (`bell`, `want`), then polls once more; the other
//! side publishes (a frame, its position), then loads that word. One of the
//! two loads must see the other's store, so between store and load each side needs a full fence.
//!
//! For `want` both simply fence: positions are published only now and then.
//!
//! For `bell` a fence per frame would cost as much as the rest of a send. The sleeper therefore
//! runs membarrier(2) GLOBAL_EXPEDITED, which puts a full barrier into every running thread of
//! every *registered* process at some point of its program, and a sender leaves the fence out if
//!
//! * its own process is registered, and the sender has fenced once since (`shm/sleep.rs`; the keeper
//!   registers the process while frames are sent already, and until then, or where that is not allowed, each
//!   one is fenced). A barrier of the consumer that began before that fence has the consumer's bit visible
//!   behind it; one that began later finds a registered process, and
//! * the consumer has promised, by a bit in `bell`, to use membarrier and nothing less. The bit is
//!   0 until the consumer adopts the ring and stays set then. A sender that does not see it yet
//!   fences, which is right whatever the consumer does.
//!
//! So neither side has to know what the other's kernel or seccomp filter allows.
//!
//! `bell` has a third answer: the consumer reads nothing more. A sender that finds it looks whether its frame
//! was among those that were read: the consumer published its position before. As long as the word says that
//! the consumer polls, it had not closed before the frame was published, and no instruction is spent on that.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use ipc::fence::Barrier;
use ipc::word::Word as _;

use crate::shm::channel::ring::{Consumer, Mem};

/// Bit of `bell`: the consumer sleeps.
const ARMED: u32 = 1;
/// Bit of `bell`: the consumer uses membarrier(2) between arming and polling.
const PROMISED: u32 = 2;
/// Bit of `bell`: the consumer reads nothing more, for good.
const CLOSED: u32 = 4;

/// What a producer finds the consumer to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consuming {
    /// It polls.
    Awake,
    /// It sleeps, and is this producer's to wake.
    Asleep,
    /// It reads nothing more; its position says what it has read.
    Closed,
}

/// Consumer: takes note of what it can do, or disarms.
pub(crate) fn promise<M: Mem>(mem: &M, barrier: Barrier) {
    mem.bell().store(if barrier.usable { PROMISED } else { 0 }, Relaxed);
}

/// Consumer: asks to be woken. A fence of the right sort and a poll of the ring must follow.
pub(crate) fn arm<M: Mem>(mem: &M, barrier: Barrier) {
    mem.bell().store(ARMED | if barrier.usable { PROMISED } else { 0 }, Relaxed);
}

/// Consumer: reads nothing more, and has read so far. Neither `promise` nor `arm` may follow.
pub(crate) fn close<M: Mem>(rx: &mut Consumer<M>) {
    rx.publish();
    // Release: the position comes before.
    rx.mem().bell().store(CLOSED, Release);
}

/// Producer, after it published: whether the consumer polls for certain. If not, [`consuming`] is to be
/// asked.
#[inline(always)]
pub(crate) fn is_awake<M: Mem>(mem: &M, registered: bool) -> bool {
    if registered {
        compiler_fence(SeqCst);
        return mem.bell().load(Relaxed) == PROMISED;
    }
    false
}

/// Producer, after it published: what is to be done about the consumer.
#[cold]
pub(crate) fn consuming<M: Mem>(mem: &M) -> Consuming {
    mem.fence();
    // Acquire: the position that a consumer published when it closed comes with the word.
    let bell = mem.bell().load(Acquire);
    if bell & CLOSED != 0 {
        Consuming::Closed
    } else if bell & ARMED != 0 && mem.bell().fetch_and(!ARMED, Relaxed) & ARMED != 0 {
        Consuming::Asleep
    } else {
        Consuming::Awake
    }
}

/// Producer: asks to be notified of room. A poll for room must follow.
pub(crate) fn want_room<M: Mem>(mem: &M) {
    mem.want().store(1, Relaxed);
    mem.fence();
}

/// Consumer, after it published its position: whether it must wake the producer.
pub(crate) fn room_wanted<M: Mem>(mem: &M) -> bool {
    mem.fence();
    mem.want().load(Relaxed) != 0 && mem.want().fetch_and(0, Relaxed) != 0
}

#[cfg(all(test, loom))]
#[path = "wake_loom.rs"]
mod model;
