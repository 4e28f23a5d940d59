//! Two threads, a link each.

use std::thread;
use std::time::{Duration, Instant};

use link_api::{Event, FrameLink, PeerId, Refused, Sent, SleepLink, WaitFd};

use crate::harness::{Drive, next, taken};
use crate::{Ends, Harness, bytes, is_readable};

/// Numbers by chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// Now and then a pause of some length.
    fn pause(&mut self) {
        match self.below(8) {
            0 => thread::yield_now(),
            1 => thread::sleep(Duration::from_micros(self.below(100))),
            _ => (0..self.below(400)).for_each(|_| std::hint::spin_loop()),
        }
    }
}

/// Sleeps until there is something to do, if there is nothing.
fn sleep<L: SleepLink>(link: &mut L, patience: Duration, why: &str) {
    if link.arm() {
        let fd = link.wait_fd(WaitFd::All).expect("this group is for links with a descriptor");
        assert!(is_readable(fd, patience), "a wake-up was lost: {why}");
    }
}

/// One side of [`no_wake_up_is_lost`]: a frame to and fro, each side asleep meanwhile or about to be.
pub fn ping_pong<L: FrameLink + SleepLink>(
    link: &mut L,
    peer: PeerId,
    first: bool,
    patience: Duration,
    rounds: usize,
) {
    let mut chance = Chance(if first { 7 } else { 11 });
    let start = Instant::now();
    for turn in 0..2 * rounds {
        if first == (turn % 2 == 0) {
            while let Err(why) = link.send(peer, &bytes(40, turn), &[], 0, 0) {
                assert!(why == Refused::Busy && start.elapsed() < 10 * patience, "{why:?}");
                thread::yield_now();
            }
            continue;
        }
        let got = loop {
            match next(link) {
                Some(Event::Frame(f)) => break taken(link, f).1,
                Some(other) => panic!("no frame, but {other:?}"),
                None => {}
            }
            chance.pause();
            sleep(link, patience, "of a frame");
        };
        assert_eq!(got, bytes(40, turn), "frame {turn}");
        chance.pause();
    }
}

/// One side of [`two_threads_exchange_all_they_send`].
pub fn exchange<L: FrameLink + SleepLink>(link: &mut L, peer: PeerId, which: bool, patience: Duration) {
    const FRAMES: usize = 1_500;
    let frame = |of: bool, i: usize| bytes(1 + (i * 131) % 3_000, i + if of { 10_000 } else { 0 });
    let (mut sent, mut got, mut chance) = (0, 0, Chance(3 + u64::from(which)));
    while sent < FRAMES || got < FRAMES {
        let mut idle = true;
        if sent < FRAMES {
            match link.send(peer, &frame(which, sent), &[], 0, 0) {
                Ok(Sent::Done) => (sent, idle) = (sent + 1, false),
                other => assert_eq!(other, Err(Refused::Busy)),
            }
        }
        if chance.below(3) > 0 || idle {
            match next(link) {
                Some(Event::Frame(f)) => {
                    let (_, bytes) = taken(link, f);
                    assert!(bytes == frame(!which, got), "frame {got} is next");
                    (got, idle) = (got + 1, false);
                }
                Some(other) => panic!("no frame, but {other:?}"),
                None => {}
            }
        }
        if idle {
            sleep(link, patience, "of a frame, or of room for one");
        }
    }
}

/// Runs both sides of a game, each in a thread, until both are over.
fn play<H: Harness>(h: &mut H, side: impl Fn(&mut H::Link, PeerId, bool, Duration) + Sync)
where
    H::Link: Send,
{
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let (patience, side) = (h.patience(), &side);
    thread::scope(|s| {
        // A link ends with its thread if that fails, which the other one sees.
        let other = s.spawn(move || {
            side(&mut b, to_a, false, patience);
            b
        });
        side(&mut a, to_b, true, patience);
        drop(other.join().expect("the other thread has failed, as it said"));
    });
}

/// "A descriptor that poll(2) finds readable when there is something to do", whenever it comes to be there.
pub fn no_wake_up_is_lost<H: Harness>(h: &mut H)
where
    H::Link: Send,
{
    let rounds = h.rounds();
    play(h, |link, peer, first, patience| ping_pong(link, peer, first, patience, rounds));
}

/// Both send as much as finds room, and sleep when nothing does.
pub fn two_threads_exchange_all_they_send<H: Harness>(h: &mut H)
where
    H::Link: Send,
{
    play(h, exchange);
}
