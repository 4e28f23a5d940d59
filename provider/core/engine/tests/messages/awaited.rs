//! Which peer a link awaits a frame of, alone.

use engine::{Ctx, Pattern, Recv, Send};
use testkit::*;

fn net() -> Net {
    Net::with(3, Setup { looks: true, ..Setup::default() })
}

fn tagged_from<'a>(src: u64, iov: &'a [hmem::Span], tag: u64, ctx: usize) -> Recv<'a> {
    Recv { pattern: Pattern { src, tag: Some((tag, 0)) }, ..from_any(iov, ctx) }
}

#[test]
fn the_peer_that_the_only_receive_names_is_waited_for() {
    let mut net = net();
    let room = net.memory(0, 8);
    assert_eq!(net.awaited(0), None);
    net[0].recv(&tagged_from(2, &[room], 1, 1)).unwrap();
    assert_eq!(net.awaited(0), Some(2));
    // There are two.
    net[0].recv(&from(1, &[room], 2)).unwrap();
    assert_eq!(net.awaited(0), None);
}

#[test]
fn a_receive_for_any_peer_waits_for_all() {
    for first in [true, false] {
        let mut net = net();
        let room = net.memory(0, 8);
        if first {
            net[0].recv(&tagged_from(2, &[room], 1, 1)).unwrap();
        }
        net[0].recv(&with_tag(&[room], 1, 2)).unwrap();
        assert_eq!(net.awaited(0), None);
    }
}

#[test]
fn a_receive_that_was_cancelled_waits_for_none() {
    let mut net = net();
    let room = net.memory(0, 8);
    net[0].recv(&tagged_from(2, &[room], 1, 1)).unwrap();
    let rx = net[0].rx;
    net[0].cancel(rx, Ctx(1)).unwrap();
    assert_eq!(net.awaited(0), None);
}

#[test]
fn answers_of_any_peer_are_waited_for_while_something_is_under_way() {
    // Too long for a frame: the receiver answers.
    let mut net = net();
    let (room, long) = (net.memory(0, 8), net.bytes(0, &pattern(100_000, 1)));
    net[0].recv(&tagged_from(2, &[room], 1, 1)).unwrap();
    assert_eq!(net.awaited(0), Some(2));
    net[0].send(&msg(1, &[long], 3)).unwrap();
    assert_eq!(net.awaited(0), None);
    // Also for a receive that is posted meanwhile.
    let rx = net[0].rx;
    net[0].cancel(rx, Ctx(1)).unwrap();
    net[0].recv(&tagged_from(2, &[room], 1, 2)).unwrap();
    assert_eq!(net.awaited(0), None);
    let into = net.memory(1, 100_000);
    net[1].recv(&from_any(&[into], 4)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, None);
    let word = net.bytes(2, &[7; 8]);
    net[2].send(&Send { tag: Some(1), ..msg(0, &[word], 5) }).unwrap();
    net.settle();
    net[0].recv(&tagged_from(2, &[room], 2, 6)).unwrap();
    assert_eq!(net.awaited(0), Some(2));
}
