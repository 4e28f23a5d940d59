//! Messages that come before their receives: many, of all lengths, from several peers.

use engine::{ADDR_UNSPEC, Completion, Ctx, Error, OpFlags, Pattern, PollFast, Recv, Send};
use testkit::*;

const SENDERS: usize = 4;
const TAGS: usize = 8;

/// Length of message `n`: inside a slot, in buffers of several sizes, and of a rendezvous.
fn len_of(n: usize) -> usize {
    [0, 1, 8, 40, 41, 128, 129, 250, 700][n % 9]
}

/// Message `n` goes from this node, under this tag.
fn way(n: usize) -> (usize, u64) {
    (1 + n % SENDERS, (n / SENDERS % TAGS) as u64)
}

/// Sends `count` messages to node 0, which takes them in and has no receive for them. Every fifth is to be
/// reported when it has been delivered.
fn flood(net: &mut Net, count: usize) {
    for n in 0..count {
        let (from, tag) = way(n);
        let bytes = net.bytes(from, &pattern(len_of(n), n));
        let delivery = if n % 5 == 0 { OpFlags::DELIVERY } else { OpFlags::empty() };
        let op = tagged(0, std::slice::from_ref(&bytes), tag, n);
        net[from].send(&Send { flags: op.flags | delivery, ..op }).unwrap();
        net.settle();
    }
}

/// Receives the message that is number `n` with this pattern.
fn take(net: &mut Net, n: usize, src: u64, tag: (u64, u64)) {
    let room = net.memory(0, 700);
    let pattern_of = Pattern { src, tag: Some(tag) };
    net[0].recv(&Recv { pattern: pattern_of, ..from_any(&[room], n) }).unwrap();
    net.settle();
    let got = net[0].received();
    let (from, tag) = way(n);
    assert_eq!(
        (got.ctx, got.err, got.src, got.tag, got.len),
        (Ctx(n), None, from as u64, tag, len_of(n)),
        "{n}"
    );
    assert!(net[0].look(room, len_of(n)) == pattern(len_of(n), n), "message {n}");
}

#[test]
fn each_receive_takes_the_oldest_message_that_it_fits() {
    const COUNT: usize = 700;
    let mut net = Net::with(1 + SENDERS, Setup { cq_size: 2 * COUNT, ..Setup::default() });
    flood(&mut net, COUNT);
    assert_eq!(net[0].rx(), []);
    assert!(net[0].unexpected() > 0);
    let mut left: Vec<usize> = (0..COUNT).collect();
    let mut dice = 1u64;
    while !left.is_empty() {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let pick = |below: usize, shift: u32| (dice >> shift) as usize % below;
        // Of one that waits, so that there is an oldest: its source or any, and as much of its tag.
        let (from, tag) = way(left[pick(left.len(), 33)]);
        let ignore = [0, 0, 1, 2, 6, u64::MAX][pick(6, 20)];
        let src = [from as u64, ADDR_UNSPEC][pick(2, 50)];
        let fits = |n: &usize| {
            let (f, t) = way(*n);
            (src == ADDR_UNSPEC || f == from) && (t ^ tag) & !ignore == 0
        };
        let at = left.iter().position(fits).unwrap();
        take(&mut net, left.remove(at), src, (tag, ignore));
    }
    assert_eq!(net[0].unexpected(), 0);
    for of in 1..=SENDERS {
        let mut completed: Vec<usize> = net[of].tx().iter().map(|done| done.ctx.0).collect();
        completed.sort_unstable();
        assert!(completed.into_iter().eq((0..COUNT).filter(|n| way(*n).0 == of)), "all complete, once");
    }
}

#[test]
fn what_completes_on_delivery_completes_after_the_receive() {
    let mut net = Net::new(2);
    let bytes = net.bytes(1, &pattern(8, 1));
    for ctx in 0..3 {
        let op = tagged(0, std::slice::from_ref(&bytes), 5, ctx);
        net[1].send(&Send { flags: OpFlags::COMPLETION | OpFlags::DELIVERY, ..op }).unwrap();
    }
    net.settle();
    assert_eq!(net[1].tx(), []);
    let room = net.memory(0, 8);
    for ctx in 0..3 {
        net[0].recv(&with_tag(&[room], 5, 9)).unwrap();
        assert_eq!(net[0].received().ctx, Ctx(9));
        net.settle();
        assert_eq!(net[1].sent().ctx, Ctx(ctx));
    }
}

/// Messages of 8 bytes that wait: each counts with its place in a queue.
fn waiting(net: &Net) -> usize {
    net[0].unexpected() / (256 + 8)
}

/// A poll of the queue of receives, which is empty; `None`: the endpoint rests.
fn poll(net: &mut Net, to: &mut impl FnMut(&Completion)) -> Option<PollFast> {
    let cq = net[0].rx_cq;
    if net[0].rests() { None } else { Some(net[0].poll_fast(cq, to)) }
}

/// As [`poll`], by which nothing completes; how many messages that took in.
fn look(net: &mut Net) -> (Option<PollFast>, usize) {
    let before = waiting(net);
    let found = poll(net, &mut |entry| panic!("{entry:?}"));
    (found, waiting(net) - before)
}

#[test]
fn what_is_not_asked_for_stays_in_the_ring_while_messages_are_received() {
    const COUNT: usize = 2000;
    let setup = Setup { capacity: 2 * COUNT, cq_size: 2 * COUNT, looks: true, ..Setup::default() };
    let mut net = Net::with(2, setup);
    let (bytes, room) = (net.bytes(1, &pattern(8, 1)), net.memory(0, 8));
    for n in 0..COUNT {
        net[1].send(&tagged(0, std::slice::from_ref(&bytes), 5, n)).unwrap();
    }
    // An application that receives one message and looks once, as MPI_Recv does.
    let mut most = 0;
    for n in 0..COUNT / 2 {
        while waiting(&net) == 0 {
            look(&mut net);
        }
        net[0].recv(&with_tag(&[room], 5, n)).unwrap();
        assert_eq!(net[0].received().ctx, Ctx(n));
        look(&mut net);
        look(&mut net);
        most = most.max(waiting(&net));
    }
    assert_eq!(most, 0, "what the two looks after a receive took in");
    // One that only polls has all taken in.
    let looks = (0..2 * COUNT).take_while(|_| look(&mut net).0 != Some(PollFast::Nothing)).count();
    assert_eq!(waiting(&net), COUNT - COUNT / 2, "{looks} looks");
    // So has a receive that none of them is for.
    for n in 0..COUNT {
        net[1].send(&tagged(0, std::slice::from_ref(&bytes), 5, n)).unwrap();
    }
    net[0].recv(&with_tag(&[room], 5, 1)).unwrap();
    net[0].recv(&with_tag(&[room], 6, 2)).unwrap();
    assert_eq!(net[0].received().ctx, Ctx(1));
    let (found, taken) = look(&mut net);
    assert!(found == Some(PollFast::Kept) && taken > 0, "{found:?}, {taken}");
}

#[test]
fn a_ring_is_left_alone_for_two_polls_after_a_receive_unless_another_is_posted() {
    let mut net = Net::with(2, Setup { looks: true, ..Setup::default() });
    let (bytes, room) = (net.bytes(1, &pattern(8, 1)), net.memory(0, 8));
    for n in 0..8 {
        net[1].send(&tagged(0, std::slice::from_ref(&bytes), 5, n)).unwrap();
    }
    // `posted`: receives that are posted before the first of these polls; what each poll finds.
    let polls = |net: &mut Net, posted: usize| {
        (0..posted).for_each(|n| net[0].recv(&with_tag(&[room], 5, n)).unwrap());
        [(); 4].map(|()| (poll(net, &mut |_| {}), waiting(net)))
    };
    let (message, kept) = (Some(PollFast::Message), Some(PollFast::Kept));
    assert_eq!(polls(&mut net, 2), [(message, 0), (message, 0), (None, 0), (None, 0)]);
    // After more of them the next one is taken as it is posted: see `late`.
    assert_eq!(polls(&mut net, 1), [(message, 0), (None, 0), (None, 0), (kept, 1)]);
    // A look that goes on from one to the next.
    net[0].recv(&with_tag(&[room], 6, 9)).unwrap();
    net[1].send(&tagged(0, std::slice::from_ref(&bytes), 6, 8)).unwrap();
    while poll(&mut net, &mut |_| {}) != message {}
    net[1].send(&tagged(0, std::slice::from_ref(&bytes), 6, 9)).unwrap();
    let before = waiting(&net);
    let cq = net[0].rx_cq;
    assert_eq!((net[0].poll_fast(cq, &mut |_: &Completion| {}), waiting(&net)), (PollFast::Kept, before + 1));
}

#[test]
fn a_receive_that_is_posted_ends_the_rest_of_the_polls() {
    for looks in [true, false] {
        let mut net = Net::with(2, Setup { looks, ..Setup::default() });
        let (bytes, room) = (net.bytes(1, &pattern(8, 1)), net.memory(0, 8));
        net[1].send(&tagged(0, std::slice::from_ref(&bytes), 5, 0)).unwrap();
        net[0].recv(&with_tag(&[room], 5, 0)).unwrap();
        assert_eq!(poll(&mut net, &mut |_| {}), Some(PollFast::Message));
        net[0].recv(&with_tag(&[room], 6, 1)).unwrap();
        assert_eq!(poll(&mut net, &mut |_| {}), Some(PollFast::Nothing));
    }
}

#[test]
fn progress_takes_in_nothing_behind_the_message_of_the_last_receive() {
    let mut net = Net::with(2, Setup { rows: true, ..Setup::default() });
    let (bytes, room) = (net.bytes(1, &pattern(8, 1)), net.memory(0, 8));
    for n in 0..8 {
        net[1].send(&tagged(0, std::slice::from_ref(&bytes), 5, n)).unwrap();
    }
    let cq = net[0].rx_cq;
    (0..2).for_each(|n| net[0].recv(&with_tag(&[room], 5, n)).unwrap());
    assert!(net[0].progress_for(cq, 100));
    assert_eq!((net[0].rx().len(), waiting(&net)), (2, 0));
    assert!(net[0].rests() && net[0].rests() && !net[0].rests());
    // Nothing has completed: it takes in what there is.
    assert!(!net[0].progress_for(cq, 100));
    assert_eq!(waiting(&net), 6);
}

#[test]
fn a_poll_that_copies_fewer_bytes_than_came_completes_with_an_error() {
    for delivery in [OpFlags::empty(), OpFlags::DELIVERY] {
        let mut net = Net::with(2, Setup { looks: true, ..Setup::default() });
        let (bytes, room) = (net.bytes(1, &pattern(40, 1)), net.memory(0, 40));
        net[0].recv(&with_tag(&[room], 5, 7)).unwrap();
        let op = tagged(0, std::slice::from_ref(&bytes), 5, 3);
        net[1].send(&Send { flags: op.flags | delivery, ..op }).unwrap();
        net.set_short(true);
        let found = poll(&mut net, &mut |entry| panic!("{entry:?}"));
        assert_eq!(found, Some(PollFast::Other));
        net.set_short(false);
        let got = net[0].received();
        assert_eq!((got.ctx, got.err, got.tag), (Ctx(7), Some(Error::Io), 5));
        net.settle();
        let answer = (delivery == OpFlags::DELIVERY).then_some(Error::Io);
        assert_eq!((net[1].sent().err, net[0].rx().len()), (answer, 0));
        net.assert_idle();
    }
}
