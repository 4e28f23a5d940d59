//! What a domain says that it waits for.

use engine::{Pattern, Pending, PendingKind, Recv};
use testkit::*;

fn pending_of(net: &Net, at: usize) -> Vec<Pending> {
    net[at].pending(100)
}

fn tagged_from<'a>(src: u64, iov: &'a [hmem::Span], tag: u64, ctx: usize) -> Recv<'a> {
    Recv { pattern: Pattern { src, tag: Some((tag, 0xf0)) }, ..from_any(iov, ctx) }
}

#[test]
fn a_posted_receive_has_peer_tag_and_length_until_its_message_comes() {
    let mut net = Net::new(3);
    let room = net.memory(0, 64);
    assert_eq!(pending_of(&net, 0), []);
    net[0].recv(&tagged_from(2, &[room], 5, 1)).unwrap();
    net[0].recv(&from_any(&[room], 2)).unwrap();
    let all = pending_of(&net, 0);
    assert!(all.iter().all(|p| p.kind == PendingKind::Receive && p.len == 64 && p.done == 0), "{all:?}");
    let peers: Vec<_> = all.iter().map(|p| (p.peer, p.tag)).collect();
    assert_eq!(peers, [(Some(net.addr(2)), Some((5, 0xf0))), (None, None)]);
    assert_eq!(all[0].endpoint, Some(net.addr(0)));
    assert_ne!(all[0].name, all[1].name);
    // The same names as long as they are pending.
    assert_eq!(pending_of(&net, 0), all);
    let bytes = net.bytes(1, &pattern(8, 1));
    net[1].send(&msg(0, &[bytes], 3)).unwrap();
    net.settle();
    assert_eq!(pending_of(&net, 0), all[..1]);
}

#[test]
fn a_message_that_no_receive_matches_and_its_send_are_pending() {
    let mut net = Net::new(2);
    // Too long for a frame: the receiver answers once a receive matches.
    let long = net.bytes(1, &pattern(100_000, 1));
    net[1].send(&tagged(0, &[long], 7, 3)).unwrap();
    net.settle();
    let [at] = &pending_of(&net, 0)[..] else { panic!("{:?}", pending_of(&net, 0)) };
    assert_eq!((at.kind, at.peer, at.tag), (PendingKind::Unexpected, Some(net.addr(1)), Some((7, 0))));
    let [send] = &pending_of(&net, 1)[..] else { panic!("{:?}", pending_of(&net, 1)) };
    assert_eq!((send.kind, send.peer, send.tag), (PendingKind::Send, Some(net.addr(0)), Some((7, 0))));
    assert_eq!((at.len, send.len), (100_000, 100_000));
    let room = net.memory(0, 100_000);
    net[0].recv(&with_tag(&[room], 7, 4)).unwrap();
    net.settle();
    assert_eq!((pending_of(&net, 0), pending_of(&net, 1)), (vec![], vec![]));
}

#[test]
fn no_more_are_listed_than_are_asked_for() {
    let mut net = Net::new(2);
    let room = net.memory(0, 8);
    for ctx in 0..50 {
        net[0].recv(&from_any(&[room], ctx)).unwrap();
    }
    assert_eq!(net[0].pending(10).len(), 10);
}
