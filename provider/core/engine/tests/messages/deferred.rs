//! Operations that wait for a counter.

use engine::{ADDR_UNSPEC, CntrId, Ctx, Error, OpFlags, Pattern, What, Work, WorkOp};
use hmem::{AtomicOp, Datatype, Span};
use testkit::*;

fn work(id: usize, trigger: CntrId, threshold: u64, completion: Option<CntrId>, op: WorkOp) -> Work {
    Work { id: Ctx(id), trigger, threshold, completion, op }
}

fn sending(net: &Net, iov: &[Span], ctx: usize) -> WorkOp {
    let (ep, iov) = (net[0].ep, iov.iter().copied().collect());
    WorkOp::Send { ep, to: 1, iov, tag: Some(1), data: None, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

fn receiving(net: &Net, at: usize, tag: u64, iov: &[Span], ctx: usize) -> WorkOp {
    let pattern = Pattern { src: ADDR_UNSPEC, tag: Some((tag, 0)) };
    let (rx, iov) = (net[at].rx, iov.iter().copied().collect());
    WorkOp::Recv { rx, pattern, iov, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

#[test]
fn an_operation_starts_at_its_threshold_and_then_counts() {
    for len in [10, 3000] {
        let mut net = Net::new(2);
        let (go, done) = (net[0].cntr_open(), net[0].cntr_open());
        let (src, dst) = (net.memory(0, len), net.memory(1, len));
        let op = sending(&net, &[src], 4);
        net[0].queue_work(work(1, go, 3, Some(done), op));
        net[0].cntr_add(go, 2);
        net.settle();
        assert_eq!((net.in_flight(0, 1), net[0].tx()), (0, vec![]));
        // The bytes are those of the start, not of the call.
        hmem::write(&[src], 0, &pattern(len, 1));
        net[0].cntr_add(go, 1);
        net[1].recv(&with_tag(&[dst], 1, 5)).unwrap();
        net.settle();
        assert_eq!((net[0].sent().ctx.0, net[1].received().len), (4, len));
        assert_eq!((net[0].cntr_read(done), net[1].look(dst, len)), (1, pattern(len, 1)));
        net.assert_idle();
    }
}

#[test]
fn work_that_is_due_starts_at_once() {
    let mut net = Net::new(2);
    let go = net[0].cntr_open();
    let op = sending(&net, &[], 4);
    net[0].queue_work(work(1, go, 0, None, op));
    assert_eq!(net[0].sent().ctx.0, 4);
}

#[test]
fn a_chain_runs_by_itself() {
    let mut net = Net::new(2);
    let [first, second, third, end] = [(); 4].map(|()| net[0].cntr_open());
    let (dst, target, src) = (net.memory(0, 8), net.memory(1, 8), net.bytes(0, &7u64.to_ne_bytes()));
    net[1].share(target, 1);
    let remote: engine::RmaIov = [there(0, 8, 1)].into_iter().collect();
    let (ep, iov): (_, engine::Iov) = (net[0].ep, [src].into_iter().collect());
    let (quiet, ctx) = (OpFlags::empty(), Ctx(0));
    // Queued last to first: a message lets a write start, that a fetch, that a counter.
    net[0].queue_work(work(4, third, 1, None, WorkOp::CntrAdd { cntr: end, value: 40 }));
    let (operand, compare, result) = (iov.clone(), engine::Iov::new(), [dst].into_iter().collect());
    let (op, datatype, remote2) = (AtomicOp::Sum, Datatype::Uint64, remote.clone());
    let fetch = WorkOp::Atomic {
        ep,
        to: 1,
        op,
        datatype,
        operand,
        compare,
        result,
        remote: remote2,
        data: None,
        ctx,
        flags: quiet,
    };
    net[0].queue_work(work(3, second, 1, Some(third), fetch));
    let put = WorkOp::Rma { ep, to: 1, write: true, iov, remote, data: None, ctx, flags: quiet };
    net[0].queue_work(work(2, first, 1, Some(second), put));
    let op = receiving(&net, 0, 9, &[], 1);
    net[0].queue_work(work(1, end, 2, Some(first), op));
    net[1].send(&tagged(0, &[], 9, 0)).unwrap();
    net.settle();
    assert_eq!((net[0].cntr_read(first), net[0].cntr_read(end)), (0, 0));
    net[0].cntr_set(end, 2);
    net.settle();
    let counted = [first, second, third, end].map(|c| net[0].cntr_read(c));
    assert_eq!(counted, [1, 1, 1, 42]);
    assert_eq!(net[0].look(dst, 8), 7u64.to_ne_bytes());
    assert_eq!(net[1].look(target, 8), 14u64.to_ne_bytes());
    assert_eq!((net[0].received().ctx.0, net[1].sent().tag), (1, 9));
    net.assert_idle();
}

/// As many receives as one likes may each set off the next.
#[test]
fn a_long_chain_of_receives_that_are_all_there() {
    let mut net = Net::with(2, Setup { capacity: 100_000, cq_size: 100_000, ..Setup::default() });
    const N: u64 = 2000;
    let count = net[1].cntr_open();
    for _ in 0..N {
        net[0].send(&tagged(1, &[], 1, 0)).unwrap();
    }
    net.settle();
    for i in 0..N {
        let op = receiving(&net, 1, 1, &[], i as usize);
        net[1].queue_work(work(1, count, i + 1, Some(count), op));
    }
    assert_eq!(net[1].cntr_read(count), 0);
    net[1].cntr_add(count, 1);
    assert_eq!(net[1].cntr_read(count), N + 1);
    let order: Vec<_> = net[1].rx().iter().map(|c| c.ctx.0).collect();
    assert_eq!(order, (0..N as usize).collect::<Vec<_>>());
}

#[test]
fn a_receive_of_a_shared_context_that_closed_is_not_posted_to_the_next() {
    let mut net = Net::new(2);
    let go = net[1].cntr_open();
    let rx = net[1].srx_open();
    let mut op = receiving(&net, 1, 1, &[], 1);
    if let WorkOp::Recv { rx: of, .. } = &mut op {
        *of = rx;
    }
    net[1].queue_work(work(1, go, 1, None, op));
    assert_eq!(net[1].cntr_close(go), Err(Error::Busy));
    assert_eq!(net[1].srx_close(rx), Ok(()));
    assert_eq!(net[1].srx_open(), rx, "the next one has its place");
    net[1].cntr_add(go, 1);
    assert_eq!(net[1].cancel(rx, Ctx(1)), Err(Error::NotFound));
    assert_eq!(net[1].cntr_close(go), Ok(()));
}

#[test]
fn work_not_yet_started_may_be_cancelled() {
    let mut net = Net::new(2);
    let (go, done) = (net[0].cntr_open(), net[0].cntr_open());
    for id in 1..=3 {
        let op = sending(&net, &[], id);
        net[0].queue_work(work(id, go, 1, Some(done), op));
    }
    net[0].queue_work(work(4, go, 5, None, WorkOp::CntrSet { cntr: done, value: 0 }));
    net[0].cancel_work(Ctx(2)).unwrap();
    assert_eq!(net[0].cancel_work(Ctx(2)), Err(Error::NotFound));
    assert_eq!(net[0].cntr_close(go), Err(Error::Busy));
    net[0].cntr_add(go, 1);
    net.settle();
    assert_eq!(net[0].tx().iter().map(|c| c.ctx.0).collect::<Vec<_>>(), [1, 3]);
    // What a counter is to be changed by keeps it open, too.
    assert_eq!((net[0].cntr_read(done), net[0].cntr_close(done)), (2, Err(Error::Busy)));
    net[0].flush_work();
    assert_eq!(net[0].cancel_work(Ctx(4)), Err(Error::NotFound));
    assert_eq!((net[0].cntr_close(go), net[0].cntr_close(done)), (Ok(()), Ok(())));
}

#[test]
fn a_counter_of_an_endpoint_may_set_work_off() {
    let mut net = Net::new(2);
    let received = net[0].cntr_open();
    let ep = net[0].ep;
    net[0].ep_bind_cntrs(ep, engine::Cntrs { recv: Some(received), ..engine::Cntrs::default() });
    let op = sending(&net, &[], 8);
    net[0].queue_work(work(1, received, 2, None, op));
    for i in 0..2 {
        net[0].recv(&from_any(&[], i)).unwrap();
        net[1].send(&msg(0, &[], i)).unwrap();
        assert_eq!(net[0].tx(), []);
        net.settle();
    }
    assert_eq!(net[0].sent().ctx.0, 8);
}

#[test]
fn work_waits_for_room_and_for_fences() {
    let mut net = Net::with(2, Setup { capacity: 1, ..Setup::default() });
    let (go, done) = (net[0].cntr_open(), net[0].cntr_open());
    for id in 1..=4 {
        let op = sending(&net, &[], id);
        net[0].queue_work(work(id, go, 1, Some(done), op));
    }
    net[0].cntr_add(go, 1);
    assert_eq!(net[0].cntr_read(done), 1);
    net.settle();
    for ctx in 0..4 {
        net[1].recv(&with_tag(&[], 1, ctx)).unwrap();
    }
    net.settle();
    assert_eq!(net[0].cntr_read(done), 4);
    assert_eq!(net[0].tx().iter().map(|c| c.ctx.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(net[1].rx().len(), 4);
}

#[test]
fn work_that_cannot_start_fails_like_any_operation() {
    let mut net = Net::new(2);
    let (go, done, av) = (net[0].cntr_open(), net[0].cntr_open(), net[0].av);
    let op = sending(&net, &[], 6);
    net[0].queue_work(work(1, go, 1, Some(done), op));
    net[0].av_remove(av, 1).unwrap();
    net[0].cntr_add(go, 1);
    net.settle();
    let c = net[0].sent();
    assert_eq!((c.ctx.0, c.what, c.err), (6, What::SEND | What::TAGGED, Some(Error::NoAddr)));
    assert_eq!((net[0].cntr_read(done), net[0].cntr_readerr(done)), (0, 1));
}

/// The next endpoint may get the number of the closed one's receive context.
#[test]
fn work_of_a_closed_endpoint_is_forgotten() {
    let mut net = Net::new(2);
    let go = net[0].cntr_open();
    let (op, ep) = (receiving(&net, 0, 1, &[], 1), net[0].ep);
    net[0].queue_work(work(1, go, 1, None, op));
    let op = sending(&net, &[], 2);
    net[0].queue_work(work(2, go, 1, None, op));
    net[0].ep_close(ep).unwrap();
    let link = net.link();
    net[0].open(link, None);
    assert_eq!(net[0].cntr_close(go), Ok(()));
}

/// A stream that waits for a counter is woken by a count alone.
#[test]
fn what_never_completes_has_failed_in_the_counters_for_which_a_device_waits() {
    for watched in [false, true] {
        let mut net = Net::new(2);
        let [go, late, cancelled, flushed, sent, received] = [(); 6].map(|()| net[0].cntr_open());
        if watched {
            for cntr in [late, cancelled, flushed, sent, received] {
                net[0].cntr_watch(cntr);
            }
        }
        let (ep, src) = (net[0].ep, net.memory(0, 100_000));
        net[0].ep_bind_cntrs(
            ep,
            engine::Cntrs { send: Some(sent), recv: Some(received), ..Default::default() },
        );
        let errors = |net: &Net| {
            [late, cancelled, flushed, sent, received].map(|cntr| net[0].cntr_readerr(cntr)).to_vec()
        };
        // One is taken back by its name, and all others of the domain at once.
        let op = sending(&net, &[], 1);
        net[0].queue_work(work(1, go, 1, Some(cancelled), op));
        net[0].cancel_work(Ctx(1)).unwrap();
        assert_eq!(net[0].cancel_work(Ctx(1)), Err(Error::NotFound));
        for id in 2..4 {
            let op = receiving(&net, 0, 9, &[], id);
            net[0].queue_work(work(id, go, 1, Some(flushed), op));
        }
        net[0].flush_work();
        // The endpoint closes: with work that has not started, a long message under way and a receive.
        let op = sending(&net, &[], 4);
        net[0].queue_work(work(4, go, 1, Some(late), op));
        net[0].send(&msg(1, &[src], 5)).unwrap();
        net[0].recv(&from(1, &[], 6)).unwrap();
        net[0].recv(&with_tag(&[], 1, 7)).unwrap();
        net.settle();
        net[0].ep_close(ep).unwrap();
        // Work that requests a completion counts in its endpoint's counter, too.
        let expected = if watched { vec![1, 1, 2, 2, 2] } else { vec![0; 5] };
        assert_eq!(errors(&net), expected, "watched: {watched}");
        assert_eq!((net[0].tx(), net[0].rx()), (vec![], vec![]), "and no queue has an entry");
    }
}

#[test]
fn the_entry_of_an_operation_that_fails_names_the_peer() {
    let mut net = Net::new(3);
    let (go, done) = (net[0].cntr_open(), net[0].cntr_open());
    let src = net.memory(0, 100_000);
    let op = sending(&net, &[src], 4);
    net[0].queue_work(work(1, go, 1, Some(done), op));
    net[0].cntr_add(go, 1);
    net.settle();
    net.kill(1);
    net.settle();
    let entry = net[0].sent();
    assert_eq!((entry.ctx.0, entry.src, entry.err.is_some()), (4, 1, true));
    assert_eq!((net[0].cntr_read(done), net[0].cntr_readerr(done)), (0, 1));
}

/// A counter in memory, and the memory.
fn shared_counter(net: &mut Net, at: usize) -> (CntrId, Span) {
    let memory = net.memory(at, 32);
    let words = memory.part((8 - memory.addr() as usize % 8) % 8, 16).unwrap();
    (net[at].cntr_open_at(words).unwrap(), words)
}

#[test]
fn a_counter_in_memory_counts_there_with_what_others_write() {
    let mut net = Net::new(2);
    let (cntr, words) = shared_counter(&mut net, 0);
    let (go, numbers) = (net[0].cntr_open(), |a: u64, b: u64| [a.to_ne_bytes(), b.to_ne_bytes()].concat());
    for id in 1..=2 {
        let op = sending(&net, &[], id);
        net[0].queue_work(work(id, go, 1, Some(cntr), op));
    }
    hmem::write(&[words], 0, &numbers(u64::MAX, 5));
    assert_eq!((net[0].cntr_read(cntr), net[0].cntr_readerr(cntr)), (u64::MAX, 5));
    net[0].cntr_add(go, 1);
    net.settle();
    // Beyond the largest number there is 0 again.
    assert_eq!(net[0].look(words, 16), numbers(1, 5));
    net[0].cntr_adderr(cntr, 2);
    net[0].cntr_add(cntr, 10);
    assert_eq!(net[0].look(words, 16), numbers(11, 7));
    net[0].cntr_set(cntr, 1);
    net[0].cntr_seterr(cntr, 0);
    assert_eq!(net[0].look(words, 16), numbers(1, 0));
}

#[test]
fn work_starts_when_others_have_written_the_counter_that_it_waits_for() {
    let mut net = Net::new(2);
    let (cntr, words) = shared_counter(&mut net, 0);
    let op = sending(&net, &[], 4);
    net[0].queue_work(work(1, cntr, 3, None, op));
    net.settle();
    assert_eq!((net[0].tx(), net[0].cntr_close(cntr)), (vec![], Err(Error::Busy)));
    hmem::write(&[words], 0, &3u64.to_ne_bytes());
    net.settle();
    assert_eq!((net[0].sent().ctx.0, net[0].cntr_close(cntr)), (4, Ok(())));
}

#[test]
fn memory_that_is_not_two_words_holds_no_counter() {
    let mut net = Net::new(1);
    let memory = net.memory(0, 32);
    let at = (8 - memory.addr() as usize % 8) % 8;
    for (off, len) in [(at, 8), (at, 24), (at + 4, 16)] {
        assert_eq!(
            net[0].cntr_open_at(memory.part(off, len).unwrap()),
            Err(Error::Invalid),
            "{len} at {off}"
        );
    }
    let device = net.device(16);
    assert_eq!(net[0].cntr_open_at(device), Err(Error::Invalid));
}
