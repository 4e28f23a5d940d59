//! Large reads and writes that both sides copy, and frames about them to peers without end.

use engine::{Error, Send};
use testkit::*;
use wire::{Flags, Head, Op, Pieces, Seg, put};

const MIB: usize = 1 << 20;

/// Two nodes that see each other's registrations; the second has registered so much, under key 7.
fn seeing(len: usize) -> (Net, hmem::Span) {
    let mut net = Net::warm(Setup::default());
    net.set_boards(true);
    let target = net.bytes(1, &pattern(len, 1));
    net[1].share(target, 7);
    let few = net.memory(0, 3000);
    net[0].rma(&read(1, &[few], &[there(0, 3000, 7)], 3)).unwrap();
    assert_eq!(net[0].sent().err, None);
    (net, target)
}

#[test]
fn a_target_that_is_there_copies_its_part() {
    let len = 20 * MIB;
    for is_write in [true, false] {
        let (mut net, target) = seeing(len);
        let local = net.bytes(0, &pattern(len, 2));
        let remote = [there(0, len, 7)];
        net[0].rma(&engine::Rma { write: is_write, ..write(1, &[local], &remote, 3) }).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, None);
        let seed = if is_write { 2 } else { 1 };
        assert!(
            net[1].look(target, len) == pattern(len, seed) && net[0].look(local, len) == pattern(len, seed)
        );
        assert!(net.pieces_helped() > 0, "{is_write}");
        net.assert_idle();
    }
}

/// A target that polls the last byte of a write finds all others.
#[test]
fn the_last_bytes_of_a_write_are_there_last_whichever_side_copies() {
    for len in [MIB, 9 * MIB + 5, 20 * MIB] {
        let (mut net, target) = seeing(len);
        let local = net.bytes(0, &pattern(len, 2));
        net[0].rma(&write(1, &[local], &[there(0, len, 7)], 3)).unwrap();
        for _ in 0..len / MIB {
            net[1].progress();
        }
        assert!(net.pieces_helped() > 0, "{len}");
        let (now, all) = (net[1].look(target, len), pattern(len, 2));
        assert!(now[..len - 64] == all[..len - 64] && now[len - 1] != all[len - 1], "{len}");
        net.settle();
        assert_eq!(net[0].sent().err, None);
        assert!(net[1].look(target, len) == all, "{len}");
        net.assert_idle();
    }
}

#[test]
fn a_target_that_is_not_there_is_not_waited_for() {
    let len = 20 * MIB;
    for is_write in [true, false] {
        let (mut net, target) = seeing(len);
        let local = net.bytes(0, &pattern(len, 2));
        let remote = [there(0, len, 7)];
        net[0].rma(&engine::Rma { write: is_write, ..write(1, &[local], &remote, 3) }).unwrap();
        (0..len / (4 * MIB)).for_each(|_| assert!(net[0].progress() < 100));
        assert_eq!(net[0].sent().err, None);
        let seed = if is_write { 2 } else { 1 };
        assert!(
            net[1].look(target, len) == pattern(len, seed) && net[0].look(local, len) == pattern(len, seed)
        );
        // Frames about it that come late are of no use, and do no harm.
        net.settle();
        assert_eq!(net.pieces_helped(), 0);
        net.assert_idle();
    }
}

#[test]
fn either_end_of_a_cooperative_access_may_die() {
    let len = 40 * MIB;
    for dead in [0, 1] {
        let (mut net, _) = seeing(len);
        let local = net.bytes(0, &pattern(len, 2));
        net[0].rma(&write(1, &[local], &[there(0, len, 7)], 3)).unwrap();
        net[1].progress();
        assert!(net.pieces_helped() > 0);
        net.kill(dead);
        net.settle();
        if dead == 1 {
            assert_eq!(net[0].sent().err, Some(Error::Reset));
        }
        assert_eq!(net[1 - dead].ep_under_way(net[1 - dead].ep), 0);
    }
}

#[test]
fn a_target_that_does_not_look_is_written_and_read_without_end() {
    let len = 64 << 10;
    for is_write in [true, false] {
        let (mut net, target) = seeing(len);
        let local = net.bytes(0, &pattern(len, 2));
        let remote = [there(0, len, 7)];
        let more = |net: &mut Net, n: usize| {
            for i in 0..n {
                net[0].rma(&engine::Rma { write: is_write, ..write(1, &[local], &remote, i) }).unwrap();
                // Now one after the other, now many in a row.
                while i % 3 == 0 && net[0].progress() > 0 {}
                assert!(net[0].tx().iter().all(|c| c.err.is_none()));
            }
        };
        more(&mut net, 20_000);
        for _ in 0..10 {
            net[0].progress();
        }
        net[0].tx();
        assert!(net.in_flight(0, 1) <= 32, "{} frames without need", net.in_flight(0, 1));
        let seed = if is_write { 2 } else { 1 };
        assert!(
            net[1].look(target, len) == pattern(len, seed) && net[0].look(local, len) == pattern(len, seed)
        );
        net.settle();
        net[0].tx();
        assert_eq!(net.pieces_helped(), 0);
        // Once it looks it is asked to help again.
        more(&mut net, 3);
        net[1].progress();
        assert!(net.pieces_helped() > 0);
        net.settle();
        net[0].tx();
        net.assert_idle();
    }
}

#[test]
fn a_sender_that_does_not_look_is_not_sent_requests_without_end() {
    let len = 64 << 10;
    let mut net = Net::warm(Setup { capacity: 16, ..Setup::default() });
    let (src, dst) = (net.memory(0, len), net.memory(1, len));
    let mut requests = 0;
    for i in 0..400 {
        net[1].recv(&with_tag(&[dst], 0, i)).unwrap();
        if net[0].send(&Send { tag: Some(0), ..msg(1, &[src], i) }).is_err() {
            break;
        }
        for _ in 0..3 {
            net[1].progress();
        }
        let sharing = std::cell::Cell::new(0);
        net.tamper(1, 0, |frame| {
            sharing.set(sharing.get() + usize::from(Head::of(frame).unwrap().op() == Some(Op::CoopFetch)));
        });
        requests = sharing.get();
        net[0].tx();
        net[1].rx();
        // With as many answers they are half of what there is room for.
        assert!(requests <= 4, "{requests} frames without need");
    }
    assert!(requests > 0);
}

/// A node that says it has begun to read or write `len` bytes of key 7 by pieces of `piece`.
fn lend(net: &mut Net, share: link_api::PieceCounter, len: usize, piece: usize, theirs: hmem::Span) {
    let mut frame = Vec::new();
    put(&mut frame, &Head::new(Op::CoopRma, Flags::empty(), 1, 1, 1));
    let (len, piece) = ((len as u64).into(), (piece as u64).into());
    put(&mut frame, &Pieces { len, piece, slot: share.slot.into(), generation: share.generation.into() });
    put(&mut frame, &there(0, len.get() as usize, 7));
    put(&mut frame, &Seg { addr: theirs.addr().into(), len });
    net.inject(0, 1, frame);
}

#[test]
fn a_node_is_not_kept_by_many_small_pieces() {
    for (len, piece) in
        [(60_000, 1), (65_535, 1), (20 * MIB, 4096), (20 * MIB, 64 << 10), (20 * MIB, 333_333)]
    {
        let (mut net, _) = seeing(len);
        let theirs = net.memory(0, len);
        let share = net.open_share(0, 1);
        let before = net.direct_accesses();
        lend(&mut net, share, len, piece, theirs);
        net[1].progress();
        assert_eq!(net.direct_accesses(), before, "{len} bytes by {piece}");
        net.settle();
    }
}

#[test]
fn a_progress_call_takes_so_many_pieces_and_no_more() {
    let len = 20 * MIB;
    let (mut net, _) = seeing(len);
    let theirs = net.memory(0, len);
    let share = net.open_share(0, 1);
    // It never comes to an end of the pieces, and begins more than any node does.
    for _ in 0..500 {
        lend(&mut net, share, len, 128 << 10, theirs);
    }
    let mut calls = 0;
    let mut most = 0;
    loop {
        net.rewind_shares();
        let before = net.direct_accesses();
        let n = net[1].progress();
        most = most.max(net.direct_accesses() - before);
        calls += 1;
        if n == 0 || calls > 10_000 {
            break;
        }
    }
    // With a go of 4 MiB each that is begun by a frame and that is gone on with before it is counted.
    assert!(most <= 64 + 2 * 32, "{most} accesses in one call");
    assert!(net.direct_accesses() < 200 * len.div_ceil(128 << 10), "it takes part in too many");
    assert!(calls < 10_000, "it does not end");
    net.settle();
}
