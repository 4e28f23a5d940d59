//! The watchdog: a thread of each endpoint that ends every wait of a stream, a graph or the CPU.
//!
//! A lane's first word names what its stream waits for. The watchdog fails the endpoint when the peer has
//! ended or closed and the word is not raised, or when nothing has changed for the time limit. It sets the
//! error words of both sides, and from then on raises each word that is waited for: streams pass, and kernels
//! move nothing.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Kind;
use crate::carried::Carried;
use crate::error::Error;
use crate::layout::{AT, BEGUN, CLOSED, ERROR, LANES, line_of};
use crate::shared::{Peer, Shared};

/// Between two polls of the lanes.
const TICK: Duration = Duration::from_millis(2);
/// For so long no lane has waited before the watchdog rests, which a graph that is launched does not end.
const QUIET: Duration = Duration::from_millis(100);
/// How long it rests at most.
const REST: Duration = Duration::from_millis(20);
/// What was raised so often in a row, and is waited for still, waits in a context that is gone.
const AGAIN: u32 = 10_000;
/// How long a word is still waited for when the peer has ended or closed: what it had queued may be done.
const GRACE: Duration = Duration::from_millis(10);

/// How often a kernel that waits says so again before the end of its peer fails it. What the lane's word says
/// may be old: the kernel has yet to find a flag that was raised before the end, as while its process has no
/// time on the device. Its device's memory is not read here, since calls of the driver may wait for the
/// kernel. So the lane's word is taken back, which a kernel finds between two polls. One that says the same
/// again, and then once more, has polled in between.
const SAID_AGAIN: u32 = 2;
/// After this no kernel is asked any more.
const ASKS_WITHIN: Duration = Duration::from_secs(1);

/// Between two looks at the lanes at most, where the process runs: longer, it was stopped.
const SUSPENDED: Duration = Duration::from_millis(100);
/// What is left of the time limit then at least: what came meanwhile is yet to be found.
const FOLLOWS: Duration = Duration::from_millis(500);

/// What a lane waits for, since when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wait {
    code: u32,
    begun: u32,
    since: Instant,
}

/// Begins to watch an endpoint, as soon as it has a peer.
pub(crate) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    let builder = std::thread::Builder::new().name("strait-stream".into());
    Ok(builder.spawn(move || {
        while !shared.stop.load(Acquire) {
            match shared.peer.get() {
                Some(peer) => watch(&shared, peer),
                None => std::thread::sleep(TICK),
            }
        }
    })?)
}

fn watch(shared: &Shared, peer: &Peer) {
    // An agent says what it knows: the process may be of another host.
    let mapped = peer.agent.is_none();
    let (mut process, mut gone) = (None, false);
    let mut waits: [Option<Wait>; LANES] = [None; LANES];
    // Since when the peer is known to have ended or closed.
    let mut over: Option<Instant> = None;
    // What each lane has said since then that it waits for, and how often. A peer that has ended raises no
    // word again, so that what is said again is the same wait.
    let mut asked = [const { Vec::new() }; LANES];
    let mut waited_at = Instant::now();
    // What was raised behind a failure, and how often in a row the same.
    let (mut raised, mut again) = ([0; LANES], 0u32);
    let mut looked = Instant::now();
    while !shared.stop.load(Acquire) {
        if shared.failure().is_some() {
            propagate(shared, peer);
            let now = satisfy(shared);
            again = if now == raised { again.saturating_add(1) } else { 0 };
            raised = now;
            if now == [0; LANES] || again > AGAIN {
                std::thread::sleep(TICK);
            } else {
                std::thread::yield_now();
            }
            continue;
        }
        if waits.iter().any(Option::is_some) {
            waited_at = Instant::now();
        }
        let length = pause(waited_at.elapsed());
        if length > TICK {
            // The endpoint's end wakes it.
            std::thread::park_timeout(length);
        }
        // Again where there were too few descriptors.
        if mapped && process.is_none() && !gone {
            (process, gone) = find(peer);
        }
        if sleep(process.as_ref(), if length > TICK { Duration::ZERO } else { TICK }) {
            // It stays readable from now on.
            (gone, process) = (true, None);
        }
        let (now, before) = (Instant::now(), looked);
        looked = now;
        for wait in waits.iter_mut().flatten().filter(|_| now - before > SUSPENDED) {
            wait.since =
                now - resumed(now.saturating_duration_since(wait.since), now - before, shared.timeout);
        }
        gone |= peer.agent.as_ref().is_some_and(Carried::is_lost);
        let closed = shared.own.word(0, CLOSED).load(Acquire) != 0;
        if gone || closed {
            over.get_or_insert_with(Instant::now);
        }
        for lane in 0..LANES as u32 {
            let wait = &mut waits[lane as usize];
            *wait = examine(shared, lane, *wait);
            let Some(Wait { code, since, .. }) = *wait else { continue };
            let (asked, over) = (&mut asked[lane as usize], over.map(|o| o.elapsed()));
            // By the same time, since the process may be stopped at any point.
            let lasted = now.saturating_duration_since(since);
            let Some(why) = ends(waited(lasted, asked), over, closed, shared.timeout) else { continue };
            if shared.direct().is_some()
                && lasted < shared.timeout
                && over.is_some_and(|over| over < ASKS_WITHIN)
                && !is_sure(asked, code)
            {
                let _ = shared.lanes.word(lane, AT).compare_exchange(code, 0, AcqRel, Relaxed);
                *wait = None;
                continue;
            }
            let (kind, index) = named(shared, code);
            shared.fail(why, kind, index);
            break;
        }
    }
}

/// How long a wait counts as, of a process that was stopped for so long.
fn resumed(lasted: Duration, suspended: Duration, timeout: Duration) -> Duration {
    lasted.saturating_sub(suspended).min(timeout.saturating_sub(FOLLOWS))
}

/// The peer's process; and whether it has ended, whose pid another one may have by then.
fn find(peer: &Peer) -> (Option<OwnedFd>, bool) {
    let process = ipc::pidfd::open(peer.pid as i32).ok();
    if peer.name.has_ended() { (None, true) } else { (process, false) }
}

/// Why a wait that has lasted so long ends now, if it does. `over`: for how long the peer is known to have
/// ended, or `closed`: what it had raised before may have come only then.
fn ends(lasted: Duration, over: Option<Duration>, closed: bool, timeout: Duration) -> Option<i32> {
    match over {
        Some(over) if lasted.min(over) >= GRACE => Some(if closed { libc::EPIPE } else { libc::ECONNRESET }),
        _ if lasted >= timeout => Some(libc::ETIMEDOUT),
        _ => None,
    }
}

/// How long a lane has waited: one that was asked has had its time, whichever block says now what it waits
/// for. Each is still asked as often as another ([`is_sure`]).
fn waited(lasted: Duration, asked: &[(u32, u32)]) -> Duration {
    if asked.is_empty() { lasted } else { lasted.max(GRACE) }
}

/// Whether a kernel has said often enough that it waits for this; it is counted.
fn is_sure(asked: &mut Vec<(u32, u32)>, code: u32) -> bool {
    let at = asked.iter().position(|(of, _)| *of == code).unwrap_or_else(|| {
        // Of a lane's kernel each block waits for another one.
        asked.push((code, 0));
        asked.len() - 1
    });
    asked[at].1 += 1;
    asked[at].1 > SAID_AGAIN
}

/// What a lane waits for now.
fn examine(shared: &Shared, lane: u32, before: Option<Wait>) -> Option<Wait> {
    let code = shared.waits_for(lane);
    if code == 0 || line_of(code) >= shared.layout.lines() {
        return None;
    }
    if shared.direct().is_none() && shared.own.word(line_of(code), 0).load(Acquire) != 0 {
        return None;
    }
    let begun = shared.lanes.word(lane, BEGUN).load(Acquire);
    before.filter(|w| (w.code, w.begun) == (code, begun)).or(Some(Wait {
        code,
        begun,
        since: Instant::now(),
    }))
}

/// Which operation a lane's word is of.
fn named(shared: &Shared, code: u32) -> (Kind, u32) {
    let (line, layout) = (line_of(code), &shared.layout);
    match code >> 24 {
        1 => (Kind::Send, line.wrapping_sub(layout.credit(0))),
        2 => (Kind::Receive, line.wrapping_sub(layout.flag(0))),
        3 if line < layout.carried() => (Kind::Put, line.wrapping_sub(layout.signal_credit(0))),
        // An agent's: of no signal.
        3 => (Kind::Put, 0),
        5 => (Kind::Get, 0),
        _ => (Kind::Wait, line.wrapping_sub(layout.signal(0))),
    }
}

/// Brings a failure that a kernel of this side has found to the peer.
fn propagate(shared: &Shared, peer: &Peer) {
    let word = shared.own.word(0, ERROR).load(Acquire);
    let theirs = crate::failure::of_peer(word);
    let _ = peer.words.word(0, ERROR).compare_exchange(0, theirs, Release, Acquire);
}

/// Raises what is waited for; what that is, lane by lane, and 0 for nothing.
fn satisfy(shared: &Shared) -> [u32; LANES] {
    let mut raised = [0; LANES];
    // Where kernels wait, these look at the error word.
    let lanes = if shared.direct().is_some() { 0 } else { LANES as u32 };
    for lane in 0..lanes {
        let code = shared.waits_for(lane);
        if code != 0 && line_of(code) < shared.layout.lines() {
            shared.own.word(line_of(code), 0).store(1, Release);
            raised[lane as usize] = code;
        }
    }
    raised
}

/// How long nothing is looked at, where no lane has waited for some time.
fn pause(quiet: Duration) -> Duration {
    if quiet < QUIET { TICK } else { REST }
}

/// Sleeps for so long, or until the process has ended: then `true`.
fn sleep(process: Option<&OwnedFd>, length: Duration) -> bool {
    let Some(process) = process else {
        std::thread::sleep(length);
        return false;
    };
    let mut fd = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which is valid for the call.
    unsafe { libc::poll(&mut fd, 1, length.as_millis() as libc::c_int) > 0 }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::layout::{LINE, Layout, code};
    use crate::memory::Words;

    fn shared() -> Shared {
        let layout = Layout { slots: 2, slot_bytes: 16, signals: 1 };
        Shared {
            own: Words::new(layout.len()).unwrap(),
            lanes: Words::new(LANES * LINE).unwrap(),
            layout,
            timeout: Duration::from_secs(1),
            peer: OnceLock::new(),
            stop: AtomicBool::new(false),
            pid: std::process::id(),
        }
    }

    #[test]
    fn a_lane_waits_as_long_as_word_and_count_of_kernels_stay() {
        let (s, lane) = (shared(), 5);
        let (at, begun) = (s.lanes.word(lane, AT), s.lanes.word(lane, BEGUN));
        assert!(examine(&s, lane, None).is_none());
        at.store(code(Kind::Wait, s.layout.signal(0)), SeqCst);
        let first = examine(&s, lane, None).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(examine(&s, lane, Some(first)) == Some(first), "it still waits");
        // The same word again, after the kernel behind the first wait: that is another wait.
        begun.store(1, SeqCst);
        let second = examine(&s, lane, Some(first)).unwrap();
        assert!(second.since > first.since);
        // Raised: the stream is about to pass.
        s.own.word(s.layout.signal(0), 0).store(1, SeqCst);
        assert!(examine(&s, lane, Some(second)).is_none());
        // No line of the endpoint's.
        at.store(code(Kind::Wait, s.layout.lines()), SeqCst);
        assert!(examine(&s, lane, None).is_none() && satisfy(&s) == [0; LANES]);
    }

    #[test]
    fn a_failed_endpoint_raises_what_each_lane_waits_for_and_nothing_else() {
        let s = shared();
        s.lanes.word(3, AT).store(code(Kind::Receive, s.layout.flag(1)), SeqCst);
        s.lanes.word(9, AT).store(code(Kind::Send, s.layout.credit(0)), SeqCst);
        assert_ne!(satisfy(&s), [0; LANES]);
        let raised: Vec<u32> =
            (1..s.layout.lines()).filter(|line| s.own.word(*line, 0).load(SeqCst) != 0).collect();
        assert_eq!(raised, [s.layout.flag(1), s.layout.credit(0)]);
        for (kind, line, wanted) in [
            (Kind::Send, s.layout.credit(1), (Kind::Send, 1)),
            (Kind::Receive, s.layout.flag(0), (Kind::Receive, 0)),
            (Kind::Put, s.layout.signal_credit(0), (Kind::Put, 0)),
            (Kind::Put, s.layout.job_done(7), (Kind::Put, 0)),
            (Kind::Get, s.layout.job_done(7), (Kind::Get, 0)),
            (Kind::Wait, s.layout.signal(0), (Kind::Wait, 0)),
        ] {
            assert_eq!(named(&s, code(kind, line)), wanted);
        }
    }

    /// One whose kernels wait.
    pub(crate) fn direct() -> Shared {
        let s = shared();
        let words = Words::new(s.layout.len()).unwrap();
        let places = crate::shared::Places::new(&peerop::Targets::new(), &s, &words).unwrap();
        let (name, regions, _opened) = (ipc::process::Name::own(), Vec::new(), Vec::new());
        let direct = Some(crate::shared::Direct { own: 0, peer: 0, device: 0 });
        let (agent, pid, permit) = (None, std::process::id(), None);
        s.peer
            .set(Peer { words, name, pid, to: 0, from: 0, regions, _opened, places, agent, direct, permit })
            .unwrap();
        s
    }

    #[test]
    fn a_kernel_says_again_that_it_waits_before_the_end_of_its_peer_fails_it() {
        let s = direct();
        let (lane, waits) = (5, code(Kind::Receive, s.layout.flag(1)));
        let at = s.lanes.word(lane, AT);
        let taken_back = || {
            while at.load(SeqCst) != 0 && s.failure().is_none() {
                std::thread::yield_now();
            }
            let failed = s.failure().is_some();
            s.stop.fetch_or(failed, SeqCst);
            assert!(!failed, "what was said before the end may be old");
        };
        at.store(waits, SeqCst);
        s.own.word(0, CLOSED).store(1, SeqCst);
        std::thread::scope(|threads| {
            threads.spawn(|| watch(&s, s.peer.get().unwrap()));
            taken_back();
            // A kernel without time on the device.
            std::thread::sleep(3 * GRACE);
            at.store(waits, SeqCst);
            taken_back();
            // It was about to say so when the flag was raised; a last time it says so behind another poll.
            at.store(waits, SeqCst);
            while s.failure().is_none() {
                std::thread::yield_now();
            }
            s.stop.store(true, SeqCst);
        });
        let failure = s.failure().unwrap();
        assert_eq!((failure.errno, failure.kind, failure.index), (libc::EPIPE, Kind::Receive, 1));
    }

    #[test]
    fn a_wait_that_begins_while_the_watchdog_rests_is_ended() {
        assert_eq!([Duration::ZERO, QUIET - TICK, QUIET].map(pause), [TICK, TICK, REST]);
        let s = direct();
        std::thread::scope(|threads| {
            let watch = threads.spawn(|| watch(&s, s.peer.get().unwrap()));
            std::thread::sleep(QUIET + 2 * REST);
            s.own.word(0, CLOSED).store(1, SeqCst);
            while s.failure().is_none() {
                s.lanes.word(5, AT).store(code(Kind::Receive, s.layout.flag(1)), SeqCst);
                std::thread::yield_now();
            }
            s.stop.store(true, SeqCst);
            watch.thread().unpark();
        });
        assert_eq!(s.failure().unwrap().errno, libc::EPIPE);
    }

    /// All orders of a kernel that waits and has said so, a peer that raises its flag and then closes, and the
    /// watchdog. Whether the kernel is failed, whose flag was raised before the close.
    fn loses(said_again: u32) -> bool {
        // Where the kernel is: polls, looks at the lane's word, says; what the peer has done; the lane's word is
        // said; how often the watchdog has seen it.
        type All = (u8, u8, bool, u32);
        let begin: All = (0, 0, true, 0);
        let (mut seen, mut todo) = (std::collections::HashSet::from([begin]), vec![begin]);
        while let Some((kernel, peer, said, times)) = todo.pop() {
            let mut go = |next: All| {
                if seen.insert(next) {
                    todo.push(next);
                }
            };
            match kernel {
                0 if peer > 0 => go((3, peer, false, times)),
                0 => go((1, peer, said, times)),
                1 => go((if said { 0 } else { 2 }, peer, said, times)),
                2 => go((0, peer, true, times)),
                _ => {}
            }
            if peer < 2 {
                go((kernel, peer + 1, said, times));
            }
            if peer == 2 && said {
                if times == said_again {
                    return true;
                }
                go((kernel, peer, false, times + 1));
            }
        }
        false
    }

    #[test]
    fn no_kernel_is_failed_whose_flag_was_raised_before_the_end() {
        assert!(!loses(SAID_AGAIN));
        assert!(loses(SAID_AGAIN - 1) && loses(0), "the twins that ask less often");
        let (mut asked, one, two) = (Vec::new(), 7, 8);
        let sure: Vec<bool> = [one, one, two, one, two, two].map(|code| is_sure(&mut asked, code)).to_vec();
        assert_eq!(sure, [false, false, false, true, false, true], "of each block's wait");
    }

    #[test]
    fn time_in_which_the_process_was_stopped_is_none_in_which_a_lane_waited() {
        let of = |[lasted, suspended, timeout]: [u64; 3]| {
            let [lasted, suspended, timeout] = [lasted, suspended, timeout].map(Duration::from_millis);
            resumed(lasted, suspended, timeout).as_millis()
        };
        assert_eq!(of([4100, 4000, 3000]), 100);
        assert_eq!(of([6900, 4000, 3000]), 2500, "half a second follows");
        assert_eq!(of([200, 150, 100]), 0, "of a short limit all of it");
        assert_eq!(of([100, 150, 3000]), 0);
    }

    #[test]
    fn a_peer_has_ended_whose_pid_another_process_has() {
        let mut s = shared();
        let mut other = direct();
        let mut peer = other.peer.take().unwrap();
        peer.name.process ^= 1;
        (peer.direct, s.timeout) = (None, Duration::from_secs(300));
        s.peer.set(peer).unwrap();
        let receive = code(Kind::Receive, s.layout.flag(1));
        s.lanes.word(5, AT).store(receive, SeqCst);
        std::thread::scope(|threads| {
            threads.spawn(|| watch(&s, s.peer.get().unwrap()));
            while s.failure().is_none() {
                std::thread::yield_now();
            }
            s.stop.store(true, SeqCst);
        });
        assert_eq!(s.failure().unwrap().errno, libc::ECONNRESET);
    }

    #[test]
    fn words_that_kernels_wait_for_are_not_the_hosts() {
        let s = direct();
        // A credit that has been there from the beginning.
        let line = s.layout.credit(1);
        s.own.word(line, 0).store(1, SeqCst);
        s.lanes.word(7, AT).store(code(Kind::Send, line), SeqCst);
        assert!(examine(&s, 7, None).is_some(), "a wait");
        s.lanes.word(7, AT).store(code(Kind::Receive, s.layout.flag(0)), SeqCst);
        assert_eq!(satisfy(&s), [0; LANES]);
        assert_eq!(s.own.word(s.layout.flag(0), 0).load(SeqCst), 0, "only a message raises a flag");
    }

    #[test]
    fn a_peer_that_has_ended_is_given_time_from_when_that_is_known() {
        let (short, long, limit) = (Duration::from_millis(1), Duration::from_secs(5), Duration::from_secs(9));
        assert_eq!(ends(long, None, false, limit), None);
        assert_eq!(ends(long, Some(short), true, limit), None, "its last words may just have come");
        assert_eq!(ends(short, Some(long), true, limit), None);
        assert_eq!(ends(long, Some(long), true, limit), Some(libc::EPIPE));
        assert_eq!(ends(long, Some(long), false, limit), Some(libc::ECONNRESET));
        assert_eq!(ends(limit, None, false, limit), Some(libc::ETIMEDOUT));
        // Of a put by many blocks each has another code.
        let mut asked = Vec::new();
        assert_eq!(ends(waited(short, &asked), Some(long), true, limit), None);
        assert!(!is_sure(&mut asked, code(Kind::Put, 3)));
        assert_eq!(ends(waited(short, &asked), Some(long), true, limit), Some(libc::EPIPE));
        assert_eq!(ends(waited(short, &asked), Some(short), true, limit), None);
    }

    #[test]
    fn the_first_failure_stays() {
        let s = shared();
        s.fail(libc::ETIMEDOUT, Kind::Put, 4);
        s.fail(libc::ECANCELED, Kind::None, 0);
        let failure = s.failure().unwrap();
        assert_eq!((failure.errno, failure.kind, failure.index), (libc::ETIMEDOUT, Kind::Put, 4));
    }
}
