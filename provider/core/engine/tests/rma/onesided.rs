//! RMA that needs nothing of its target.

use engine::{Access, Config, Error, OpFlags, Reg, Rma};
use hmem::Span;
use testkit::*;

const LONG: usize = 3000;

/// Two nodes that see each other's registrations; the second has registered memory under key 7.
fn seeing(config: Config) -> (Net, Span) {
    let mut net = Net::with(2, Setup { config, ..Setup::default() });
    net.set_boards(true);
    let target = net.bytes(1, &pattern(LONG + 100, 1));
    net[1].share(target, 7);
    (net, target)
}

fn plain() -> (Net, Span) {
    seeing(Setup::default().config)
}

fn delivered<'a>(op: Rma<'a>) -> Rma<'a> {
    Rma { flags: op.flags | OpFlags::DELIVERY, ..op }
}

#[test]
fn the_target_need_not_do_anything() {
    for virt_addr in [false, true] {
        let (mut net, target) = seeing(Config { virt_addr, ..Setup::default().config });
        let base = if virt_addr { target.addr() } else { 0 };
        let (src, dst) = (net.bytes(0, &pattern(LONG, 2)), net.memory(0, LONG));
        let remote = [there(base + 50, LONG, 7)];
        net[0].rma(&write(1, &[src], &remote, 1)).unwrap();
        assert_eq!(
            (net[0].sent().ctx.0, net[1].look(target.part(50, LONG).unwrap(), LONG)),
            (1, pattern(LONG, 2))
        );
        net[0].rma(&read(1, &[dst], &remote, 2)).unwrap();
        assert_eq!((net[0].sent().ctx.0, net[0].look(dst, LONG)), (2, pattern(LONG, 2)));
        // Small ones, too, if they are to be there when they complete.
        let (few, back) = (net.bytes(0, b"few"), net.memory(0, 3));
        let remote = [there(base + 1, 3, 7)];
        net[0].rma(&delivered(write(1, &[few], &remote, 3))).unwrap();
        net[0].rma(&read(1, &[back], &remote, 4)).unwrap();
        assert_eq!((net[0].tx().len(), net[0].look(back, 3)), (2, b"few".to_vec()));
        assert_eq!(net.in_flight(0, 1), 0);
        net.settle();
        net.assert_idle();
    }
}

#[test]
fn what_follows_a_small_write_does_not_overtake_it() {
    let (mut net, target) = plain();
    let (few, back) = (net.bytes(0, b"few"), net.memory(0, 3));
    let remote = [there(1, 3, 7)];
    net[0].rma(&write(1, &[few], &remote, 1)).unwrap();
    assert_eq!(net[0].sent().ctx.0, 1);
    net[0].rma(&read(1, &[back], &remote, 2)).unwrap();
    assert_eq!(net[0].tx(), []);
    net.settle();
    assert_eq!((net[0].sent().ctx.0, net[0].look(back, 3)), (2, b"few".to_vec()));
    assert_eq!(net[1].look(target.part(1, 3).unwrap(), 3), b"few");
    // The read has been answered, so that nothing is on its way any more.
    net[0].rma(&read(1, &[back], &remote, 3)).unwrap();
    assert_eq!(net[0].sent().ctx.0, 3);
    net.assert_idle();
}

#[test]
fn a_small_write_that_finds_no_room_is_tried_once_in_each_way() {
    let (mut net, _) = plain();
    let few = net.bytes(0, b"few");
    let remote = [there(1, 3, 7)];
    net[0].rma(&write(1, &[few], &remote, 1)).unwrap();
    assert_eq!(net[0].sent().ctx.0, 1);
    net.set_capacity(1);
    assert_eq!(net[0].rma(&write(1, &[few], &remote, 2)), Err(Error::Again));
    // In a frame that is not answered, and in one that is.
    assert_eq!((net.refused_frames(), net.in_flight(0, 1)), (2, 1));
}

#[test]
fn an_answer_to_something_earlier_proves_nothing() {
    let (mut net, _) = plain();
    let (few, back) = (net.bytes(0, b"few"), net.memory(0, 3));
    let remote = [there(1, 3, 7)];
    // Answered only because it is asked for in two places.
    let two = [there(0, 1, 7), there(1, 2, 7)];
    net[0].rma(&read(1, &[back], &two, 1)).unwrap();
    net.hold(1, 0);
    net[1].progress();
    net[0].rma(&write(1, &[few], &remote, 2)).unwrap();
    net.let_pass(1, 0, 9);
    net[0].progress();
    assert_eq!(net[0].tx().len(), 2);
    net[0].rma(&read(1, &[back], &remote, 3)).unwrap();
    assert_eq!(net[0].tx(), []);
    net.settle();
    assert_eq!((net[0].sent().ctx.0, net[0].look(back, 3)), (3, b"few".to_vec()));
}

#[test]
fn what_the_target_has_to_see_it_is_shown() {
    // In order.
    let (mut net, _) = seeing(Config { rma_order: true, ..Setup::default().config });
    let src = net.bytes(0, &pattern(LONG, 2));
    let remote = [there(0, LONG, 7)];
    net[0].rma(&write(1, &[src], &remote, 1)).unwrap();
    assert_eq!(net[0].tx(), []);
    // With data for the target's queue.
    let (mut net, _) = plain();
    let src = net.bytes(0, &pattern(LONG, 2));
    net[0].rma(&Rma { data: Some(5), ..write(1, &[src], &remote, 1) }).unwrap();
    assert_eq!(net[0].tx(), []);
    net.settle();
    assert_eq!((net[0].sent().err, net[1].received().data), (None, 5));
    // Counted, from some time on.
    let cntr = net[1].cntr_open();
    let other = net.memory(1, LONG);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (mr, _) = net[1].mr_reg(&Reg { iov: &[other], access, key: Some(8) }).unwrap();
    let remote = [there(0, LONG, 8)];
    net[0].rma(&write(1, &[src], &remote, 2)).unwrap();
    assert_eq!(net[0].sent().ctx.0, 2);
    net[1].mr_bind_cntr(mr, None, Some(cntr));
    net[0].rma(&write(1, &[src], &remote, 3)).unwrap();
    assert_eq!(net[0].tx(), []);
    net.settle();
    assert_eq!((net[0].sent().ctx.0, net[1].cntr_read(cntr)), (3, 1));
}

#[test]
fn errors_are_the_targets() {
    let (mut net, _) = plain();
    let local = net.memory(0, LONG);
    let iov = [net.memory(1, LONG)];
    let mut reg = |access, key| net[1].mr_reg(&Reg { iov: &iov, access, key: Some(key) }).unwrap().0;
    reg(Access::REMOTE_READ, 1);
    reg(Access::REMOTE_WRITE, 2);
    let closed = reg(Access::REMOTE_READ | Access::REMOTE_WRITE, 3);
    net[1].mr_close(closed).unwrap();
    for len in [10, LONG] {
        for (is_write, remote, err) in [
            (true, there(0, len, 1), Error::Access),
            (false, there(0, len, 2), Error::Access),
            (true, there(0, len, 3), Error::BadKey),
            (false, there(0, len, 9), Error::BadKey),
            (true, there((LONG - len) as u64 + 1, len, 2), Error::Range),
            (false, there(u64::MAX, len, 1), Error::Range),
        ] {
            let here = [local.part(0, len).unwrap()];
            net[0].rma(&Rma { write: is_write, ..write(1, &here, &[remote], 7) }).unwrap();
            net.settle();
            assert_eq!(net[0].sent().err, Some(err), "{is_write} {remote:?}");
        }
    }
    net.assert_idle();
}

#[test]
fn a_copy_that_fails_is_tried_by_frames() {
    let (mut net, target) = plain();
    let src = net.bytes(0, &pattern(LONG, 2));
    net.fault(1);
    net[0].rma(&write(1, &[src], &[there(0, LONG, 7)], 1)).unwrap();
    net.settle();
    assert_eq!((net[0].sent().err, net[1].look(target, LONG)), (None, pattern(LONG, 2)));
    net.kill(1);
    net[0].rma(&write(1, &[src], &[there(0, LONG, 7)], 1)).unwrap_or(());
    net.settle();
    assert!(net[0].tx().iter().all(|c| c.err.is_some()));
}
