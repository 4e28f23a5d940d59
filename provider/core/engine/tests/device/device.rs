//! Devices' memory that the other side's device reaches: one copy, and what becomes of it.

use engine::{ADDR_UNSPEC, Config, Ctx, Error, OpFlags, Pattern, Peek, Send, What};
use hmem::Span;
use testkit::*;

fn net() -> Net {
    Net::with(3, Setup { peer_access: true, ..Setup::default() })
}

/// Whether the memory of either side is a device's.
const SIDES: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

fn place(net: &mut Net, device: bool, at: usize, len: usize) -> Span {
    if device { net.device(len) } else { net.memory(at, len) }
}

/// How many copies a message of that length takes between these.
fn copies(from: bool, to: bool, len: usize) -> usize {
    usize::from(len > 0 && (from || (to && len > 256)))
}

#[test]
fn a_message_is_one_copy_from_buffer_to_buffer() {
    for (from, to) in SIDES {
        for (len, room) in [(0, 0), (1, 8), (256, 256), (257, 300), (20_000, 20_000), (20_000, 100)] {
            for late in [false, true] {
                let case = (from, to, len, room, late);
                let mut net = net();
                let (src, dst) = (place(&mut net, from, 0, len.max(1)), place(&mut net, to, 1, room.max(1)));
                let (src, dst) = (src.part(0, len).unwrap(), dst.part(0, room).unwrap());
                hmem::write(&[src], 0, &pattern(len, 1));
                if late {
                    net[0].send(&msg(1, &[src], 1)).unwrap();
                    net.settle();
                    net[1].recv(&from_any(&[dst], 2)).unwrap();
                } else {
                    net[1].recv(&from_any(&[dst], 2)).unwrap();
                    net[0].send(&msg(1, &[src], 1)).unwrap();
                }
                net.settle();
                assert_eq!(net[0].sent().err, None, "{case:?}");
                let got = net[1].received();
                let short = (len > room).then_some(Error::Truncated);
                assert_eq!((got.err, got.len), (short, len.min(room)), "{case:?}");
                assert_eq!(net[1].look(dst, room.min(len)), pattern(len, 1)[..room.min(len)], "{case:?}");
                assert_eq!(net.device_copies(), copies(from, to, len), "{case:?}");
                net.assert_idle();
            }
        }
    }
}

#[test]
fn writes_and_reads_are_one_copy_too() {
    for (here, there_is) in SIDES {
        for len in [1, 256, 257, 20_000] {
            let case = (here, there_is, len);
            let mut net = net();
            let (local, target) = (place(&mut net, here, 0, len), place(&mut net, there_is, 1, len + 5));
            net[1].share(target, 7);
            hmem::write(&[local], 0, &pattern(len, 1));
            net[0].rma(&write(1, &[local], &[there(5, len, 7)], 1)).unwrap();
            net.settle();
            assert_eq!(net[0].sent().err, None, "{case:?}");
            assert_eq!(net[1].look(target, len + 5)[5..], pattern(len, 1), "{case:?}");
            assert_eq!(net.device_copies(), copies(here, there_is, len), "{case:?}");

            let before = net.device_copies();
            hmem::write(&[target], 5, &pattern(len, 2));
            net[0].rma(&read(1, &[local], &[there(5, len, 7)], 2)).unwrap();
            net.settle();
            let done = net[0].sent();
            assert_eq!((done.err, done.what), (None, What::RMA | What::READ), "{case:?}");
            assert_eq!(net[0].look(local, len), pattern(len, 2), "{case:?}");
            // What a device holds there and the host wants here comes in frames.
            assert_eq!(net.device_copies() - before, usize::from(here), "{case:?}");
            net.assert_idle();
        }
    }
}

#[test]
fn an_allocation_is_exported_once() {
    let mut net = net();
    let (src, dst) = (net.device(100), net.device(100));
    for i in 0..3 {
        net[1].recv(&from_any(&[dst], i)).unwrap();
        net[0].send(&msg(1, &[src.part(i, 50).unwrap()], i)).unwrap();
        let frames = net.in_flight(0, 1);
        assert_eq!(frames, if i == 0 { 2 } else { 1 });
        net.settle();
        net[0].sent();
        net[1].received();
    }
    assert_eq!(net.device_copies(), 3);
}

/// `n` messages from device to device in a row, all of them matched; where they go.
fn row(net: &mut Net, n: usize) -> Span {
    let (src, dst) = (net.device(5000), net.device(5000 * n));
    hmem::write(&[src], 0, &pattern(5000, 1));
    for i in 0..n {
        net[1].recv(&from_any(&[dst.part(5000 * i, 5000).unwrap()], i)).unwrap();
        net[0].send(&msg(1, &[src], i)).unwrap();
    }
    net[1].progress();
    dst
}

fn check_row(net: &mut Net, n: usize, dst: Span) {
    net.settle();
    assert_eq!(net.device_copies(), n);
    let sent: Vec<_> = net[0].tx().iter().map(|c| c.err).collect();
    let got: Vec<_> = net[1].rx().iter().map(|c| (c.err, c.len)).collect();
    assert_eq!((sent, got), (vec![None; n], vec![(None, 5000); n]));
    assert_eq!(net[1].look(dst, 5000 * n), pattern(5000, 1).repeat(n));
    net.assert_idle();
}

#[test]
fn a_sender_of_many_that_is_there_puts_what_it_is_invited_to() {
    for n in 2..6 {
        let mut net = net();
        let dst = row(&mut net, n);
        for _ in 0..2 * n {
            net[0].progress();
        }
        assert!(net.device_copies() >= n - 1, "before the receiver looks again");
        check_row(&mut net, n, dst);
    }
}

#[test]
fn a_sender_that_is_elsewhere_is_not_waited_for_long() {
    for n in 1..6 {
        let mut net = net();
        let dst = row(&mut net, n);
        let mut polls = 0;
        while net.device_copies() < n && polls < 1000 {
            assert!(!net[1].arm(), "no sleep on an invitation");
            net[1].progress();
            polls += 1;
        }
        assert!(polls < 200, "{polls}");
        // The invitations come to a sender that is too late.
        check_row(&mut net, n, dst);
    }
}

#[test]
fn of_two_that_share_a_device_only_the_receiver_uses_it() {
    let mut net = net();
    net.one_device();
    let dst = row(&mut net, 4);
    for _ in 0..4 {
        net[1].progress();
    }
    assert_eq!(net.device_copies(), 4, "at once, since no sender is invited");
    check_row(&mut net, 4, dst);
}

#[test]
fn a_sender_that_cannot_put_says_so() {
    for (failures, late) in [(1, false), (1, true), (4, false), (4, true)] {
        let mut net = net();
        let dst = row(&mut net, 4);
        net.fail_copies(failures, late);
        net.settle();
        let got: Vec<_> = net[1].rx().iter().map(|c| (c.err, c.len)).collect();
        assert_eq!(got, [(None, 5000); 4], "{failures} {late}");
        assert!(net[0].tx().iter().all(|c| c.err.is_none()));
        assert_eq!(net[1].look(dst, 20_000), pattern(5000, 1).repeat(4));
        net.assert_idle();
    }
}

#[test]
fn what_a_device_cannot_copy_comes_in_frames() {
    for late in [false, true] {
        for (from, to) in [(true, false), (false, true), (true, true)] {
            for failures in 1..3 {
                let case = (late, from, to, failures);
                let mut net = net();
                let len = 3000;
                let (src, dst) = (place(&mut net, from, 0, len), place(&mut net, to, 1, len));
                hmem::write(&[src], 0, &pattern(len, 4));
                net.fail_copies(failures, late);
                net[1].recv(&from_any(&[dst], 2)).unwrap();
                net[0].send(&msg(1, &[src], 1)).unwrap();
                net.settle();
                assert_eq!((net[0].sent().err, net[1].received().err), (None, None), "{case:?}");
                assert_eq!(net[1].look(dst, len), pattern(len, 4), "{case:?}");
                // Where the receiver's device could not, the sender's may.
                let second = failures == 1 && !late && from && to;
                assert_eq!(net.device_copies(), usize::from(second), "{case:?}");
                let (local, target) = (place(&mut net, from, 0, len), place(&mut net, to, 1, len));
                hmem::write(&[target], 0, &pattern(len, 5));
                net[1].share(target, 9);
                net.fail_copies(failures, late);
                net[0].rma(&read(1, &[local], &[there(0, len, 9)], 3)).unwrap();
                net.settle();
                assert_eq!(net[0].sent().err, None, "{case:?}");
                assert_eq!(net[0].look(local, len), pattern(len, 5), "{case:?}");
                net.assert_idle();
            }
        }
    }
}

#[test]
fn other_messages_overtake_a_copy() {
    let mut net = net();
    let (src, dst, small) = (net.device(5000), net.device(5000), net.bytes(0, b"small"));
    let room = net.memory(1, 8);
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[1].recv(&from_any(&[room], 2)).unwrap();
    net[0].send(&msg(1, &[src], 1)).unwrap();
    net[0].send(&msg(1, &[small], 2)).unwrap();
    net.settle();
    let order: Vec<usize> = net[1].rx().iter().map(|c| c.ctx.0).collect();
    assert_eq!(order, [2, 1]);
}

#[test]
fn rma_in_order_waits_for_copies() {
    let config = Config { virt_addr: false, rma_order: true };
    let mut net = Net::with(2, Setup { peer_access: true, config, ..Setup::default() });
    let (first, second, target) = (net.device(8), net.bytes(0, &[2; 8]), net.device(8));
    hmem::write(&[first], 0, &[1; 8]);
    net[1].share(target, 7);
    net[0].rma(&write(1, &[first], &[there(0, 8, 7)], 1)).unwrap();
    let (second, remote) = ([second], [there(0, 8, 7)]);
    let op = &write(1, &second, &remote, 2);
    assert_eq!(net[0].rma(op), Err(Error::Again));
    net.settle();
    net[0].sent();
    net[0].rma(op).unwrap();
    net.settle();
    assert_eq!(net[1].look(target, 8), [2; 8]);
}

#[test]
fn a_peer_that_dies_takes_its_copies_with_it() {
    for steps in 0..12 {
        let mut net = net();
        let (src, dst) = (net.device(5000), net.device(5000));
        net[1].recv(&from_any(&[dst], 1)).unwrap();
        net[0].send(&msg(1, &[src], 1)).unwrap();
        for i in 0..steps {
            net[1 - i % 2].progress();
        }
        net.kill(0);
        net.settle();
        let got = net[1].received();
        assert!(matches!(got.err, None | Some(Error::Reset)), "{steps} {got:?}");
        net[1].rma(&read(2, &[dst.part(0, 1).unwrap()], &[there(0, 1, 1)], 1)).unwrap();
        net.settle();
        assert_eq!(net[1].sent().err, Some(Error::BadKey), "others go on");
    }
}

/// Injects a message and spoils the buffer at once.
fn inject(node: &mut Node, src: Span, len: usize) {
    hmem::write(&[src], 0, &pattern(len, 1));
    node.send(&Send { flags: OpFlags::INJECT, ..msg(1, &[src.part(0, len).unwrap()], 1) }).unwrap();
    hmem::write(&[src], 0, &pattern(len, 2));
}

/// That it came, in that many copies by a device from buffer to buffer.
fn check_injected(net: &mut Net, dst: Span, len: usize, copies: usize) {
    let case = (len, copies);
    net.settle();
    let (got, room) = (net[1].received(), dst.len());
    assert_eq!((got.err, got.len), ((len > room).then_some(Error::Truncated), len.min(room)), "{case:?}");
    assert_eq!(net[1].look(dst, len.min(room)), pattern(len, 1)[..len.min(room)], "{case:?}");
    assert_eq!(net.device_copies(), copies, "{case:?}");
    net.assert_idle();
}

#[test]
fn a_device_message_injected_for_a_receiver_that_answers_is_put_in_place() {
    for (to, len, room) in
        [(true, 1, 1), (true, 256, 300), (true, 100, 10), (true, 100, 0), (false, 100, 100)]
    {
        let mut net = net();
        let (src, dst) = (net.device(256), place(&mut net, to, 1, room.max(1)).part(0, room).unwrap());
        net[1].recv(&from_any(&[dst], 1)).unwrap();
        net.while_answered(0, 1, |node| inject(node, src, len));
        check_injected(&mut net, dst, len, usize::from(to && room > 0));
    }
}

/// Two processes have it in turns, for which the call would wait longer than for the host.
#[test]
fn on_one_device_injected_messages_go_by_the_host_once_that_is_known() {
    for one in [true, false] {
        let mut net = net();
        if one {
            net.one_device();
        }
        let (src, dst) = (net.device(256), net.device(200));
        for n in 1..5 {
            net[1].recv(&from_any(&[dst], 1)).unwrap();
            net.while_answered(0, 1, |node| inject(node, src, 200));
            check_injected(&mut net, dst, 200, if one { 1 } else { n });
        }
    }
}

#[test]
fn a_device_message_injected_for_a_receiver_that_does_not_poll_follows_its_offer() {
    for to in [true, false] {
        for (len, room) in [(1, 1), (256, 300), (100, 10), (100, 0)] {
            for posted in [true, false] {
                let mut net = net();
                let (src, dst) =
                    (net.device(256), place(&mut net, to, 1, room.max(1)).part(0, room).unwrap());
                if posted {
                    net[1].recv(&from_any(&[dst], 1)).unwrap();
                }
                inject(&mut net[0], src, len);
                net[1].progress();
                if !posted {
                    net[1].recv(&from_any(&[dst], 1)).unwrap();
                }
                // Without the sender; the copy to a device is found over by a later call.
                for _ in 0..3 {
                    net[1].progress();
                }
                assert_eq!(net[1].look(dst, len.min(room)), pattern(len, 1)[..len.min(room)]);
                check_injected(&mut net, dst, len, 0);
            }
        }
    }
}

#[test]
fn an_injected_message_that_was_set_aside_gets_its_bytes() {
    for follows_first in [false, true] {
        for discard in [false, true] {
            let mut net = net();
            let (src, dst) = (net.device(100), net.device(100));
            hmem::write(&[src], 0, &pattern(100, 1));
            if !follows_first {
                net.hold(0, 1);
                net.let_pass(0, 1, 1);
            }
            net[0].send(&Send { flags: OpFlags::INJECT, ..tagged(1, &[src], 7, 1) }).unwrap();
            net.settle();
            let rx = net[1].rx;
            let all = Pattern { src: ADDR_UNSPEC, tag: Some((7, 0)) };
            net[1].peek(rx, all, Peek::Claim, Ctx(5), OpFlags::COMPLETION).unwrap();
            assert_eq!(net[1].received().len, 100);
            if discard {
                net[1].claim_discard(rx, Ctx(5), true, OpFlags::COMPLETION).unwrap();
            } else {
                net[1].claim(rx, &with_tag(&[dst], 7, 5)).unwrap();
            }
            net.let_pass(0, 1, usize::MAX);
            net.settle();
            assert_eq!((net[1].received().err, discard, follows_first), (None, discard, follows_first));
            assert!(discard || net[1].look(dst, 100) == pattern(100, 1));
            net.assert_idle();
        }
    }
}

#[test]
fn a_failed_copy_of_an_injected_message_is_made_up_for() {
    for late in [false, true] {
        let mut net = net();
        let (src, dst) = (net.device(256), net.device(256));
        net[1].recv(&from_any(&[dst], 1)).unwrap();
        net.fail_copies(1, late);
        net.while_answered(0, 1, |node| inject(node, src, 200));
        check_injected(&mut net, dst, 200, 0);
    }
}

#[test]
fn a_receiver_that_did_not_answer_in_time_is_not_waited_for_the_next_time() {
    let mut net = net();
    let (src, dst) = (net.device(256), net.device(256));
    // The offer and what follows, all at once, the offer again.
    for frames in [2, 1, 2, 1, 1, 1, 2] {
        inject(&mut net[0], src, 9);
        assert_eq!(net.in_flight(0, 1), frames);
        net[1].recv(&from_any(&[dst], 1)).unwrap();
        check_injected(&mut net, dst, 9, 0);
    }
}

#[test]
fn injected_bytes_that_cannot_be_read_fail_both_sides() {
    for posted in [true, false] {
        for answered in [true, false] {
            let mut net = net();
            let dst = net.device(8);
            // SAFETY: of the memory of a device that there is not, nothing is touched.
            let src = unsafe { Span::new(4096, 8, hmem::Kind::Ze) };
            if posted {
                net[1].recv(&from_any(&[dst], 1)).unwrap();
            }
            let src = [src];
            let op = Send { flags: OpFlags::INJECT, ..msg(1, &src, 1) };
            if answered {
                net.while_answered(0, 1, |node| node.send(&op).unwrap());
            } else {
                net[0].send(&op).unwrap();
            }
            net.settle();
            if !posted {
                net[1].recv(&from_any(&[dst], 1)).unwrap();
                net.settle();
            }
            let errs = (net[0].sent().err, net[1].received().err);
            assert_eq!(errs, (Some(Error::Io), Some(Error::Io)), "{posted} {answered}");
            net.assert_idle();
        }
    }
}

#[test]
fn a_receiver_that_dies_ends_the_injected_message_that_waits_for_it() {
    for items in 0..4 {
        let mut net = net();
        let (src, dst) = (net.device(256), net.device(256));
        net[1].recv(&from_any(&[dst], 1)).unwrap();
        net.hold(1, 0);
        net.let_pass(1, 0, items);
        net.while_answered(0, 1, |node| inject(node, src, 200));
        net.kill(1);
        net.let_pass(1, 0, usize::MAX);
        net.settle();
        assert_eq!(net[0].ep_under_way(net[0].ep), 0, "{items}");
    }
}

#[test]
fn bytes_that_follow_no_offer_are_dropped() {
    // A peer's inventions: for a message of another length, for one that comes otherwise, for none.
    let body = |name: u64, len: usize| {
        let mut frame = vec![18, 0, 0, 0];
        frame.extend_from_slice(&name.to_le_bytes());
        frame.extend_from_slice(&[0; 8]);
        frame.extend(vec![9; len]);
        frame
    };
    let rts = |name: u64, len: u64| {
        let mut frame = vec![2, 0, 1, 0];
        frame.extend_from_slice(&[0; 16]);
        for v in [name, len, 0, len] {
            frame.extend_from_slice(&v.to_le_bytes());
        }
        frame
    };
    let mut net = net();
    let dst = net.device(100);
    net[0].send(&msg(1, &[], 1)).unwrap();
    net.inject(0, 1, body(77, 10));
    net.inject(0, 1, rts(77, 100));
    net.inject(0, 1, body(77, 99));
    net.inject(0, 1, body(77, 100));
    net.inject(0, 1, body(77, 100));
    net[1].recv(&from_any(&[], 1)).unwrap();
    net.settle();
    net[0].sent();
    net[1].received();
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net.settle();
    assert_eq!((net[1].received().err, net[1].look(dst, 100)), (None, vec![9; 100]));
    net.assert_idle();
}
