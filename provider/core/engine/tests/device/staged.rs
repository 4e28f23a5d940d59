//! Device memory that no peer's device reaches, while the device takes its time.

use engine::{Access, Completion, Ctx, Error, OpFlags, Reg, Send};
use hmem::Span;
use testkit::*;

const LEN: usize = 700_000;

/// Which side's memory is a device's, whose copies take until they are let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Sender,
    Receiver,
}

fn nets() -> impl Iterator<Item = (String, Net, Slow)> {
    let all = [Slow::Sender, Slow::Receiver].into_iter().flat_map(|slow| {
        [(512, 4), (512, 64), (100_000, 8), (600_000, 2)]
            .map(|(max_frame, capacity)| (slow, max_frame, capacity))
    });
    all.map(|(slow, max_frame, capacity)| {
        let net = Net::with(3, Setup { max_frame, capacity, ..Setup::default() });
        (format!("slow {slow:?}, {capacity} frames of {max_frame}"), net, slow)
    })
}

/// Memory of both sides of a transfer, the first filled; the slow one, which is held.
fn memory(net: &mut Net, slow: Slow, len: usize) -> (Span, Span, Span) {
    let (src, dst) = match slow {
        Slow::Sender => (net.device(len), net.memory(1, len)),
        Slow::Receiver => (net.bytes(0, &[0; 1]), net.device(len)),
    };
    let src = if slow == Slow::Receiver { net.memory(0, len) } else { src };
    hmem::write(&[src], 0, &pattern(len, 1));
    let held = if slow == Slow::Sender { src } else { dst };
    net.hold_device(held, true);
    (src, dst, held)
}

/// Makes progress everywhere, more often than a transfer that is not held would take.
fn go_on(net: &mut Net) {
    (0..5000).for_each(|_| go_on_once(net));
}

fn go_on_once(net: &mut Net) {
    for at in 0..3 {
        net[at].progress();
    }
}

fn ok(all: &[Completion]) -> Vec<usize> {
    assert!(all.iter().all(|c| c.err.is_none()), "{all:?}");
    all.iter().map(|c| c.ctx.0).collect()
}

#[test]
fn all_else_goes_on_while_a_device_copies() {
    for (case, mut net, slow) in nets() {
        let (src, dst, held) = memory(&mut net, slow, LEN);
        net[1].recv(&from(0, &[dst], 1)).unwrap();
        net[0].send(&msg(1, &[src], 1)).unwrap();
        go_on(&mut net);
        assert!(net.staged_in_flight(held) > 0, "{case}");
        // Messages between the same two, of each length, and an access of the third's. A receiver whose
        // buffers are all at the device takes no frames in until one is back, see below.
        for (n, len) in [8, 3000, 100_000].into_iter().enumerate().filter(|_| slow == Slow::Sender) {
            let (other, room) = (net.bytes(0, &pattern(len, n)), net.memory(1, len));
            net[1].recv(&from(0, &[room], 10 + n)).unwrap();
            net[0].send(&msg(1, &[other], 10 + n)).unwrap();
            let (theirs, mine) = (net.memory(1, len), net.bytes(2, &pattern(len, n + 5)));
            net[1].share(theirs, 20 + n as u64);
            net[2].rma(&write(1, &[mine], &[there(0, len, 20 + n as u64)], 30)).unwrap();
            go_on(&mut net);
            assert_eq!(ok(&net[1].rx()), [10 + n], "{case}: {len} bytes");
            assert_eq!(net[1].look(room, len), pattern(len, n), "{case}");
            assert_eq!((ok(&net[0].tx()), ok(&net[2].tx())), (vec![10 + n], vec![30]), "{case}");
            assert_eq!(net[1].look(theirs, len), pattern(len, n + 5), "{case}");
        }
        assert!(net[0].tx().is_empty() && net[1].rx().is_empty(), "{case}: before the device is done");
        // No sleep while a device is at work that notifies nothing.
        let at = if slow == Slow::Sender { 0 } else { 1 };
        assert!(!net[at].arm(), "{case}");
        net.hold_device(held, false);
        net.settle();
        let (tx, rx) = (ok(&net[0].tx()), ok(&net[1].rx()));
        assert!(tx.contains(&1) && rx.contains(&1), "{case}: {tx:?} {rx:?}");
        assert!(net[1].look(dst, LEN) == pattern(LEN, 1), "{case}");
        assert_eq!(net.staged_in_flight(held), 0, "{case}");
    }
}

/// A write with a notification behind its data, in one operation: the data in a device's memory, the
/// notification in the host's.
#[test]
fn what_a_write_has_for_the_host_is_seen_after_what_it_has_for_a_device() {
    for (max_frame, capacity) in [(512, 4), (512, 64), (100_000, 8), (600_000, 2)] {
        for len in [LEN, 3000, 100] {
            let case = format!("{len} bytes, {capacity} frames of {max_frame}");
            let mut net = Net::with(3, Setup { max_frame, capacity, ..Setup::default() });
            let (src, note) = (net.bytes(0, &pattern(len, 1)), net.bytes(0, &[7; 4]));
            let (dst, flag) = (net.device(len), net.memory(1, 4));
            net[1].share(dst, 1);
            net[1].share(flag, 2);
            net.hold_device(dst, true);
            net[0].rma(&write(1, &[src, note], &[there(0, len, 1), there(0, 4, 2)], 3)).unwrap();
            for _ in 0..50 {
                go_on_once(&mut net);
                if net[1].look(flag, 4) != [0; 4] {
                    // Not held: it went inside its frame, and was copied in the call.
                    assert_eq!(net.staged_in_flight(dst), 0, "{case}");
                    assert!(net[1].look(dst, len) == pattern(len, 1), "{case}");
                }
            }
            net.hold_device(dst, false);
            for _ in 0..100_000 {
                go_on_once(&mut net);
                if net[1].look(flag, 4) != [0; 4] {
                    break;
                }
            }
            assert_eq!(net[1].look(flag, 4), [7; 4], "{case}");
            assert!(net[1].look(dst, len) == pattern(len, 1), "{case}");
            net.settle();
            assert_eq!(ok(&net[0].tx()), [3], "{case}");
            net.assert_idle();
        }
    }
}

#[test]
fn a_receiver_goes_on_while_few_frames_are_at_the_device() {
    let mut net = Net::with(3, Setup { max_frame: 100_000, ..Setup::default() });
    let (src, dst, held) = memory(&mut net, Slow::Receiver, 200_000);
    net[1].recv(&from(0, &[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 1)).unwrap();
    go_on(&mut net);
    assert_eq!(net.staged_in_flight(held), 3);
    let (other, room) = (net.bytes(2, b"another"), net.memory(1, 7));
    net[1].recv(&from(2, &[room], 2)).unwrap();
    net[2].send(&msg(1, &[other], 2)).unwrap();
    go_on(&mut net);
    assert_eq!((ok(&net[1].rx()), ok(&net[2].tx())), (vec![2], vec![2]));
    // The sender hears that its message is received when it is.
    assert!(net[0].tx().is_empty());
    net.hold_device(held, false);
    net.settle();
    assert_eq!((ok(&net[1].rx()), ok(&net[0].tx())), (vec![1], vec![1]));
    assert!(net[1].look(dst, 200_000) == pattern(200_000, 1));
}

#[test]
fn two_copies_of_a_stream_are_at_work_at_a_time() {
    let mut net = Net::with(2, Setup { max_frame: 100_000, ..Setup::default() });
    let (src, dst, held) = memory(&mut net, Slow::Sender, 3 << 20);
    net[1].recv(&from(0, &[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 1)).unwrap();
    for _ in 0..10 {
        net[0].progress();
        net[1].progress();
    }
    assert_eq!(net.staged_in_flight(held), 2, "before the first is over");
    net.hold_device(held, false);
    let mut most = 0;
    while net[1].rx().is_empty() {
        net[0].progress();
        net[1].progress();
        most = most.max(net.staged_in_flight(held));
    }
    assert!((1..=2).contains(&most), "{most}");
    assert!(net[1].look(dst, 3 << 20) == pattern(3 << 20, 1));
}

#[test]
fn many_streams_share_a_bounded_number_of_buffers_and_none_starves() {
    const MANY: usize = 40;
    for slow in [Slow::Sender, Slow::Receiver] {
        let mut net = Net::with(2, Setup { max_frame: 100_000, ..Setup::default() });
        let all: Vec<_> = (0..MANY).map(|_| memory(&mut net, slow, 300_000)).collect();
        for (n, (src, dst, _)) in all.iter().enumerate() {
            net[1].recv(&from(0, &[*dst], n)).unwrap();
            net[0].send(&msg(1, &[*src], n)).unwrap();
        }
        for _ in 0..2000 {
            net[0].progress();
            net[1].progress();
        }
        let in_flight: usize = all.iter().map(|(.., held)| net.staged_in_flight(*held)).sum();
        assert!((4..=16).contains(&in_flight), "{slow:?}: {in_flight}");
        for (.., held) in &all {
            net.hold_device(*held, false);
        }
        net.settle();
        let mut done = ok(&net[1].rx());
        done.sort_unstable();
        assert_eq!(done, (0..MANY).collect::<Vec<_>>(), "{slow:?}");
        assert_eq!(ok(&net[0].tx()).len(), MANY, "{slow:?}");
        for (_, dst, _) in &all {
            assert!(net[1].look(*dst, 300_000) == pattern(300_000, 1), "{slow:?}");
        }
        net.assert_idle();
    }
}

#[test]
fn a_stream_to_a_peer_that_does_not_poll_keeps_no_other_from_its_buffers() {
    let mut net = Net::with(3, Setup { max_frame: 100_000, capacity: 2, ..Setup::default() });
    let stuck: Vec<_> = (0..20).map(|_| (net.device(300_000), net.memory(1, 300_000))).collect();
    for (n, (src, dst)) in stuck.iter().enumerate() {
        net[1].recv(&from(0, &[*dst], n)).unwrap();
        while net[0].send(&msg(1, &[*src], n)).is_err() {
            net[1].progress();
            net[0].progress();
        }
    }
    // The first asks for what it is to receive, and does not go on.
    for _ in 0..50 {
        net[1].progress();
    }
    for _ in 0..200 {
        net[0].progress();
    }
    let (src, dst) = (net.device(300_000), net.memory(2, 300_000));
    hmem::write(&[src], 0, &pattern(300_000, 4));
    net[2].recv(&from(0, &[dst], 1)).unwrap();
    net[0].send(&msg(2, &[src], 100)).unwrap();
    for _ in 0..2000 {
        net[0].progress();
        net[2].progress();
    }
    assert_eq!(ok(&net[2].rx()), [1]);
    assert!(net[2].look(dst, 300_000) == pattern(300_000, 4));
}

#[test]
fn a_cancelled_send_and_a_closed_endpoint_leave_nothing_to_the_device() {
    for cancel in [true, false] {
        for (case, mut net, slow) in nets() {
            let (src, dst, held) = memory(&mut net, slow, LEN);
            net[1].recv(&from(0, &[dst], 1)).unwrap();
            net[0].send(&msg(1, &[src], 7)).unwrap();
            go_on(&mut net);
            assert!(net.staged_in_flight(held) > 0, "{case}");
            let side = if slow == Slow::Sender { 0 } else { 1 };
            let ep = net[side].ep;
            if cancel && slow == Slow::Sender {
                net[0].ep_cancel(ep, Ctx(7)).unwrap();
                assert_eq!(net[0].sent().err, Some(Error::Cancelled), "{case}");
            } else {
                net[side].ep_close(ep).unwrap();
            }
            assert_eq!(net.staged_in_flight(held), 0, "{case}, cancelled {cancel}");
        }
    }
}

#[test]
fn a_peer_that_dies_ends_what_is_staged_for_it() {
    for (case, mut net, slow) in nets() {
        let (src, dst, held) = memory(&mut net, slow, LEN);
        net[1].recv(&from(0, &[dst], 1)).unwrap();
        net[0].send(&msg(1, &[src], 7)).unwrap();
        go_on(&mut net);
        let (dies, stays) = if slow == Slow::Sender { (1, 0) } else { (0, 1) };
        net.kill(dies);
        // Its end is behind what it has sent, for which there may be no buffers as long as the device is at
        // work.
        if slow == Slow::Receiver {
            net.hold_device(held, false);
        }
        go_on(&mut net);
        let done = if slow == Slow::Sender { net[stays].sent() } else { net[stays].received() };
        // What had come by then is not lost.
        let is_here =
            slow == Slow::Receiver && done.err.is_none() && net[1].look(dst, LEN) == pattern(LEN, 1);
        assert!(is_here || done.err == Some(Error::Reset), "{case}: {done:?}");
        assert_eq!(net.staged_in_flight(held), 0, "{case}");
    }
}

/// A region of a device's memory, whose remote accesses are staged.
fn region(net: &mut Net, len: usize) -> (Span, engine::MrId) {
    let target = net.device(len);
    hmem::write(&[target], 0, &pattern(len, 3));
    net.hold_device(target, true);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let reg = Reg { iov: &[target], access, key: Some(7) };
    let (mr, _) = net[1].mr_reg(&reg).unwrap();
    (target, mr)
}

#[test]
fn a_region_that_is_closed_ends_what_is_staged_for_it() {
    for writes in [true, false] {
        for len in [2000, 50_000, LEN] {
            let mut net = Net::with(3, Setup { max_frame: 100_000, ..Setup::default() });
            let (target, mr) = region(&mut net, len);
            let local = net.memory(0, len);
            let op = if writes { write } else { read };
            net[0].rma(&op(1, &[local], &[there(0, len, 7)], 1)).unwrap();
            go_on(&mut net);
            assert!(
                net.staged_in_flight(target) > 0 && net[0].tx().is_empty(),
                "writes {writes}, {len} bytes"
            );
            net[1].mr_close(mr).unwrap();
            assert_eq!(net.staged_in_flight(target), 0, "writes {writes}, {len} bytes");
            go_on(&mut net);
            assert!(net[0].sent().err.is_some(), "writes {writes}, {len} bytes");
            net.assert_idle();
        }
    }
}

#[test]
fn a_read_completes_when_the_device_has_its_bytes() {
    let mut net = Net::with(3, Setup { max_frame: 100_000, ..Setup::default() });
    let target = net.bytes(1, &pattern(200_000, 3));
    net[1].share(target, 7);
    let local = net.device(200_000);
    net.hold_device(local, true);
    net[0].rma(&read(1, &[local], &[there(0, 200_000, 7)], 1)).unwrap();
    go_on(&mut net);
    assert!(net.staged_in_flight(local) > 0 && net[0].tx().is_empty());
    net.hold_device(local, false);
    net.settle();
    assert_eq!(ok(&net[0].tx()), [1]);
    assert!(net[0].look(local, 200_000) == pattern(200_000, 3));
    net.assert_idle();
}

/// A message injected from a device, whose bytes follow its offer, for a receive into a device.
#[test]
fn injected_bytes_that_follow_their_offer_are_staged_too() {
    let mut net = Net::with(3, Setup { peer_access: false, ..Setup::default() });
    let (src, dst) = (net.device(200), net.device(200));
    hmem::write(&[src], 0, &pattern(200, 8));
    net[0].send(&Send { flags: OpFlags::INJECT | OpFlags::COMPLETION, ..msg(1, &[src], 5) }).unwrap();
    hmem::write(&[src], 0, &[0; 200]);
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    net.settle();
    assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![5], vec![2]));
    assert_eq!(net[1].look(dst, 200), pattern(200, 8));
    net.assert_idle();
}

#[test]
fn messages_that_come_in_their_frame_are_staged_too() {
    for posted in [true, false] {
        for (len, room) in [(200, 200), (200, 300), (200, 50), (200, 0)] {
            for delivery in [true, false] {
                let case = (posted, len, room, delivery);
                let mut net = Net::with(3, Setup::default());
                let (src, whole) = (net.bytes(0, &pattern(len, 6)), net.device(300));
                let dst = whole.part(50, room.min(250)).unwrap();
                net.hold_device(whole, true);
                if posted {
                    net[1].recv(&from_any(&[dst], 2)).unwrap();
                }
                let wanted = if delivery { OpFlags::DELIVERY } else { OpFlags::empty() };
                let flags = OpFlags::COMPLETION | wanted;
                net[0].send(&Send { flags, ..msg(1, &[src], 5) }).unwrap();
                go_on(&mut net);
                if !posted {
                    net[1].recv(&from_any(&[dst], 2)).unwrap();
                    go_on(&mut net);
                }
                let landing = room > 0;
                assert_eq!(
                    (net.staged_in_flight(whole), net[1].rx().len()),
                    (usize::from(landing), usize::from(!landing)),
                    "{case:?}"
                );
                assert_eq!(net[0].tx().len(), usize::from(!delivery || !landing), "{case:?}");
                if !landing {
                    continue;
                }
                net.hold_device(whole, false);
                net.settle();
                let got = net[1].received();
                let short = len > dst.len();
                assert_eq!(
                    (got.ctx, got.len, got.err),
                    (Ctx(2), len.min(dst.len()), short.then_some(Error::Truncated)),
                    "{case:?}"
                );
                assert_eq!(net[0].tx().len(), usize::from(delivery), "{case:?}");
                let all = net[1].look(whole, 300);
                let end = 50 + len.min(dst.len());
                assert_eq!(all[50..end], pattern(len, 6)[..end - 50], "{case:?}");
                assert!(
                    all[..50].iter().chain(&all[end..]).all(|b| *b == 0),
                    "{case:?}: outside of the buffer"
                );
                net.assert_idle();
            }
        }
    }
}

#[test]
fn a_message_that_is_here_outlives_its_sender() {
    let mut net = Net::with(3, Setup::default());
    let (src, dst) = (net.bytes(0, &pattern(200, 6)), net.device(200));
    net.hold_device(dst, true);
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    net[0].send(&msg(1, &[src], 5)).unwrap();
    go_on(&mut net);
    net.kill(0);
    for _ in 0..100 {
        net[1].progress();
    }
    assert!(net[1].rx().is_empty());
    net.hold_device(dst, false);
    net.settle();
    assert_eq!(ok(&net[1].rx()), [2]);
    assert_eq!(net[1].look(dst, 200), pattern(200, 6));
    let ep = net[1].ep;
    assert_eq!(net[1].ep_under_way(ep), 0);
}

#[test]
fn others_use_the_domain_while_an_injected_message_leaves_its_buffer() {
    for len in [1, 200] {
        let mut net = Net::with(3, Setup::default());
        let (src, dst) = (net.device(len), net.device(len));
        hmem::write(&[src], 0, &pattern(len, 8));
        net.hold_device(src, true);
        let flags = OpFlags::INJECT | OpFlags::COMPLETION;
        let ep = net[0].ep;
        let mut leaving =
            net[0].start_send(ep, &Send { flags, ..msg(1, &[src], 5) }).unwrap().expect("a device's");
        for _ in 0..2000 {
            assert!(!net[0].has_left(&mut leaving), "before the device has copied it");
        }
        assert_eq!(net.staged_in_flight(src), 1);
        // The receiver asks for it, and gets it as it follows.
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        net.settle();
        let (other, room) = (net.bytes(0, b"another"), net.memory(2, 7));
        net[2].recv(&from_any(&[room], 3)).unwrap();
        net[0].send(&msg(2, &[other], 6)).unwrap();
        net.settle();
        assert_eq!((ok(&net[0].tx()), ok(&net[2].rx())), (vec![6], vec![3]));
        assert!(net[1].rx().is_empty());
        net.hold_device(src, false);
        while !net[0].has_left(&mut leaving) {}
        hmem::write(&[src], 0, &vec![0xee; len]);
        net.settle();
        assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![5], vec![2]));
        assert_eq!(net[1].look(dst, len), pattern(len, 8));
        net.assert_idle();
    }
}

#[test]
fn an_injected_message_ends_with_its_peer_while_it_leaves() {
    let mut net = Net::with(3, Setup::default());
    let src = net.device(200);
    net.hold_device(src, true);
    let flags = OpFlags::INJECT | OpFlags::COMPLETION;
    let ep = net[0].ep;
    let mut leaving =
        net[0].start_send(ep, &Send { flags, ..msg(1, &[src], 5) }).unwrap().expect("a device's");
    for _ in 0..2000 {
        assert!(!net[0].has_left(&mut leaving));
    }
    net.kill(1);
    net.settle();
    assert_eq!(net.staged_in_flight(src), 0);
    assert!(net[0].has_left(&mut leaving));
    assert_eq!(net[0].sent().err, Some(Error::Reset));
}
