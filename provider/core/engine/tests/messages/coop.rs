//! Cooperative copies: large transfers of which both sides copy pieces.

use engine::{Config, Error, OpFlags, Send};
use testkit::*;
use wire::{Flags, Head, Op, Pieces, Seg, Status, put};

const MIB: usize = 1 << 20;

#[test]
fn both_sides_copy_pieces_of_a_large_message() {
    for len in [MIB / 2, 3 * MIB + 17, 20 * MIB] {
        let mut net = Net::warm(Setup::default());
        let (src, dst) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len + 5));
        net[1].recv(&from_any(&[dst], 1)).unwrap();
        net[0].send(&msg(1, &[src], 0)).unwrap();
        // The taker copies in goes of 4 MiB; what it has not taken by then the sender may take.
        net.settle();
        assert_eq!((net[1].received().len, net[0].sent().err), (len, None));
        assert!(net[1].look(dst, len) == pattern(len, 1), "{len}");
        assert_eq!(net.pieces_helped() > 0, len > 4 * MIB, "{len}");
        net.assert_idle();
    }
}

/// Each side has a copy of its own to make, and the other's help would be late for that.
#[test]
fn of_large_messages_both_ways_each_side_copies_its_own() {
    let len = 13 * MIB;
    let mut net = Net::warm(Setup::default());
    for round in 0..2 {
        let out = [0, 1].map(|at| net.bytes(at, &pattern(len, at + round)));
        let into = [0, 1].map(|at| net.memory(at, len));
        for at in [0, 1] {
            net[at].recv(&from_any(&[into[at]], 1)).unwrap();
            net[at].send(&msg(1 - at as u64, &[out[at]], 0)).unwrap();
        }
        net.settle();
        for at in [0, 1] {
            assert_eq!((net[at].received().len, net[at].sent().err), (len, None));
            assert!(net[at].look(into[at], len) == pattern(len, 1 - at + round), "node {at}, round {round}");
        }
        assert_eq!(net.pieces_helped(), 0, "round {round}");
        net.assert_idle();
    }
    // One way again, and both copy.
    let (src, dst) = (net.bytes(0, &pattern(len, 9)), net.memory(1, len));
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 0)).unwrap();
    net.settle();
    assert!(net[1].look(dst, len) == pattern(len, 9) && net.pieces_helped() > 0);
}

/// So many messages one way, one after another; how many pieces of the last one the sender has copied.
fn one_way(net: &mut Net, n: usize, len: usize) -> usize {
    let (src, dst) = (net.bytes(0, &pattern(len, 9)), net.memory(1, len));
    let mut helped = 0;
    for _ in 0..n {
        let before = net.pieces_helped();
        net[1].recv(&with_tag(&[dst], 1, 0)).unwrap();
        net[0].send(&Send { tag: Some(1), ..msg(1, &[src], 0) }).unwrap();
        net.settle();
        assert_eq!((net[1].received().len, net[0].sent().err), (len, None));
        helped = net.pieces_helped() - before;
    }
    assert!(net[1].look(dst, len) == pattern(len, 9));
    helped
}

/// The receiver asks for no help with what comes from one sender after another, unless the messages are long.
#[test]
fn short_ones_of_many_senders_in_turn_the_receiver_copies_alone() {
    const SENDERS: usize = 4;
    let mut net = Net::with(SENDERS + 1, Setup::default());
    let mut asks = |rounds: usize, senders: &[usize], len: usize| {
        let mut asked = 0;
        for from in (0..rounds).flat_map(|_| senders) {
            let (src, dst) = (net.bytes(*from, &pattern(len, *from)), net.memory(SENDERS, len));
            net[SENDERS].recv(&from_any(&[dst], 1)).unwrap();
            net[*from].send(&msg(SENDERS as u64, &[src], 0)).unwrap();
            for _ in 0..3 {
                net[SENDERS].progress();
            }
            let sharing = std::cell::Cell::new(0);
            net.tamper(SENDERS, *from, |frame| {
                sharing
                    .set(sharing.get() + usize::from(Head::of(frame).unwrap().op() == Some(Op::CoopFetch)));
            });
            asked = sharing.get();
            net.settle();
            assert_eq!((net[SENDERS].received().len, net[*from].sent().err), (len, None));
            assert!(net[SENDERS].look(dst, len) == pattern(len, *from));
        }
        asked
    };
    let short = 100_000;
    assert_eq!(asks(4, &[0, 1, 2, 3], short), 0);
    // Each sender has some in a row.
    assert_eq!(asks(2, &[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], short), 0);
    assert_eq!(asks(1, &[0, 1, 2, 3], 2 * short), 1);
    assert_eq!(asks(20, &[0, 1], short), 1);
}

/// Each message that is never taken looks like bytes that travel the other way.
#[test]
fn of_messages_one_way_both_sides_copy_although_one_the_other_way_is_never_taken() {
    let len = 9 * MIB;
    let mut net = Net::warm(Setup::default());
    assert!(one_way(&mut net, 1, len) > 0);
    let untaken = net.memory(1, MIB);
    for tag in [7, 8] {
        net[1].send(&Send { tag: Some(tag), ..msg(0, &[untaken], 0) }).unwrap();
    }
    assert_eq!(one_way(&mut net, 1, len), 0);
    assert!(one_way(&mut net, 16, len) > 0);
    // One that is taken is a sign of both ways again.
    let dst = net.memory(0, MIB);
    net[0].recv(&with_tag(&[dst], 7, 0)).unwrap();
    net.settle();
    assert_eq!((net[0].received().len, net[1].sent().err), (MIB, None));
    assert_eq!(one_way(&mut net, 1, len), 0);
    assert!(one_way(&mut net, 16, len) > 0);
}

#[test]
fn pieces_meet_segments_of_any_shape() {
    let len = 9 * MIB;
    let mut net = Net::warm(Setup::default());
    let (src, dst) = (net.bytes(0, &pattern(len, 3)), net.memory(1, len));
    let cut = |s: hmem::Span, at: usize| [s.part(0, at).unwrap(), s.part(at, len - at).unwrap()];
    net[1].recv(&from_any(&cut(dst, MIB + 3), 1)).unwrap();
    net[0].send(&msg(1, &cut(src, 5 * MIB - 1), 0)).unwrap();
    net.settle();
    assert_eq!((net[1].received().err, net[0].sent().err), (None, None));
    assert!(net.pieces_helped() > 0);
    assert!(net[1].look(dst, len) == pattern(len, 3));
    net.assert_idle();
}

#[test]
fn a_message_that_is_too_long_fills_the_buffer_and_no_more() {
    let (len, room) = (12 * MIB, 10 * MIB);
    let mut net = Net::warm(Setup::default());
    let (src, dst) = (net.bytes(0, &pattern(len, 4)), net.memory(1, len));
    net[1].recv(&from_any(&[dst.part(0, room).unwrap()], 1)).unwrap();
    net[0].send(&msg(1, &[src], 0)).unwrap();
    net.settle();
    let got = net[1].received();
    assert_eq!((got.err, got.len, got.olen), (Some(Error::Truncated), room, len - room));
    let mut want = pattern(len, 4);
    want[room..].fill(0);
    assert!(net[1].look(dst, len) == want);
    assert_eq!(net[0].sent().err, None);
    net.assert_idle();
}

#[test]
fn many_at_once_do_not_mix() {
    let mut net = Net::warm(Setup::default());
    let len = 13 * MIB;
    let pairs: Vec<_> = (0..4).map(|i| (net.bytes(0, &pattern(len, i)), net.memory(1, len))).collect();
    for (i, (src, dst)) in pairs.iter().enumerate() {
        net[1].recv(&with_tag(&[*dst], i as u64, i)).unwrap();
        net[0].send(&Send { tag: Some(i as u64), ..msg(1, &[*src], i) }).unwrap();
    }
    net.settle();
    for (i, (_, dst)) in pairs.iter().enumerate() {
        assert!(net[1].look(*dst, len) == pattern(len, i), "message {i}");
    }
    assert!(net.pieces_helped() > 0);
    let done: Vec<_> = net[0].tx().into_iter().chain(net[1].rx()).map(|c| c.err).collect();
    assert_eq!(done, [None; 8]);
    net.assert_idle();
}

/// So many messages of `len` bytes under way at once.
fn row(net: &mut Net, len: usize, n: usize) -> Vec<hmem::Span> {
    let all = (0..n).map(|i| {
        let (src, dst) = (net.bytes(0, &pattern(len, i)), net.memory(1, len));
        net[1].recv(&with_tag(&[dst], i as u64, i)).unwrap();
        net[0].send(&Send { tag: Some(i as u64), ..msg(1, &[src], i) }).unwrap();
        dst
    });
    all.collect()
}

/// Messages behind those, more than one call of progress takes in.
fn crowd(net: &mut Net, n: usize) {
    let small = net.memory(0, 8);
    for _ in 0..n {
        net[0].send(&msg(1, &[small], 5)).unwrap();
    }
}

#[test]
fn of_messages_in_a_row_both_copy_halves() {
    for len in [64 << 10, 100_001, MIB] {
        let mut net = Net::warm(Setup::default());
        let all = row(&mut net, len, 12);
        crowd(&mut net, 40);
        net.settle();
        for (i, dst) in all.iter().enumerate() {
            assert!(net[1].look(*dst, len) == pattern(len, i), "message {i} of {len} bytes");
        }
        let helped = net.pieces_helped();
        assert!(helped > 0 && helped < 12, "{helped} of {len} bytes");
        let done: Vec<_> = net[0].tx().into_iter().chain(net[1].rx()).map(|c| c.err).collect();
        assert_eq!(done, [None; 24 + 40]);
    }
}

#[test]
fn of_writes_and_reads_in_a_row_the_target_may_copy_halves() {
    for (writes, helps) in [(true, true), (false, true), (true, false), (false, false)] {
        let (len, n) = (100_001, 6);
        let mut net = Net::warm(Setup::default());
        net.set_boards(true);
        let there_all = net.bytes(1, &pattern(n * len, 3));
        net[1].share(there_all, 7);
        let here_all = net.bytes(0, &pattern(n * len, 4));
        for i in 0..n {
            let here = [here_all.part(i * len, len).unwrap()];
            let remote = [there((i * len) as u64, len, 7)];
            let op = if writes { write(1, &here, &remote, i) } else { read(1, &here, &remote, i) };
            net[0].rma(&op).unwrap();
        }
        if helps {
            net[1].progress();
            assert_eq!(net.pieces_helped(), 2);
        }
        for _ in 0..10 {
            net[0].progress();
        }
        let done: Vec<_> = net[0].tx().iter().map(|c| c.err).collect();
        assert_eq!(done, vec![None; n]);
        let moved = if writes { net[1].look(there_all, n * len) } else { net[0].look(here_all, n * len) };
        assert!(moved == pattern(n * len, if writes { 4 } else { 3 }));
        net.settle();
        net.assert_idle();
    }
}

#[test]
fn a_sender_that_is_elsewhere_is_not_waited_for() {
    let (len, mut net) = (200_000, Net::warm(Setup::default()));
    let all = row(&mut net, len, 12);
    for _ in 0..100 {
        net[1].progress();
    }
    assert_eq!(net[1].rx().len(), 12);
    assert_eq!(net.pieces_helped(), 0);
    for (i, dst) in all.iter().enumerate() {
        assert!(net[1].look(*dst, len) == pattern(len, i), "message {i}");
    }
    net.settle();
    assert_eq!(net[0].tx().len(), 12);
    net.assert_idle();
}

#[test]
fn halves_are_taken_back_though_messages_keep_coming() {
    let (len, mut net) = (100_000, Net::warm(Setup::default()));
    row(&mut net, len, 2);
    crowd(&mut net, 10);
    let (mut calls, mut done) = (0, 0);
    // The sender never looks, and more comes in than one call takes.
    while done < 2 {
        crowd(&mut net, 32);
        net[0].tx();
        done += net[1].rx().len();
        net[1].progress();
        calls += 1;
        assert!(calls < 1000, "it is never taken back");
    }
    assert!(calls > 10, "it was never given");
    assert_eq!(net.pieces_helped(), 0);
}

#[test]
fn a_sender_that_dies_with_a_delegated_half_fails_the_message() {
    let (len, mut net) = (300_000, Net::warm(Setup::default()));
    row(&mut net, len, 12);
    crowd(&mut net, 40);
    net[1].progress();
    net.kill(0);
    net.settle();
    let all: Vec<_> = net[1].rx().iter().map(|c| c.err).collect();
    assert_eq!(all.len(), 12);
    assert!(all.contains(&Some(Error::Reset)), "{all:?}");
    assert_eq!(net[1].ep_under_way(net[1].ep), 0);
}

/// Both sides are in the middle of a transfer.
fn half_way(net: &mut Net, len: usize) -> hmem::Span {
    let (src, dst) = (net.bytes(0, &pattern(len, 2)), net.memory(1, len));
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 0)).unwrap();
    net[1].progress();
    net[0].progress();
    assert!(net.pieces_helped() > 0);
    dst
}

#[test]
fn a_sender_that_dies_half_way_fails_the_receive() {
    let mut net = Net::warm(Setup::default());
    half_way(&mut net, 40 * MIB);
    net.kill(0);
    net.settle();
    assert_eq!(net[1].received().err, Some(Error::Reset));
    assert_eq!(net[1].ep_under_way(net[1].ep), 0);
}

#[test]
fn a_taker_that_dies_half_way_fails_the_send() {
    let mut net = Net::warm(Setup::default());
    half_way(&mut net, 40 * MIB);
    net.kill(1);
    net.settle();
    assert_eq!(net[0].sent().err, Some(Error::Reset));
    assert_eq!(net[0].ep_under_way(net[0].ep), 0);
}

#[test]
fn a_copy_that_fails_fails_the_message_on_both_sides() {
    let mut net = Net::warm(Setup::default());
    half_way(&mut net, 40 * MIB);
    net.fault(1);
    net.settle();
    assert_eq!((net[1].received().err, net[0].sent().err), (Some(Error::Io), Some(Error::Io)));
    net.assert_idle();
    net.exchange(20 * MIB, 6);
}

#[test]
fn a_sender_that_may_not_put_leaves_it_to_the_taker() {
    let mut net = Net::warm(Setup::default());
    net.bar_puts(0);
    for round in 0..3 {
        net.exchange(20 * MIB, round);
    }
    // One piece was tried, and it was not asked again.
    assert_eq!(net.pieces_helped(), 1);
}

#[test]
fn writes_are_copied_cooperatively_only_without_order() {
    for rma_order in [false, true] {
        let config = Config { rma_order, ..Setup::default().config };
        let mut net = Net::warm(Setup { config, ..Setup::default() });
        let len = 20 * MIB;
        let (src, dst) = (net.bytes(0, &pattern(len, 5)), net.memory(1, len));
        net[1].share(dst, 7);
        net[0].rma(&write(1, &[src], &[there(0, len, 7)], 3)).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, None);
        assert!(net[1].look(dst, len) == pattern(len, 5));
        assert_eq!(net.pieces_helped() > 0, !rma_order);
        net.assert_idle();
    }
}

#[test]
fn malformed_offers_of_a_cooperative_copy_are_dropped() {
    let mut net = Net::warm(Setup::default());
    let src = net.bytes(0, &pattern(20 * MIB, 1));
    net[0].send(&Send { flags: OpFlags::COMPLETION, ..msg(1, &[src], 0) }).unwrap();
    let share = |req: u64, len: u64, piece: u64, segs: &[Seg]| {
        let mut frame = Vec::new();
        put(&mut frame, &Head::new(Op::CoopFetch, Flags::empty(), segs.len() as u16, req, 1));
        put(
            &mut frame,
            &Pieces { len: len.into(), piece: piece.into(), slot: 77.into(), generation: 1.into() },
        );
        put(&mut frame, segs);
        frame
    };
    let seg = Seg { addr: 1.into(), len: (30 << 20).into() };
    for req in [0, 1, 1 << 32, 2 << 32, u64::MAX] {
        for (len, piece) in [(0, 0), (20 << 20, 0), (20 << 20, 1), (30 << 20, 4096), (1 << 20, 1 << 20)] {
            for segs in [&[][..], &[seg], &[seg; 9]] {
                net.inject(1, 0, share(req, len, piece, segs));
            }
        }
        for status in [Status::Ok, Status::Io, Status::Malformed] {
            let mut frame = Vec::new();
            put(&mut frame, &Head::new(Op::CoopDone, Flags::empty(), status as u16, req, u64::MAX));
            net.inject(1, 0, frame);
        }
    }
    net.settle();
    let dst = net.memory(1, 20 * MIB);
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net.settle();
    assert_eq!((net[1].received().err, net[0].sent().err), (None, None));
    assert!(net[1].look(dst, 20 * MIB) == pattern(20 * MIB, 1));
}

/// What ends a message to that memory.
type End = dyn Fn(&mut Net, hmem::Span);

/// Large messages to a third that have not ended say that there are others to be made of; each end of one
/// says that there are not.
#[test]
fn copies_are_shared_again_when_what_was_offered_has_ended() {
    const LEN: usize = 13 * MIB;
    let ends: [&End; 6] = [
        &|net, _| net.kill(1),
        &|net, _| net.part(1),
        &|net, _| {
            let ep = net[0].ep;
            net[0].ep_cancel(ep, engine::Ctx(7)).unwrap();
        },
        &|net, dst| net[1].recv(&from_any(&[dst], 2)).unwrap(),
        &|net, dst| net[1].recv(&from_any(&[dst.part(0, 9).unwrap()], 2)).unwrap(),
        &|net, _| {
            let (rx, any) = (net[1].rx, engine::Pattern { src: engine::ADDR_UNSPEC, tag: None });
            net[1].peek(rx, any, engine::Peek::Discard, engine::Ctx(2), OpFlags::empty()).unwrap();
        },
    ];
    for (n, end) in ends.iter().enumerate() {
        let mut net = Net::with(3, Setup::default());
        let is_shared = |net: &mut Net, len: usize| {
            let before = net.pieces_helped();
            let (src, dst) = (net.bytes(2, &pattern(len, n)), net.memory(0, len));
            net[0].recv(&from_any(&[dst], 1)).unwrap();
            net[2].send(&msg(0, &[src], 0)).unwrap();
            net.settle();
            assert_eq!((net[0].received().len, net[2].sent().err), (len, None));
            assert!(net[0].look(dst, len) == pattern(len, n));
            net.pieces_helped() > before
        };
        // From the first on that was copied at once.
        is_shared(&mut net, 100_000);
        assert!(is_shared(&mut net, LEN));
        let (src, dst) = (net.memory(0, LEN), net.memory(1, LEN));
        net[0].send(&msg(1, &[src], 7)).unwrap();
        net.settle();
        assert!(!is_shared(&mut net, LEN), "{n}");
        // One that is refused is not offered.
        net.set_capacity(0);
        assert_eq!(net[0].send(&msg(1, &[src], 8)), Err(Error::Again));
        net.set_capacity(64);
        end(&mut net, dst);
        net.settle();
        assert_eq!(net[0].sent().ctx.0, 7, "{n}");
        assert!(is_shared(&mut net, LEN), "{n}");
    }
}
