//! What a drain's thread does between polls that find nothing.

use std::time::{Duration, Instant};

/// For so long nothing has happened before the thread rests.
const QUIET: Duration = Duration::from_millis(10);
/// For so long after a poll that found something a thread that would sleep yields its core instead: what
/// follows at once is not to wait for a sleep, such as the end of a device's copy, or a stream's answer to a
/// completion.
const FOLLOWS: Duration = Duration::from_micros(20);

/// What the thread does between looks that find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// So many looks follow each other at once, after one that found something.
    spins: u32,
    /// Up to so many the core is yielded between them.
    yields: u32,
    /// Then the thread sleeps. `None`: never.
    sleep: Option<Duration>,
    /// So long at most it rests where nothing has happened for some time. `None`: it does not.
    rest: Option<Duration>,
}

impl Pace {
    /// It yields the core, and never sleeps.
    pub const POLLS: Pace = Pace { spins: 2_000, yields: 2_000, sleep: None, rest: None };

    /// It sleeps where nothing was found for some time.
    pub const fn adapts(sleep: Duration) -> Pace {
        Pace { spins: 2_000, yields: 4_000, sleep: Some(sleep), rest: None }
    }

    /// It sleeps after each look that found nothing, but for 20 microseconds after one that found something.
    pub const fn sleeps(sleep: Duration) -> Pace {
        Pace { spins: 0, yields: 0, sleep: Some(sleep), rest: None }
    }

    /// As this one, and where nothing has happened for 10 ms it sleeps for so long,
    /// in whole milliseconds: until something of a peer's comes, or [`super::Drains::wake`] is called.
    pub const fn resting(self, most: Duration) -> Pace {
        Pace { rest: Some(most), ..self }
    }

    /// Whether something of a peer's may end a sleep.
    pub(super) fn rests(&self) -> bool {
        self.rest.is_some()
    }
}

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A poll, at once.
    Spin,
    /// A poll, when others have had the core.
    Yield,
    /// A sleep.
    Sleep(Duration),
    /// A sleep that peers and wakers end.
    Rest(Duration),
}

/// Polls that have found nothing, one after the other.
#[derive(Debug)]
pub(super) struct Lull {
    pace: Pace,
    polls: u32,
    /// When the clock was read first.
    since: Option<Instant>,
}

impl Lull {
    pub(super) fn new(pace: Pace) -> Lull {
        Lull { pace, polls: 0, since: None }
    }

    /// Something has come.
    pub(super) fn end(&mut self) {
        (self.polls, self.since) = (0, None);
    }

    /// A poll has found something, or nothing: what is next, and the time, where there was time to read the
    /// clock.
    pub(super) fn polled(&mut self, found: bool, clock: impl FnOnce() -> Instant) -> (Step, Option<Instant>) {
        if found {
            self.end();
        }
        // Beyond the largest number it begins again: a thread that never sleeps then reads the clock, too.
        self.polls = self.polls.wrapping_add(1);
        let Pace { spins, yields, sleep, rest } = self.pace;
        let late = self.polls > yields;
        let step = if self.polls > spins { Step::Yield } else { Step::Spin };
        if self.polls % 256 != 1 && !(late && sleep.is_some()) {
            return (step, None);
        }
        let now = clock();
        if !late {
            return (step, Some(now));
        }
        let lasts = now.duration_since(*self.since.get_or_insert(now));
        let step = match (rest, sleep) {
            (Some(most), _) if lasts > QUIET => Step::Rest(most),
            (_, Some(sleep)) if lasts >= FOLLOWS => Step::Sleep(sleep),
            _ => step,
        };
        (step, Some(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds of the two processes below: a poll, the time by which a sleep is late, a device's copy, a
    /// message's way, and a stream from the end of its wait to its next store.
    const POLL: u64 = 1;
    const LATE: u64 = 10;
    const COPY: u64 = 8;
    const WAY: u64 = 1;
    const STREAM: u64 = 12;

    /// One process of an exchange by deferred work, in economy mode: its stream raises the trigger, its thread
    /// copies the message out and sends it; what comes is copied in, and counted for the stream.
    struct Side {
        lull: Lull,
        polls_at: u64,
        slept_from: u64,
        /// What the next poll behind that time finds: the step of the exchange that has ended then.
        ready: Option<(u64, Stage)>,
        sleeps: u32,
        delays: u32,
    }

    #[derive(Clone, Copy)]
    enum Stage {
        Raised,
        CopiedOut,
        Came,
        CopiedIn,
    }

    /// Two processes exchange so many messages each way, whose streams take so long: how often a sleep held one
    /// up, and all sleeps.
    fn exchange(rounds: u32, phase: u64, stream: u64, twin: impl Fn(Step) -> Step) -> (u32, u32) {
        let begin = Instant::now();
        let lull = || Lull::new(Pace::sleeps(Duration::from_micros(100)));
        let side =
            |polls_at| Side { lull: lull(), polls_at, slept_from: 0, ready: None, sleeps: 0, delays: 0 };
        let mut sides = [side(1), side(1 + phase)];
        sides[0].ready = Some((0, Stage::Raised));
        let mut answers = 0;
        while answers < rounds {
            let at = usize::from(sides[1].polls_at < sides[0].polls_at);
            let [own, peer] = if at == 0 {
                let [a, b] = &mut sides;
                [a, b]
            } else {
                let [a, b] = &mut sides;
                [b, a]
            };
            let now = own.polls_at;
            let found = own.ready.filter(|(ready, _)| *ready <= now);
            if let Some((ready, stage)) = found {
                own.delays += u32::from(own.slept_from > 0 && ready > own.slept_from);
                own.ready = None;
                match stage {
                    Stage::Raised => own.ready = Some((now + COPY, Stage::CopiedOut)),
                    Stage::CopiedOut => peer.ready = Some((now + WAY, Stage::Came)),
                    Stage::Came => own.ready = Some((now + COPY, Stage::CopiedIn)),
                    Stage::CopiedIn => {
                        own.ready = Some((now + stream, Stage::Raised));
                        answers += u32::from(at == 0);
                    }
                }
            }
            let (step, _) = own.lull.polled(found.is_some(), || begin + Duration::from_micros(now));
            (own.slept_from, own.polls_at) = match twin(step) {
                Step::Spin | Step::Yield => (0, now + POLL),
                Step::Sleep(sleep) | Step::Rest(sleep) => (now, now + sleep.as_micros() as u64 + LATE),
            };
            own.sleeps += u32::from(own.slept_from > 0);
        }
        (sides[0].delays + sides[1].delays, sides[0].sleeps + sides[1].sleeps)
    }

    #[test]
    fn an_exchange_in_economy_mode_whose_steps_are_short_waits_for_two_sleeps_at_most() {
        const ROUNDS: u32 = 100;
        for phase in 0..110 {
            let (delays, sleeps) = exchange(ROUNDS, phase, STREAM, |step| step);
            assert!(delays <= 2 * ROUNDS, "phase {phase}: {delays} sleeps hold up {ROUNDS} exchanges");
            assert!(sleeps >= ROUNDS, "phase {phase}: the threads poll without a pause");
        }
    }

    #[test]
    fn a_step_that_is_longer_than_the_polls_that_follow_waits_for_a_sleep() {
        let longer = FOLLOWS.as_micros() as u64 + 10;
        let most = (0..110).map(|phase| exchange(100, phase, longer, |step| step).0).max();
        assert!(most > Some(3 * 100), "{most:?}");
    }

    /// The twin: a thread that sleeps after each poll.
    #[test]
    fn without_the_polls_that_follow_each_step_waits_for_a_sleep() {
        let (delays, _) = exchange(100, 0, STREAM, |_| Step::Sleep(Duration::from_micros(100)));
        assert!(delays > 4 * 100, "{delays}");
    }
}
