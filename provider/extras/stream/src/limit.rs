//! Time limits. Of a time in which the process did not run, since it was stopped or had no processor, a tenth
//! of a second counts, and half a second follows it before a limit is over.

use std::time::{Duration, Instant};

/// Between two polls at most, where the process runs. Of a longer time so much counts.
const SUSPENDED: Duration = Duration::from_millis(100);
/// What follows such a time before the limit is over: what came meanwhile is yet to be found. Of a shorter
/// limit all of it.
const FOLLOWS: Duration = Duration::from_millis(500);

/// How long an agent waits at the end, while nothing arrives of what was sent.
const FAREWELL: Duration = Duration::from_secs(10);
/// The same where nothing but the end itself, or the failure, is to arrive.
const SHORT_FAREWELL: Duration = Duration::from_millis(500);

/// How long something has lasted, and may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    most: Duration,
    polled: Instant,
    lasts: Duration,
    /// What is to follow a time in which the process did not run.
    follows: Duration,
}

impl Limit {
    pub(crate) fn begin(most: Duration, now: Instant) -> Limit {
        Limit { most, polled: now, lasts: Duration::ZERO, follows: Duration::ZERO }
    }

    /// Polls it; how long it has lasted.
    pub(crate) fn poll(&mut self, now: Instant) -> Duration {
        let gap = now.saturating_duration_since(self.polled);
        let counts = gap.min(SUSPENDED);
        self.polled = now;
        self.lasts += counts;
        // It does not begin again while it is pending: the limit ends also where each poll is behind a gap.
        self.follows = match self.follows {
            Duration::ZERO if gap > SUSPENDED => FOLLOWS.min(self.most),
            left => left.saturating_sub(counts),
        };
        self.lasted()
    }

    /// How long it had lasted at the last poll.
    pub(crate) fn lasted(&self) -> Duration {
        match self.follows {
            Duration::ZERO => self.lasts,
            left => self.lasts.min(self.most.saturating_sub(left)),
        }
    }

    /// Whether it is over now.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        self.poll(now) >= self.most
    }
}

/// How long the end of an endpoint waits for its agent.
#[derive(Debug)]
pub(crate) struct Farewell {
    silence: Limit,
    done: u64,
}

impl Farewell {
    pub(crate) fn begin(done: u64, now: Instant) -> Farewell {
        Farewell { silence: Limit::begin(FAREWELL, now), done }
    }

    /// Whether it ends, now that the agent's carrier has done so much. `has_sent`: messages are to arrive,
    /// and the endpoint has not failed.
    pub(crate) fn is_over(&mut self, done: u64, has_sent: bool, now: Instant) -> bool {
        if done != self.done {
            *self = Farewell::begin(done, now);
        }
        self.silence.poll(now) >= if has_sent { FAREWELL } else { SHORT_FAREWELL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// How long it has lasted after these times between polls, each so often.
    fn lasted(most: u64, gaps: &[(u64, usize)]) -> u128 {
        let mut now = Instant::now();
        let mut limit = Limit::begin(ms(most), now);
        for (gap, times) in gaps {
            for _ in 0..*times {
                now += ms(*gap);
                limit.poll(now);
            }
        }
        limit.lasted().as_millis()
    }

    #[test]
    fn of_time_in_which_the_process_did_not_run_a_tenth_of_a_second_counts_and_half_a_second_follows() {
        assert_eq!(lasted(3000, &[(2, 1499)]), 2998);
        assert_eq!(lasted(3000, &[(2, 1500)]), 3000);
        assert_eq!(lasted(3000, &[(100, 30)]), 3000, "longer times");
        assert_eq!(lasted(3000, &[(100, 1), (3_600_000, 1)]), 200);
        assert_eq!(lasted(3000, &[(100, 29), (3_600_000, 1)]), 2500);
        assert_eq!(lasted(3000, &[(100, 29), (3_600_000, 1), (10, 49)]), 2990);
        assert!(lasted(3000, &[(100, 29), (3_600_000, 1), (10, 50)]) >= 3000);
        assert_eq!(lasted(50, &[(40, 1), (3_600_000, 1)]), 0, "of a short limit all of it");
        assert!(lasted(50, &[(40, 1), (3_600_000, 1), (50, 1)]) >= 50);
    }

    #[test]
    fn a_limit_ends_where_each_poll_is_behind_a_gap() {
        for most in [1, 20, 499, 500, 3000, 30_000] {
            for gap in [101, 110, 5000] {
                let mut now = Instant::now();
                let mut limit = Limit::begin(ms(most), now);
                let bound = most / 100 + 7;
                let polls = (1..=bound).find(|_| {
                    now += ms(gap);
                    limit.is_over(now)
                });
                let polls =
                    polls.unwrap_or_else(|| panic!("{most} ms do not end in {bound} polls of {gap} ms"));
                assert!(polls * 100 >= most, "{most} ms end after {polls} polls");
            }
        }
        // Gaps between which the process runs for some time.
        assert!(lasted(3000, &[(110, 1), (2, 200), (110, 1), (2, 200), (110, 1), (2, 1100)]) >= 3000);
    }

    #[test]
    fn the_end_waits_as_long_as_what_was_sent_arrives_and_ten_seconds_of_silence() {
        let (mut now, mut done) = (Instant::now(), 5);
        let mut farewell = Farewell::begin(done, now);
        let mut silent = |farewell: &mut Farewell, done, has_sent, polls: u32| {
            (0..polls).any(|_| {
                now += ms(50);
                farewell.is_over(done, has_sent, now)
            })
        };
        for _ in 0..10 {
            assert!(!silent(&mut farewell, done, true, 190), "9.5 s after the last one");
            done += 1;
        }
        assert!(!silent(&mut farewell, done, true, 200));
        assert!(silent(&mut farewell, done, true, 1));
        // A failure, also one that comes meanwhile; and what is under way arrives first.
        let mut farewell = Farewell::begin(done, now_of(&farewell));
        assert!(!silent(&mut farewell, done, true, 9));
        assert!(silent(&mut farewell, done, false, 2));
        for _ in 0..5 {
            done += 1;
            assert!(!silent(&mut farewell, done, false, 10));
        }
        assert!(silent(&mut farewell, done, false, 1));
    }

    fn now_of(farewell: &Farewell) -> Instant {
        farewell.silence.polled
    }
}
