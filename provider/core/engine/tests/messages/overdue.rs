//! Operations that a counter does not count in time.

use engine::{ADDR_UNSPEC, CntrId, Cntrs, Ctx, Error, Expired, OpFlags, Pattern, What, Work, WorkOp};
use hmem::Span;
use link_api::Patience;
use testkit::*;

fn work(id: usize, trigger: CntrId, completion: Option<CntrId>, op: WorkOp) -> Work {
    Work { id: Ctx(id), trigger, threshold: 1, completion, op }
}

fn sending(net: &Net, iov: &[Span], ctx: usize) -> WorkOp {
    let (ep, iov) = (net[0].ep, iov.iter().copied().collect());
    WorkOp::Send { ep, to: 1, iov, tag: None, data: None, ctx: Ctx(ctx), flags: OpFlags::empty() }
}

fn receiving(net: &Net, iov: &[Span], ctx: usize) -> WorkOp {
    let (rx, iov) = (net[0].rx, iov.iter().copied().collect());
    let pattern = Pattern { src: ADDR_UNSPEC, tag: None };
    WorkOp::Recv { rx, pattern, iov, ctx: Ctx(ctx), flags: OpFlags::empty() }
}

/// Contexts and errors of the failures of a queue.
fn failures(all: Vec<engine::Completion>) -> Vec<(usize, Option<Error>)> {
    all.into_iter().map(|c| (c.ctx.0, c.err)).collect()
}

/// At the first of two nodes, without waiting for the other one.
fn expire(net: &mut Net, cntr: CntrId) -> Expired {
    net[0].cntr_expire(cntr, u64::MAX, Patience::Final, &mut None).unwrap()
}

const OVERDUE: Option<Error> = Some(Error::Overdue);

#[test]
fn work_whose_threshold_is_not_reached_fails_and_what_is_behind_it_moves_nothing() {
    let mut net = Net::new(2);
    let [go, done, next, last, others] = [(); 5].map(|()| net[0].cntr_open());
    let (src, dst) = (net.bytes(0, &[7; 64]), net.memory(1, 64));
    // The batch: two sends that count in `done`, and a chain that `done` would set off.
    for ctx in 1..=2 {
        let op = sending(&net, &[src], ctx);
        net[0].queue_work(work(ctx, go, Some(done), op));
    }
    net[0].queue_work(work(3, done, None, WorkOp::CntrAdd { cntr: next, value: 1 }));
    let op = sending(&net, &[src], 4);
    net[0].queue_work(work(4, next, Some(last), op));
    // It has the trigger in common, and nothing else.
    let op = sending(&net, &[], 5);
    net[0].queue_work(work(5, go, Some(others), op));
    let expired = expire(&mut net, done);
    assert_eq!((expired.failed, expired.left), (4, 0));
    assert_eq!(expired.first, Some((What::SEND | What::MSG, 1, Ctx(1))));
    assert_eq!(failures(net[0].tx()), [(1, OVERDUE), (2, OVERDUE), (4, OVERDUE)]);
    assert_eq!([done, last, others].map(|c| net[0].cntr_readerr(c)), [2, 1, 0]);
    net[1].recv(&from_any(&[dst], 9)).unwrap();
    net[0].cntr_add(go, 1);
    net[0].cntr_add(next, 1);
    net.settle();
    assert_eq!(net[1].received().len, 0, "a message of the batch has left");
    assert_eq!((net[0].cntr_read(others), net[0].cntr_read(done)), (1, 0));
    net.assert_idle();
}

#[test]
fn a_receive_without_a_message_fails_and_its_buffer_is_not_written_later() {
    for bound in [false, true] {
        let mut net = Net::new(2);
        let [go, done, received] = [(); 3].map(|()| net[0].cntr_open());
        let (ep, dst, src) = (net[0].ep, net.memory(0, 8), net.bytes(1, &[7; 8]));
        net[0].ep_bind_cntrs(ep, Cntrs { recv: Some(received), ..Cntrs::default() });
        let before = net[0].look(dst, 8);
        let of = if bound {
            net[0].recv(&from_any(&[dst], 4)).unwrap();
            received
        } else {
            // One has started, the other one has not.
            let op = receiving(&net, &[dst], 4);
            net[0].queue_work(Work { threshold: 0, ..work(4, go, Some(done), op) });
            let op = receiving(&net, &[dst], 5);
            net[0].queue_work(work(5, go, Some(done), op));
            done
        };
        let expired = expire(&mut net, of);
        let failed = if bound { 1 } else { 2 };
        assert_eq!((expired.failed, net[0].cntr_readerr(of)), (failed, failed as u64), "bound: {bound}");
        let entries = failures(net[0].rx());
        assert!(entries.contains(&(4, OVERDUE)) && entries.len() == failed, "{entries:?}");
        net[1].send(&msg(0, &[src], 0)).unwrap();
        net.settle();
        assert_eq!(net[0].look(dst, 8), before, "written after the receive has failed");
        // The message is there for the next one.
        net[0].recv(&from_any(&[dst], 6)).unwrap();
        net.settle();
        assert_eq!((net[0].received().ctx.0, net[0].look(dst, 8)), (6, vec![7; 8]));
    }
}

#[test]
fn a_message_that_its_receiver_does_not_take_is_taken_back() {
    let mut net = Net::new(2);
    let (go, done) = (net[0].cntr_open(), net[0].cntr_open());
    let (src, dst) = (net.memory(0, 100_000), net.memory(1, 100_000));
    let op = sending(&net, &[src], 4);
    net[0].queue_work(work(1, go, Some(done), op));
    net[0].cntr_add(go, 1);
    net.settle();
    assert_eq!(net[0].tx(), []);
    let expired = expire(&mut net, done);
    assert_eq!(
        (expired.failed, expired.left, expired.first),
        (1, 0, Some((What::SEND | What::MSG, 1, Ctx(4))))
    );
    assert_eq!((failures(net[0].tx()), net[0].cntr_readerr(done)), (vec![(4, OVERDUE)], 1));
    net.settle();
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net.settle();
    assert_eq!(net[1].rx(), [], "the message was withdrawn");
    assert_eq!(net[0].cntr_readerr(done), 1);
}

#[test]
fn what_only_the_peer_ends_stays_under_way_and_the_wait_ends_all_the_same() {
    let mut net = Net::new(2);
    net.set_direct(false);
    let (go, done) = (net[0].cntr_open(), net[0].cntr_open());
    let (dst, target) = (net.memory(0, 8), net.bytes(1, &[7; 8]));
    net[1].share(target, 1);
    let op = WorkOp::Rma {
        ep: net[0].ep,
        to: 1,
        write: false,
        iov: [dst].into_iter().collect(),
        remote: [there(0, 8, 1)].into_iter().collect(),
        data: None,
        ctx: Ctx(4),
        flags: OpFlags::empty(),
    };
    net[0].queue_work(work(1, go, Some(done), op));
    net[0].cntr_add(go, 1);
    let expired = expire(&mut net, done);
    assert_eq!((expired.failed, expired.left, net[0].cntr_readerr(done)), (0, 1, 1));
    net.settle();
    assert_eq!((net[0].cntr_read(done), net[0].cntr_readerr(done)), (1, 1));
    // Nothing is to count: the wait ends.
    assert_eq!(expire(&mut net, done).failed, 0);
    assert_eq!(net[0].cntr_readerr(done), 2);
    net.assert_idle();
}

#[test]
fn work_that_counts_by_its_endpoint_is_taken_back_and_what_is_behind_it() {
    let mut net = Net::new(2);
    let [go, sent, received, more] = [(); 4].map(|()| net[0].cntr_open());
    let ep = net[0].ep;
    net[0].ep_bind_cntrs(ep, Cntrs { send: Some(sent), recv: Some(received), ..Cntrs::default() });
    let (src, dst, mine) = (net.bytes(0, &[7; 64]), net.memory(1, 64), net.memory(0, 64));
    // FI_TRIGGER: neither has a name, nor a counter of its own.
    let op = sending(&net, &[src], 1);
    net[0].queue_work(work(0, go, None, op));
    // FI_QUEUE_WORK with FI_COMPLETION, and one without, which does not count in `sent`.
    for (ctx, flags) in [(2, OpFlags::COMPLETION), (3, OpFlags::empty())] {
        let WorkOp::Send { ep, to, iov, tag, data, ctx, .. } = sending(&net, &[src], ctx) else { panic!() };
        net[0].queue_work(work(ctx.0, go, None, WorkOp::Send { ep, to, iov, tag, data, ctx, flags }));
    }
    // It counts in `received`, and a message waits for that.
    let op = receiving(&net, &[mine], 4);
    net[0].queue_work(Work { id: Ctx(0), ..work(4, sent, None, op) });
    let op = sending(&net, &[src], 5);
    net[0].queue_work(work(5, received, Some(more), op));
    let expired = expire(&mut net, sent);
    assert_eq!((expired.failed, expired.left), (4, 0));
    assert_eq!([sent, received, more].map(|c| net[0].cntr_readerr(c)), [2, 1, 1]);
    assert_eq!(failures(net[0].tx()), [(1, OVERDUE), (2, OVERDUE), (5, OVERDUE)]);
    for ctx in 0..2 {
        net[1].recv(&from_any(&[dst], ctx)).unwrap();
    }
    for cntr in [go, received] {
        net[0].cntr_add(cntr, 1);
    }
    net.settle();
    assert_eq!(net[1].rx().len(), 1, "only the third message leaves");
    assert_eq!(failures(net[0].rx()), [(4, OVERDUE)]);
}

/// A message of node 0 that counts in a counter, and whose receiver is inside an access.
fn inside() -> (Net, CntrId, Span) {
    let mut net = Net::new(2);
    let (go, done) = (net[0].cntr_open(), net[0].cntr_open());
    let (src, dst) = (net.memory(0, 3000), net.memory(1, 3000));
    let op = sending(&net, &[src], 4);
    net[0].queue_work(work(1, go, Some(done), op));
    net[0].cntr_add(go, 1);
    net[1].progress();
    net.keep_inside(1);
    (net, done, dst)
}

#[test]
fn a_message_whose_receiver_is_inside_an_access_is_taken_back_by_the_next_call() {
    let (mut net, done, _) = inside();
    let mut begun = None;
    assert_eq!(net[0].cntr_expire(done, 1, Patience::Retried, &mut begun), Err(Error::Busy));
    assert_eq!((net[0].tx(), net[0].cntr_readerr(done)), (vec![], 0));
    let expired = net[0].cntr_expire(done, 1, Patience::Retried, &mut begun).unwrap();
    assert_eq!((expired.failed, expired.left), (1, 0));
    assert_eq!((failures(net[0].tx()), net[0].cntr_readerr(done)), (vec![(4, OVERDUE)], 1));
    net.settle();
    net.assert_idle();
}

#[test]
fn a_message_that_its_receiver_answers_later_fails_with_the_same_error() {
    let (mut net, done, dst) = inside();
    let expired = expire(&mut net, done);
    assert_eq!((expired.failed, expired.left, net[0].cntr_readerr(done)), (0, 1, 1));
    assert_eq!(net[0].tx(), []);
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net.settle();
    assert_eq!(net[1].received().err, Some(Error::Cancelled));
    assert_eq!(failures(net[0].tx()), [(4, OVERDUE)]);
    net.assert_idle();
}

#[test]
fn a_counter_that_has_its_value_by_then_has_no_failure() {
    let (mut net, done, _) = inside();
    let mut begun = None;
    assert_eq!(net[0].cntr_expire(done, 1, Patience::Retried, &mut begun), Err(Error::Busy));
    net[0].cntr_add(done, 1);
    net.keep_inside(1);
    let expired = net[0].cntr_expire(done, 1, Patience::Final, &mut begun).unwrap();
    assert_eq!((expired.failed, expired.left, net[0].cntr_readerr(done)), (0, 1, 0));
}
