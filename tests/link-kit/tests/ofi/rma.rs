//! The engine over a fabric by which memory is read: RMA of the application, that goes by reads and that goes
//! by frames.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::duo::{Duo, filled};
use crate::fake::{Fake, FakeNet};
use engine::{Access, Completion, Error, MrId, Reg};
use hmem::{Kind, Span};
use link_kit::text;
use testkit::{from_any, msg, pattern, read, there, write};

mod ends;

const LEN: usize = 90_000;
const WAIT: Duration = Duration::from_secs(20);

fn duo_with(net: &FakeNet, set: impl Fn(&mut Fake)) -> Duo<Fake> {
    Duo::new(|| {
        let mut fake = net.open();
        fake.reads = true;
        set(&mut fake);
        fake
    })
}

fn duo(net: &FakeNet) -> Duo<Fake> {
    duo_with(net, |_| {})
}

/// Over a provider below that has reads, and over one that has writes, too.
fn each(test: impl Fn(&FakeNet, Duo<Fake>)) {
    for writes in [false, true] {
        let net = FakeNet::default();
        test(&net, duo_with(&net, |fake| fake.writes = writes));
    }
}

/// Registers memory of the second one under this key.
fn share(duo: &mut Duo<Fake>, span: Span, key: u64, access: Access) -> MrId {
    duo.b.domain.mr_reg(&Reg { iov: &[span], access, key: Some(key) }).expect("a key that is free").0
}

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Posts a write, or a read, of that much of what is registered under a key.
fn access(duo: &mut Duo<Fake>, is_write: bool, local: &[Span], at: u64, len: usize, key: u64) {
    let to = duo.a.peer;
    duo.post(|a| match is_write {
        true => a.domain.rma(a.ep, &write(to, local, &[there(at, len, key)], 1)),
        false => a.domain.rma(a.ep, &read(to, local, &[there(at, len, key)], 2)),
    });
}

fn completed(duo: &mut Duo<Fake>) -> Completion {
    duo.complete(1, 0).0[0]
}

/// Memory of which nothing promises that it stays.
fn vanishing(len: usize) -> Span {
    let span = Span::leak(len);
    // SAFETY: memory that is never freed.
    unsafe { Span::new(span.addr() as usize, len, Kind::System) }
}

#[test]
fn long_writes_and_reads_are_reads_of_the_provider_below() {
    let mut duo = duo(&FakeNet::default());
    let target = filled(400_000, 3);
    share(&mut duo, target, 9, BOTH);
    let mut want = pattern(400_000, 3);
    for (i, (at, len)) in [(0, 64 << 10), (5, LEN), (7, 300_000), (0, 400_000)].into_iter().enumerate() {
        let (local, back) = (filled(len, 40 + i), Span::leak(len));
        access(&mut duo, true, &[local], at as u64, len, 9);
        assert_eq!(completed(&mut duo).err, None);
        want[at..at + len].copy_from_slice(&pattern(len, 40 + i));
        let [_, bytes, reads, read] = duo.counts.take();
        assert!(reads <= 3 && read == len as u64 && bytes < 2_000, "{reads} reads, {bytes} bytes in frames");
        assert!(text(&[target]) == want, "what was written, and nothing else");
        access(&mut duo, false, &[back], at as u64, len, 9);
        assert_eq!(completed(&mut duo).err, None);
        let [_, bytes, reads, read] = duo.counts.take();
        assert!(reads <= 3 && read == len as u64 && bytes < 2_000, "{reads} reads, {bytes} bytes in frames");
        assert!(text(&[back]) == pattern(len, 40 + i));
        duo.settle();
        assert_eq!(duo.lent(), 0, "what is registered when both are over");
    }
}

/// Where the provider below writes, too: the target of a read puts its bytes, and gets those of a write.
#[test]
fn long_reads_are_writes_of_a_provider_below_that_has_them() {
    let mut duo = duo_with(&FakeNet::default(), |fake| fake.writes = true);
    let target = filled(400_000, 3);
    share(&mut duo, target, 9, BOTH);
    for (i, (at, len)) in [(0, 64 << 10), (5, LEN), (0, 400_000)].into_iter().enumerate() {
        for is_write in [false, true] {
            let local = filled(len, 40 + i);
            access(&mut duo, is_write, &[local], at as u64, len, 9);
            assert_eq!(completed(&mut duo).err, None);
            assert!(text(&[local]) == text(&[target])[at..at + len]);
            let [_, bytes, accesses, moved] = duo.counts.take();
            let puts = duo.counts.writes.swap(0, Relaxed);
            assert_eq!(puts, if is_write { 0 } else { accesses }, "writes, of {accesses} accesses below");
            assert!(accesses <= 3 && moved == len as u64 && bytes < 2_000, "{bytes} bytes in frames");
            duo.settle();
            assert_eq!(duo.lent(), 0, "what is registered when it is over");
        }
    }
}

#[test]
fn accesses_of_parts_are_read_whole() {
    each(|_, mut duo| {
        let (target, local, back) = (Span::leak(400_000), filled(400_000, 3), Span::leak(400_000));
        let parts = |s: Span, at: usize| [s.part(0, at).unwrap(), s.part(at, 400_000 - at).unwrap()];
        duo.b.domain.mr_reg(&Reg { iov: &parts(target, 250_000), access: BOTH, key: Some(9) }).unwrap();
        access(&mut duo, true, &parts(local, 70_000), 0, 400_000, 9);
        assert_eq!(completed(&mut duo).err, None);
        access(&mut duo, false, &parts(back, 90_000), 0, 400_000, 9);
        assert_eq!(completed(&mut duo).err, None);
        let [_, bytes, _, read] = duo.counts.take();
        assert!(read == 800_000 && bytes < 4_000, "{read} bytes were read, {bytes} came in frames");
        assert!(text(&[target]) == pattern(400_000, 3) && text(&[back]) == pattern(400_000, 3));
    });
}

#[test]
fn many_accesses_of_overlapping_memory_are_all_read() {
    each(|_, mut duo| {
        const N: usize = 100;
        let target = filled(2 * LEN, 5);
        share(&mut duo, target, 9, BOTH);
        let backs: Vec<Span> = (0..N).map(|_| Span::leak(LEN)).collect();
        for (i, back) in backs.iter().enumerate() {
            access(&mut duo, false, &[*back], 100 * i as u64, LEN, 9);
        }
        duo.complete(N, 0);
        for (i, back) in backs.iter().enumerate() {
            assert!(text(&[*back]) == pattern(2 * LEN, 5)[100 * i..100 * i + LEN], "read {i}");
        }
        let [_, _, reads, _] = duo.counts.take();
        duo.settle();
        assert_eq!((reads, duo.lent()), (N as u64, 0));
    });
}

/// What a peer may have registered here is bounded: the rest comes in frames.
#[test]
fn more_reads_than_memory_is_lent_for_at_once_are_all_answered() {
    let net = FakeNet::default();
    let mut duo = duo(&net);
    const N: usize = 1_100;
    const EACH: usize = 64 << 10;
    let (target, back) = (filled(EACH + N, 5), Span::leak(EACH));
    share(&mut duo, target, 9, BOTH);
    net.halt(Some(EACH / 2));
    for i in 0..N {
        access(&mut duo, false, &[back], i as u64, EACH, 9);
    }
    let (start, mut most, mut over) = (Instant::now(), 0, 0);
    while most < 1_024 || over < N - 1_024 {
        assert!(start.elapsed() < WAIT, "{most} are lent, {over} are over");
        assert!(duo.b.next().is_none());
        over += duo.a.next().map_or(0, |c| usize::from(c.err.is_none()));
        most = most.max(duo.lent());
    }
    assert_eq!((most, over), (1_024, N - 1_024));
    net.halt(None);
    duo.complete(N - over, 0);
    duo.settle();
    assert_eq!(duo.lent(), 0);
}

#[test]
fn short_accesses_and_none_at_all_go_in_frames() {
    each(|_, mut duo| {
        let (target, local) = (Span::leak(LEN), filled(LEN, 7));
        share(&mut duo, target, 9, BOTH);
        for len in [0, 1, 20_000, (64 << 10) - 1] {
            for is_write in [true, false] {
                access(&mut duo, is_write, &[local.part(0, len).unwrap()], 0, len, 9);
                assert_eq!(completed(&mut duo).err, None, "{len} bytes");
            }
            assert_eq!(
                (duo.counts.take()[2], duo.lent()),
                (0, 0),
                "reads, and what is lent, for {len} bytes"
            );
        }
    });
}

/// An application that has not agreed to FI_MR_ALLOCATED may unmap what it has registered before peers come
/// to it, which not every provider can bear.
#[test]
fn registered_memory_that_may_vanish_is_accessed_by_frames() {
    each(|_, mut duo| {
        let (target, local, back) = (vanishing(LEN), filled(LEN, 7), Span::leak(LEN));
        share(&mut duo, target, 9, BOTH);
        for (is_write, span) in [(true, local), (false, back)] {
            access(&mut duo, is_write, &[span], 0, LEN, 9);
            assert_eq!(completed(&mut duo).err, None);
            let [_, bytes, reads, _] = duo.counts.take();
            assert!(reads == 0 && bytes >= LEN as u64, "{reads} reads, {bytes} bytes in frames");
            duo.settle();
            assert_eq!(duo.lent(), 0);
        }
        assert!(text(&[target]) == pattern(LEN, 7) && text(&[back]) == pattern(LEN, 7));
    });
}

#[test]
fn accesses_that_are_refused_read_nothing() {
    each(|_, mut duo| {
        let (target, local) = (filled(LEN, 1), filled(LEN, 2));
        let closed = share(&mut duo, target, 4, BOTH);
        share(&mut duo, target, 1, BOTH);
        share(&mut duo, target, 2, Access::REMOTE_READ);
        share(&mut duo, target, 3, Access::REMOTE_WRITE);
        duo.b.domain.mr_close(closed).unwrap();
        for (is_write, at, key, why) in [
            (true, 0, 8, Error::BadKey),
            (false, 0, 8, Error::BadKey),
            (true, 0, 4, Error::BadKey),
            (false, 0, 4, Error::BadKey),
            (true, 1, 1, Error::Range),
            (false, 1, 1, Error::Range),
            (true, u64::MAX - 5, 1, Error::Range),
            (false, u64::MAX - 5, 1, Error::Range),
            (true, 0, 2, Error::Access),
            (false, 0, 3, Error::Access),
        ] {
            access(&mut duo, is_write, &[local], at, LEN, key);
            assert_eq!(completed(&mut duo).err, Some(why), "write {is_write}, {at}, key {key}");
            duo.settle();
            assert_eq!((duo.counts.take()[2], duo.lent()), (0, 0), "reads, and what is lent");
        }
        assert!(text(&[target]) == pattern(LEN, 1) && text(&[local]) == pattern(LEN, 2));
    });
}

#[test]
fn providers_without_reads_and_memory_that_cannot_be_had_go_by_frames() {
    let none: fn(&mut Fake) = |fake| fake.reads = false;
    let refused: fn(&mut Fake) = |fake| fake.lends = false;
    let void: fn(&mut Fake) = |fake| fake.void = true;
    for (set, tried) in [(none, 0), (refused, 0), (void, 1)] {
        let mut duo = duo_with(&FakeNet::default(), set);
        let (target, local, back) = (Span::leak(LEN), filled(LEN, 7), Span::leak(LEN));
        share(&mut duo, target, 9, BOTH);
        for (is_write, span) in [(true, local), (false, back)] {
            access(&mut duo, is_write, &[span], 0, LEN, 9);
            assert_eq!(completed(&mut duo).err, None);
            let [_, bytes, reads, _] = duo.counts.take();
            assert!(reads == tried && bytes >= LEN as u64, "{reads} reads, {bytes} bytes in frames");
            duo.settle();
            assert_eq!(duo.lent(), 0);
        }
        assert!(text(&[target]) == pattern(LEN, 7) && text(&[back]) == pattern(LEN, 7));
    }
}

#[test]
fn accesses_whose_read_fails_half_way_go_on_in_frames() {
    each(|net, mut duo| {
        let (target, local, back) = (Span::leak(LEN), filled(LEN, 7), Span::leak(LEN));
        share(&mut duo, target, 9, BOTH);
        for (is_write, span) in [(true, local), (false, back)] {
            net.breaks(LEN / 2);
            access(&mut duo, is_write, &[span], 0, LEN, 9);
            assert_eq!(completed(&mut duo).err, None);
            assert!(!net.is_read(local) && !net.is_read(target), "memory is read after it was given back");
            let [_, bytes, reads, _] = duo.counts.take();
            assert!(reads == 1 && bytes >= LEN as u64, "{reads} reads, {bytes} bytes in frames");
            duo.settle();
            assert_eq!(duo.lent(), 0);
        }
        assert!(text(&[target]) == pattern(LEN, 7) && text(&[back]) == pattern(LEN, 7));
    });
}

/// A flag that is written behind data is not seen before it.
#[test]
fn messages_behind_a_completed_write_find_its_bytes() {
    each(|_, mut duo| {
        let (target, local) = (Span::leak(LEN), filled(LEN, 7));
        share(&mut duo, target, 9, BOTH);
        access(&mut duo, true, &[local], 0, LEN, 9);
        duo.complete(1, 0);
        let (to, room) = (duo.a.peer, Span::leak(8));
        duo.b.domain.recv(duo.b.rx, &from_any(&[room], 2)).unwrap();
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[filled(8, 1)], 3)));
        duo.complete(1, 1);
        assert!(text(&[target]) == pattern(LEN, 7));
    });
}
