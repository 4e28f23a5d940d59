//! Receives that are posted late: where the messages before were in the ring before their receives, the next
//! receive takes its message from there as it is posted.

use engine::{Completion, Ctx, Error, OpFlags, Pattern, PollFast, Recv, Send};
use hmem::Span;
use testkit::*;

/// Node 1 has sent node 0 messages under tag 1, each of which the first poll after its receive has found.
fn stream() -> Net {
    let mut net = Net::with(2, Setup { looks: true, ..Setup::default() });
    for n in 0..9 {
        say(&mut net, 8, 1, n);
        let room = net.memory(0, 8);
        net[0].recv(&with_tag(&[room], 1, n)).unwrap();
        let cq = net[0].rx_cq;
        if net[0].rx().is_empty() {
            assert_eq!(
                net[0].poll_fast(cq, &mut |entry: &Completion| assert_eq!(entry.ctx, Ctx(n))),
                PollFast::Message
            );
        }
    }
    net
}

/// Node 1 sends node 0 so many bytes of that pattern.
fn say(net: &mut Net, len: usize, tag: u64, seed: usize) {
    let bytes = net.bytes(1, &pattern(len, seed));
    net[1].send(&Send { flags: OpFlags::empty(), ..tagged(0, &[bytes], tag, 0) }).unwrap();
}

/// What has completed at node 0 without any progress: context, length, error.
fn done(net: &mut Net) -> Vec<(usize, usize, Option<Error>)> {
    net[0].rx().iter().map(|c| (c.ctx.0, c.len, c.err)).collect()
}

fn holds(net: &Net, room: Span, len: usize, seed: usize) -> bool {
    net[0].look(room, len) == pattern(len, seed)
}

#[test]
fn a_message_that_is_there_goes_to_its_receive_in_the_call_that_posts_it() {
    let mut net = stream();
    for (n, len) in [8, 0, 1, 40, 41, 250].into_iter().enumerate() {
        let room = net.memory(0, len.max(1));
        say(&mut net, len, 1, n);
        net[0].recv(&with_tag(&[room], 1, n)).unwrap();
        assert_eq!(done(&mut net), [(n, len, None)]);
        assert!(holds(&net, room, len, n), "{len}");
    }
    // Without a completion that is asked for, and with data.
    let (room, bytes) = (net.memory(0, 8), net.bytes(1, &pattern(8, 7)));
    net[1].send(&Send { data: Some(9), ..tagged(0, &[bytes], 1, 0) }).unwrap();
    net[1].send(&Send { data: Some(10), ..tagged(0, &[bytes], 1, 0) }).unwrap();
    net[0].recv(&Recv { flags: OpFlags::empty(), ..with_tag(&[room], 1, 20) }).unwrap();
    assert_eq!(done(&mut net), []);
    net[0].recv(&with_tag(&[room], 1, 21)).unwrap();
    let got = net[0].received();
    assert_eq!((got.ctx, got.data, got.tag, got.src, got.len), (Ctx(21), 10, 1, 1, 8));
    net.settle();
    assert_eq!((net[0].unexpected(), net[1].tx().len()), (0, 2));
    net.assert_idle();
}

#[test]
fn a_receive_that_waits_has_its_message_first() {
    let mut net = stream();
    let rooms = [(); 4].map(|()| net.memory(0, 8));
    net[0].recv(&with_tag(&[rooms[0]], 6, 0)).unwrap();
    for n in 1..4 {
        say(&mut net, 8, 1, n);
        net[0].recv(&with_tag(&[rooms[1]], 1, n)).unwrap();
        let cq = net[0].rx_cq;
        assert_eq!(
            net[0].poll_fast(cq, &mut |entry: &Completion| assert_eq!(entry.ctx, Ctx(n))),
            PollFast::Message
        );
    }
    say(&mut net, 8, 6, 6);
    let any = Pattern { tag: Some((0, u64::MAX)), ..with_tag(&[], 0, 0).pattern };
    net[0].recv(&Recv { pattern: any, ..with_tag(&[rooms[2]], 0, 9) }).unwrap();
    net.settle();
    assert_eq!(done(&mut net), [(0, 8, None)]);
    assert!(holds(&net, rooms[0], 8, 6));
    say(&mut net, 8, 7, 7);
    net.settle();
    assert_eq!(done(&mut net), [(9, 8, None)]);
    assert!(holds(&net, rooms[2], 8, 7));
    net.assert_idle();
}

#[test]
fn a_message_for_another_receive_stays_where_it_is() {
    let mut net = stream();
    let rooms = [(); 2].map(|()| net.memory(0, 8));
    say(&mut net, 8, 5, 5);
    say(&mut net, 8, 6, 6);
    net[0].recv(&with_tag(&[rooms[0]], 6, 0)).unwrap();
    assert_eq!((done(&mut net), net[0].unexpected()), (vec![], 0));
    net.settle();
    assert_eq!(done(&mut net), [(0, 8, None)]);
    net[0].recv(&with_tag(&[rooms[1]], 5, 1)).unwrap();
    assert_eq!(done(&mut net), [(1, 8, None)]);
    assert!(holds(&net, rooms[0], 8, 6) && holds(&net, rooms[1], 8, 5));
    // Of another sort: what is not tagged is for no receive that is.
    let mut net = stream();
    let bytes = net.bytes(1, &pattern(8, 3));
    net[1].send(&msg(0, &[bytes], 0)).unwrap();
    let any = Pattern { tag: Some((0, u64::MAX)), ..with_tag(&[], 0, 0).pattern };
    net[0].recv(&Recv { pattern: any, ..with_tag(&[rooms[0]], 0, 0) }).unwrap();
    net.settle();
    assert_eq!(done(&mut net), []);
    assert!(net[0].unexpected() > 0);
}

#[test]
fn what_takes_more_than_a_copy_goes_the_general_way() {
    // Too long for its buffer.
    let mut net = stream();
    let room = net.memory(0, 16);
    say(&mut net, 12, 1, 1);
    net[0].recv(&with_tag(&[room.part(0, 8).unwrap()], 1, 4)).unwrap();
    net.settle();
    let got = net[0].received();
    assert_eq!((got.ctx, got.err, got.len, got.olen), (Ctx(4), Some(Error::Truncated), 8, 4));
    assert_eq!(net[0].look(room, 16)[8..], [0; 8]);
    // The sender has a completion of the delivery.
    let mut net = stream();
    let (room, bytes) = (net.memory(0, 64), net.bytes(1, &pattern(8, 2)));
    let op = tagged(0, std::slice::from_ref(&bytes), 1, 5);
    net[1].send(&Send { flags: op.flags | OpFlags::DELIVERY, ..op }).unwrap();
    net[0].recv(&with_tag(&[room], 1, 6)).unwrap();
    net.settle();
    assert_eq!((done(&mut net), net[1].sent().ctx), (vec![(6, 8, None)], Ctx(5)));
    // A rendezvous is not copied in the call.
    let mut net = stream();
    let (room, bytes) = (net.memory(0, 100_000), net.bytes(1, &pattern(100_000, 3)));
    net[1].send(&tagged(0, &[bytes], 1, 6)).unwrap();
    let before = net.direct_accesses();
    net[0].recv(&with_tag(&[room], 1, 7)).unwrap();
    assert_eq!((done(&mut net), net.direct_accesses()), (vec![], before));
    net.settle();
    assert_eq!((done(&mut net), net[1].sent().ctx), (vec![(7, 100_000, None)], Ctx(6)));
    assert!(holds(&net, room, 100_000, 3));
    net.assert_idle();
}

/// Node 0 has a message of node 1's that no receive is for, and nodes 1 and 2 have sent more since.
fn ahead() -> Net {
    let mut net = Net::with(3, Setup { looks: true, capacity: 1000, ..Setup::default() });
    say(&mut net, 8, 9, 9);
    net.settle();
    for n in 0..100 {
        let bytes = net.bytes(2, &pattern(30, n));
        net[2].send(&Send { flags: OpFlags::empty(), ..tagged(0, &[bytes], 1, 0) }).unwrap();
    }
    for n in 0..3 {
        say(&mut net, 8 + n, n as u64, n);
    }
    net
}

fn named(src: u64, room: &[Span], tag: u64, ctx: usize) -> Recv<'_> {
    Recv { pattern: Pattern { src, tag: Some((tag, 0)) }, ..with_tag(room, tag, ctx) }
}

#[test]
fn a_receive_that_names_its_sender_takes_in_nothing_of_others() {
    let mut net = ahead();
    let (room, waits) = (net.memory(0, 30), net[0].unexpected());
    assert!(waits > 0);
    for n in 0..3 {
        net[0].recv(&named(1, &[room], n as u64, n)).unwrap();
        assert_eq!(done(&mut net), [(n, 8 + n, None)]);
        assert!(holds(&net, room, 8 + n, n));
        assert_eq!((net[0].unexpected(), net.in_flight(2, 0)), (waits, 100));
    }
    net[0].recv(&named(1, &[room], 9, 3)).unwrap();
    assert_eq!(done(&mut net), [(3, 8, None)]);
    for n in 0..100 {
        net[0].recv(&named(2, &[room], 1, n)).unwrap();
        net.settle();
        assert_eq!(done(&mut net), [(n, 30, None)]);
        assert!(holds(&net, room, 30, n));
    }
    assert_eq!(net[0].unexpected(), 0);
    net.assert_idle();
}

#[test]
fn a_message_of_the_sender_that_is_named_which_is_for_another_receive_stays() {
    let mut net = ahead();
    let rooms = [(); 3].map(|()| net.memory(0, 10));
    // The first one in the ring has tag 0.
    net[0].recv(&named(1, &[rooms[1]], 1, 1)).unwrap();
    assert_eq!(done(&mut net), []);
    net.settle();
    assert_eq!(done(&mut net), [(1, 9, None)]);
    for n in [2, 0] {
        net[0].recv(&named(1, &[rooms[n]], n as u64, n)).unwrap();
        net.settle();
        assert_eq!(done(&mut net), [(n, 8 + n, None)]);
    }
    assert!((0..3).all(|n| holds(&net, rooms[n], 8 + n, n)));
}

#[test]
fn a_receive_that_was_posted_before_has_the_message_of_the_sender_that_is_named() {
    let mut net = ahead();
    let rooms = [(); 2].map(|()| net.memory(0, 10));
    net[0].recv(&with_tag(&[rooms[0]], 0, 0)).unwrap();
    net[0].recv(&named(1, &[rooms[1]], 0, 1)).unwrap();
    net.settle();
    assert_eq!(done(&mut net), [(0, 8, None)]);
    say(&mut net, 5, 0, 5);
    net.settle();
    assert_eq!(done(&mut net), [(1, 5, None)]);
    assert!(holds(&net, rooms[0], 8, 0) && holds(&net, rooms[1], 5, 5));
}
