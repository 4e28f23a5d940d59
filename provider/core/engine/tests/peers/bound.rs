//! What peers may take up of us, and that nothing is lost or waits for ever when it is a lot.

use engine::{ADDR_UNSPEC, Access, Cntrs, Ctx, Error, OpFlags, Pattern, Recv, Reg, Send, What};
use testkit::*;
use wire::{Flags, Head, Op};
use zerocopy::IntoBytes;

const INJECT: OpFlags = OpFlags::INJECT;
const PLAIN: OpFlags = OpFlags::COMPLETION;
const DELIVERY: OpFlags = OpFlags::COMPLETION.union(OpFlags::DELIVERY);
const MOST: usize = 8000;
const DEPTH: usize = 50;

/// Two nodes, the second of which lets little wait.
fn net(direct: Direct) -> Net {
    let mut net = Net::with(2, Setup { direct, cq_size: 1 << 20, ..Setup::default() });
    for at in 0..2 {
        let ep = net[at].ep;
        net[at].ep_set_depth(ep, DEPTH);
        net[at].set_unexpected_most(MOST);
    }
    net
}

/// Sends message `id` in one of several ways; what it is made of.
fn post(net: &mut Net, id: usize) -> Result<usize, Error> {
    let len = [0, 1, 100, 250, 700][id % 5];
    let src = net.bytes(0, &pattern(len, id));
    let flags = match (id / 5) % 3 {
        0 if len <= 256 => INJECT,
        1 => DELIVERY,
        _ => PLAIN,
    };
    let data = (id % 4 == 0).then_some(id as u64);
    let sent = net[0].send(&Send { flags, data, tag: Some(id as u64), ..msg(1, &[src], id) });
    if flags == INJECT {
        // May be used again at once.
        hmem::write(&[src], 0, &vec![0xee; len]);
    }
    sent.map(|()| len)
}

#[test]
fn unexpected_messages_beyond_the_quota_stay_with_their_sender() {
    for direct in Direct::ALL {
        let mut net = net(direct);
        let mut sent = Vec::new();
        for id in 0.. {
            match post(&mut net, id) {
                Ok(len) => sent.push(len),
                Err(err) => {
                    assert_eq!(err, Error::Again);
                    break;
                }
            }
            net.settle();
        }
        // What was on its way, and one offer for each operation under way.
        let held = net[1].unexpected();
        assert!((MOST..MOST + 1024 + DEPTH * 256).contains(&held), "{held}");
        assert!(sent.len() > DEPTH, "{}", sent.len());
        // Whatever else there is to do goes on: the other way, and for what is asked for.
        let (there, room) = (net.bytes(1, b"hello"), net.memory(0, 5));
        net[0].recv(&from_any(&[room], 1)).unwrap();
        net[1].send(&msg(0, &[there], 2)).unwrap();
        net.settle();
        assert_eq!((net[0].received().len, net[1].sent().ctx.0), (5, 2));
        // The last first, then all others in order; as there is room, more is sent.
        let take = |net: &mut Net, id: usize, len: usize| {
            let room = net.memory(1, len);
            let tag = (id % 2 == 0).then_some((id as u64, 0)).or(Some((0, u64::MAX)));
            let pattern_of = Pattern { src: ADDR_UNSPEC, tag };
            net[1].recv(&Recv { pattern: pattern_of, ..from_any(&[room], id) }).unwrap();
            net.settle();
            let got = net[1].received();
            assert_eq!((got.ctx.0, got.len, got.tag, got.err), (id, len, id as u64, None));
            assert_eq!(got.what.contains(What::REMOTE_CQ_DATA), id % 4 == 0);
            assert!(net[1].look(room, len) == pattern(len, id), "message {id}");
        };
        let last = (sent.len() - 1) & !1;
        take(&mut net, last, sent[last]);
        let mut id = 0;
        while id < 400 {
            if id != last {
                take(&mut net, id, sent[id]);
            }
            id += 1;
            while sent.len() < 400 {
                match post(&mut net, sent.len()) {
                    Ok(len) => sent.push(len),
                    Err(_) => break,
                }
                net.settle();
            }
        }
        assert_eq!(net[1].unexpected(), 0);
        let done = net[0].tx();
        assert!(done.iter().all(|c| c.err.is_none()), "{done:?}");
        let wanted = (0..400).filter(|id| (id / 5) % 3 != 0 || sent[*id] > 256).count();
        assert_eq!(done.len(), wanted);
        // By now it is not paused any more.
        let src = net.bytes(0, &[7; 100]);
        net[0].send(&msg(1, &[src], 1)).unwrap();
        assert_eq!(net[0].sent().ctx.0, 1, "at once");
        net[1].recv(&from_any(&[], 3)).unwrap();
        net.settle();
        assert_eq!(net[1].received().err, Some(Error::Truncated));
        net.assert_idle();
    }
}

/// What a door promises that it injects may be more than the frames of a link hold.
#[test]
fn what_is_injected_and_fits_no_frame_is_kept_and_comes_in_several() {
    for direct in Direct::ALL {
        let mut net = Net::with(2, Setup { direct, ..Setup::default() });
        for (id, len) in [100, 500, 3000].into_iter().enumerate() {
            for (device, early) in [(false, false), (true, false), (false, true), (true, true)] {
                let src = if device { net.device(len) } else { net.memory(0, len) };
                let (room, memory) = (net.memory(1, len), net.memory(1, len));
                let key = net[1].share(memory, 1);
                hmem::write(&[src], 0, &pattern(len, id));
                let receive = |net: &mut Net| net[1].recv(&from_any(&[room], id)).unwrap();
                if early {
                    receive(&mut net);
                }
                net[0].send(&Send { flags: INJECT, ..msg(1, &[src], 1) }).unwrap();
                let (iov, remote) = ([src], [there(0, len, 1)]);
                let flags = if early { DELIVERY | INJECT } else { INJECT };
                net[0].rma(&engine::Rma { flags, ..write(1, &iov, &remote, 7) }).unwrap();
                // May be used again at once.
                hmem::write(&[src], 0, &vec![0xee; len]);
                net.settle();
                if !early {
                    receive(&mut net);
                    net.settle();
                }
                assert_eq!(
                    (net[1].received().len, &net[1].look(room, len)),
                    (len, &pattern(len, id)),
                    "{direct:?}"
                );
                assert_eq!(net[1].look(memory, len), pattern(len, id), "{direct:?}");
                let done = net[0].tx();
                assert_eq!(
                    done.iter().map(|c| (c.ctx.0, c.err)).collect::<Vec<_>>(),
                    vec![(7, None); usize::from(early)]
                );
                net[1].mr_close(key).unwrap();
            }
        }
        net.assert_idle();
    }
}

#[test]
fn injected_messages_that_were_only_offered_fail_with_their_receiver() {
    let mut net = net(Direct::InCall);
    let mut n = 0;
    while post(&mut net, 5 * 3 * n).is_ok() {
        n += 1;
        net.settle();
    }
    net[0].tx();
    net.kill(1);
    net.settle();
    let failed = net[0].tx();
    assert!(failed.len() == DEPTH && failed.iter().all(|c| c.err == Some(Error::Reset)), "{failed:?}");
    net.revive(1);
    net[1].recv(&from_any(&[], 1)).unwrap();
    // Its successor has asked no peer to pause.
    net[0].send(&Send { flags: INJECT, ..msg(1, &[], 1) }).unwrap();
    net.settle();
    assert_eq!(net[1].received().ctx.0, 1);
    net.assert_idle();
}

#[test]
fn a_peer_that_ignores_a_pause_is_disconnected() {
    let mut net = Net::with(3, Setup::default());
    net[0].set_unexpected_most(MOST);
    let payload = [7; 300];
    let head = Head::new(Op::Eager, Flags::TAGGED, 0, 1, 0);
    let mut most = 0;
    for _ in 0..200_000 {
        if most > net[0].unexpected() {
            break;
        }
        let mut frame = head.as_bytes().to_vec();
        frame.extend(payload);
        net.inject(1, 0, frame);
        net[0].progress();
        most = most.max(net[0].unexpected());
    }
    assert!(most < 2 * MOST + (64 << 20) + 4096, "{most}");
    assert_eq!(net[0].unexpected(), 0);
    net.inject(1, 0, head.as_bytes().to_vec());
    net.settle();
    // It alone.
    let (src, room) = (net.bytes(2, b"hello"), net.memory(0, 5));
    net[0].recv(&from(2, &[room], 1)).unwrap();
    net[2].send(&msg(0, &[src], 2)).unwrap();
    net.settle();
    assert_eq!(net[0].received().len, 5);
    assert_eq!(net.in_flight(1, 0), 0, "nothing more is taken");
}

#[test]
fn answers_that_a_peer_does_not_take_are_kept_within_bounds() {
    // Reads of which no answer finds room, far beyond what would be copied.
    let mut net =
        Net::with(2, Setup { direct: Direct::Never, capacity: 1, cq_size: 1 << 20, ..Setup::default() });
    let (memory, dst) = (net.bytes(1, &pattern(200, 1)), net.memory(0, 200));
    net[1].share(memory, 1);
    let ep = net[0].ep;
    net[0].ep_set_depth(ep, 1 << 16);
    let key = [there(0, 200, 1)];
    let mut n = 0;
    for _ in 0..20_000 {
        n += usize::from(net[0].rma(&read(1, &[dst], &key, n)).is_ok());
        net[1].progress();
    }
    net.settle();
    let done = net[0].tx();
    assert!(done.len() == n && done.iter().all(|c| c.err.is_none()), "{n}, {}", done.len());
    assert!(net[0].look(dst, 200) == pattern(200, 1));
    net.assert_idle();
}

#[test]
fn a_refused_access_without_an_answer_is_reported_to_its_initiator() {
    let mut net = Net::new(2);
    let cntr = net[0].cntr_open();
    let (src, memory) = (net.bytes(0, &[1; 16]), net.memory(1, 8));
    let iov = [memory];
    net[1].mr_reg(&Reg { iov: &iov, access: Access::REMOTE_READ, key: Some(5) }).unwrap();
    let part = [src.part(0, 8).unwrap()];
    let cases = [(there(0, 8, 9), Error::BadKey), (there(0, 8, 5), Error::Access)];
    for (at, (seg, err)) in cases.into_iter().enumerate() {
        let remote = [seg];
        net[0].rma(&engine::Rma { flags: INJECT, ..write(1, &part, &remote, 3) }).unwrap();
        net.settle();
        let failure = net[0].sent();
        assert_eq!(
            (failure.err, failure.ctx, failure.what),
            (Some(err), Ctx(0), What::RMA | What::WRITE),
            "{at}"
        );
        let atomic = engine::Atomic {
            to: 1,
            op: hmem::AtomicOp::Sum,
            datatype: hmem::Datatype::Uint64,
            operand: &part,
            compare: &[],
            result: &[],
            remote: &remote,
            data: None,
            ctx: Ctx(4),
            flags: INJECT,
        };
        net[0].atomic(&atomic).unwrap();
        net.settle();
        let failure = net[0].sent();
        assert_eq!((failure.err, failure.what), (Some(err), What::ATOMIC | What::WRITE), "{at}");
    }
    // A counter counts it as the failure it is.
    let ep = net[0].ep;
    net[0].ep_bind_cntrs(ep, Cntrs { write: Some(cntr), ..Cntrs::default() });
    let remote = [there(0, 8, 9)];
    net[0].rma(&engine::Rma { flags: INJECT, ..write(1, &part, &remote, 3) }).unwrap();
    net.settle();
    assert_eq!((net[0].cntr_read(cntr), net[0].cntr_readerr(cntr)), (0, 1));
    net[0].tx();
    // Refusals of what was not posted are dropped.
    net.inject(1, 0, Head::new(Op::Refused, Flags::empty(), 1, 0, 0).as_bytes().to_vec());
    net.inject(1, 0, Head::new(Op::Pause, Flags::empty(), 0, 0, 7).as_bytes().to_vec());
    net.settle();
    assert!(net[0].tx().is_empty());
    net.assert_idle();
}
