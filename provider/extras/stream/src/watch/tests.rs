//! The watchdog over words of this process.

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
    assert!(second.limit != first.limit);
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
fn a_descriptor_is_not_kept_of_a_process_that_may_not_be_the_peers() {
    let mut other = direct();
    let mut peer = other.peer.take().unwrap();
    let (process, ended) = find(&peer);
    assert!(process.is_some() && !ended);
    // It cannot be asked, as with too few descriptors.
    peer.name.namespace ^= 1;
    let (process, ended) = find(&peer);
    assert!(process.is_none() && !ended);
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
