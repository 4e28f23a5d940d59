//! The time limit of a counter that a device waits for. The host cannot see such a wait: the program says
//! which value the counter is to reach.

use std::time::{Duration, Instant};

use engine::Expiring;
use link_api::Patience;

use crate::port::BEAT;

/// Readings that are to follow one behind a pause, before the limit is over: what has come meanwhile may take
/// several polls to be taken in.
const AFTER_PAUSE: u32 = 20;

/// A value that is to be reached, and for how long nothing may change before. Of a time in which the counter
/// was not read, since the process was stopped, or a caller held the domain, a beat counts.
#[derive(Debug)]
pub(crate) struct Limit {
    value: u64,
    most: Duration,
    seen: Option<Seen>,
}

/// What the counter had when it was last read.
#[derive(Debug)]
struct Seen {
    value: u64,
    at: Instant,
    /// How long it has had that.
    lasts: Duration,
    /// Readings behind a pause that are to follow. `None`: there was no pause.
    follow: Option<u32>,
}

/// What a limit is that is over: its operations are being ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) value: u64,
    pub(crate) most: Duration,
    since: Instant,
    pub(crate) begun: Option<Expiring>,
}

impl Ending {
    /// For a second the peers that are inside accesses are waited for.
    pub(crate) fn patience(&self, now: Instant) -> Patience {
        let is_over = now.duration_since(self.since) > Patience::Second.time();
        if is_over { Patience::Final } else { Patience::Retried }
    }
}

/// Where a counter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Every wait for the value has passed.
    Passed,
    /// Something has changed not long ago.
    Waits,
    /// Nothing has changed for the time limit.
    Overdue,
}

impl Limit {
    pub(crate) fn new(value: u64, most: Duration) -> Limit {
        Limit { value, most, seen: None }
    }

    /// It is over.
    pub(crate) fn end(self, now: Instant) -> Ending {
        Ending { value: self.value, most: self.most, since: now, begun: None }
    }

    /// The counter has this value and so many failures.
    pub(crate) fn read(&mut self, value: u64, errors: u64, now: Instant) -> Standing {
        if value >= self.value || errors > 0 {
            return Standing::Passed;
        }
        let Some(seen) = self.seen.as_mut().filter(|seen| seen.value == value) else {
            self.seen = Some(Seen { value, at: now, lasts: Duration::ZERO, follow: None });
            return Standing::Waits;
        };
        let gap = now.duration_since(seen.at);
        seen.at = now;
        seen.lasts += gap.min(BEAT);
        let paused = gap > BEAT;
        match seen.follow {
            None if paused => seen.follow = Some(AFTER_PAUSE),
            Some(left @ 1..) => seen.follow = Some(left - 1),
            // The limit ends also where each reading is behind a pause.
            _ if seen.lasts >= self.most => return Standing::Overdue,
            _ => seen.follow = None,
        }
        Standing::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_overdue_when_nothing_has_changed_for_the_limit_and_no_sooner() {
        let begin = Instant::now();
        let after = |ms| begin + Duration::from_millis(ms);
        let mut limit = Limit::new(3, Duration::from_millis(10));
        let read = |limit: &mut Limit, value, ms| limit.read(value, 0, after(ms));
        assert_eq!(read(&mut limit, 0, 1_000), Standing::Waits, "the time before the first reading counts");
        assert_eq!(read(&mut limit, 0, 1_009), Standing::Waits);
        assert_eq!(read(&mut limit, 1, 1_010), Standing::Waits, "a change does not count");
        assert_eq!(read(&mut limit, 1, 1_019), Standing::Waits);
        assert_eq!(read(&mut limit, 0, 1_020), Standing::Waits, "a value that the host has set is no change");
        assert_eq!(read(&mut limit, 0, 1_030), Standing::Overdue);
        for (value, errors) in [(3, 0), (4, 0), (0, 1)] {
            let mut limit = Limit::new(3, Duration::ZERO);
            assert_eq!(limit.read(value, errors, begin), Standing::Passed, "{value}, {errors} failures");
        }
    }

    /// Readings each 25 ms of a counter that stays as it is, after a pause at 1 s: which says that the limit is
    /// over.
    fn overdue_after(most: Duration, pause: Duration, again: bool) -> u32 {
        let (begin, step) = (Instant::now(), BEAT / 4);
        let mut limit = Limit::new(1, most);
        let mut now = begin;
        while now < begin + Duration::from_secs(1) {
            assert_eq!(limit.read(0, 0, now), Standing::Waits);
            now += step;
        }
        now += pause;
        for n in 0..10_000 {
            if limit.read(0, 0, now) == Standing::Overdue {
                return n;
            }
            now += if again { step + pause } else { step };
        }
        panic!("the limit does not end");
    }

    #[test]
    fn time_in_which_the_process_did_not_run_does_not_end_a_limit() {
        let (hour, none) = (Duration::from_secs(3600), Duration::ZERO);
        let [soon, later] = [1010, 3000].map(Duration::from_millis);
        assert!(overdue_after(soon, none, false) <= 1);
        assert_eq!(
            overdue_after(soon, hour, false),
            AFTER_PAUSE + 1,
            "what has come may still be on its way"
        );
        let (with, without) = (overdue_after(later, hour, false), overdue_after(later, none, false));
        assert!(without - with <= 5, "a pause counts {without} - {with} readings");
        assert!(overdue_after(later, hour, true) <= 2 * without, "pauses that follow each other");
    }
}
