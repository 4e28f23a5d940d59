//! Whether an answer has become old, which every call with a buffer needs to know.
//!
//! The clock is [`ipc::tick`].

use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

pub(super) use ipc::tick as now;

use super::asked::ASKED;

/// Nanoseconds for which an answer holds: to the next tick, or the one after it where ticks are 1 ms apart.
const HOLDS: u64 = 1_000_000;
/// Longer than any answer holds: two of the kernel's ticks where these are slowest.
const LONGEST: Duration = Duration::from_millis(25);

/// Whether it is time to ask again.
#[inline]
pub(super) fn is_old() -> bool {
    now().wrapping_sub(ASKED.answered.load(Acquire)) >= HOLDS
}

/// What was asked at that time is known to this thread, and by this call to those that do not find it old.
pub(super) fn asked(at: u64) {
    ASKED.answered.store(at, Release);
}

/// Waits until every answer given before, in any copy of this crate in the process, is old.
pub(crate) fn outlive_answers() {
    std::thread::sleep(LONGEST);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_answer_becomes_old_within_the_time_that_is_waited_for_it() {
        for _ in 0..3 {
            let begin = Instant::now();
            asked(now());
            while !is_old() {
                assert!(begin.elapsed() < Duration::from_secs(5), "the clock stands still");
            }
        }
        asked(now());
        outlive_answers();
        assert!(is_old());
    }
}
