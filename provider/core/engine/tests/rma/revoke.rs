//! Memory that is given back although operations on it are under way.

use engine::{ADDR_UNSPEC, Access, Ctx, Error, OpFlags, Pattern, Peek, Recv, Reg, Send};
use testkit::*;

const LENS: [usize; 3] = [3000, 40_000, 700_000];

/// Kinds of nets: each way of direct access, and whether something was fetched directly before, so that
/// both sides copy what is large.
fn nets() -> impl Iterator<Item = (String, Net)> {
    let cold = Direct::ALL.map(|direct| (direct, false));
    cold.into_iter().chain([(Direct::InCall, true)]).flat_map(|(direct, warm)| {
        [1, 64].into_iter().map(move |capacity| {
            let capacity = capacity.max(direct.least_capacity());
            let mut net = Net::with(2, Setup { direct, capacity, ..Setup::default() });
            net.set_boards(true);
            if warm {
                let (src, dst) = (net.bytes(0, &pattern(2000, 1)), net.memory(1, 2000));
                net[1].recv(&from_any(&[dst], 1)).unwrap();
                net[0].send(&msg(1, &[src], 0)).unwrap();
                net.settle();
                assert_eq!((net[0].sent().err, net[1].received().err), (None, None));
            }
            (format!("direct {direct:?}, warm {warm}, {capacity} frames"), net)
        })
    })
}

#[test]
fn a_cancelled_send_is_not_received_with_later_contents() {
    for len in LENS {
        // Before the receiver has seen it; when it waits there; when it is being received.
        for stage in 0..3 {
            for (case, mut net) in nets() {
                let case = format!("{len} bytes, stage {stage}, {case}");
                let (src, dst) = (net.bytes(0, &pattern(len, 2)), net.memory(1, len));
                net[0].send(&msg(1, &[src], 7)).unwrap();
                if stage > 0 {
                    net[1].progress();
                }
                if stage > 1 {
                    // What the receiver asks for or answers is on its way.
                    net.hold(1, 0);
                    net[1].recv(&from_any(&[dst], 1)).unwrap();
                }
                let ep = net[0].ep;
                net[0].ep_cancel(ep, Ctx(7)).unwrap();
                assert_eq!(net[0].ep_cancel(ep, Ctx(7)), Err(Error::NotFound), "{case}");
                let sent = net[0].sent();
                assert_eq!((sent.ctx, sent.err), (Ctx(7), Some(Error::Cancelled)), "{case}");
                // The buffer is the application's again.
                hmem::write(&[src], 0, &vec![0xee; len]);
                net.let_pass(1, 0, usize::MAX);
                if stage < 2 {
                    net[1].recv(&from_any(&[dst], 1)).unwrap();
                }
                net.settle();
                for got in net[1].rx() {
                    let right = net[1].look(dst, len) == pattern(len, 2);
                    assert!(got.err.is_some() || right, "{case}: received as {got:?}");
                }
                // The name is free again, and everything goes on.
                let (src, dst) = (net.bytes(0, &pattern(len, 3)), net.memory(1, len));
                net[1].recv(&from_any(&[dst], 2)).unwrap();
                net[0].send(&msg(1, &[src], 8)).unwrap();
                net.settle();
                net[0].send(&msg(1, &[src], 9)).unwrap();
                let dst2 = net.memory(1, len);
                net[1].recv(&from_any(&[dst2], 3)).unwrap();
                net.settle();
                assert_eq!(net[0].tx().iter().filter(|c| c.err.is_none()).count(), 2, "{case}");
                assert!(net[1].rx().iter().all(|c| c.err.is_none()), "{case}");
                assert!(net[1].look(dst2, len) == pattern(len, 3) || stage < 2, "{case}");
            }
        }
    }
}

#[test]
fn a_cancelled_send_that_waits_is_matched_no_more() {
    let mut net = Net::new(2);
    let (first, second) = (net.bytes(0, &pattern(3000, 1)), net.bytes(0, &pattern(3000, 2)));
    net[0].send(&tagged(1, &[first], 5, 1)).unwrap();
    net[0].send(&tagged(1, &[second], 5, 2)).unwrap();
    net[1].progress();
    let ep = net[0].ep;
    net[0].ep_cancel(ep, Ctx(1)).unwrap();
    net.settle();
    let dst = net.memory(1, 3000);
    net[1].recv(&with_tag(&[dst], 5, 3)).unwrap();
    net.settle();
    assert_eq!(net[1].received().err, None);
    assert!(net[1].look(dst, 3000) == pattern(3000, 2));
    let ctxs: Vec<_> = net[0].tx().iter().map(|c| (c.ctx, c.err)).collect();
    assert_eq!(ctxs, [(Ctx(1), Some(Error::Cancelled)), (Ctx(2), None)]);
    net.assert_idle();
}

#[test]
fn what_is_no_send_with_its_bytes_here_is_not_cancelled() {
    let mut net = Net::new(2);
    let ep = net[0].ep;
    assert_eq!(net[0].ep_cancel(ep, Ctx(1)), Err(Error::NotFound));
    let src = net.bytes(0, &pattern(100, 1));
    net[0].send(&msg(1, &[src], 1)).unwrap();
    assert_eq!(net[0].ep_cancel(ep, Ctx(1)), Err(Error::NotFound));
    // A receive is.
    let dst = net.memory(0, 9);
    net[0].recv(&Recv { ctx: Ctx(4), ..from_any(&[dst], 4) }).unwrap();
    net[0].ep_cancel(ep, Ctx(4)).unwrap();
    assert_eq!(net[0].received().err, Some(Error::Cancelled));
}

/// A send of 3000 bytes from node 0, which was cancelled while its receiver was inside an access.
fn cancelled_inside() -> Net {
    let mut net = Net::new(2);
    let src = net.bytes(0, &pattern(3000, 1));
    net[0].send(&msg(1, &[src], 1)).unwrap();
    net[1].progress();
    net.keep_inside(1);
    let ep = net[0].ep;
    net[0].ep_cancel(ep, Ctx(1)).unwrap();
    net
}

#[test]
fn a_receiver_that_is_stopped_inside_answers_later() {
    let mut net = cancelled_inside();
    assert_eq!(net[0].tx(), []);
    let dst = net.memory(1, 3000);
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    net.settle();
    assert_eq!(net[1].received().err, Some(Error::Cancelled));
    assert_eq!(net[0].sent().err, Some(Error::Cancelled));
    net.assert_idle();
}

#[test]
fn nothing_of_a_closed_endpoint_is_accessed() {
    for len in LENS {
        for (case, mut net) in nets() {
            let case = format!("{len} bytes, {case}");
            let (here, there_) = (net.memory(0, len), net.bytes(1, &pattern(len, 1)));
            net[1].share(there_, 5);
            let src = net.bytes(0, &pattern(len, 2));
            let remote = [there(0, len, 5)];
            // Reads and writes that the target has to serve, and a message.
            net[0]
                .rma(&engine::Rma { flags: engine::OpFlags::FENCE, ..read(1, &[here], &remote, 1) })
                .unwrap();
            // With room for one frame the message stays here.
            let _ = net[0].send(&msg(1, &[src], 3));
            let ep = net[0].ep;
            net.keep_inside(1);
            assert_eq!(net[0].ep_close(ep), Err(Error::Busy), "{case}");
            net[0].ep_close(ep).unwrap();
            assert_eq!(net[0].ep_close(ep), Err(Error::NotFound));
            hmem::write(&[here, src], 0, &vec![0xcc; 2 * len]);
            let dst = net.memory(1, len);
            net[1].recv(&from_any(&[dst], 4)).unwrap();
            for _ in 0..100 {
                net[1].progress();
            }
            assert!(net[0].look(here, len).iter().all(|b| *b == 0xcc), "{case}: written after the close");
            assert!(net[1].rx().iter().all(|c| c.err.is_some()), "{case}: received after the close");
        }
    }
}

#[test]
fn nothing_of_a_closed_registration_is_accessed() {
    for len in LENS {
        for is_write in [true, false] {
            // Before the target has seen anything; when it has begun.
            for stage in 0..4 {
                for (case, mut net) in nets() {
                    let case = format!("{len} bytes, write {is_write}, stage {stage}, {case}");
                    let (here, target) = (net.bytes(0, &pattern(len, 1)), net.bytes(1, &pattern(len, 2)));
                    let mr = net[1].share(target, 5);
                    let other = net[1]
                        .mr_reg(&Reg { iov: &[target], access: Access::REMOTE_READ, key: Some(6) })
                        .unwrap();
                    let remote = [there(0, len, 5)];
                    let iov = [here];
                    let op = if is_write { write(1, &iov, &remote, 1) } else { read(1, &iov, &remote, 1) };
                    net[0].rma(&op).unwrap();
                    for _ in 0..stage {
                        net[1].progress();
                        if stage > 2 {
                            net[0].progress();
                        }
                    }
                    let done_before = net[0].tx().iter().any(|c| c.err.is_none());
                    let mut outcome = net[1].mr_close(mr);
                    if outcome == Err(Error::Busy) {
                        outcome = net[1].mr_close(mr);
                    }
                    outcome.unwrap();
                    hmem::write(&[target], 0, &vec![0xcc; len]);
                    net.settle();
                    let now = net[1].look(target, len);
                    assert!(now.iter().all(|b| *b == 0xcc), "{case}: written after the close");
                    let done = net[0].tx();
                    if !done_before {
                        assert_eq!(done.len(), 1, "{case}");
                        let fine = is_write || net[0].look(here, len) == pattern(len, 2);
                        assert!(done[0].err.is_some() || fine, "{case}: {:?}", done[0]);
                        assert!(
                            done[0].err.is_some() || stage > 0 || !is_write,
                            "{case}: completed as written"
                        );
                    }
                    // What others have under way with the same memory goes on.
                    net[0].rma(&read(1, &[here], &[there(0, len, 6)], 2)).unwrap();
                    net.settle();
                    assert_eq!(net[0].sent().err, None, "{case}");
                    net[1].mr_close(other.0).unwrap();
                    net.assert_idle();
                }
            }
        }
    }
}

/// A peer that is stopped inside has the close fail. The registration has ended all the same: nothing more is
/// reached by its key, which is not free until a later call succeeds.
#[test]
fn a_registration_whose_close_was_refused_is_reached_no_more() {
    for len in [8, 3000, 700_000] {
        for boards in [true, false] {
            for (case, mut net) in nets() {
                let case = format!("{len} bytes, boards {boards}, {case}");
                net.set_boards(boards);
                let (here, target) = (net.bytes(0, &pattern(len, 1)), net.bytes(1, &pattern(len, 2)));
                let mr = net[1].share(target, 5);
                let (iov, remote) = ([here], [there(0, len, 5)]);
                // Of this a part is done.
                net[0].rma(&write(1, &iov, &remote, 1)).unwrap();
                net[1].progress();
                for _ in 0..2 {
                    net.keep_inside(1);
                    assert_eq!(net[1].mr_close(mr), Err(Error::Busy), "{case}");
                }
                hmem::write(&[target], 0, &vec![0xcc; len]);
                for op in [write(1, &iov, &remote, 2), read(1, &iov, &remote, 3)] {
                    net[0].rma(&op).unwrap();
                    net.settle();
                    let done = net[0].tx();
                    let it = done.iter().find(|c| c.ctx == op.ctx).expect(&case);
                    assert_eq!(it.err, Some(Error::BadKey), "{case}");
                }
                assert!(net[1].look(target, len).iter().all(|b| *b == 0xcc), "{case}: written");
                let again = Reg { iov: &[target], access: Access::REMOTE_READ, key: Some(5) };
                assert_eq!(net[1].mr_reg(&again), Err(Error::KeyInUse), "{case}");
                net[1].mr_close(mr).unwrap();
                assert_eq!(net[1].mr_close(mr), Err(Error::NotFound), "{case}");
                net[1].mr_reg(&again).unwrap();
                net[0].rma(&read(1, &iov, &remote, 4)).unwrap();
                net.settle();
                assert_eq!(net[0].sent().err, None, "{case}");
                assert!(net[0].look(here, len).iter().all(|b| *b == 0xcc), "{case}: not what is there now");
                net.assert_idle();
            }
        }
    }
}

/// A peek has set it aside, so that it stays until the receiver asks for it.
#[test]
fn a_claimed_message_that_its_sender_cancelled_fails_and_its_memory_is_left_alone() {
    for len in LENS {
        for discard in [false, true] {
            for (case, mut net) in nets() {
                let case = format!("{len} bytes, discard {discard}, {case}");
                let (src, dst, rx) = (net.bytes(0, &pattern(len, 2)), net.memory(1, len), net[1].rx);
                net[0].send(&tagged(1, &[src], 7, 1)).unwrap();
                net.settle();
                let which = Pattern { src: ADDR_UNSPEC, tag: Some((7, 0)) };
                net[1].peek(rx, which, Peek::Claim, Ctx(9), OpFlags::empty()).unwrap();
                let ep = net[0].ep;
                net[0].ep_cancel(ep, Ctx(1)).unwrap();
                assert_eq!(net[0].sent().err, Some(Error::Cancelled), "{case}");
                hmem::write(&[src], 0, &vec![0xee; len]);
                net.settle();
                if discard {
                    net[1].claim_discard(rx, Ctx(9), true, OpFlags::COMPLETION).unwrap();
                    assert_eq!(net[1].received().len, len, "{case}");
                } else {
                    net[1].claim(rx, &with_tag(&[dst], 7, 9)).unwrap();
                    net.settle();
                    assert_eq!(net[1].received().err, Some(Error::Cancelled), "{case}");
                    assert!(net[1].look(dst, len).iter().all(|b| *b == 0), "{case}: read after the cancel");
                }
                net.settle();
                net.assert_idle();
            }
        }
    }
}

/// Its bytes have left with the frame, so that it will be received.
#[test]
fn a_short_send_that_waits_for_its_delivery_is_not_cancelled() {
    for len in [0, 100] {
        let mut net = Net::new(2);
        let (src, dst) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len));
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
        net[0].send(&Send { flags, ..msg(1, &[src], 1) }).unwrap();
        let ep = net[0].ep;
        assert_eq!(net[0].ep_cancel(ep, Ctx(1)), Err(Error::NotFound), "{len}");
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        net.settle();
        assert_eq!((net[0].sent().err, net[1].received().err), (None, None), "{len}");
        net.assert_idle();
    }
}

/// Something else of ours is being accessed, of which is not said what: the receiver hears of it all the
/// same.
#[test]
fn a_send_that_is_cancelled_while_the_receiver_is_inside_ends_before_it_is_received() {
    let mut net = cancelled_inside();
    net.settle();
    assert_eq!(net[0].sent().err, Some(Error::Cancelled));
    net.assert_idle();
}
