//! The time limit of a counter that a device waits for. The host cannot see such a wait: the program says
//! which value the counter is to reach.

use std::time::{Duration, Instant};

/// A value that is to be reached, and for how long nothing may change before.
#[derive(Debug)]
pub(crate) struct Limit {
    value: u64,
    most: Duration,
    /// What the counter had when it was last read, and since when.
    seen: Option<(u64, Instant)>,
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

    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    pub(crate) fn most(&self) -> Duration {
        self.most
    }

    /// The counter has this value and so many failures.
    pub(crate) fn read(&mut self, value: u64, errors: u64, now: Instant) -> Standing {
        if value >= self.value || errors > 0 {
            return Standing::Passed;
        }
        match self.seen {
            Some((seen, since)) if seen == value => {
                if now.duration_since(since) < self.most {
                    Standing::Waits
                } else {
                    Standing::Overdue
                }
            }
            _ => {
                self.seen = Some((value, now));
                Standing::Waits
            }
        }
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
}
