//! When a process that waits lets others have the processor.
//!
//! Where there is a processor for each process that takes part, a process that polls had better keep its own: what it waits
//! for comes while it polls. Where there are fewer processors than such processes, the one that is waited for may have none.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::processors::Processors;

/// After so many polls that found nothing [`yields`] is to be asked.
pub const TURN: u32 = 64;

/// An endpoint of this process knows more endpoints of this host, its own among them, than the job may use processors.
static CROWDED: AtomicBool = AtomicBool::new(false);

/// Most endpoints of this host that an endpoint of this process knew at a time.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Whether a process lets others have the processor after so many polls in a row that found nothing, a multiple of [`TURN`];
/// `patience`: after how many it does where there may be a processor for each process.
#[cold]
pub fn yields(polls: u32, patience: u32) -> bool {
    polls % patience == 0 || CROWDED.load(Relaxed)
}

/// An endpoint knows so many endpoints of this host, most often its own among them.
pub fn knows(endpoints: usize) {
    if KNOWN.fetch_max(endpoints, Relaxed) < endpoints {
        judge(|_| {});
    }
}

/// An endpoint is connected to a process of this host, whose pid is 0 where it is not visible here.
pub(crate) fn meets(pid: i32) {
    judge(|processors| processors.add_other(pid));
}

/// What is found out about processors is kept.
fn judge(learn: impl FnOnce(&mut Processors)) {
    static PROCESSORS: Mutex<Option<Processors>> = Mutex::new(None);
    let mut processors = PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner);
    let processors = processors.get_or_insert_with(Processors::new);
    learn(processors);
    CROWDED.store(KNOWN.load(Relaxed) > processors.count(), Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What it knows is not forgotten, and other tests of this process may tell it more.
    #[test]
    fn a_crowd_lets_go_of_its_processors_soon() {
        assert!(yields(8 * TURN, 8 * TURN) && yields(16 * TURN, 8 * TURN));
        knows(Processors::new().count() + 1);
        assert!(yields(TURN, 8 * TURN) && yields(8 * TURN, 8 * TURN));
    }
}
