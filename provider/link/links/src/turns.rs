//! When a process that waits lets others have the processor.
//!
//! Where there is a processor for each process that takes part, a process that polls had better keep its own:
//! what it waits for comes while it polls. Where there are fewer processors than such processes, the one that
//! is waited for may have none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use ipc::tick;

use crate::processors::Processors;

/// After so many polls that found nothing [`yields`] is to be asked.
pub const POLLS: u32 = 64;

/// Most endpoints of this host, its own among them, that an endpoint of this process knew at a time.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// How many processors the job may use, as far as is known; 0: that was not asked yet.
static ALLOWED: AtomicUsize = AtomicUsize::new(0);

/// Whether a process lets others have the processor after so many polls in a row that found nothing, a
/// multiple of [`POLLS`]; `patience`: after how many it does where there may be a processor for each process.
#[cold]
pub fn yields(polls: u32, patience: u32) -> bool {
    polls % patience == 0 || is_oversubscribed()
}

/// An endpoint knows so many endpoints of this host, most often its own among them.
pub fn knows(endpoints: usize) {
    if KNOWN.fetch_max(endpoints, Relaxed) < endpoints {
        count();
    }
}

/// An endpoint is connected to a process of this host, whose pid is 0 where it is not visible here.
pub(crate) fn meets(pid: i32) {
    processors().add_other(pid);
    count();
}

/// Those of the job, as far as they were met. No lock: a process may be forked in any thread's midst.
fn processors() -> &'static Processors {
    static PROCESSORS: OnceLock<Processors> = OnceLock::new();
    PROCESSORS.get_or_init(Processors::new)
}

fn count() {
    ALLOWED.fetch_max(processors().count(), Relaxed);
}

fn is_oversubscribed() -> bool {
    let allowed = ALLOWED.load(Relaxed);
    allowed > 0 && KNOWN.load(Relaxed) > allowed
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What it knows is not forgotten, and other tests of this process may add to it.
    #[test]
    fn a_crowd_lets_go_of_its_processors_soon() {
        assert!(yields(8 * POLLS, 8 * POLLS) && yields(16 * POLLS, 8 * POLLS));
        knows(Processors::new().count() + 1);
        assert!(yields(POLLS, 8 * POLLS) && yields(8 * POLLS, 8 * POLLS));
    }
}
