//! Senders that run ahead of their receiver: their long messages are offered, and copied once.

use engine::{Error, OpFlags, Pattern, Recv, Send};
use testkit::*;

/// Bytes of one sender that wait, from which on it runs ahead.
const AHEAD: usize = 256 << 10;
/// Of each message that waits.
const PLACE: usize = 256;
/// Longer than what always travels inside its frame.
const LONG: usize = 700;

fn net() -> Net {
    let setup = Setup { eager_one_way: 800, max_frame: 2048, cq_size: 1 << 16, ..Setup::default() };
    let mut net = Net::with(3, setup);
    for at in 0..3 {
        let ep = net[at].ep;
        net[at].ep_set_depth(ep, 4096);
    }
    net
}

/// Whether message `id` of so many bytes, from one node to another, travels inside its frame.
fn send(net: &mut Net, (from, to): (usize, usize), len: usize, id: usize) -> bool {
    let src = net.bytes(from, &pattern(len, id));
    net.hold(from, to);
    net[from].send(&msg(to as u64, &[src], id)).unwrap();
    let inside = !net[from].tx().is_empty();
    net.let_pass(from, to, usize::MAX);
    net.settle();
    inside
}

fn receive(net: &mut Net, at: usize, from: u64, len: usize, id: usize) {
    let dst = net.memory(at, len);
    let pattern_of = Pattern { src: from, tag: None };
    net[at].recv(&Recv { pattern: pattern_of, ..from_any(&[dst], id) }).unwrap();
    net.settle();
    let got = net[at].received();
    assert_eq!((got.len, got.err), (len, None), "message {id}");
    assert!(net[at].look(dst, len) == pattern(len, id), "message {id}");
}

#[test]
fn who_runs_ahead_offers_long_messages_for_a_while() {
    let mut net = net();
    // The first may yet be answered.
    assert!(!send(&mut net, (0, 1), LONG, 0));
    let mut sent = 1;
    while send(&mut net, (0, 1), LONG, sent) {
        sent += 1;
    }
    let held = net[1].unexpected();
    assert!((AHEAD..AHEAD + 2 * (LONG + PLACE)).contains(&held), "{held}");
    sent += 1;
    // More is offered, which takes up its place alone; short ones travel as ever, and so does what others send.
    for _ in 0..3 {
        assert!(!send(&mut net, (0, 1), LONG, sent));
        sent += 1;
    }
    assert_eq!(net[1].unexpected(), held + 3 * PLACE);
    assert!(send(&mut net, (0, 1), 200, sent));
    send(&mut net, (2, 1), LONG, 0);
    assert!(send(&mut net, (2, 1), LONG, 1));
    // What is injected has left its buffer.
    let src = net.bytes(0, &pattern(600, 1));
    net[0].send(&Send { flags: OpFlags::INJECT, ..msg(1, &[src], 1) }).unwrap();
    hmem::write(&[src], 0, &[0xee; 600]);
    net.settle();
    // All of it comes, in its order.
    for id in 0..sent {
        receive(&mut net, 1, 0, LONG, id);
    }
    receive(&mut net, 1, 0, 200, sent);
    receive(&mut net, 1, 0, 600, 1);
    net[0].tx();
    // So many are offered since it was asked once more, when the injected one came.
    for id in 0..512 {
        assert!(!send(&mut net, (0, 1), LONG, id), "{id}");
        receive(&mut net, 1, 0, LONG, id);
        net[0].tx();
    }
    assert!(send(&mut net, (0, 1), LONG, 1));
    receive(&mut net, 1, 0, LONG, 1);
    for id in 0..2 {
        receive(&mut net, 1, 2, LONG, id);
    }
    net[2].tx();
    assert_eq!(net[1].unexpected(), 0);
    net.assert_idle();
}

#[test]
fn many_that_send_a_little_each_do_not_run_ahead() {
    let mut net = Net::with(9, Setup { eager_one_way: 800, max_frame: 2048, ..Setup::default() });
    let each = AHEAD / 4 / (LONG + PLACE);
    for from in 1..9 {
        assert!(!send(&mut net, (from, 0), LONG, 0));
        for id in 1..each {
            assert!(send(&mut net, (from, 0), LONG, id), "{from}");
        }
    }
    assert!(net[0].unexpected() > AHEAD);
    for from in 1..9 {
        for id in 0..each {
            receive(&mut net, 0, from as u64, LONG, id);
        }
        net[from].tx();
    }
    net.assert_idle();
}

#[test]
fn who_ran_ahead_and_ended_has_a_successor_that_may() {
    let mut net = net();
    let mut sent = 0;
    while send(&mut net, (0, 1), LONG, sent) || sent == 0 {
        sent += 1;
    }
    net.kill(0);
    net.settle();
    net.revive(0);
    assert!(!send(&mut net, (0, 1), LONG, 0));
    assert!(send(&mut net, (0, 1), LONG, 1));
    // Of the one that ended all that had come is there.
    let src = net.memory(1, LONG);
    let mut got = 0;
    while net[1].unexpected() > 0 {
        net[1].recv(&from_any(&[src], got)).unwrap();
        net.settle();
        assert!(matches!(net[1].received().err, None | Some(Error::Reset)));
        got += 1;
    }
    assert!(got > AHEAD / (LONG + PLACE), "{got}");
    net[0].tx();
    net.assert_idle();
}
