//! Atomics, on memory of the host and of a device.

use engine::{Access, Atomic, Cntrs, Ctx, Error, OpFlags, Reg, What};
use hmem::{AtomicOp, Datatype, Span};
use testkit::*;
use wire::RmaSeg;

fn atomic<'a>(op: AtomicOp, operand: &'a [Span], remote: &'a [RmaSeg], ctx: usize) -> Atomic<'a> {
    Atomic {
        to: 1,
        op,
        datatype: Datatype::Uint64,
        operand,
        compare: &[],
        result: &[],
        remote,
        data: None,
        ctx: Ctx(ctx),
        flags: OpFlags::COMPLETION,
    }
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// A net whose node 1 has `values` under key 1.
fn net_with(device: bool, values: &[u64]) -> (Net, Span) {
    let mut net = Net::new(2);
    let len = 8 * values.len();
    let target = if device { net.device(len) } else { net.memory(1, len) };
    hmem::write(&[target], 0, &words(values));
    net[1].share(target, 1);
    (net, target)
}

#[test]
fn base_fetch_and_compare_do_as_they_say() {
    for device in [false, true] {
        let (mut net, target) = net_with(device, &[10, 20, 30]);
        let whole = [there(0, 24, 1)];
        let operand = [net.bytes(0, &words(&[1, 2, 3]))];
        net[0].atomic(&atomic(AtomicOp::Sum, &operand, &whole, 1)).unwrap();
        net.settle();
        let c = net[0].sent();
        assert_eq!((c.ctx.0, c.what, c.err), (1, What::ATOMIC | What::WRITE, None));
        assert_eq!(net[1].look(target, 24), words(&[11, 22, 33]));

        let result = if device { net.device(24) } else { net.memory(0, 24) };
        let old = [result];
        net[0].atomic(&Atomic { result: &old, ..atomic(AtomicOp::Prod, &operand, &whole, 2) }).unwrap();
        net.settle();
        let c = net[0].sent();
        assert_eq!((c.ctx.0, c.what, c.err), (2, What::ATOMIC | What::READ, None));
        assert_eq!(net[0].look(result, 24), words(&[11, 22, 33]));
        assert_eq!(net[1].look(target, 24), words(&[11, 44, 99]));

        let compare = [net.bytes(0, &words(&[11, 0, 99]))];
        let swap = Atomic { compare: &compare, result: &old, ..atomic(AtomicOp::Cswap, &operand, &whole, 3) };
        net[0].atomic(&swap).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, None);
        assert_eq!(net[0].look(result, 24), words(&[11, 44, 99]));
        assert_eq!(net[1].look(target, 24), words(&[1, 44, 3]));

        let two = [there(16, 8, 1), there(0, 8, 1)];
        let old = [result.part(0, 16).unwrap()];
        net[0].atomic(&Atomic { result: &old, ..atomic(AtomicOp::AtomicRead, &[], &two, 4) }).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, None);
        assert_eq!(net[0].look(result, 16), words(&[3, 1]));
        net.assert_idle();
    }
}

#[test]
fn operands_may_be_in_pieces_and_injected() {
    let (mut net, target) = net_with(false, &[0, 0]);
    let src = net.bytes(0, &words(&[5, 6]));
    let operand = [src.part(0, 3).unwrap(), src.part(3, 13).unwrap()];
    let whole = [there(0, 16, 1)];
    net[0].atomic(&Atomic { flags: OpFlags::INJECT, ..atomic(AtomicOp::Sum, &operand, &whole, 1) }).unwrap();
    hmem::write(&[src], 0, &[9; 16]);
    net.settle();
    assert_eq!(net[1].look(target, 16), words(&[5, 6]));
    net.assert_idle();
}

#[test]
fn what_does_not_fit_is_refused_here() {
    let (mut net, _) = net_with(false, &[0; 100]);
    let (eight, nine) = ([net.memory(0, 8)], [net.memory(0, 9)]);
    let one = [there(0, 8, 1)];
    let base = atomic(AtomicOp::Sum, &eight, &one, 0);
    for bad in [
        Atomic { operand: &nine, ..base },
        Atomic { operand: &[], ..base },
        Atomic { compare: &nine, ..base },
        Atomic { result: &nine, ..base },
        Atomic { remote: &[], operand: &[], ..base },
    ] {
        assert_eq!(net[0].atomic(&bad), Err(Error::Invalid), "{bad:?}");
    }
    let (long, all) = ([net.memory(0, 800)], [there(0, 800, 1)]);
    assert_eq!(net[0].atomic(&atomic(AtomicOp::Sum, &long, &all, 0)), Err(Error::TooBig));
    // The answer must fit a frame as well as the question.
    let fetch = Atomic { result: &long, ..atomic(AtomicOp::AtomicRead, &[], &all, 0) };
    assert_eq!(net[0].atomic(&fetch), Err(Error::TooBig));
    net.settle();
    net.assert_idle();
}

#[test]
fn the_target_refuses_what_it_cannot_do_or_has_not_allowed() {
    let (mut net, target) = net_with(false, &[7]);
    let iov = [target];
    for (access, key) in [(Access::REMOTE_WRITE, 2), (Access::REMOTE_READ, 3)] {
        net[1].mr_reg(&Reg { iov: &iov, access, key: Some(key) }).unwrap();
    }
    let (operand, result) = ([net.bytes(0, &words(&[1]))], [net.memory(0, 8)]);
    let cases = [
        (AtomicOp::Sum, true, there(0, 8, 9), Error::BadKey),
        (AtomicOp::Sum, false, there(0, 8, 9), Error::BadKey),
        (AtomicOp::Sum, true, there(1, 8, 1), Error::Range),
        (AtomicOp::Sum, true, there(0, 8, 2), Error::Access),
        (AtomicOp::Sum, true, there(0, 8, 3), Error::Access),
        (AtomicOp::Sum, false, there(0, 8, 3), Error::Access),
        (AtomicOp::AtomicRead, true, there(0, 8, 2), Error::Access),
        (AtomicOp::Cswap, true, there(0, 8, 1), Error::Unsupported),
    ];
    for (op, fetches, remote, err) in cases {
        let remote = [remote];
        let result: &[Span] = if fetches { &result } else { &[] };
        let op = Atomic { result, ..atomic(op, &operand, &remote, 5) };
        net[0].atomic(&op).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, Some(err), "{op:?}");
    }
    let remote = [there(0, 8, 1)];
    let odd = Atomic { datatype: Datatype::LongDouble, ..atomic(AtomicOp::Sum, &operand, &remote, 5) };
    net[0].atomic(&odd).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, Some(Error::Unsupported));
    assert_eq!(net[1].look(target, 8), words(&[7]));
    net.assert_idle();
}

#[test]
fn atomics_count_at_the_endpoint_by_what_they_return_and_at_the_registration_by_what_they_do() {
    let (mut net, _) = net_with(false, &[0]);
    let [w, r] = [net[0].cntr_open(), net[0].cntr_open()];
    let [rw, rr, mr_w, mr_r] = [(); 4].map(|()| net[1].cntr_open());
    let (ep0, ep1) = (net[0].ep, net[1].ep);
    net[0].ep_bind_cntrs(ep0, Cntrs { write: Some(w), read: Some(r), ..Cntrs::default() });
    net[1].ep_bind_cntrs(ep1, Cntrs { remote_write: Some(rw), remote_read: Some(rr), ..Cntrs::default() });
    let target = net.memory(1, 8);
    let mr = net[1].share(target, 2);
    net[1].mr_bind_cntr(mr, Some(mr_r), Some(mr_w));
    let (operand, result, remote) = ([net.memory(0, 8)], [net.memory(0, 8)], [there(0, 8, 2)]);
    let sum = Atomic { flags: OpFlags::empty(), ..atomic(AtomicOp::Sum, &operand, &remote, 1) };
    let swap = Atomic { op: AtomicOp::AtomicWrite, result: &result, ..sum };
    let cswap = Atomic { op: AtomicOp::Cswap, compare: &operand, result: &result, ..sum };
    let fetch = Atomic { op: AtomicOp::AtomicRead, operand: &[], result: &result, ..sum };
    let all = [
        (sum, [1, 0, 1, 0]),
        (Atomic { result: &result, ..sum }, [0, 1, 1, 1]),
        (swap, [0, 1, 1, 1]),
        (cswap, [0, 1, 1, 1]),
        (fetch, [0, 1, 0, 1]),
    ];
    let mut counted = [0; 4];
    for (op, more) in all {
        net[0].atomic(&op).unwrap();
        net.settle();
        counted = std::array::from_fn(|i| counted[i] + more[i]);
        assert_eq!([rw, rr, mr_w, mr_r].map(|c| net[1].cntr_read(c)), counted, "{:?}", op.op);
        // Of the two at the initiator, the same one as of the target's endpoint.
        assert_eq!((net[0].cntr_read(w), net[0].cntr_read(r)), (counted[0], counted[1]));
    }
    // One counter for both sorts of access counts each operation once.
    let both = net[1].cntr_open();
    net[1].mr_bind_cntr(mr, Some(both), Some(both));
    net[0].atomic(&swap).unwrap();
    net.settle();
    assert_eq!(net[1].cntr_read(both), 1);
    net.assert_idle();
}

#[test]
fn an_atomic_may_bear_cq_data() {
    let (mut net, _) = net_with(false, &[0]);
    let operand = [net.memory(0, 8)];
    net[0]
        .atomic(&Atomic { data: Some(3), ..atomic(AtomicOp::Sum, &operand, &[there(0, 8, 1)], 1) })
        .unwrap();
    net.settle();
    let c = net[1].received();
    assert_eq!((c.data, c.len, c.what), (3, 8, What::ATOMIC | What::REMOTE_WRITE | What::REMOTE_CQ_DATA));
    assert_eq!(net[0].sent().err, None);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no faults: it ends where memory is not mapped")]
fn registered_memory_that_is_not_mapped_is_an_error_to_the_initiator_alone() {
    let (mut net, target) = net_with(false, &[10, 20]);
    // SAFETY: nothing is ever mapped there; it is registered only, and what is registered may not be there.
    let hole = unsafe { Span::new(16, 64, hmem::Kind::System) };
    net[1].share(hole, 2);
    let (operand, result) = (net.bytes(0, &words(&[1, 2])), net.memory(0, 16));
    let (operand, old) = ([operand], [result]);
    for fetch in [true, false] {
        for flags in [OpFlags::COMPLETION, OpFlags::COMPLETION | OpFlags::DELIVERY] {
            for at in [0, 3] {
                let bad = [there(at, 16, 2)];
                let op = Atomic { flags, ..atomic(AtomicOp::Sum, &operand, &bad, 1) };
                let op = if fetch { Atomic { result: &old, ..op } } else { op };
                net[0].atomic(&op).unwrap();
                net.settle();
                let errs: Vec<_> = net[0].tx().into_iter().filter_map(|c| c.err).collect();
                assert_eq!(errs, [Error::Fault], "fetch: {fetch}, {flags:?}");
            }
        }
    }
    net[0].atomic(&atomic(AtomicOp::Sum, &operand, &[there(0, 16, 1)], 2)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, None);
    assert_eq!(net[1].look(target, 16), words(&[11, 22]));
    net.assert_idle();
}
