//! Host memory that is accessed by handles, in operations that end later, as a network adapter does it.

use engine::{Access, Config, Ctx, Error, MrId, OpFlags, Reg, Send};
use hmem::Span;
use testkit::*;

const LATER: [Direct; 2] = [Direct::Later, Direct::AnyOrder];

fn net(direct: Direct) -> Net {
    Net::with(2, Setup { direct, peer_access: true, ..Setup::default() })
}

/// The operations of the frames that are on their way.
fn ops(net: &mut Net, from: Place, to: Place) -> Vec<u8> {
    let mut ops = Vec::new();
    net.tamper(from, to, |frame| ops.push(frame[0]));
    ops
}

#[test]
fn a_message_of_host_memory_takes_one_operation_if_it_is_not_eager() {
    for direct in LATER {
        for (len, room) in [(0, 0), (1, 8), (256, 256), (257, 257), (20_000, 20_000), (20_000, 100), (500, 0)]
        {
            for posted in [true, false] {
                let case = (direct, len, room, posted);
                let mut net = net(direct);
                let (src, dst) = (net.bytes(0, &pattern(len, 1)), net.memory(1, room));
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
                let short = (len > room).then_some(Error::Truncated);
                assert_eq!((got.err, got.len), (short, len.min(room)), "{case:?}");
                assert_eq!(net[1].look(dst, room.min(len)), pattern(len, 1)[..room.min(len)], "{case:?}");
                assert_eq!(net[0].sent().err, None, "{case:?}");
                assert_eq!(net.device_copies(), usize::from(len > 256 && room > 0), "{case:?}");
                assert_eq!(net.direct_accesses(), 0);
                net.assert_idle();
            }
        }
    }
}

#[test]
fn a_handle_is_sent_once_for_each_allocation() {
    let mut net = net(Direct::Later);
    let (src, dst) = (net.bytes(0, &pattern(3000, 1)), net.memory(1, 3000));
    for i in 0..3 {
        net[1].recv(&from_any(&[dst], i)).unwrap();
        net[0].send(&msg(1, &[src.part(i, 2000).unwrap()], i)).unwrap();
        assert_eq!(ops(&mut net, 0, 1), if i == 0 { vec![14, 2] } else { vec![2] });
        net.settle();
        assert_eq!((net[0].sent().err, net[1].received().err), (None, None));
        assert_eq!(net[1].look(dst, 2000), pattern(3000, 1)[i..i + 2000]);
    }
    assert_eq!(net.device_copies(), 3);
}

#[test]
fn buffers_of_host_and_device_memory_take_one_operation_or_go_in_frames() {
    for direct in Direct::ALL {
        for peer_access in [true, false] {
            for is_write in [None, Some(true), Some(false)] {
                let case = (direct, peer_access, is_write);
                let mut net = Net::with(2, Setup { direct, peer_access, ..Setup::default() });
                let half = 1500;
                let here = [net.device(half), net.memory(0, half)];
                let dst = [net.memory(1, half - 7), net.device(half + 7)];
                hmem::write(&here, 0, &pattern(2 * half, 1));
                hmem::write(&dst, 0, &pattern(2 * half, 2));
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                net[1].mr_reg(&Reg { iov: &dst, access, key: Some(5) }).unwrap();
                let remote = [there(0, 2 * half, 5)];
                match is_write {
                    None => {
                        net[1].recv(&from_any(&dst, 2)).unwrap();
                        net[0].send(&msg(1, &here, 1)).unwrap();
                    }
                    Some(true) => net[0].rma(&write(1, &here, &remote, 1)).unwrap(),
                    Some(false) => net[0].rma(&read(1, &here, &remote, 1)).unwrap(),
                }
                net.settle();
                assert_eq!(net[0].sent().err, None, "{case:?}");
                assert!(net[1].rx().iter().all(|c| c.err.is_none()), "{case:?}");
                let mut bytes = vec![0; 2 * half];
                hmem::read(if is_write == Some(false) { &here } else { &dst }, 0, &mut bytes);
                let seed = if is_write == Some(false) { 2 } else { 1 };
                assert!(bytes == pattern(2 * half, seed), "{case:?}");
                let by_handles = direct.is_by_handles() && peer_access;
                assert_eq!(net.device_copies(), usize::from(by_handles), "{case:?}");
                net.assert_idle();
            }
        }
    }
}

#[test]
fn reads_and_writes_of_host_memory_take_one_operation_if_they_are_large() {
    for direct in LATER {
        for rma_order in [true, false] {
            for len in [1, 256, 257, 20_000] {
                let case = (direct, rma_order, len);
                let config = Config { virt_addr: false, rma_order };
                let mut net = Net::with(2, Setup { direct, config, ..Setup::default() });
                let (here, target) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len + 5));
                net[1].share(target, 7);
                net[0].rma(&write(1, &[here], &[there(5, len, 7)], 1)).unwrap();
                net.settle();
                assert_eq!(net[0].sent().err, None, "{case:?}");
                assert_eq!(net[1].look(target, len + 5)[5..], pattern(len, 1), "{case:?}");
                assert_eq!(net.device_copies(), usize::from(len > 256), "{case:?}");
                hmem::write(&[target], 5, &pattern(len, 2));
                net[0].rma(&read(1, &[here], &[there(5, len, 7)], 2)).unwrap();
                net.settle();
                assert_eq!(net[0].sent().err, None, "{case:?}");
                assert_eq!(net[0].look(here, len), pattern(len, 2), "{case:?}");
                assert_eq!(net.device_copies(), 2 * usize::from(len > 256), "{case:?}");
                net.assert_idle();
            }
        }
    }
}

#[test]
fn rma_in_order_does_not_overtake_an_operation_in_flight() {
    let config = Config { virt_addr: false, rma_order: true };
    let mut net = Net::with(2, Setup { direct: Direct::AnyOrder, config, ..Setup::default() });
    let (first, second) = (net.bytes(0, &[1; 3000]), net.bytes(0, &[2; 8]));
    let target = net.memory(1, 3000);
    net[1].share(target, 7);
    net.hold_operations(true);
    net[0].rma(&write(1, &[first], &[there(0, 3000, 7)], 1)).unwrap();
    net.settle();
    let (iov, remote) = ([second], [there(0, 8, 7)]);
    assert_eq!(net[0].rma(&write(1, &iov, &remote, 2)), Err(Error::Again));
    net.hold_operations(false);
    net.settle();
    net[0].sent();
    net[0].rma(&write(1, &iov, &remote, 2)).unwrap();
    net.settle();
    assert_eq!(net[1].look(target, 8), [2; 8]);
}

#[test]
fn an_operation_that_fails_is_made_up_for_by_frames() {
    for direct in LATER {
        for late in [true, false] {
            for (failures, is_read) in [(1, false), (2, false), (1, true), (2, true)] {
                let case = (direct, late, failures, is_read);
                let mut net = net(direct);
                let (here, target) = (net.bytes(0, &pattern(3000, 1)), net.bytes(1, &pattern(3000, 2)));
                net[1].share(target, 7);
                net.fail_copies(failures, late);
                if is_read {
                    net[0].rma(&read(1, &[here], &[there(0, 3000, 7)], 1)).unwrap();
                } else {
                    net[1].recv(&from_any(&[target], 2)).unwrap();
                    net[0].send(&msg(1, &[here], 1)).unwrap();
                }
                net.settle();
                assert_eq!(net[0].sent().err, None, "{case:?}");
                assert!(net[1].rx().iter().all(|c| c.err.is_none()));
                let seed = if is_read { 2 } else { 1 };
                assert!(net[0].look(here, 3000) == pattern(3000, seed), "{case:?}");
                assert!(net[1].look(target, 3000) == pattern(3000, seed), "{case:?}");
                net.assert_idle();
            }
        }
    }
}

#[test]
fn memory_that_cannot_be_exported_is_put_by_its_owner() {
    for direct in LATER {
        let mut net = Net::with(2, Setup { direct, ..Setup::default() });
        let (src, dst) = (net.device(3000), net.memory(1, 3000));
        hmem::write(&[src], 0, &pattern(3000, 1));
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        net[0].send(&msg(1, &[src], 1)).unwrap();
        net.settle();
        assert_eq!((net[0].sent().err, net[1].received().err), (None, None));
        assert!(net[1].look(dst, 3000) == pattern(3000, 1));
        assert_eq!(net.device_copies(), 1, "{direct:?}");
        net.assert_idle();
    }
}

/// An operation in flight between host memory here and there, and which memory its owner takes back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flight {
    /// The receiver gets a message.
    Get,
    /// The sender puts a message, of a device's memory that has no handles.
    Put,
    /// The target gets what is written.
    Write,
    /// The initiator puts what is written, of a device's memory.
    WritePut,
    /// The target puts what is read.
    Read,
}

const FLIGHTS: [Flight; 5] = [Flight::Get, Flight::Put, Flight::Write, Flight::WritePut, Flight::Read];

const LEN: usize = 3000;

/// Starts it, as node 0's operation on node 1, and keeps it in flight: the memory here, there, and its
/// registration there.
fn take_off(net: &mut Net, flight: Flight) -> (Span, Span, MrId) {
    net.hold_operations(true);
    let from_device = matches!(flight, Flight::Put | Flight::WritePut);
    let here = if from_device { net.device(LEN) } else { net.memory(0, LEN) };
    hmem::write(&[here], 0, &pattern(LEN, 1));
    let target = net.bytes(1, &pattern(LEN, 2));
    let mr = net[1].share(target, 7);
    let remote = [there(0, LEN, 7)];
    match flight {
        Flight::Get | Flight::Put => {
            net[1].recv(&from_any(&[target], 2)).unwrap();
            net[0].send(&msg(1, &[here], 1)).unwrap();
        }
        Flight::Write | Flight::WritePut => net[0].rma(&write(1, &[here], &remote, 1)).unwrap(),
        Flight::Read => net[0].rma(&read(1, &[here], &remote, 1)).unwrap(),
    }
    net.settle();
    assert_eq!(net.operations_in_flight(), 1, "{flight:?}");
    (here, target, mr)
}

fn is_all(net: &Net, span: Span, byte: u8) -> bool {
    net[0].look(span, LEN).iter().all(|b| *b == byte)
}

#[test]
fn a_send_that_is_cancelled_in_flight_is_accessed_no_more() {
    for direct in LATER {
        for flight in [Flight::Get, Flight::Put] {
            let case = (direct, flight);
            let mut net = Net::with(2, Setup { direct, ..Setup::default() });
            let (here, target, _) = take_off(&mut net, flight);
            let ep = net[0].ep;
            net[0].ep_cancel(ep, Ctx(1)).unwrap();
            assert_eq!(net[0].sent().err, Some(Error::Cancelled), "{case:?}");
            hmem::write(&[here], 0, &[0xee; LEN]);
            net.hold_operations(false);
            net.settle();
            assert_eq!(net[1].received().err, Some(Error::Cancelled), "{case:?}");
            assert!(net[1].look(target, LEN) == pattern(LEN, 2), "{case:?}");
            net.assert_idle();
        }
    }
}

#[test]
fn a_registration_that_is_closed_in_flight_is_accessed_no_more() {
    for direct in LATER {
        for flight in [Flight::Write, Flight::WritePut, Flight::Read] {
            let case = (direct, flight);
            let mut net = Net::with(2, Setup { direct, ..Setup::default() });
            let (here, target, mr) = take_off(&mut net, flight);
            net[1].mr_close(mr).unwrap();
            hmem::write(&[target], 0, &[0xcc; LEN]);
            net.hold_operations(false);
            net.settle();
            assert!(is_all(&net, target, 0xcc), "{case:?}: written after the close");
            assert_eq!(net[0].sent().err, Some(Error::BadKey), "{case:?}");
            assert!(net[0].look(here, LEN) == pattern(LEN, 1), "{case:?}: read after the close");
            net.assert_idle();
        }
    }
}

#[test]
fn memory_of_an_endpoint_that_is_closed_in_flight_is_accessed_no_more() {
    for direct in LATER {
        for flight in FLIGHTS {
            for closed in [0, 1] {
                for busy in [false, true] {
                    let case = (direct, flight, closed, busy);
                    let mut net = Net::with(2, Setup { direct, ..Setup::default() });
                    let (here, target, _) = take_off(&mut net, flight);
                    let ep = net[closed].ep;
                    if busy {
                        net.keep_inside(1);
                        assert_eq!(net[closed].ep_close(ep), Err(Error::Busy), "{case:?}");
                    }
                    net[closed].ep_close(ep).unwrap();
                    let (mine, other) = if closed == 0 { (here, target) } else { (target, here) };
                    hmem::write(&[mine], 0, &[0xcc; LEN]);
                    let before = net[0].look(other, LEN);
                    net.hold_operations(false);
                    net.settle();
                    assert!(is_all(&net, mine, 0xcc), "{case:?}: written after the close");
                    assert!(net[0].look(other, LEN) == before, "{case:?}: read after the close");
                }
            }
        }
    }
}

#[test]
fn operations_with_a_peer_that_dies_end_and_access_nothing() {
    for direct in LATER {
        for flight in FLIGHTS {
            for dead in [0, 1] {
                let case = (direct, flight, dead);
                let mut net = Net::with(2, Setup { direct, ..Setup::default() });
                let (here, target, _) = take_off(&mut net, flight);
                net.kill(dead);
                net.revive(dead);
                net.hold_operations(false);
                net.settle();
                assert_eq!(net.operations_in_flight(), 0, "{case:?}");
                assert!(net[0].look(here, LEN) == pattern(LEN, 1), "{case:?}");
                assert!(net[1].look(target, LEN) == pattern(LEN, 2), "{case:?}");
                let alive = 1 - dead;
                let ended: Vec<_> =
                    net[alive].tx().into_iter().chain(net[alive].rx()).map(|c| c.err).collect();
                let completes = dead == 1 || matches!(flight, Flight::Get | Flight::Put);
                assert_eq!(ended, vec![Some(Error::Reset); usize::from(completes)], "{case:?}");
                net.assert_idle();
            }
        }
    }
}

#[test]
fn an_injected_message_leaves_its_buffer_in_the_call() {
    for direct in LATER {
        let mut net = net(direct);
        let (src, dst) = (net.bytes(0, &pattern(200, 1)), net.memory(1, 200));
        net[0].send(&Send { flags: OpFlags::INJECT, ..msg(1, &[src], 1) }).unwrap();
        hmem::write(&[src], 0, &[0; 200]);
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        net.settle();
        assert_eq!((net[1].received().err, net[1].look(dst, 200)), (None, pattern(200, 1)));
        assert_eq!(net.device_copies(), 0);
        net.assert_idle();
    }
}
