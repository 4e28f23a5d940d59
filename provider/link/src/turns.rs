//! When a process that waits lets others have the processor.
//!
//! Where there is a processor for each process that takes part, a process that polls had better keep its own: what it waits
//! for comes while it polls. Where there are fewer processors than such processes, the one that is waited for may have none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// After so many polls that found nothing [`yields`] is to be asked.
pub const TURN: u32 = 64;

/// An endpoint of this process knows more endpoints of this host, its own among them, than there are processors.
static CROWDED: AtomicBool = AtomicBool::new(false);

/// Whether a process lets others have the processor after so many polls in a row that found nothing, a multiple of [`TURN`];
/// `patience`: after how many it does where there may be a processor for each process.
#[cold]
pub fn yields(polls: u32, patience: u32) -> bool {
    polls % patience == 0 || CROWDED.load(Relaxed)
}

/// An endpoint knows so many endpoints of this host, most often its own among them.
pub fn knows(endpoints: usize) {
    if is_crowd(endpoints) {
        CROWDED.store(true, Relaxed);
    }
}

fn is_crowd(endpoints: usize) -> bool {
    endpoints > processors()
}

/// Processors of this host: those that this process may use are often but one, with the others left to its peers.
pub(crate) fn processors() -> usize {
    static ALL: OnceLock<usize> = OnceLock::new();
    *ALL.get_or_init(|| {
        // SAFETY: no memory is involved.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(online).ok().filter(|n| *n > 0).unwrap_or(usize::MAX)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What it sets is never unset, and other tests of this process may set it too.
    #[test]
    fn a_crowd_lets_go_of_its_processors_soon() {
        assert!(yields(8 * TURN, 8 * TURN) && yields(16 * TURN, 8 * TURN));
        assert!(!is_crowd(processors()));
        knows(processors() + 1);
        assert!(yields(TURN, 8 * TURN) && yields(8 * TURN, 8 * TURN));
    }
}
