//! Device memory that no peer's device reaches, by way of bounce buffers that peers' devices reach.

mod made_up;

use std::sync::{Arc, Mutex};

use engine::link_api::{Fallback, How, Meter, Side};
use engine::{Completion, Config, Ctx, Error, OpFlags, Send};
use hmem::Span;
use testkit::*;
use wire::Addr;

/// Bytes of a part, and of all buffers.
const PART: usize = 4 << 20;
const ALL: usize = 32 << 20;

/// Whether a path was reported, and how bytes went.
type Reported = (bool, Vec<(How, usize)>);

/// How bytes went, or came.
#[derive(Clone, Debug, Default)]
struct Book(Arc<Mutex<Reported>>);

impl Meter for Book {
    fn path(&mut self, _: &Addr, _: &'static str, _: String) {
        self.0.lock().unwrap().0 = true;
    }

    fn count(&mut self, _: &Addr, _: Side, how: How, bytes: usize) -> bool {
        let mut book = self.0.lock().unwrap();
        book.1.push((how, bytes));
        book.0
    }

    fn fell_back(&mut self, _: &Addr, _: Fallback) {}
}

impl Book {
    /// Those of at least 32 KiB, each counted on its own side.
    fn take(&self) -> Vec<(How, usize)> {
        let all = std::mem::take(&mut self.0.lock().unwrap().1);
        all.into_iter().filter(|(_, bytes)| *bytes >= 32 << 10).collect()
    }
}

fn setup(direct: Direct) -> Setup {
    Setup { direct, max_frame: 100_000, ..Setup::default() }
}

fn net(nodes: usize, direct: Direct) -> Net {
    let mut net = Net::with(nodes, setup(direct));
    net.set_bounces(true);
    net
}

/// Device memory with `len` bytes of a pattern from byte `off` on, and that part of it.
fn filled(net: &mut Net, off: usize, len: usize, seed: usize) -> Span {
    let all = net.device(off + len + 5);
    hmem::write(&[all], off, &pattern(len, seed));
    all.part(off, len).unwrap()
}

fn ok(all: &[Completion]) -> Vec<usize> {
    assert!(all.iter().all(|c| c.err.is_none()), "{all:?}");
    all.iter().map(|c| c.ctx.0).collect()
}

fn parts(len: usize) -> usize {
    len.div_ceil(PART)
}

#[test]
fn a_message_of_any_length_arrives_with_no_byte_by_the_host() {
    for direct in [Direct::InCall, Direct::AnyOrder] {
        for (len, room) in [
            (1, 1),
            (32_767, 32_767),
            (32_768, 32_768),
            (100_001, 200_000),
            (PART + 1, PART + 1),
            (3 * PART + 77, 2 * PART + 5),
            (33 << 20, 33 << 20),
        ] {
            let posted = len % 2 == 0;
            let case = (direct, len, room, posted);
            let mut net = net(2, direct);
            let books = [Book::default(), Book::default()];
            for (at, book) in books.iter().enumerate() {
                let ep = net[at].ep;
                net[at].ep_meter(ep, Box::new(book.clone()));
            }
            let src = filled(&mut net, 13, len, 1);
            let whole = net.device(room + 6);
            let dst = whole.part(3, room).unwrap();
            if posted {
                net[1].recv(&from_any(&[dst], 2)).unwrap();
            }
            net[0].send(&msg(1, &[src], 1)).unwrap();
            net.settle();
            if !posted {
                net[1].recv(&from_any(&[dst], 2)).unwrap();
                net.settle();
            }
            let got = net[1].received();
            let want = len.min(room);
            assert_eq!(got.err, (len > room).then_some(Error::Truncated), "{case:?}");
            assert_eq!(net[0].sent().err, None, "{case:?}");
            let all = net[1].look(whole, room + 6);
            assert!(all[3..3 + want] == pattern(len, 1)[..want], "{case:?}");
            assert!(all[..3].iter().chain(&all[3 + want..]).all(|b| *b == 0), "{case:?}: outside");
            let many = if len < 32_768 { 0 } else { parts(want) };
            assert!(net.device_copies() >= many && (many > 0 || net.device_copies() == 0), "{case:?}");
            for book in books {
                let staged: Vec<_> = book.take().into_iter().filter(|(how, _)| *how != How::Device).collect();
                assert_eq!(staged, [], "{case:?}");
            }
            net.assert_idle();
        }
    }
}

/// The processes have it in turns; what it takes to wait for them is worth while for long messages, and for
/// many.
#[test]
fn on_one_device_what_is_short_goes_in_frames_once_that_is_known() {
    for one in [true, false] {
        let mut net = net(2, Direct::InCall);
        if one {
            net.one_device();
        }
        // With the first the receiver gets the handles of the buffers; a message of 640 KiB is long enough.
        for (n, (len, bounces)) in
            [(50_000, true), (50_000, false), (655_359, false), (655_360, true)].into_iter().enumerate()
        {
            let (src, dst) = (filled(&mut net, n, len, n), net.device(len));
            let before = net.device_copies();
            net[1].recv(&from_any(&[dst], 2)).unwrap();
            net[0].send(&msg(1, &[src], 1)).unwrap();
            net.settle();
            assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![1], vec![2]));
            assert!(net[1].look(dst, len) == pattern(len, n));
            assert_eq!(net.device_copies() > before, bounces || !one, "message {n}, on one device: {one}");
        }
        // Many at once share a turn.
        let len = 200_000;
        let all: Vec<_> = (0..8).map(|n| (filled(&mut net, 1, len, n), net.device(len))).collect();
        let before = net.device_copies();
        for (n, (src, dst)) in all.iter().enumerate() {
            net[1].recv(&with_tag(&[*dst], n as u64, n)).unwrap();
            net[0].send(&tagged(1, &[*src], n as u64, n)).unwrap();
        }
        net.settle();
        assert!(net.device_copies() >= before + all.len() - 1, "on one device: {one}");
        for (n, (_, dst)) in all.iter().enumerate() {
            assert!(net[1].look(*dst, len) == pattern(len, n));
        }
        net[0].tx();
        net[1].rx();
        net.assert_idle();
    }
}

#[test]
fn buffers_in_pieces_and_messages_both_ways_at_once_share_what_there_is() {
    const MANY: usize = 24;
    let mut net = net(2, Direct::AnyOrder);
    let mut all = Vec::new();
    for n in 0..MANY {
        let len = [33_000, 1 << 20, 5 * PART + 3][n % 3];
        let (front, back) = (len / 3, len - len / 3);
        let src = [filled(&mut net, n, front, n), filled(&mut net, 0, back, n + 50)];
        let dst = [net.device(back), net.device(front)];
        all.push((n % 2, src, dst, len));
    }
    for (n, (from, src, dst, _)) in all.iter().enumerate() {
        net[1 - from].recv(&with_tag(dst, n as u64, n)).unwrap();
        net[*from].send(&tagged(1 - *from as u64, src, n as u64, n)).unwrap();
    }
    net.settle();
    for at in 0..2 {
        let mut got = (ok(&net[at].rx()), ok(&net[at].tx()));
        got.0.sort_unstable();
        got.1.sort_unstable();
        let of = |from: usize| (0..MANY).filter(|n| n % 2 == from).collect::<Vec<_>>();
        assert_eq!(got, (of(1 - at), of(at)));
    }
    for (n, (_, src, dst, len)) in all.iter().enumerate() {
        let bytes = |iov: &[Span]| {
            let mut bytes = vec![0; *len];
            assert_eq!(hmem::read(iov, 0, &mut bytes), *len);
            bytes
        };
        assert!(bytes(src) == bytes(dst), "message {n}");
    }
    net.assert_idle();
}

#[test]
fn a_write_goes_so_too_in_order_or_not() {
    for rma_order in [false, true] {
        let config = Config { virt_addr: false, rma_order };
        let mut net = Net::with(2, Setup { config, ..setup(Direct::InCall) });
        net.set_bounces(true);
        let len = 2 * PART + 100;
        let (src, target) = (filled(&mut net, 7, len, 3), net.device(len + 10));
        net[1].share(target, 9);
        net[0].rma(&write(1, &[src], &[there(5, len, 9)], 1)).unwrap();
        net.settle();
        assert_eq!(ok(&net[0].tx()), [1]);
        assert!(net[1].look(target, len + 10)[5..5 + len] == pattern(len, 3));
        assert_eq!(net.device_copies(), parts(len));
        net.assert_idle();
    }
}

#[test]
fn a_copy_that_is_refused_or_fails_midway_is_made_up_for_by_frames() {
    let len = 3 * PART + 1;
    let bytes = pattern(len, 3);
    for direct in [Direct::InCall, Direct::AnyOrder] {
        for late in [false, true] {
            for failures in [1, 3] {
                for first in [0, 2] {
                    let case = (direct, late, failures, first);
                    let mut net = net(2, direct);
                    let (src, dst) = (net.device(len), net.device(len));
                    hmem::write(&[src], 0, &bytes);
                    net[1].recv(&from_any(&[dst], 2)).unwrap();
                    net[0].send(&msg(1, &[src], 1)).unwrap();
                    for _ in 0..10_000 {
                        if net.device_copies() < first {
                            net[0].progress();
                            net[1].progress();
                        }
                    }
                    assert!(net.device_copies() >= first, "{case:?}");
                    net.fail_copies(failures, late);
                    net.settle();
                    assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![1], vec![2]), "{case:?}");
                    assert!(net[1].look(dst, len) == bytes, "{case:?}");
                    // The peer is not asked again: what is left goes by frames at once.
                    net.fail_copies(0, late);
                    let before = net.device_copies();
                    let few = src.part(0, 1 << 20).unwrap();
                    net[1].recv(&from_any(&[dst], 4)).unwrap();
                    net[0].send(&msg(1, &[few], 3)).unwrap();
                    net.settle();
                    assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![3], vec![4]), "{case:?}");
                    assert_eq!(net.device_copies(), before, "{case:?}");
                    net.assert_idle();
                }
            }
        }
    }
}

#[test]
fn without_handles_of_buffers_frames_serve() {
    let mut net = Net::with(2, setup(Direct::InCall));
    let len = PART + 9;
    let (src, dst) = (filled(&mut net, 1, len, 3), net.device(len));
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    net[0].send(&msg(1, &[src], 1)).unwrap();
    net.settle();
    assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![1], vec![2]));
    assert!(net[1].look(dst, len) == pattern(len, 3));
    assert_eq!(net.device_copies(), 0);
    net.assert_idle();
}

/// Progress at some nodes, more often than a transfer takes.
fn go_on(net: &mut Net, nodes: &[usize]) {
    for _ in 0..3000 {
        for at in nodes {
            net[*at].progress();
        }
    }
}

#[test]
fn a_peer_that_does_not_go_on_keeps_no_buffers_from_others() {
    let mut net = net(4, Direct::InCall);
    let len = ALL + PART;
    let stuck: Vec<_> = (1..3).map(|to| (to, filled(&mut net, 0, len, to), net.device(len))).collect();
    let (src, dst) = (filled(&mut net, 0, PART, 7), net.device(PART));
    for (to, theirs, ours) in &stuck {
        net[*to].recv(&from_any(&[*ours], 2)).unwrap();
        net[0].send(&msg(*to as u64, &[*theirs], *to)).unwrap();
        net[0].progress();
        // It asks for the message, and does nothing more.
        net[*to].progress();
        go_on(&mut net, &[0]);
        // The first has three quarters of what there is, and the second the rest: then another message is
        // staged.
        net[3].recv(&from_any(&[dst], 2)).unwrap();
        net[0].send(&msg(3, &[src], 3)).unwrap();
        go_on(&mut net, &[0, 3]);
        assert_eq!((ok(&net[0].tx()), ok(&net[3].rx())), (vec![3], vec![2]));
        assert!(net[3].look(dst, PART) == pattern(PART, 7));
        hmem::write(&[dst], 0, &[0; PART]);
        assert_eq!(net.device_copies(), 1, "beside {to} that do not go on");
    }
    net.settle();
    let mut done = ok(&net[0].tx());
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
    for (to, _, dst) in &stuck {
        assert_eq!(ok(&net[*to].rx()), [2]);
        assert!(net[*to].look(*dst, len) == pattern(len, *to));
    }
    // And with all of them back it goes by the device again.
    let before = net.device_copies();
    net[3].recv(&from_any(&[dst], 2)).unwrap();
    net[0].send(&msg(3, &[src], 3)).unwrap();
    net.settle();
    assert_eq!((ok(&net[0].tx()), ok(&net[3].rx())), (vec![3], vec![2]));
    assert_eq!(net.device_copies(), before + 1);
    net.assert_idle();
}

#[test]
fn an_end_midway_leaves_nothing_to_the_device_and_gives_all_buffers_back() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum End {
        Cancel,
        KillReceiver,
        KillSender,
        CloseReceiver,
        CloseSender,
    }
    for end in [End::Cancel, End::KillReceiver, End::KillSender, End::CloseReceiver, End::CloseSender] {
        for held in [true, false] {
            let case = (end, held);
            let mut net = net(3, Direct::InCall);
            let len = ALL + PART;
            let (src, dst) = (filled(&mut net, 0, len, 3), net.device(len));
            net[1].recv(&from(0, &[dst], 2)).unwrap();
            net[0].send(&msg(1, &[src], 7)).unwrap();
            if held {
                // Copies into buffers, or out of them, are in flight for good.
                net.hold_device(src, true);
            } else {
                net.hold_operations(true);
            }
            go_on(&mut net, &[0, 1]);
            if held {
                assert!(net.staged_in_flight(src) > 0, "{case:?}");
            } else {
                assert!(net.operations_in_flight() > 0, "{case:?}");
            }
            let (sender, receiver) = (net[0].ep, net[1].ep);
            match end {
                End::Cancel if !held => {
                    // As long as the receiver is inside: here it is not asked for that.
                    net.hold_operations(false);
                    continue;
                }
                End::Cancel => net[0].ep_cancel(sender, Ctx(7)).unwrap(),
                End::KillReceiver => net.kill(1),
                End::KillSender => net.kill(0),
                End::CloseReceiver => net[1].ep_close(receiver).unwrap(),
                End::CloseSender => net[0].ep_close(sender).unwrap(),
            }
            if end == End::CloseReceiver {
                assert_eq!(net.operations_in_flight(), 0, "{case:?}");
                continue;
            }
            if matches!(end, End::KillReceiver | End::KillSender) {
                net.hold_operations(false);
                let stays = if end == End::KillReceiver { 0 } else { 1 };
                go_on(&mut net, &[stays]);
                let all = if stays == 0 { net[0].tx() } else { net[1].rx() };
                assert_eq!(all.iter().map(|c| c.err).collect::<Vec<_>>(), [Some(Error::Reset)], "{case:?}");
            }
            assert_eq!(net.staged_in_flight(src), 0, "{case:?}");
            if end == End::Cancel {
                assert_eq!(net[0].sent().err, Some(Error::Cancelled), "{case:?}");
                go_on(&mut net, &[0, 1]);
                assert!(net[1].received().err.is_some(), "{case:?}");
            }
            if matches!(end, End::KillSender | End::CloseSender) {
                continue;
            }
            // All buffers are to be had.
            net.hold_device(src, false);
            let (dst, before) = (net.device(len), net.device_copies());
            net[2].recv(&from(0, &[dst], 2)).unwrap();
            net[0].send(&msg(2, &[src], 8)).unwrap();
            for _ in 0..200_000 {
                net[0].progress();
                net[2].progress();
            }
            assert_eq!((ok(&net[0].tx()), ok(&net[2].rx())), (vec![8], vec![2]), "{case:?}");
            assert!(net[2].look(dst, len) == pattern(len, 3), "{case:?}");
            assert!(net.device_copies() - before >= parts(len), "{case:?}");
        }
    }
}

#[test]
fn an_injected_message_does_not_go_through_buffers_that_outlive_the_call() {
    let len = 60_000;
    let mut net = net(2, Direct::InCall);
    let (src, dst) = (filled(&mut net, 0, len, 3), net.device(len));
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    let flags = OpFlags::INJECT | OpFlags::COMPLETION;
    let ep = net[0].ep;
    let mut leaving =
        net[0].start_send(ep, &Send { flags, ..msg(1, &[src], 5) }).unwrap().expect("a device's");
    // Another thread's calls come between.
    for _ in 0..20 {
        net[1].progress();
        net[0].progress();
    }
    while !net[0].has_left(&mut leaving) {
        net[1].progress();
    }
    hmem::write(&[src], 0, &vec![0xee; len]);
    net.settle();
    assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![5], vec![2]));
    assert!(net[1].look(dst, len) == pattern(len, 3));
    assert_eq!(net.device_copies(), 0);
    net.assert_idle();
}
