//! Frames that a peer made up.

use wire::{Flags, Handle, Head, Op, Seg, Status, put};

use super::*;

/// A `Bounce` of this request, as a peer that made it up would send it.
fn made_up(name: u64, off: u64, addr: u64, len: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    put(&mut frame, &Head::new(Op::Bounce, Flags::empty(), 1, name, off));
    put(&mut frame, &Seg { addr: addr.into(), len: len.into() });
    frame
}

/// Where a buffer is that the first node has exported to the second one.
fn exported(net: &mut Net) -> u64 {
    let memory = net.device(1000);
    let (base, device, token, zero) = (memory.addr(), [0; 16], [0; 64], [0; 3]);
    let mut frame = Vec::new();
    put(&mut frame, &Head::new(Op::Handle, Flags::empty(), 0, 0, 0));
    let (id, len, fd) = (base.into(), 1000.into(), 0.into());
    put(&mut frame, &Handle { how: 1, zero, fd, id, base: base.into(), len, device, token });
    net.inject(0, 1, frame);
    base
}

#[test]
fn frames_that_a_peer_made_up_have_no_effect() {
    let mut net = net(2, Direct::InCall);
    let len = 2 * PART;
    let (src, dst) = (filled(&mut net, 0, len, 3), net.device(len));
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    net[0].send(&msg(1, &[src], 1)).unwrap();
    net[0].progress();
    net[1].progress();
    // The receiver's name for it is in its `Cts`.
    let (mut theirs, mut ours) = (0, 0);
    net.tamper(1, 0, |frame| {
        let head = Head::of(frame).unwrap();
        assert_eq!((head.op(), head.aux.get()), (Some(Op::Cts), 0));
        (theirs, ours) = (head.data.get(), head.tag.get());
    });
    assert_ne!(theirs, 0);
    net.hold(1, 0);
    for (off, n) in [(0, 0), (0, len as u64 + 1), (0, u64::MAX), (1, 8), (u64::MAX, 8), (len as u64, 1)] {
        net.inject(0, 1, made_up(theirs, off, src.addr(), n));
    }
    net.inject(0, 1, made_up(theirs ^ 1, 0, src.addr(), 8));
    let mut two = made_up(theirs, 0, src.addr(), 8);
    two[2] = 2;
    net.inject(0, 1, two);
    net.inject(0, 1, made_up(theirs, 0, src.addr(), 8)[..30].to_vec());
    for (name, off) in [(ours, 0), (ours, 5), (ours ^ 1, 0), (0, 0)] {
        let head = Head::new(Op::BounceDone, Flags::empty(), Status::Io as u16, name, off);
        let mut frame = Vec::new();
        put(&mut frame, &head);
        net.inject(1, 0, frame);
    }
    go_on(&mut net, &[1]);
    net.let_pass(1, 0, usize::MAX);
    net.settle();
    assert_eq!((ok(&net[0].tx()), ok(&net[1].rx())), (vec![1], vec![2]));
    assert!(net[1].look(dst, len) == pattern(len, 3));
    // More parts than a peer has blocks for, of memory that it has exported: what is too many is not begun.
    net[1].recv(&from_any(&[dst], 6)).unwrap();
    net[0].send(&msg(1, &[src], 5)).unwrap();
    net[0].progress();
    net[1].progress();
    net.tamper(1, 0, |frame| theirs = Head::of(frame).unwrap().data.get());
    net.hold(1, 0);
    net.hold_operations(true);
    let buffer = exported(&mut net);
    for off in 0..200 {
        net.inject(0, 1, made_up(theirs, off, buffer, 1));
    }
    go_on(&mut net, &[1]);
    assert_eq!(net.operations_in_flight(), 128);
    net.kill(0);
    net.hold_operations(false);
    net.settle();
    assert_eq!(net[1].received().err, Some(Error::Reset));
}

#[test]
fn a_buffer_that_was_never_exported_is_not_read() {
    let mut net = net(2, Direct::InCall);
    let len = 2 * PART;
    let (src, dst, mut theirs) = (filled(&mut net, 0, len, 3), net.device(len), 0);
    net[1].recv(&from_any(&[dst], 4)).unwrap();
    net[0].send(&msg(1, &[src], 3)).unwrap();
    net[0].progress();
    net[1].progress();
    net.tamper(1, 0, |frame| theirs = Head::of(frame).unwrap().data.get());
    net.hold(1, 0);
    net.inject(0, 1, made_up(theirs, 0, 0x1000, 8));
    go_on(&mut net, &[1]);
    assert_eq!((net.operations_in_flight(), net.device_copies()), (0, 0));
    // The receiver says that it has not got it, and waits for the payload from there on.
    let mut refused = 0;
    net.tamper(1, 0, |frame| {
        let head = Head::of(frame).unwrap();
        if head.op() == Some(Op::BounceDone) {
            assert_eq!((head.aux.get(), head.data.get()), (Status::Io as u16, 0));
            refused += 1;
        }
    });
    assert_eq!((refused, net[1].rx().len()), (1, 0));
}
