//! Waits for the other ranks.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

use crate::shared::{STEP, Shared};
use crate::state::{Inner, REMOTE_ERROR, SUCCESS};

/// How often the other processes are looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until `is_so`; `None` where the communicator fails or is aborted meanwhile.
pub(crate) fn wait(of: &Inner, shared: &Shared, mut is_so: impl FnMut() -> bool) -> Option<()> {
    let mut looked = Instant::now();
    while !is_so() {
        if of.aborted.load(SeqCst) || of.state.load(Acquire) != SUCCESS {
            return None;
        }
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            if !shared.all_alive() {
                of.state.store(REMOTE_ERROR, Release);
                return None;
            }
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    Some(())
}

fn barrier(of: &Inner, shared: &Shared) -> Option<()> {
    let step = of.step.load(Relaxed) + 1;
    of.step.store(step, Relaxed);
    shared.of_rank(shared.rank, STEP).store(step, Release);
    wait(of, shared, || (0..shared.ranks).all(|r| shared.of_rank(r, STEP).load(Acquire) >= step))
}

/// Has each rank read what all have written before.
pub(crate) fn exchange(of: &Inner, shared: &Shared, read: impl FnOnce()) -> Option<()> {
    barrier(of, shared)?;
    read();
    barrier(of, shared)
}
