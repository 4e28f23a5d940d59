//! Connections of an iWARP device that are requested, and not answered: rdma_destroy_id of each takes as long as
//! the answer.

use std::time::{Duration, Instant};

use below::{Below as _, Dest, Message, NotSent, Poll};
use verbs::Verbs;

use crate::device::{calls, hold_connects, hold_ends, open, set};
use crate::lone::join;

const WAIT: Duration = Duration::from_secs(60);
const PEERS: u64 = 40;
/// Most calls that are under way at once to one host.
const THREADS: u64 = 24;

/// Two ends with so many connections, which the first one has requested, and the other one does not see.
fn unanswered(n: u64) -> (Verbs, Verbs, Vec<Dest>) {
    set("sv0:iwarp", &[]);
    let (mut a, mut b) = (open(), open());
    let all: Vec<Dest> = (0..n).map(|_| join(&mut a, &mut b).0).collect();
    for to in &all {
        let short =
            Message { who: 1, is_frame: false, front: b"now", middle: &[], body: &[], off: 0, len: 0 };
        assert_eq!(a.send(*to, &short), Err(NotSent::Busy));
    }
    (a, b, all)
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn an_endpoint_is_closed_while_many_connections_are_unanswered() {
    let (mut a, _b, _) = unanswered(PEERS);
    wait("not all are requested", || {
        assert_eq!(a.poll(Poll::All), None);
        calls(c"rdma_connect") == PEERS
    });
    hold_ends(true);
    let (ids, pairs) = (calls(c"rdma_destroy_id"), calls(c"ibv_destroy_qp"));
    // This returns, though no rdma_destroy_id does but that of the listener.
    drop(a);
    wait("they do not end together", || calls(c"rdma_destroy_id") - ids >= THREADS);
    assert!(calls(c"rdma_destroy_id") - ids <= THREADS + 1, "a thread for each");
    assert_eq!(calls(c"ibv_destroy_qp"), pairs, "a queue pair before its connection");
    hold_ends(false);
    wait("some stay", || calls(c"ibv_destroy_qp") - pairs == PEERS);
}

/// Whether the call of rdma_connect was seen to have returned, or has just done so.
fn is_parted_from(times: u32) {
    let (mut a, _b, all) = unanswered(1);
    let mut c = open();
    wait("it is not requested", || {
        assert_eq!(a.poll(Poll::All), None);
        calls(c"rdma_connect") == 1
    });
    (0..times).for_each(|_| assert_eq!(a.poll(Poll::All), None));
    hold_ends(true);
    let (ids, pairs) = (calls(c"rdma_destroy_id"), calls(c"ibv_destroy_qp"));
    a.part(all[0]);
    let (to_c, _) = join(&mut a, &mut c);
    let short = Message { who: 1, is_frame: false, front: b"now", middle: &[], body: &[], off: 0, len: 0 };
    wait("another one does not connect", || {
        let _ = (a.poll(Poll::All), c.poll(Poll::All));
        a.send(to_c, &short) == Ok(())
    });
    wait("its connection does not end", || {
        let _ = (a.poll(Poll::All), c.poll(Poll::All));
        calls(c"rdma_destroy_id") > ids
    });
    assert_eq!(calls(c"ibv_destroy_qp"), pairs);
    hold_ends(false);
    wait("it stays", || {
        let _ = (a.poll(Poll::All), c.poll(Poll::All));
        calls(c"ibv_destroy_qp") == pairs + 1
    });
}

#[test]
fn a_peer_that_does_not_answer_is_parted_from_while_others_go_on() {
    is_parted_from(1000);
}

#[test]
fn so_it_is_where_its_call_has_just_returned() {
    is_parted_from(0);
}

#[test]
fn so_many_calls_that_do_not_return_are_under_way_and_no_more() {
    hold_connects(true);
    let (mut a, _b, all) = unanswered(PEERS);
    wait("they are not begun", || {
        assert_eq!(a.poll(Poll::All), None);
        calls(c"rdma_connect") == THREADS
    });
    for _ in 0..1000 {
        assert_eq!(a.poll(Poll::All), None);
    }
    assert_eq!(calls(c"rdma_connect"), THREADS);
    // Those that have not begun end at once.
    let pairs = calls(c"ibv_destroy_qp");
    all.iter().for_each(|to| a.part(*to));
    wait("those that no thread has stay", || {
        assert_eq!(a.poll(Poll::All), None);
        calls(c"ibv_destroy_qp") - pairs == PEERS - THREADS
    });
    hold_connects(false);
    wait("some stay", || {
        assert_eq!(a.poll(Poll::All), None);
        calls(c"ibv_destroy_qp") - pairs == PEERS
    });
    assert_eq!(calls(c"rdma_connect"), THREADS, "a peer that was parted is connected to");
}
