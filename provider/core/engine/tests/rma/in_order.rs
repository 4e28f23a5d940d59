//! Accesses behind a request that the target does not finish in the call (`rma_order`).

use engine::{Atomic, Completion, Config, Ctx, Error, OpFlags, PollFast, Rma};
use hmem::{AtomicOp, Datatype, Span};
use testkit::*;
use wire::{Aux, Flags, Head, Op};
use zerocopy::IntoBytes;

const LARGE: usize = 3000;
const SMALL: usize = 10;

/// Two nodes; node 0 knows that node 1 fetches what it writes in the call.
fn net(setup: Setup) -> (Net, Span) {
    let config = Config { virt_addr: false, rma_order: true };
    let mut net = Net::with(2, Setup { config, ..setup });
    let target = net.memory(1, LARGE + 8);
    net[1].share(target, 1);
    let warm = net.memory(0, LARGE);
    net[0].rma(&write(1, &[warm], &[there(0, LARGE, 1)], 99)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, None);
    (net, target)
}

/// A large write, and one into its first bytes; the second is not to be answered if `quiet`.
fn two_writes(net: &mut Net, quiet: bool) {
    let (large, small) = (net.bytes(0, &pattern(LARGE, 1)), net.bytes(0, &pattern(SMALL, 2)));
    net[0].rma(&write(1, &[large], &[there(0, LARGE, 1)], 1)).unwrap();
    let flags = if quiet { OpFlags::INJECT } else { OpFlags::COMPLETION };
    net[0].rma(&Rma { flags, ..write(1, &[small], &[there(0, SMALL, 1)], 2) }).unwrap();
}

fn add_one(net: &mut Net) {
    let one = [net.bytes(0, &1u64.to_ne_bytes())];
    let atomic = Atomic {
        to: 1,
        op: AtomicOp::Sum,
        datatype: Datatype::Uint64,
        operand: &one,
        compare: &[],
        result: &[],
        remote: &[there(LARGE as u64, 8, 1)],
        data: None,
        ctx: Ctx(4),
        flags: OpFlags::COMPLETION,
    };
    net[0].atomic(&atomic).unwrap();
}

#[test]
fn nothing_takes_effect_behind_a_write_of_a_process_that_ended() {
    for direct in [true, false] {
        for quiet in [true, false] {
            let (mut net, target) = net(Setup::default());
            two_writes(&mut net, quiet);
            let again = net.bytes(0, &pattern(LARGE, 3));
            net[0].rma(&write(1, &[again], &[there(0, LARGE, 1)], 3)).unwrap();
            add_one(&mut net);
            // With the kernel's word that there is no such process, or without.
            net.set_direct(direct);
            net.kill(0);
            net.settle();
            assert_eq!(net[1].look(target, LARGE + 8), [0; LARGE + 8], "{direct} {quiet}");
            net.assert_idle();
        }
    }
}

#[test]
fn accesses_wait_for_a_write_that_comes_in_frames_after_all() {
    for capacity in [2, 64] {
        for quiet in [true, false] {
            let (mut net, target) = net(Setup::default());
            two_writes(&mut net, quiet);
            let (seen, all) = (net.memory(0, SMALL), net.memory(0, LARGE));
            net[0].rma(&read(1, &[seen], &[there(0, SMALL, 1)], 3)).unwrap();
            net[0].rma(&read(1, &[all], &[there(0, LARGE, 1)], 3)).unwrap();
            add_one(&mut net);
            let last = net.bytes(0, &pattern(SMALL, 5));
            net[0].rma(&write(1, &[last], &[there(0, SMALL, 1)], 5)).unwrap();
            net.set_direct(false);
            net.set_capacity(capacity);
            net.settle();
            let case = (capacity, quiet);
            let mut want = [&pattern(LARGE, 1)[..], &1u64.to_ne_bytes()].concat();
            want[..SMALL].copy_from_slice(&pattern(SMALL, 2));
            assert_eq!(net[0].look(seen, SMALL), want[..SMALL], "{case:?}");
            assert_eq!(net[0].look(all, LARGE), want[..LARGE], "{case:?}");
            want[..SMALL].copy_from_slice(&pattern(SMALL, 5));
            assert_eq!(net[1].look(target, LARGE + 8), want, "{case:?}");
            let done = net[0].tx();
            assert!(done.iter().all(|c| c.err.is_none()), "{case:?}: {done:?}");
            assert_eq!(done.len(), if quiet { 5 } else { 6 }, "{case:?}");
            net.assert_idle();
        }
    }
}

/// The initiator lives, so it hears of each.
#[test]
fn what_is_behind_a_write_that_cannot_be_whole_is_refused() {
    for quiet in [true, false] {
        let (mut net, target) = net(Setup::default());
        net.fault(1);
        two_writes(&mut net, quiet);
        add_one(&mut net);
        net.settle();
        assert_eq!(net[1].look(target, LARGE + 8), [0; LARGE + 8]);
        let errs: Vec<_> = net[0].tx().iter().filter_map(|c| c.err).collect();
        assert_eq!(errs, [Error::Io, Error::Cancelled, Error::Cancelled]);
        net.assert_idle();
    }
}

/// An initiator that lives goes on after it has heard of the failure, though not with what it posted before.
#[test]
fn accesses_take_effect_again_after_their_initiator_has_heard_of_the_failure() {
    for large in [false, true] {
        let (mut net, target) = net(Setup::default());
        for round in 0..3 {
            net.fault(1);
            two_writes(&mut net, round == 1);
            while net[1].progress() > 0 {}
            // Not heard yet.
            let late = net.bytes(0, &pattern(SMALL, 4));
            net[0].rma(&write(1, &[late], &[there(0, SMALL, 1)], 4)).unwrap();
            net.settle();
            let done: Vec<_> = net[0].tx().iter().map(|c| c.err).collect();
            assert_eq!(done, [Some(Error::Io), Some(Error::Cancelled), Some(Error::Cancelled)]);
            assert_eq!(net[1].look(target, SMALL), vec![round as u8; SMALL], "{large} {round}");
            let len = if large { LARGE } else { SMALL };
            let next = net.bytes(0, &vec![round as u8 + 1; len]);
            net[0].rma(&write(1, &[next], &[there(0, len, 1)], 5)).unwrap();
            net.settle();
            assert_eq!(net[0].sent().err, None, "{large} {round}");
            assert_eq!(net[1].look(target, len), vec![round as u8 + 1; len], "{large} {round}");
        }
        net.assert_idle();
    }
}

#[test]
fn accesses_go_on_when_the_memory_of_the_write_before_is_taken_back() {
    let (mut net, target) = net(Setup::default());
    let other = net.memory(1, LARGE);
    let mr = net[1].share(other, 2);
    let (large, small) = (net.bytes(0, &pattern(LARGE, 1)), net.bytes(0, &pattern(SMALL, 2)));
    net[0].rma(&write(1, &[large], &[there(0, LARGE, 2)], 1)).unwrap();
    net[0].rma(&write(1, &[small], &[there(0, SMALL, 1)], 2)).unwrap();
    net.set_direct(false);
    net.hold(1, 0);
    net.settle();
    assert_eq!(net[1].look(target, SMALL), [0; SMALL]);
    net[1].mr_close(mr).unwrap();
    let all = net.in_flight(1, 0);
    net.let_pass(1, 0, all);
    net.settle();
    assert_eq!(net[1].look(target, SMALL), pattern(SMALL, 2));
}

/// A peer that never sends what it was asked for, and goes on.
#[test]
#[cfg_attr(miri, ignore = "too long")]
fn what_is_held_for_a_peer_is_bounded() {
    let (mut net, target) = net(Setup::default());
    net.set_direct(false);
    two_writes(&mut net, true);
    net.hold(1, 0);
    let head = Head::new(Op::Write, Flags::empty(), Aux::rma(1, 0), 0, 0);
    let frame = [head.as_bytes(), there(0, 200, 1).as_bytes(), &[7; 200]].concat();
    let mut taken = 0;
    let most = 128 << 20;
    while taken < most {
        net.inject(0, 1, frame.clone());
        if net[1].progress() == 0 {
            break;
        }
        taken += frame.len();
    }
    assert!((32 << 20..most).contains(&taken), "{taken}");
    assert_eq!(net[1].look(target, 200), [0; 200]);
}

/// Closed, its frames are there, but its memory is not to be accessed any more.
#[test]
fn nothing_takes_effect_behind_a_write_of_an_endpoint_that_was_closed() {
    for quiet in [true, false] {
        let (mut net, target) = net(Setup::default());
        two_writes(&mut net, quiet);
        add_one(&mut net);
        let ep = net[0].ep;
        net[0].ep_close(ep).unwrap();
        while net[1].progress() > 0 {}
        assert_eq!(net[1].look(target, LARGE + 8), [0; LARGE + 8], "{quiet}");
    }
}

/// All of the write came before its initiator ended, and so did what was posted behind it.
#[test]
fn accesses_behind_a_write_that_is_done_take_effect_although_the_initiator_ends() {
    let (mut net, target) = net(Setup::default());
    two_writes(&mut net, true);
    net.set_direct(false);
    net[1].progress();
    net[0].progress();
    assert_eq!(net[1].look(target, SMALL), [0; SMALL]);
    net.kill(0);
    net.settle();
    let mut want = pattern(LARGE, 1);
    want[..SMALL].copy_from_slice(&pattern(SMALL, 2));
    assert_eq!(net[1].look(target, LARGE), want);
    net.assert_idle();
}

#[test]
fn nothing_is_left_to_attend_to_of_a_peer_that_ended() {
    let (mut net, _) = net(Setup::default());
    two_writes(&mut net, true);
    net.set_direct(false);
    net[1].progress();
    let queue = net[1].rx_cq;
    assert_eq!(net[1].poll_fast(queue, &mut |_: &Completion| {}), PollFast::Unknown);
    net.kill(0);
    net.settle();
    assert_eq!(net[1].poll_fast(queue, &mut |_: &Completion| {}), PollFast::Nothing);
}

/// An initiator that only posts, and does not look at its queue, is not taken for a hostile one.
#[test]
#[cfg_attr(miri, ignore = "too long")]
fn an_initiator_that_only_posts_is_not_cut_off() {
    const FRAME: usize = 16 << 10;
    for is_write in [true, false] {
        let config = Config { virt_addr: false, rma_order: true };
        let setup = Setup { config, eager: FRAME, max_frame: FRAME + 1024, ..Setup::default() };
        let mut net = Net::with(2, setup);
        let len = if is_write { 4 * FRAME } else { 96 << 20 };
        let target = net.memory(1, len);
        net[1].share(target, 1);
        let (large, small) = (net.memory(0, len), net.bytes(0, &pattern(FRAME, 2)));
        let warm = large.part(0, 4 * FRAME).unwrap();
        net[0].rma(&write(1, &[warm], &[there(0, 4 * FRAME, 1)], 99)).unwrap();
        net.settle();
        assert_eq!(net[0].sent().err, None);
        net.set_direct(false);
        let remote = [there(0, len, 1)];
        net[0].rma(&Rma { write: is_write, ..write(1, &[large], &remote, 1) }).unwrap();
        let mut most = 0;
        for _ in 0..6000 {
            let (src, remote) = ([small], [there(0, FRAME, 1)]);
            let quiet = Rma { flags: OpFlags::INJECT, ..write(1, &src, &remote, 2) };
            while net[0].rma(&quiet) == Err(Error::Again) {
                net[1].progress();
                most += 1;
                assert!(most < 1_000_000);
            }
            net[1].progress();
        }
        net.settle();
        assert_eq!(net[0].sent().err, None, "write: {is_write}");
        assert_eq!(net[1].look(target, FRAME), pattern(FRAME, 2), "write: {is_write}");
        net.assert_idle();
    }
}

/// Nor one that has injected what fits no frame, which the target asks for.
#[test]
#[cfg_attr(miri, ignore = "too long")]
fn an_initiator_that_only_injects_is_not_cut_off() {
    const FRAME: usize = 16 << 10;
    let config = Config { virt_addr: false, rma_order: true };
    let setup =
        Setup { config, direct: Direct::Frames, eager: FRAME, max_frame: FRAME + 1024, ..Setup::default() };
    let mut net = Net::with(2, setup);
    let target = net.memory(1, 2 * FRAME);
    net[1].share(target, 1);
    let (long, short) = (net.bytes(0, &pattern(2 * FRAME, 1)), net.bytes(0, &pattern(FRAME, 2)));
    let mut refused = 0;
    for n in 0..6000 {
        let src = [if n == 0 { long } else { short }];
        let remote = [there(0, src[0].len(), 1)];
        while net[0].rma(&Rma { flags: OpFlags::INJECT, ..write(1, &src, &remote, 2) }) == Err(Error::Again) {
            net[1].progress();
            refused += 1;
            assert!(refused < 1_000_000);
        }
        net[1].progress();
    }
    net.settle();
    let want = [&pattern(FRAME, 2)[..], &pattern(2 * FRAME, 1)[FRAME..]].concat();
    assert!(net[1].look(target, 2 * FRAME) == want);
    assert!(net[0].tx().is_empty());
    net.assert_idle();
}
