//! When operations complete, when they may start, and what happens where there is no room.

use engine::{Cntrs, Config, Error, OpFlags, Send};
use hmem::Span;
use link_api::Gone;
use testkit::*;

const DELIVERY: OpFlags = OpFlags::COMPLETION.union(OpFlags::DELIVERY);
const FENCE: OpFlags = OpFlags::COMPLETION.union(OpFlags::FENCE);
const INJECT: OpFlags = OpFlags::INJECT;

#[test]
fn delivery_is_complete_when_the_receiver_has_the_bytes() {
    for len in [0, 100, 3000] {
        let mut net = Net::new(2);
        let (src, dst) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len));
        net[0].send(&Send { flags: DELIVERY, ..msg(1, &[src], 1) }).unwrap();
        net.settle();
        assert_eq!(net[0].tx(), []);
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        assert_eq!(net[1].received().len, len);
        net.settle();
        assert_eq!(net[0].sent().ctx.0, 1);
        net.assert_idle();
    }
}

#[test]
fn a_small_message_is_complete_once_sent_and_a_large_one_once_taken() {
    let mut net = Net::new(2);
    let (small, large, dst) = (net.memory(0, 256), net.memory(0, 257), net.memory(1, 300));
    net[0].send(&msg(1, &[small], 1)).unwrap();
    assert_eq!(net[0].sent().ctx.0, 1);
    net[0].send(&msg(1, &[large], 2)).unwrap();
    net.settle();
    assert_eq!(net[0].tx(), []);
    net[1].recv(&from_any(&[dst], 0)).unwrap();
    net[1].recv(&from_any(&[dst], 0)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().ctx.0, 2);
}

#[test]
fn a_fenced_operation_waits_for_those_before_it_to_the_same_peer() {
    let mut net = Net::new(3);
    let (large, dst) = (net.memory(0, 3000), net.memory(1, 3000));
    net[0].send(&msg(1, &[large], 1)).unwrap();
    let fenced = Send { flags: FENCE, ..msg(1, &[], 2) };
    net.settle();
    assert_eq!(net[0].send(&fenced), Err(Error::Again));
    net[0].send(&msg(1, &[], 3)).unwrap();
    net[0].send(&Send { to: 2, ..fenced }).unwrap();
    net[1].recv(&from_any(&[dst], 0)).unwrap();
    // The post itself takes in the answer that it waits for.
    net[0].send(&fenced).unwrap();
    net.settle();
    let order: Vec<_> = net[0].tx().iter().map(|c| c.ctx.0).collect();
    assert_eq!(order, [3, 2, 1, 2]);
}

#[test]
fn an_injected_buffer_may_be_used_again_at_once() {
    let mut net = Net::new(2);
    let (src, dst) = (net.bytes(0, b"first"), net.memory(1, 5));
    for flags in [INJECT, INJECT | DELIVERY] {
        net[0].send(&Send { flags, ..msg(1, &[src], 1) }).unwrap();
        hmem::write(&[src], 0, b"other");
        net.settle();
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        assert_eq!(net[1].received().len, 5);
        assert_eq!(net[1].look(dst, 5), b"first");
        hmem::write(&[src], 0, b"first");
        net.settle();
    }
    assert_eq!(net[0].sent().ctx.0, 1);
}

/// An endpoint's level may be delivery, as MPICH's and Intel MPI's is: what is injected has no completion
/// there, unless a counter counts it.
#[test]
fn an_injected_message_is_plain_unless_its_delivery_is_counted() {
    let injected = INJECT | OpFlags::DELIVERY;
    let mut net = Net::new(2);
    let (ep, src) = (net[0].ep, net.bytes(0, b"first"));
    let plain = |net: &mut Net, flags| net[0].send_plain(ep, src, &Send { flags, ..msg(1, &[], 1) });
    let taken = |net: &mut Net| {
        let dst = net.memory(1, 5);
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        net.settle();
        assert_eq!((net[1].received().len, net[1].look(dst, 5)), (5, b"first".to_vec()));
    };
    net[0].send(&Send { flags: injected, ..msg(1, &[src], 1) }).unwrap();
    taken(&mut net);
    assert!(plain(&mut net, injected));
    taken(&mut net);
    assert!(!plain(&mut net, DELIVERY) && !plain(&mut net, injected | OpFlags::FENCE));
    let cntr = net[0].cntr_open();
    net[0].ep_bind_cntrs(ep, Cntrs { send: Some(cntr), ..Cntrs::default() });
    assert!(!plain(&mut net, injected));
    net[0].send(&Send { flags: injected, ..msg(1, &[src], 1) }).unwrap();
    net.settle();
    assert_eq!(net[0].cntr_read(cntr), 0);
    taken(&mut net);
    assert_eq!((net[0].cntr_read(cntr), net[0].tx()), (1, vec![]));
    net.assert_idle();
}

#[test]
fn what_cannot_be_injected_is_refused() {
    let mut net = Net::new(2);
    net.refuse(0, 1, Gone::Denied);
    assert_eq!(net[0].send(&Send { flags: INJECT, ..msg(1, &[], 1) }), Err(Error::Denied));
    net.assert_idle();
}

#[test]
fn a_full_queue_refuses_posts_and_loses_nothing() {
    let mut net = Net::with(2, Setup { cq_size: 3, ..Setup::default() });
    let cntr = net[0].cntr_open();
    let ep = net[0].ep;
    net[0].ep_bind_cntrs(ep, Cntrs { send: Some(cntr), ..Cntrs::default() });
    for i in 0..3 {
        net[0].send(&msg(1, &[], i)).unwrap();
    }
    assert_eq!(net[0].send(&msg(1, &[], 3)), Err(Error::Again));
    assert_eq!(net[0].send(&tagged(1, &[], 1, 3)), Err(Error::Again));
    // An operation without an entry needs no room.
    net[0].send(&Send { flags: INJECT, ..msg(1, &[], 9) }).unwrap();
    let cq = net[0].tx_cq;
    assert_eq!(net[0].next(cq).unwrap().ctx.0, 0);
    net[0].send(&msg(1, &[], 3)).unwrap();
    assert_eq!(net[0].tx().iter().map(|c| c.ctx.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(net[0].cntr_read(cntr), 5);
    // The receiver's queue grows past its size rather than lose one.
    for i in 0..5 {
        net[1].recv(&from_any(&[], i)).unwrap();
    }
    net.settle();
    assert_eq!(net[1].rx().iter().map(|c| c.ctx.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn what_is_injected_does_not_wait_for_a_full_queue() {
    const MANY: usize = 100;
    let mut net = Net::with(2, Setup { cq_size: 3, ..Setup::default() });
    let (src, dst) = (net.bytes(0, b"bytes"), net.memory(1, 5));
    let reg = engine::Reg { iov: &[dst], access: engine::Access::REMOTE_WRITE, key: Some(1) };
    net[1].mr_reg(&reg).unwrap();
    let (iov, remote) = ([src], [there(0, 5, 1)]);
    let flags = INJECT | engine::OpFlags::COMPLETION;
    for i in 0..MANY {
        if i % 2 == 0 {
            net[0].rma(&engine::Rma { flags, ..write(1, &iov, &remote, i) }).unwrap();
        } else {
            net[0].send(&Send { flags, ..msg(1, &[], i) }).unwrap();
        }
        net.settle();
    }
    assert_eq!(net[0].send(&msg(1, &[], 0)), Err(Error::Again));
    let mut all: Vec<_> = net[0].tx().iter().map(|c| c.ctx.0).collect();
    all.sort_unstable();
    assert_eq!(all, (0..MANY).collect::<Vec<_>>());
}

#[test]
fn a_failure_stays_at_the_head_of_its_queue_until_it_is_taken() {
    let mut net = Net::new(2);
    let (src, rx_cq) = (net.memory(0, 4), net[1].rx_cq);
    net[1].recv(&from_any(&[], 0)).unwrap();
    net[1].recv(&from_any(&[src], 1)).unwrap();
    for _ in 0..2 {
        net[0].send(&msg(1, &[src], 0)).unwrap();
    }
    net.settle();
    for _ in 0..2 {
        assert_eq!(net[1].cq_take(rx_cq, 2, |_, c| panic!("{c:?} went past a failure")), 0);
        assert!(!net[1].cq_is_empty(rx_cq));
    }
    assert_eq!(net[1].cq_error(rx_cq).unwrap().olen, 4);
    assert_eq!(net[1].cq_error(rx_cq), None);
    assert_eq!(net[1].cq_take(rx_cq, 2, |n, c| assert_eq!((n, c.ctx.0), (0, 1))), 1);
    assert!(net[1].cq_is_empty(rx_cq));
}

#[test]
fn without_room_a_post_is_refused_and_has_no_effect() {
    let mut net = Net::with(2, Setup { capacity: 1, ..Setup::default() });
    let (large, dst) = (net.memory(0, 3000), net.memory(1, 3000));
    net[0].send(&msg(1, &[], 0)).unwrap();
    for flags in [OpFlags::COMPLETION, DELIVERY] {
        for iov in [Span::EMPTY, large] {
            assert_eq!(net[0].send(&Send { flags, ..msg(1, &[iov], 1) }), Err(Error::Again));
        }
    }
    assert_eq!(net[0].sent().ctx.0, 0);
    net.settle();
    net.assert_idle();
    net[0].send(&msg(1, &[large], 2)).unwrap();
    for _ in 0..2 {
        net[1].recv(&from_any(&[dst], 0)).unwrap();
    }
    net.settle();
    assert_eq!(net[0].sent().ctx.0, 2);
    assert_eq!(net[1].rx().len(), 2);
    net.assert_idle();
}

/// Answers wait for room, and nothing overtakes them.
#[test]
fn answers_that_find_no_room_are_kept() {
    let mut net = Net::with(2, Setup { capacity: 1, ..Setup::default() });
    let dst = net.memory(0, 10);
    for i in 0..6 {
        net[0].send(&Send { flags: DELIVERY, ..msg(1, &[], i) }).unwrap();
        net[1].recv(&from_any(&[], i)).unwrap();
        net[1].progress();
    }
    // Five answers wait; a message of node 1's own must not go before them.
    assert_eq!(net[1].send(&msg(0, &[], 7)), Err(Error::Again));
    assert!(!net[1].arm(), "asleep with frames to send");
    net[0].recv(&from_any(&[dst], 8)).unwrap();
    net.settle();
    assert_eq!(net[0].tx().iter().map(|c| c.ctx.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(net[1].rx().len(), 6);
    assert!(net[1].arm());
    net[1].send(&msg(0, &[], 7)).unwrap();
    net.settle();
    assert_eq!((net[1].sent().ctx.0, net[0].received().ctx.0), (7, 8));
    net.assert_idle();
}

/// Neither a new operation nor the payload a peer reads.
#[test]
fn nothing_overtakes_an_answer_that_waits_for_room() {
    for read_next in [true, false] {
        let mut net = Net::with(2, Setup { direct: Direct::Never, ..Setup::default() });
        let (dst, target) = (net.memory(0, 3000), net.memory(1, 3000));
        net[1].share(target, 1);
        net[1].recv(&from_any(&[], 0)).unwrap();
        net[0].send(&Send { flags: DELIVERY, ..msg(1, &[], 1) }).unwrap();
        net.set_capacity(0);
        net[1].progress();
        net.set_capacity(64);
        if read_next {
            net[0].rma(&read(1, &[dst], &[there(0, 3000, 1)], 2)).unwrap();
            net[1].progress();
        } else {
            net[1].send(&msg(0, &[], 3)).unwrap();
        }
        let mut kinds = Vec::new();
        net.tamper(1, 0, |f| kinds.push(f[0]));
        assert_eq!(kinds[0], wire::Op::Fin as u8, "{kinds:?}");
        assert!(kinds.len() > 1);
    }
}

#[test]
fn large_messages_both_ways_through_one_frame_of_room() {
    let mut net = Net::with(2, Setup { capacity: 1, direct: Direct::Never, ..Setup::default() });
    let mut room = Vec::new();
    for round in 0..4 {
        for me in 0..2 {
            let (src, dst) = (net.bytes(me, &pattern(9000, round + me)), net.memory(me, 9000));
            net[me].recv(&from_any(&[dst], round)).unwrap();
            while net[me].send(&msg(1 - me as u64, &[src], round)) == Err(Error::Again) {
                net[1 - me].progress();
            }
            room.push((me, dst, round + 1 - me));
        }
    }
    net.settle();
    for (me, dst, seed) in room {
        assert_eq!(net[me].look(dst, 9000), pattern(9000, seed));
    }
    for me in 0..2 {
        assert_eq!((net[me].tx().len(), net[me].rx().len()), (4, 4));
    }
    net.assert_idle();
}

#[test]
fn many_large_messages_share_the_way() {
    let mut net = Net::with(3, Setup { direct: Direct::Never, capacity: 4, ..Setup::default() });
    let rooms: Vec<Span> = (0..12).map(|_| net.memory(2, 20_000)).collect();
    for (i, room) in rooms.iter().enumerate() {
        net[2].recv(&with_tag(&[*room], i as u64, i)).unwrap();
        let src = net.bytes(i % 2, &pattern(20_000 - i, i));
        while net[i % 2].send(&tagged(2, &[src], i as u64, i)) == Err(Error::Again) {
            net[2].progress();
        }
    }
    net.settle();
    for (i, room) in rooms.iter().enumerate() {
        assert_eq!(net[2].look(*room, 20_000 - i), pattern(20_000 - i, i));
    }
    assert_eq!(net[2].rx().len(), 12);
    assert_eq!(net[0].tx().len() + net[1].tx().len(), 12);
    net.assert_idle();
}

#[test]
fn what_is_in_use_is_not_closed() {
    let mut net = Net::with(
        1,
        Setup {
            config: Config { virt_addr: true, rma_order: true },
            eager: 0,
            eager_in_a_row: 0,
            ..Setup::default()
        },
    );
    let cntr = net[0].cntr_open();
    let (ep, av, tx_cq, rx) = (net[0].ep, net[0].av, net[0].tx_cq, net[0].rx);
    net[0].ep_bind_cntrs(ep, Cntrs { recv: Some(cntr), ..Cntrs::default() });
    assert_eq!(net[0].cq_close(tx_cq), Err(Error::Busy));
    assert_eq!(net[0].cntr_close(cntr), Err(Error::Busy));
    assert_eq!(net[0].av_close(av), Err(Error::Busy));
    assert_eq!(net[0].srx_close(rx), Err(Error::Invalid));
    net[0].ep_close(ep).unwrap();
    assert_eq!(net[0].send(&msg(0, &[], 0)), Err(Error::NotFound));
    assert_eq!(net[0].recv(&from_any(&[], 0)), Err(Error::NotFound));
    assert_eq!(net[0].cq_close(tx_cq), Ok(()));
    assert_eq!(net[0].cntr_close(cntr), Ok(()));
    assert_eq!(net[0].av_close(av), Ok(()));
    assert_eq!(net[0].cq_close(tx_cq), Err(Error::NotFound));
    assert_eq!(net[0].cntr_close(cntr), Err(Error::NotFound));
    assert_eq!(net[0].av_close(av), Err(Error::NotFound));
    assert_eq!(net[0].srx_close(rx), Err(Error::NotFound));
}

/// The threshold is a matter of speed; that an injected buffer is free at once is a promise.
#[test]
fn what_is_injected_goes_at_once_whatever_the_threshold() {
    let setup = Setup::default();
    let mut net = Net::with(2, Setup { eager: 16, ..setup });
    let src = net.bytes(0, &pattern(100, 1));
    let dst = net.memory(1, 100);
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[0].send(&Send { flags: OpFlags::INJECT, ..msg(1, &[src], 2) }).unwrap();
    hmem::write(&[src], 0, &[0; 100]);
    net.settle();
    assert_eq!((net[1].received().err, net[1].look(dst, 100)), (None, pattern(100, 1)));
}
