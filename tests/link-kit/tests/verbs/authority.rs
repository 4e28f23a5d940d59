//! Whom a key of memory serves: the peer that it was given to, by the connection with that one.

use std::time::{Duration, Instant};

use below::{Below, Message, NotSent, Poll, Remote};
use hmem::Span;
use link_api::Way;
use link_kit::text;
use testkit::pattern;
use verbs::Verbs;

use crate::device::{calls, open, port, set};
use crate::duo::{self, Duo, filled};
use crate::lone::{accesses, join, say};

const WAIT: Duration = Duration::from_secs(60);
const LEN: usize = 50_000;

/// A third one, connected to the owner, that has learnt the key: whichever way, it reads and writes nothing.
#[test]
fn a_key_that_one_peer_was_given_is_of_no_use_to_another() {
    set("sv0", &[]);
    for way in [Way::Get, Way::Put] {
        let (mut owner, mut peer, memory) = (open(), open(), filled(LEN, 3));
        let (to_peer, to_owner) = join(&mut owner, &mut peer);
        let lease = owner.lend(to_peer, memory, way).expect("memory that can be lent");
        say(&mut owner, to_peer, &mut peer);
        for hostile in [Way::Get, Way::Put] {
            let mut thief = open();
            let (_, at) = join(&mut owner, &mut thief);
            let loot = filled(LEN, 9);
            assert!(!accesses(&mut thief, (hostile, at, lease.key, lease.base), loot), "{hostile:?}");
            assert!(text(&[loot]) == pattern(LEN, 9), "{hostile:?}");
        }
        assert!(text(&[memory]) == pattern(LEN, 3));
        // The peer that has it goes on, and the thieves' ends are not its own.
        let local = filled(LEN, 4);
        assert!(accesses(&mut peer, (way, to_owner, lease.key, lease.base), local));
        let same = if way == Way::Get { 3 } else { 4 };
        assert!(text(&[memory]) == pattern(LEN, same) && text(&[local]) == pattern(LEN, same));
        // It is lent for one way.
        let other = if way == Way::Get { Way::Put } else { Way::Get };
        assert!(!accesses(&mut peer, (other, to_owner, lease.key, lease.base), filled(LEN, 5)));
        assert!(text(&[memory]) == pattern(LEN, same));
        assert!(owner.end_lease(lease.number, true));
    }
    assert_eq!(calls(c"ibv_alloc_mw"), calls(c"ibv_dealloc_mw"), "windows");
}

#[test]
fn each_peer_has_a_key_of_its_own_for_what_is_published() {
    set("sv0", &[]);
    let (mut owner, memory) = (open(), filled(LEN, 3));
    let lease = owner.publish(memory, true, true).expect("memory that is registered");
    let mut peers = [open(), open()].map(|mut peer| {
        let (to_peer, to_owner) = join(&mut owner, &mut peer);
        let before = calls(c"ibv_reg_mr");
        let key = owner.admit(to_peer, &lease, true, true).expect("a key");
        assert_eq!(calls(c"ibv_reg_mr"), before, "the memory is registered once");
        assert_eq!(owner.admit(to_peer, &lease, true, true), Some(key), "one for a peer");
        say(&mut owner, to_peer, &mut peer);
        (peer, to_owner, key)
    });
    for (i, (peer, at, key)) in peers.iter_mut().enumerate() {
        assert!(accesses(peer, (Way::Put, *at, *key, lease.base), filled(LEN, i)));
        assert!(text(&[memory]) == pattern(LEN, i));
    }
    let [(_, _, theirs), (peer, at, own)] = &mut peers;
    assert!(theirs != own);
    assert!(!accesses(peer, (Way::Put, *at, *theirs, lease.base), filled(LEN, 7)), "another one's key");
    assert!(text(&[memory]) == pattern(LEN, 1));
    // What is closed serves none, also where the peers have not heard of it.
    assert!(owner.end_lease(lease.number, true));
    let [(peer, at, own), _] = &mut peers;
    assert!(!accesses(peer, (Way::Put, *at, *own, lease.base), filled(LEN, 7)));
    assert!(text(&[memory]) == pattern(LEN, 1));
}

/// A window takes one request and two calls, however long the message is; published memory takes them once.
#[test]
fn a_window_is_one_request_and_ends_with_the_message() {
    set("sv0", &[]);
    let mut duo: Duo<Verbs> = Duo::new(open);
    for len in [90_000, 1 << 20] {
        let (made, ended) = (calls(c"ibv_alloc_mw"), calls(c"ibv_dealloc_mw"));
        duo.send(&[filled(len, 1)], &[Span::leak(len)]);
        let [_, _, accesses, bytes] = duo.counts.take();
        assert_eq!((accesses, bytes), (1, len as u64));
        assert_eq!((calls(c"ibv_alloc_mw") - made, calls(c"ibv_dealloc_mw") - ended), (1, 1), "windows");
        assert_eq!(duo.lent(), 0);
    }
}

/// A lease may end before its window is bound, as where a message finds no room behind the handle: what the peer
/// was not sent ends when the device has bound it, and ends nothing else.
#[test]
fn a_window_that_is_not_bound_yet_ends_without_its_connection() {
    set("sv0", &[("DELAY_US", "50000")]);
    for is_known in [false, true] {
        let (mut owner, mut peer, memory) = (open(), open(), filled(LEN, 3));
        let (to_peer, at) = join(&mut owner, &mut peer);
        let before = [calls(c"ibv_dereg_mr"), calls(c"ibv_dealloc_mw")];
        let lease = owner.lend(to_peer, memory, Way::Put).expect("memory that can be lent");
        assert!(owner.end_lease(lease.number, is_known));
        let ended = || [calls(c"ibv_dereg_mr"), calls(c"ibv_dealloc_mw")] != before;
        assert_eq!(ended(), is_known, "memory that a peer may have a key of is taken back at once");
        say(&mut owner, to_peer, &mut peer);
        let start = Instant::now();
        while !ended() {
            assert!(start.elapsed() < WAIT, "what is not needed stays registered");
            assert_eq!(owner.poll(Poll::All), None);
        }
        say(&mut owner, to_peer, &mut peer);
        assert!(!accesses(&mut peer, (Way::Put, at, lease.key, lease.base), filled(LEN, 7)));
        assert!(text(&[memory]) == pattern(LEN, 3));
    }
    assert_eq!(calls(c"ibv_alloc_mw"), calls(c"ibv_dealloc_mw"), "windows");
}

/// Where the device cannot say that it has bound a window, the connection goes, and not the memory.
#[test]
fn memory_of_a_peer_that_does_not_answer_is_taken_back() {
    set("sv0;sv1", &[]);
    let (mut owner, mut peer, memory) = (open(), open(), filled(LEN, 3));
    let (to_peer, _) = join(&mut owner, &mut peer);
    port(0, 1, false);
    let lease = owner.lend(to_peer, memory, Way::Put).expect("memory that can be lent");
    let start = Instant::now();
    assert!(owner.end_lease(lease.number, true) && start.elapsed() < Duration::from_secs(10));
    assert_eq!(calls(c"ibv_alloc_mw"), calls(c"ibv_dealloc_mw"), "windows");
    let message = Message { who: 1, is_frame: false, front: b"now", middle: &[], body: &[], off: 0, len: 0 };
    assert!(matches!(owner.send(to_peer, &message), Err(NotSent::Error(_))), "the connection");
}

/// A window that the device refuses, now or for good, ends nothing: frames make up for it.
#[test]
fn a_message_whose_window_is_refused_goes_in_frames() {
    set("sv0", &[]);
    let mut duo: Duo<Verbs> = Duo::new(open);
    crate::device::fail(c"ibv_alloc_mw", libc::ENOMEM);
    duo.send(&[filled(90_000, 1)], &[Span::leak(90_000)]);
    let [_, bytes, accesses, _] = duo.counts.take();
    assert!(accesses == 0 && bytes > 90_000, "{accesses} accesses, {bytes} bytes in frames");
    assert_eq!(duo.lent(), 0);
}

#[test]
fn a_device_without_windows_has_no_accesses_and_says_why() {
    set("sv0:nomw", &[]);
    let verbs = open();
    let about = verbs.about();
    assert!(about.reads.is_none() && !about.publishes);
    assert!(about.detail.contains("no memory windows of type 2B"), "{}", about.detail);
    drop(verbs);
    let mut duo: Duo<Verbs> = Duo::new(open);
    duo.send(&[duo::filled(90_000, 1)], &[Span::leak(90_000)]);
    assert_eq!(duo.counts.take()[2], 0, "accesses");
}
