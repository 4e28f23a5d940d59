//! The engine over queue pairs: RMA of the application that needs nothing of its target, and what does.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use engine::{Access, Completion, Ctx, Error, MrId, OpFlags, Reg, Rma};
use hmem::Span;
use link_api::Patience;
use link_kit::text;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stand_in::program::{self, Program};
use testkit::{from_any, msg, pattern, read, there, write};
use verbs::Verbs;

use crate::device::{fail, open, set};
use crate::duo::{self, Duo, filled};

pub const WAIT: Duration = Duration::from_secs(60);
pub const LEN: usize = 400_000;
pub const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub fn duo(devices: &str) -> Duo<Verbs> {
    set(devices, &[]);
    Duo::new(open)
}

fn share(duo: &mut Duo<Verbs>, span: Span, key: u64, access: Access) -> MrId {
    duo.b.domain.mr_reg(&Reg { iov: &[span], access, key: Some(key) }).expect("a key that is free").0
}

/// Posts an access, which completes.
pub fn access(duo: &mut Duo<Verbs>, op: &Rma<'_>) -> Completion {
    duo.post(|a| a.domain.rma(a.ep, op));
    duo.complete(1, 0).0[0]
}

/// Memory of the second one, whose key the first one knows after an access by frames.
pub fn known(duo: &mut Duo<Verbs>, span: Span, key: u64, mode: Access) -> MrId {
    let (mr, to, local) = (share(duo, span, key, mode), duo.a.peer, [Span::leak(1)]);
    let is_read = mode.contains(Access::REMOTE_READ);
    let before = text(&[span]);
    hmem::write(&local, 0, &before[..1]);
    let remote = [there(0, 1, key)];
    let op = if is_read { read(to, &local, &remote, 1) } else { write(to, &local, &remote, 1) };
    assert_eq!(access(duo, &op).err, None);
    duo.settle();
    duo.counts.take();
    mr
}

/// The next completion of the first one, while the second one does nothing.
fn completed_alone(duo: &mut Duo<Verbs>) -> Completion {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < WAIT, "an access is never over");
        if let Some(found) = duo.a.next() {
            return found;
        }
        sleep(Duration::from_micros(20));
    }
}

#[test]
fn an_access_of_registered_memory_is_one_request_and_the_target_does_nothing() {
    let mut duo = duo("sv0");
    let (to, target) = (duo.a.peer, filled(LEN, 3));
    known(&mut duo, target, 9, BOTH);
    let mut want = pattern(LEN, 3);
    for (i, len) in [1, 8, 512, 513, 16 << 10, 90_000, LEN].into_iter().enumerate() {
        let (local, back) = (filled(len, 40 + i), Span::leak(len));
        let remote = [there(0, len, 9)];
        for op in [write(to, &[local], &remote, 1), read(to, &[back], &remote, 2)] {
            duo.a.domain.rma(duo.a.ep, &op).expect("room for one");
            assert_eq!(completed_alone(&mut duo).err, None, "{len} bytes");
            assert_eq!(
                duo.counts.take(),
                [0, 0, 1, len as u64],
                "messages, their bytes, accesses, their bytes"
            );
        }
        want[..len].copy_from_slice(&pattern(len, 40 + i));
        assert!(text(&[target]) == want && text(&[back]) == want[..len], "{len} bytes");
    }
}

#[test]
fn an_access_longer_than_the_messages_of_the_device_is_cut() {
    let mut duo = duo("sv0:msg=65536");
    let (to, target, back) = (duo.a.peer, filled(LEN, 3), Span::leak(LEN));
    known(&mut duo, target, 9, BOTH);
    duo.a.domain.rma(duo.a.ep, &read(to, &[back], &[there(0, LEN, 9)], 1)).expect("room for one");
    assert_eq!(completed_alone(&mut duo).err, None);
    assert_eq!(duo.counts.take(), [0, 0, LEN.div_ceil(65_536) as u64, LEN as u64]);
    assert!(text(&[back]) == pattern(LEN, 3));
}

#[test]
fn a_long_message_is_one_read_and_leaves_nothing_registered() {
    duo::a_long_message_is_one_read(duo("sv0"), 90_000);
}

#[test]
fn many_long_messages_are_each_one_read() {
    duo::many_long_messages_at_once(duo("sv0"));
}

#[test]
fn a_long_message_is_cut_to_its_receive() {
    duo::a_long_message_is_cut_to_its_receive(duo("sv0"));
}

/// Accesses of a registration that the target counts.
#[test]
fn what_the_target_must_observe_goes_by_frames() {
    let mut duo = duo("sv0");
    let (to, target, local) = (duo.a.peer, Span::leak(LEN), filled(8, 7));
    let mr = known(&mut duo, target, 9, BOTH);
    let remote = [there(0, 8, 9)];
    let cntr = duo.b.domain.cntr_open();
    duo.b.domain.mr_bind_cntr(mr, None, Some(cntr));
    duo.settle();
    duo.counts.take();
    assert_eq!(access(&mut duo, &write(to, &[local], &remote, 1)).err, None);
    assert_eq!(duo.counts.take()[2], 0, "accesses of what is counted");
    assert!(text(&[target])[..8] == pattern(8, 7));
}

#[test]
fn what_is_not_allowed_fails_with_the_error_of_the_target_and_ends_nothing() {
    let mut duo = duo("sv0");
    let (to, target, local) = (duo.a.peer, filled(LEN, 1), filled(64, 2));
    known(&mut duo, target, 2, Access::REMOTE_READ);
    known(&mut duo, target, 3, Access::REMOTE_WRITE);
    let here = std::slice::from_ref(&local);
    for _ in 0..2 {
        for (op, why) in [
            (write(to, here, &[there(0, 64, 2)], 1), Error::Access),
            (read(to, here, &[there(0, 64, 3)], 1), Error::Access),
            (read(to, here, &[there(LEN as u64 - 63, 64, 2)], 1), Error::Range),
            (write(to, here, &[there(u64::MAX - 7, 64, 3)], 1), Error::Range),
            (read(to, here, &[there(0, 64, 8)], 1), Error::BadKey),
        ] {
            assert_eq!(access(&mut duo, &op).err, Some(why));
        }
    }
    assert!(text(&[target]) == pattern(LEN, 1) && text(&[local]) == pattern(64, 2));
    assert_eq!(access(&mut duo, &read(to, here, &[there(0, 64, 2)], 1)).err, None);
}

#[test]
fn a_registration_that_is_closed_is_not_reached_any_more() {
    let mut duo = duo("sv0");
    let (to, target, local) = (duo.a.peer, filled(LEN, 1), filled(64, 2));
    let mr = known(&mut duo, target, 9, BOTH);
    duo.b.domain.set_patience(Patience::Retried);
    let start = Instant::now();
    while let Err(why) = duo.b.domain.mr_close(mr) {
        assert!(why == Error::Busy && start.elapsed() < WAIT, "{why:?}");
        duo.a.next();
    }
    assert_eq!(duo.lent(), 0, "what is registered");
    assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, 64, 9)], 1)).err, Some(Error::BadKey));
    // The key may be another one's.
    let other = filled(64, 5);
    known(&mut duo, other, 9, BOTH);
    assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, 64, 9)], 1)).err, None);
    assert_eq!(duo.counts.take()[2], 1, "an access of the new one");
    assert!(text(&[target]) == pattern(LEN, 1) && text(&[other]) == pattern(64, 2));
}

/// What the device has done is done, though its end is reported behind the news that the registration closes.
#[test]
fn an_access_that_is_done_when_its_registration_closes_has_not_failed_and_is_not_repeated() {
    let mut duo = duo("sv0");
    let (to, target, local) = (duo.a.peer, Span::leak(LEN), filled(LEN, 7));
    let mr = known(&mut duo, target, 9, BOTH);
    duo.b.domain.set_patience(Patience::Retried);
    duo.counts.holds.store(true, Relaxed);
    duo.a.domain.rma(duo.a.ep, &write(to, &[local], &[there(0, LEN, 9)], 1)).expect("room for one");
    let start = Instant::now();
    while text(&[target]) != pattern(LEN, 7) {
        assert!(start.elapsed() < WAIT, "the bytes do not come");
        sleep(Duration::from_micros(50));
    }
    duo.counts.take();
    // The owner asks for it back, and the peer hears of that.
    for _ in 0..50 {
        assert_eq!(duo.b.domain.mr_close(mr), Err(Error::Busy), "the end of the access is not known there");
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
        sleep(Duration::from_micros(50));
    }
    duo.counts.holds.store(false, Relaxed);
    assert_eq!(completed_alone(&mut duo).err, None);
    while duo.b.domain.mr_close(mr).is_err() {
        assert!(start.elapsed() < WAIT, "it is never closed");
        duo.a.next();
    }
    let [_, bytes, accesses, _] = duo.counts.take();
    assert!(
        accesses == 0 && bytes < 1_000,
        "{accesses} accesses and {bytes} bytes in frames after the first"
    );
}

/// A peer that does nothing, as one that is stopped, keeps no memory.
#[test]
fn a_registration_that_a_silent_peer_knows_is_closed_in_about_a_second() {
    let mut duo = duo("sv0");
    let (to, target, local) = (duo.a.peer, filled(LEN, 1), filled(64, 2));
    let mr = known(&mut duo, target, 9, BOTH);
    let start = Instant::now();
    duo.b.domain.mr_close(mr).expect("memory that is taken back");
    assert!(start.elapsed() < Duration::from_secs(20) && duo.lent() == 0, "{:?}", start.elapsed());
    // It has not heard of that yet: the device refuses its access, and the connection ends with that.
    assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, 64, 9)], 1)).err, Some(Error::Reset));
    assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, 64, 9)], 1)).err, Some(Error::BadKey));
    assert!(text(&[target]) == pattern(LEN, 1));
}

/// Where the device registers nothing for peers, or nothing here, frames make up for it.
#[test]
fn memory_that_is_not_registered_goes_by_frames() {
    let mut duo = duo("sv0");
    let (to, target, local, back) = (duo.a.peer, Span::leak(LEN), filled(LEN, 7), Span::leak(LEN));
    fail(c"ibv_reg_mr", libc::EFAULT);
    known(&mut duo, target, 9, BOTH);
    let remote = [there(0, LEN, 9)];
    assert_eq!(access(&mut duo, &write(to, &[local], &remote, 1)).err, None);
    assert_eq!(access(&mut duo, &read(to, &[back], &remote, 2)).err, None);
    let [_, bytes, accesses, _] = duo.counts.take();
    assert!(accesses == 0 && bytes >= 2 * LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    assert!(text(&[target]) == pattern(LEN, 7) && text(&[back]) == pattern(LEN, 7));
}

/// The flag that follows data is not seen before them.
#[test]
fn a_message_behind_a_write_finds_its_bytes() {
    let mut duo = duo("sv0");
    let (to, target, local, room) = (duo.a.peer, Span::leak(LEN), filled(LEN, 7), Span::leak(8));
    known(&mut duo, target, 9, BOTH);
    duo.b.domain.recv(duo.b.rx, &from_any(&[room], 2)).expect("a receive");
    duo.post(|a| a.domain.rma(a.ep, &write(to, &[local], &[there(0, LEN, 9)], 1)));
    duo.post(|a| a.domain.send(a.ep, &msg(to, &[filled(8, 1)], 3)));
    let start = Instant::now();
    while duo.b.next().is_none() {
        assert!(start.elapsed() < WAIT, "the message does not come");
        duo.a.next();
    }
    assert!(text(&[target]) == pattern(LEN, 7));
}

/// An access is fenced from what was posted before it.
#[test]
fn a_fence_waits_for_accesses() {
    set("sv0", &[("DELAY_US", "20000")]);
    let mut duo: Duo<Verbs> = Duo::new(open);
    let (to, target, local) = (duo.a.peer, Span::leak(LEN), filled(LEN, 7));
    known(&mut duo, target, 9, BOTH);
    let remote = [there(0, LEN, 9)];
    duo.a.domain.rma(duo.a.ep, &write(to, &[local], &remote, 1)).expect("room for one");
    let here = [local];
    let fenced = Rma { flags: OpFlags::COMPLETION | OpFlags::FENCE, ..write(to, &here, &remote, 2) };
    assert_eq!(duo.a.domain.rma(duo.a.ep, &fenced), Err(Error::Again));
    assert_eq!(completed_alone(&mut duo).ctx, Ctx(1));
    assert_eq!(access(&mut duo, &fenced).err, None);
}

/// Whatever is read and written, and where: as in memory of one process. `what` it is done over; how many
/// cases, of fewer accesses than that; how long one is whose length and seed were drawn; two links, memory of
/// the second one that is known by 9, and the seed of what is in there.
pub fn does_what_copies_do(
    what: &str,
    (cases, accesses): (u32, usize),
    len_of: impl Fn(usize, u8) -> usize,
    made: impl Fn() -> (Duo<Verbs>, Span, usize),
) {
    let step = (any::<bool>(), 0usize..LEN, 1usize..LEN, any::<u8>());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let run = TestRunner::new(config).run(&prop::collection::vec(step, 1..accesses), |steps| {
        let (mut duo, target, seed) = made();
        let (to, mut model) = (duo.a.peer, pattern(LEN, seed));
        for (is_write, at, len, seed) in steps {
            let len = len_of(len, seed).min(LEN - at);
            let local = filled(len, seed.into());
            let (remote, half) = ([there(at as u64, len, 9)], len / 2);
            let halves = [(0, half), (half, len - half)].map(|(at, n)| local.part(at, n).expect("a part"));
            // What is of several elements goes by one port.
            let here = if seed % 2 == 0 { &halves[..] } else { std::slice::from_ref(&local) };
            let op = if is_write { write(to, here, &remote, 1) } else { read(to, here, &remote, 1) };
            prop_assert_eq!(access(&mut duo, &op).err, None);
            if is_write {
                model[at..at + len].copy_from_slice(&pattern(len, seed.into()));
            } else {
                prop_assert!(text(&[local]) == model[at..at + len], "{} bytes at {} that were read", len, at);
            }
        }
        prop_assert!(text(&[target]) == model, "what was written, and nothing else");
        prop_assert_eq!(duo.counts.take()[1], 0, "bytes in frames");
        Ok(())
    });
    run.unwrap_or_else(|why| panic!("{what}: {why}"));
}

fn do_what_copies_do(device: &str) {
    // Most are short.
    let len_of = |len, seed| if seed % 3 == 0 { len } else { len % 3_000 + 1 };
    does_what_copies_do(device, (6, 20), len_of, || {
        let (mut duo, target) = (duo(device), filled(LEN, 3));
        known(&mut duo, target, 9, BOTH);
        (duo, target, 3)
    });
}

#[test]
fn accesses_of_any_size_and_place_do_what_copies_do() {
    do_what_copies_do("sv0");
}

#[test]
fn accesses_of_any_size_and_place_do_what_copies_do_on_a_small_device() {
    do_what_copies_do("sv0:nosrq,inline=16,sge=1,reads=1");
}

#[test]
fn accesses_of_any_size_and_place_do_what_copies_do_where_messages_are_short() {
    do_what_copies_do("sv0:rxe,msg=65536");
}

#[test]
fn accesses_of_any_size_and_place_do_what_copies_do_where_requests_are_repeated() {
    do_what_copies_do("sv0:rxe,repeats");
}

#[test]
fn memory_of_a_write_that_may_be_repeated_does_not_stay_registered() {
    let mut duo = duo("sv0:rxe,repeats");
    let (to, target, local) = (duo.a.peer, filled(LEN, 3), [filled(LEN, 7)]);
    known(&mut duo, target, 9, BOTH);
    let stand_in = Program::open(program::path("verbs_stand_in"));
    let registered = || stand_in.calls(c"ibv_reg_mr") - stand_in.calls(c"ibv_dereg_mr");
    let (before, start) = (registered(), Instant::now());
    assert_eq!(access(&mut duo, &write(to, &local, &[there(0, LEN, 9)], 1)).err, None);
    while registered() > before {
        assert!(start.elapsed() < WAIT, "it stays registered");
        assert!(duo.a.next().is_none());
    }
    assert!(text(&[target]) == text(&local));
}
