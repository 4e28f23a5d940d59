//! Memory of peers: writes, reads, registrations, counters, order.

use engine::{Access, Cntrs, Config, Ctx, Error, OpFlags, Reg, Rma, What};
use hmem::{Kind, Span};
use testkit::*;

const LENS: [usize; 8] = [0, 1, 255, 256, 257, 512, 3000, 20_000];

#[test]
fn writes_and_reads_of_all_sizes_reach_the_right_bytes() {
    for direct in Direct::ALL {
        for (here_is_device, there_is_device) in [(false, false), (true, false), (false, true), (true, true)]
        {
            for capacity in [1, 64] {
                for len in LENS {
                    let case = (direct, here_is_device, there_is_device, capacity, len);
                    let capacity = capacity.max(direct.least_capacity());
                    let mut net = Net::with(2, Setup { direct, capacity, ..Setup::default() });
                    let mut pick =
                        |device, at| if device { net.device(len + 20) } else { net.memory(at, len + 20) };
                    let (here, target) = (pick(here_is_device, 0), pick(there_is_device, 1));
                    net[1].share(target, 5);
                    let local = here.part(3, len).unwrap();
                    hmem::write(&[local], 0, &pattern(len, 1));
                    let remote = [there(10, len, 5)];
                    net[0].rma(&write(1, &[local], &remote, 1)).unwrap();
                    net.settle();
                    let done = net[0].sent();
                    assert_eq!(
                        (done.ctx.0, done.what, done.err),
                        (1, What::RMA | What::WRITE, None),
                        "{case:?}"
                    );
                    let mut want = vec![0; len + 20];
                    want[10..10 + len].copy_from_slice(&pattern(len, 1));
                    assert_eq!(net[1].look(target, len + 20), want, "{case:?}");

                    hmem::write(&[target], 10, &pattern(len, 2));
                    net[0].rma(&read(1, &[local], &remote, 2)).unwrap();
                    net.settle();
                    let done = net[0].sent();
                    assert_eq!(
                        (done.ctx.0, done.what, done.err),
                        (2, What::RMA | What::READ, None),
                        "{case:?}"
                    );
                    want.fill(0);
                    want[3..3 + len].copy_from_slice(&pattern(len, 2));
                    assert_eq!(net[0].look(here, len + 20), want, "{case:?}");
                    net.assert_idle();
                }
            }
        }
    }
}

#[test]
fn pieces_here_and_pieces_there_need_not_fit_each_other() {
    for (direct, len) in Direct::ALL.into_iter().flat_map(|d| [(d, 200), (d, 3000)]) {
        let mut net = Net::with(2, Setup { direct, ..Setup::default() });
        let (a, b) = (net.memory(1, len), net.memory(1, len));
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        // A registration of two buffers is one range.
        net[1].mr_reg(&Reg { iov: &[a, b], access, key: Some(1) }).unwrap();
        let src = net.bytes(0, &pattern(len, 4));
        let local: Vec<Span> = (0..8).map(|i| src.part(i * len / 8, len / 8).unwrap()).collect();
        let half = len / 2;
        let remote = [there((len - half / 2) as u64, half, 1), there(0, 0, 1), there(5, len - half, 1)];
        net[0].rma(&write(1, &local, &remote, 1)).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, None);
        let bytes = pattern(len, 4);
        assert_eq!(net[1].look(a.part(len - half / 2, half / 2).unwrap(), half / 2), bytes[..half / 2]);
        assert_eq!(net[1].look(b, half - half / 2), bytes[half / 2..half]);
        let rest = (len - half).min(len - half / 2 - 5);
        assert_eq!(net[1].look(a.part(5, rest).unwrap(), rest), bytes[half..half + rest]);
        let back = net.memory(0, len);
        net[0].rma(&read(1, &[back], &remote, 2)).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, None);
        assert_eq!(net[0].look(back, len), bytes);
        net.assert_idle();
    }
}

#[test]
fn the_target_refuses_what_it_has_not_allowed() {
    for len in [100, 3000] {
        for direct in Direct::ALL {
            let mut net = Net::with(2, Setup { direct, ..Setup::default() });
            let (local, target) = (net.memory(0, len), net.memory(1, len));
            let iov = [target];
            let mut reg = |access, key| net[1].mr_reg(&Reg { iov: &iov, access, key: Some(key) }).unwrap().0;
            reg(Access::REMOTE_READ, 1);
            reg(Access::REMOTE_WRITE, 2);
            let closed = reg(Access::REMOTE_READ | Access::REMOTE_WRITE, 3);
            net[1].mr_close(closed).unwrap();
            assert_eq!(net[1].mr_close(closed), Err(Error::NotFound));
            let cases = [
                (true, there(0, len, 1), Error::Access),
                (false, there(0, len, 2), Error::Access),
                (true, there(0, len, 3), Error::BadKey),
                (false, there(0, len, 99), Error::BadKey),
                (true, there(1, len, 2), Error::Range),
                (false, there(1, len, 1), Error::Range),
                (true, there(u64::MAX, len, 2), Error::Range),
                (false, there(u64::MAX - len as u64 + 1, len, 1), Error::Range),
            ];
            for (is_write, remote, err) in cases {
                net[0].rma(&Rma { write: is_write, ..write(1, &[local], &[remote], 7) }).unwrap();
                net.settle();
                let c = net[0].sent();
                assert_eq!((c.ctx.0, c.err), (7, Some(err)), "{is_write} {remote:?}");
            }
            assert_eq!(net[1].look(target, len), vec![0; len]);
            net.assert_idle();
        }
    }
}

#[test]
fn both_sides_of_a_transfer_are_equally_long() {
    let mut net = Net::new(2);
    let local = net.memory(0, 10);
    let nine = [there(0, 1, 0); 9];
    for remote in [&[there(0, 9, 0)][..], &[], &[there(0, u64::MAX as usize, 0), there(0, 11, 0)], &nine] {
        assert_eq!(net[0].rma(&write(1, &[local], remote, 0)), Err(Error::Invalid));
    }
}

#[test]
fn cq_data_is_at_the_target_once_the_bytes_are_there() {
    let large = Direct::ALL.map(|direct| (3000, direct));
    for (len, direct) in [(0, Direct::InCall), (100, Direct::InCall)].into_iter().chain(large) {
        let mut net = Net::with(2, Setup { direct, ..Setup::default() });
        let (local, target) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len));
        net[1].share(target, 1);
        net[0].rma(&Rma { data: Some(0xabcd), ..write(1, &[local], &[there(0, len, 1)], 1) }).unwrap();
        while net[1].cq_is_empty(net[1].rx_cq) {
            net[0].progress();
            net[1].progress();
        }
        assert_eq!(net[1].look(target, len), pattern(len, 1));
        let c = net[1].received();
        assert_eq!((c.data, c.len, c.src, c.ctx), (0xabcd, len, 0, Ctx(0)));
        assert_eq!(c.what, What::RMA | What::REMOTE_WRITE | What::REMOTE_CQ_DATA);
        net.settle();
        assert_eq!(net[0].sent().err, None);
        net.assert_idle();
    }
}

#[test]
fn each_access_counts_once_at_the_endpoint_and_once_at_the_registration() {
    let large = Direct::ALL.map(|direct| (3000, direct));
    for (len, direct) in [(100, Direct::InCall)].into_iter().chain(large) {
        let mut net = Net::with(2, Setup { direct, ..Setup::default() });
        let (local, target) = (net.memory(0, len), net.memory(1, len));
        let mr = net[1].share(target, 1);
        let [w, r] = [net[0].cntr_open(), net[0].cntr_open()];
        let [rw, rr, mr_w] = [net[1].cntr_open(), net[1].cntr_open(), net[1].cntr_open()];
        let (ep0, ep1) = (net[0].ep, net[1].ep);
        net[0].ep_bind_cntrs(ep0, Cntrs { write: Some(w), read: Some(r), ..Cntrs::default() });
        net[1]
            .ep_bind_cntrs(ep1, Cntrs { remote_write: Some(rw), remote_read: Some(rr), ..Cntrs::default() });
        // One counter of its own, and one that is the endpoint's as well.
        net[1].mr_bind_cntr(mr, Some(rr), None);
        net[1].mr_bind_cntr(mr, None, Some(mr_w));
        let remote = [there(0, len, 1)];
        for flags in [OpFlags::COMPLETION, OpFlags::empty(), OpFlags::empty()] {
            net[0].rma(&Rma { flags, ..write(1, &[local], &remote, 1) }).unwrap();
            net.settle();
        }
        for _ in 0..2 {
            net[0].rma(&read(1, &[local], &remote, 1)).unwrap();
            net.settle();
        }
        let also = net[1].share(target, 2);
        net[1].mr_bind_cntr(also, None, Some(rw));
        net[0].rma(&write(1, &[local], &[there(0, len, 2)], 1)).unwrap();
        net.settle();
        let bad = [there(1, len, 1)];
        net[0].rma(&read(1, &[local], &bad, 1)).unwrap();
        net[0].rma(&write(1, &[local], &bad, 1)).unwrap();
        net.settle();
        let counted = |n: &Node, c| (n.cntr_read(c), n.cntr_readerr(c));
        assert_eq!((counted(&net[0], w), counted(&net[0], r)), ((4, 1), (2, 1)));
        assert_eq!(
            (counted(&net[1], rw), counted(&net[1], rr), counted(&net[1], mr_w)),
            ((4, 0), (2, 0), (3, 0))
        );
        assert_eq!(net[0].tx().len(), 6);
        net.assert_idle();
    }
}

#[test]
fn every_registration_of_one_operation_counts() {
    let large = Direct::ALL.map(|direct| (3000, direct));
    for (len, direct) in [(60, Direct::InCall)].into_iter().chain(large) {
        for is_write in [true, false] {
            let mut net = Net::with(2, Setup { direct, ..Setup::default() });
            let local = net.memory(0, 3 * len);
            let mut cntrs = Vec::new();
            for key in 1..=3 {
                let target = net.memory(1, len);
                let mr = net[1].share(target, key);
                let [r, w] = [net[1].cntr_open(), net[1].cntr_open()];
                net[1].mr_bind_cntr(mr, Some(r), Some(w));
                cntrs.push((r, w));
            }
            // The first one twice.
            let remote = [there(0, len, 1), there(0, len, 2), there(0, len / 2, 3), there(0, len / 2, 1)];
            net[0].rma(&Rma { write: is_write, ..write(1, &[local], &remote, 1) }).unwrap();
            net.settle();
            assert_eq!(net[0].sent().err, None);
            for &(r, w) in &cntrs {
                let counted = (net[1].cntr_read(r), net[1].cntr_read(w));
                assert_eq!(counted, if is_write { (0, 1) } else { (1, 0) }, "{len} {direct:?}");
            }
            net.assert_idle();
        }
    }
}

/// The owner may change memory as soon as the read is counted.
#[test]
fn a_read_counts_when_the_bytes_have_been_read() {
    let mut net = Net::with(2, Setup { direct: Direct::Never, capacity: 1, ..Setup::default() });
    let (local, target) = (net.memory(0, 5000), net.bytes(1, &pattern(5000, 1)));
    let mr = net[1].share(target, 1);
    let cntr = net[1].cntr_open();
    net[1].mr_bind_cntr(mr, Some(cntr), None);
    net[0].rma(&read(1, &[local], &[there(0, 5000, 1)], 1)).unwrap();
    while net[1].cntr_read(cntr) == 0 {
        net[1].progress();
        net[0].progress();
    }
    hmem::write(&[target], 0, &[0; 5000]);
    net.settle();
    assert_eq!(net[0].sent().err, None);
    assert_eq!(net[0].look(local, 5000), pattern(5000, 1));
}

#[test]
fn a_key_is_taken_once_unless_no_peer_can_name_it() {
    let mut net = Net::new(2);
    let (target, local) = (net.memory(1, 8), net.bytes(0, b"12345678"));
    let iov = [target];
    let reg = |access, key| Reg { iov: &iov, access, key };
    let none = Access::empty();
    let first = net[1].mr_reg(&reg(none, Some(0))).unwrap();
    net[1].mr_reg(&reg(none, Some(0))).unwrap();
    let open = net[1].mr_reg(&reg(Access::REMOTE_WRITE, Some(0))).unwrap();
    assert_eq!(net[1].mr_reg(&reg(Access::REMOTE_READ, Some(0))), Err(Error::KeyInUse));
    net[1].mr_reg(&reg(none, Some(0))).unwrap();
    // Closing a namesake leaves the key to the one that has it.
    net[1].mr_close(first.0).unwrap();
    net[0].rma(&write(1, &[local], &[there(0, 8, 0)], 1)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, None);
    net[1].mr_close(open.0).unwrap();
    net[1].mr_reg(&reg(Access::REMOTE_READ, Some(0))).unwrap();
    let chosen: Vec<u64> = (0..3).map(|_| net[1].mr_reg(&reg(none, None)).unwrap().1).collect();
    assert!(chosen[0] != chosen[1] && chosen[1] != chosen[2] && chosen[0] != chosen[2]);
    let nine = [target; 9];
    assert_eq!(net[1].mr_reg(&Reg { iov: &nine, access: none, key: None }), Err(Error::Invalid));
}

#[test]
fn memory_may_be_named_by_its_address() {
    let config = Config { virt_addr: true, rma_order: false };
    let mut net = Net::with(2, Setup { config, ..Setup::default() });
    let (local, target) = (net.bytes(0, b"abcd"), net.memory(1, 8));
    net[1].share(target, 1);
    for (addr, err) in
        [(target.addr() + 4, None), (4, Some(Error::Range)), (target.addr() + 5, Some(Error::Range))]
    {
        net[0].rma(&write(1, &[local], &[there(addr, 4, 1)], 1)).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, err);
    }
    assert_eq!(net[1].look(target, 8), b"\0\0\0\0abcd");
}

#[test]
fn all_memory_may_be_registered_at_once() {
    for virt_addr in [true, false] {
        let config = Config { virt_addr, rma_order: false };
        let mut net = Net::with(2, Setup { config, ..Setup::default() });
        // SAFETY: only what `memory` returned is reached through it.
        let everything = unsafe { Span::new(0, usize::MAX, Kind::System) };
        net[1].share(everything, 0);
        for len in [4, 3000] {
            let (local, target) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len));
            net[0].rma(&write(1, &[local], &[there(target.addr(), len, 0)], 1)).unwrap();
            net.settle();
            assert_eq!(net[0].sent().err, None);
            assert_eq!(net[1].look(target, len), pattern(len, 1));
        }
        let (two, most) = (net.memory(0, 2), u64::MAX - 1);
        net[0].rma(&write(1, &[two], &[there(most, 2, 0)], 1)).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, Some(Error::Range));
    }
}

/// Posts, making progress at both ends as an application would, until it is taken.
fn insist(net: &mut Net, op: &Rma<'_>) -> usize {
    for tries in 0..10_000 {
        match net[0].rma(op) {
            Ok(()) => return tries,
            Err(err) => assert_eq!(err, Error::Again),
        }
        net[1].progress();
    }
    panic!("never taken");
}

#[test]
fn rma_takes_effect_in_the_order_it_was_posted() {
    let config = Config { virt_addr: false, rma_order: true };
    for direct in Direct::ALL {
        for capacity in [1, 3, 64] {
            for device_here in [false, true] {
                let mut net = Net::with(2, Setup { config, direct, capacity, ..Setup::default() });
                let target = net.memory(1, 3000);
                net[1].share(target, 1);
                // Large ones from the host make the way known.
                for i in 0..2 {
                    let warm = net.memory(0, 3000);
                    insist(&mut net, &write(1, &[warm], &[there(0, 3000, 1)], i));
                }
                let mut reads = Vec::new();
                for (i, len) in [3000, 10, 3000, 3000, 200, 3000].into_iter().enumerate() {
                    let (remote, bytes) = ([there(0, len, 1)], pattern(len, i));
                    let device = device_here && i % 2 == 0;
                    let src = if device { net.device(len) } else { net.memory(0, len) };
                    hmem::write(&[src], 0, &bytes);
                    insist(&mut net, &write(1, &[src], &remote, i));
                    for len in [len, 10] {
                        let dst = net.memory(0, len);
                        insist(&mut net, &read(1, &[dst], &[there(0, len, 1)], i));
                        reads.push((dst, len, i));
                    }
                }
                net.settle();
                for (dst, len, i) in reads {
                    assert_eq!(
                        net[0].look(dst, len),
                        pattern(3000, i)[..len],
                        "{direct:?} {capacity} {device_here} {i}"
                    );
                }
                assert!(net[0].tx().iter().all(|c| c.err.is_none()));
                net.assert_idle();
            }
        }
    }
}

/// A small read answers with what was there when it arrived, even if the answer has to wait.
#[test]
fn a_read_that_finds_no_room_for_its_answer_does_not_see_later_writes() {
    let config = Config { virt_addr: false, rma_order: true };
    let mut net = Net::with(2, Setup { config, ..Setup::default() });
    let (target, old, new) = (net.bytes(1, b"old"), net.memory(0, 3), net.bytes(0, b"new"));
    net[1].share(target, 1);
    let remote = [there(0, 3, 1)];
    net[0].rma(&read(1, &[old], &remote, 1)).unwrap();
    net[0].rma(&write(1, &[new], &remote, 2)).unwrap();
    net.set_capacity(0);
    net[1].progress();
    assert_eq!(net[1].look(target, 3), b"new");
    net.set_capacity(1);
    net.settle();
    assert_eq!(net[0].look(old, 3), b"old");
    assert_eq!(net[0].tx().len(), 2);
    net.assert_idle();
}

/// A refusal says nothing about how the peer fetches.
#[test]
fn a_refused_write_does_not_loosen_the_order() {
    let config = Config { virt_addr: false, rma_order: true };
    let mut net = Net::with(2, Setup { config, direct: Direct::Never, ..Setup::default() });
    let (target, large, small) = (net.memory(1, 3000), net.bytes(0, &[1; 3000]), net.bytes(0, &[2; 3000]));
    net[1].share(target, 1);
    net[0].rma(&write(1, &[large], &[there(0, 3000, 77)], 1)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, Some(Error::BadKey));
    let remote = [there(0, 3000, 1)];
    net[0].rma(&write(1, &[large], &remote, 1)).unwrap();
    assert!(insist(&mut net, &write(1, &[small.part(0, 9).unwrap()], &[there(0, 9, 1)], 1)) > 0);
    net.settle();
    assert_eq!(net[1].look(target, 9), [2; 9]);
}

#[test]
fn a_fault_at_the_target_is_reported_to_the_initiator() {
    for is_write in [true, false] {
        let mut net = Net::new(2);
        let (local, target) = (net.memory(0, 3000), net.memory(1, 3000));
        net[1].share(target, 1);
        net.fault(1);
        net[0]
            .rma(&Rma { write: is_write, data: Some(1), ..write(1, &[local], &[there(0, 3000, 1)], 1) })
            .unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, Some(Error::Io));
        net.assert_idle();
    }
}

/// Registered, and not mapped: nothing ever is at the first page.
fn unmapped(len: usize) -> Span {
    // SAFETY: it is registered only, and what is registered may not be there.
    unsafe { Span::new(16, len, Kind::System) }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no faults: it ends where memory is not mapped")]
fn registered_memory_that_is_not_mapped_is_an_error_to_the_initiator_alone() {
    for (rma_order, answered, len) in [false, true]
        .into_iter()
        .flat_map(|o| [false, true].map(|a| (o, a)))
        .flat_map(|(o, a)| LENS.into_iter().filter(|len| *len > 0).map(move |len| (o, a, len)))
    {
        let case = (rma_order, answered, len);
        let config = Config { rma_order, ..Setup::default().config };
        let mut net = Net::with(2, Setup { direct: Direct::Never, config, ..Setup::default() });
        let (local, good) = (net.memory(0, len), net.memory(1, len));
        let hole = unmapped(3000);
        net[1].share(hole, 1);
        net[1].share(good, 2);
        hmem::write(&[local], 0, &pattern(len, 3));
        let flags = OpFlags::COMPLETION | if answered { OpFlags::DELIVERY } else { OpFlags::empty() };
        let at_hole = [there(0, len.min(3000), 1)];
        let part = [local.part(0, len.min(3000)).unwrap()];
        let remote = [there(0, len, 2)];
        for is_write in [true, false, true] {
            let bad = Rma { write: is_write, flags, ..write(1, &part, &at_hole, 1) };
            net[0].rma(&bad).unwrap();
            net.settle();
            // What is not answered has its end at once, and its error after that.
            let errs: Vec<_> = net[0].tx().into_iter().filter_map(|c| c.err).collect();
            assert_eq!(errs, [Error::Fault], "{case:?} write: {is_write}");
            // Right ones go on.
            net[0].rma(&Rma { flags, ..write(1, &[local], &remote, 2) }).unwrap();
            net.settle();
            assert_eq!(net[0].sent().err, None, "{case:?}");
            assert_eq!(net[1].look(good, len), pattern(len, 3), "{case:?}");
        }
        // One of two places is there.
        let half = len / 2;
        if (1..3000).contains(&half) {
            let both = [there(0, half, 2), there(0, half, 1)];
            let part = [local.part(0, 2 * half).unwrap()];
            for is_write in [true, false] {
                net[0].rma(&Rma { write: is_write, flags, ..write(1, &part, &both, 3) }).unwrap();
                net.settle();
                let errs: Vec<_> = net[0].tx().into_iter().filter_map(|c| c.err).collect();
                assert_eq!(errs, [Error::Fault], "{case:?} write: {is_write}");
            }
        }
        net.assert_idle();
    }
}
