//! Messages of which the link keeps a part because its peer's connection has no room: they complete when all
//! bytes are sent.

use engine::{Cntrs, Error, OpFlags, Send};
use testkit::*;

const FENCE: OpFlags = OpFlags::COMPLETION.union(OpFlags::FENCE);
const SILENT: OpFlags = OpFlags::INJECT;

/// Two connected endpoints, so that messages are sent by the short way, too.
fn met() -> Net {
    let mut net = Net::new(2);
    net.exchange(10, 1);
    net
}

fn contexts(net: &mut Net) -> Vec<usize> {
    net[0].tx().iter().map(|c| c.ctx.0).collect()
}

#[test]
fn a_message_completes_when_its_link_has_sent_on_what_it_kept_of_it() {
    let mut net = met();
    net.set_keeps(0, 1, true);
    let (src, dst) = (net.bytes(0, b"kept"), net.memory(1, 4));
    net[0].send(&msg(1, &[src], 1)).unwrap();
    net[0].send(&tagged(1, &[src, src], 7, 2)).unwrap();
    net[1].recv(&from_any(&[dst], 0)).unwrap();
    net.settle();
    assert_eq!(net[1].received().len, 4, "it is sent once");
    assert_eq!((contexts(&mut net), net.in_flight(0, 1)), (vec![], 0));
    net.set_keeps(0, 1, false);
    assert!(!net[0].arm(), "armed, although operations can be completed");
    net[0].progress();
    assert!(net[0].arm());
    let completed: Vec<_> = net[0].tx().iter().map(|c| (c.ctx.0, c.len, c.tag, c.err)).collect();
    assert_eq!(completed, [(1, 4, 0, None), (2, 8, 7, None)]);
    // Then they complete at once again.
    net[0].send(&msg(1, &[src], 3)).unwrap();
    assert_eq!(contexts(&mut net), [3]);
}

#[test]
fn what_the_link_keeps_is_under_way() {
    let mut net = met();
    net.set_keeps(0, 1, true);
    net[0].send(&msg(1, &[], 1)).unwrap();
    assert_eq!(net[0].send(&Send { flags: FENCE, ..msg(1, &[], 2) }), Err(Error::Again));
    assert!(net[0].arm(), "the link's descriptor becomes readable when it has room");
    let ep = net[0].ep;
    net[0].ep_set_depth(ep, 3);
    net[0].send(&msg(1, &[], 3)).unwrap();
    net[0].send(&msg(1, &[], 4)).unwrap();
    assert_eq!(net[0].send(&msg(1, &[], 5)), Err(Error::Again), "the depth of the endpoint bounds them");
    net.set_keeps(0, 1, false);
    // The post itself completes those before it.
    net[0].send(&msg(1, &[], 5)).unwrap();
    net[0].send(&Send { flags: FENCE, ..msg(1, &[], 6) }).unwrap();
    assert_eq!(contexts(&mut net), [1, 3, 4, 5, 6]);
}

#[test]
fn counted_messages_wait_too_and_those_without_completion_and_counter_do_not() {
    let mut net = met();
    net.set_keeps(0, 1, true);
    for _ in 0..10_000 {
        match net[0].send(&Send { flags: SILENT, ..msg(1, &[], 0) }) {
            Ok(()) => {}
            Err(e) => assert_eq!(e, Error::Again),
        }
        net.settle();
    }
    net[0].send(&Send { flags: FENCE, ..msg(1, &[], 1) }).expect("nothing is under way");
    net.set_keeps(0, 1, false);
    net[0].progress();
    assert_eq!(contexts(&mut net), [1]);
    let (cntr, ep) = (net[0].cntr_open(), net[0].ep);
    net[0].ep_bind_cntrs(ep, Cntrs { send: Some(cntr), ..Cntrs::default() });
    net.set_keeps(0, 1, true);
    net[0].send(&Send { flags: SILENT, ..msg(1, &[], 2) }).unwrap();
    net[0].progress();
    assert_eq!(net[0].cntr_read(cntr), 0);
    net.set_keeps(0, 1, false);
    net[0].progress();
    assert_eq!((net[0].cntr_read(cntr), contexts(&mut net)), (1, vec![]));
}

#[test]
fn what_the_link_kept_of_a_peer_that_ends_has_failed_and_else_not() {
    for lost in [true, false] {
        let mut net = met();
        net.set_keeps(0, 1, true);
        net[0].send(&msg(1, &[], 1)).unwrap();
        net[0].send(&msg(1, &[], 2)).unwrap();
        net.set_keeps(0, 1, lost);
        net.kill(1);
        net.settle();
        let completed: Vec<_> = net[0].tx().iter().map(|c| (c.ctx.0, c.err)).collect();
        let err = lost.then_some(Error::Reset);
        assert_eq!(completed, [(1, err), (2, err)]);
        net.set_keeps(0, 1, false);
        net.revive(1);
        net[0].send(&Send { flags: FENCE, ..msg(1, &[], 3) }).expect("nothing is under way");
        assert_eq!(contexts(&mut net), [3]);
    }
}

#[test]
fn what_is_completed_by_an_answer_does_not_wait_for_the_link() {
    let mut net = met();
    net.set_keeps(0, 1, true);
    let dst = net.memory(1, 3000);
    let (long, short) = (net.bytes(0, &pattern(3000, 2)), net.bytes(0, &pattern(30, 3)));
    let delivery = OpFlags::COMPLETION | OpFlags::DELIVERY;
    for (at, src, flags) in [(1, long, OpFlags::COMPLETION), (2, short, delivery)] {
        net[1].recv(&from_any(&[dst], at)).unwrap();
        net[0].send(&Send { flags, ..msg(1, &[src], at) }).unwrap();
        net.settle();
        assert_eq!((net[1].received().err, net[0].sent().ctx.0), (None, at));
    }
}
