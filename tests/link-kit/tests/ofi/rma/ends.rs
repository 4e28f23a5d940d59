//! Accesses whose registration, endpoint or process ends while they are under way.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use engine::Error;
use hmem::Span;
use link_kit::text;
use testkit::pattern;

use super::{BOTH, LEN, WAIT, access, completed, duo, duo_with, each, share};
use crate::duo::{Duo, filled};
use crate::fake::{Fake, FakeNet};

#[test]
fn memory_of_a_read_is_not_written_after_its_endpoint_is_closed() {
    let net = FakeNet::default();
    let mut duo = duo_with(&net, |fake| fake.writes = true);
    let target = filled(LEN, 3);
    share(&mut duo, target, 9, BOTH);
    let local = Span::leak(LEN);
    net.halt(Some(LEN / 2));
    access(&mut duo, false, &[local], 0, LEN, 9);
    let start = Instant::now();
    while text(&[local])[..LEN / 2] != pattern(LEN, 3)[..LEN / 2] {
        assert!(start.elapsed() < WAIT, "nothing is written");
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
    }
    assert!(net.is_filled(local), "a write that stands still");
    duo.a.domain.set_patience(link_api::Patience::Final);
    let ep = duo.a.ep;
    duo.a.domain.ep_close(ep).expect("an endpoint that closes");
    assert!(!net.is_filled(local), "memory that is accessed after the endpoint was closed");
    hmem::write(&[local], 0, &[0xa5; LEN]);
    net.halt(None);
    (0..100).for_each(|_| assert!(duo.b.next().is_none()));
    assert!(text(&[local]) == [0xa5; LEN], "memory that is written after the endpoint was closed");
}

/// Has both make progress until a read of the provider below stands still at the middle.
fn stands_still(duo: &mut Duo<Fake>, is_there: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < WAIT, "nothing is read");
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
    }
    for _ in 0..50 {
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
        sleep(Duration::from_micros(50));
    }
}

/// Memory of a registration that is closed in a write is not written any more.
#[test]
fn registration_closed_in_a_write_is_not_written_any_more() {
    each(|net, mut duo| {
        let (target, local) = (filled(LEN, 1), filled(LEN, 2));
        let mr = share(&mut duo, target, 9, BOTH);
        net.halt(Some(LEN / 2));
        access(&mut duo, true, &[local], 0, LEN, 9);
        stands_still(&mut duo, || net.is_filled(target));
        duo.b.domain.set_patience(link_api::Patience::Retried);
        let start = Instant::now();
        while let Err(why) = duo.b.domain.mr_close(mr) {
            assert_eq!(why, Error::Busy);
            assert!(start.elapsed() < WAIT, "it is never closed");
            duo.a.next();
        }
        assert!(!net.is_filled(target), "memory is written after it was given back");
        hmem::write(&[target], 0, &[0xa5; LEN]);
        net.halt(None);
        assert_eq!(completed(&mut duo).err, Some(Error::BadKey));
        duo.settle();
        assert!(text(&[target]) == [0xa5; LEN] && duo.lent() == 0 && !net.is_read(local));
        // Others go on.
        duo.send(&[local], &[Span::leak(LEN)]);
    });
}

/// Memory of a registration that is closed in a read is not read any more.
#[test]
fn registration_closed_in_a_read_is_not_read_any_more() {
    each(|net, mut duo| {
        let (target, back) = (filled(LEN, 1), Span::leak(LEN));
        for round in 0..3 {
            let mr = share(&mut duo, target, 9, BOTH);
            net.halt(Some(LEN / 2));
            access(&mut duo, false, &[back], 0, LEN, 9);
            stands_still(&mut duo, || net.is_read(target));
            assert_eq!(duo.lent(), 1);
            duo.b.domain.set_patience(link_api::Patience::Retried);
            let (start, mut reported) = (Instant::now(), None);
            while let Err(why) = duo.b.domain.mr_close(mr) {
                assert_eq!(why, Error::Busy);
                assert!(start.elapsed() < WAIT, "it is never closed");
                // In every other round the initiator asks for frames before the registration is closed.
                if round % 2 == 0 {
                    assert!(duo.b.next().is_none());
                }
                reported = reported.or_else(|| duo.a.next());
            }
            assert!(!net.is_read(target), "memory is read after it was given back");
            hmem::write(&[target], 0, &[0xa5; LEN]);
            net.halt(None);
            let found = reported.unwrap_or_else(|| completed(&mut duo));
            assert_eq!(found.err, Some(Error::BadKey));
            duo.settle();
            assert_eq!(duo.lent(), 0);
            assert!(text(&[back]).windows(64).all(|part| part != [0xa5; 64]), "memory that was given back");
            hmem::write(&[target], 0, &pattern(LEN, 1));
        }
        duo.send(&[target], &[Span::leak(LEN)]);
    });
}

/// The same initiator goes on to read what is not of the registration that is closed.
#[test]
fn other_reads_of_the_same_memory_outlive_a_registration_that_is_closed() {
    each(|net, mut duo| {
        let (target, backs) = (filled(LEN, 1), [Span::leak(LEN), Span::leak(LEN)]);
        let mr = share(&mut duo, target, 8, BOTH);
        share(&mut duo, target, 9, BOTH);
        net.halt(Some(LEN / 2));
        access(&mut duo, false, &[backs[0]], 0, LEN, 8);
        access(&mut duo, false, &[backs[1]], 0, LEN, 9);
        stands_still(&mut duo, || net.is_filled(backs[0]) && net.is_filled(backs[1]));
        duo.b.domain.set_patience(link_api::Patience::Retried);
        let (start, mut reported) = (Instant::now(), Vec::new());
        while let Err(why) = duo.b.domain.mr_close(mr) {
            assert_eq!(why, Error::Busy);
            assert!(start.elapsed() < WAIT, "it is never closed");
            reported.extend(duo.a.next());
        }
        net.halt(None);
        while reported.len() < 2 {
            assert!(start.elapsed() < WAIT, "one is never over");
            reported.extend(duo.a.next());
            duo.b.next();
        }
        let failed: Vec<_> = reported.iter().map(|c| c.err).filter(Option::is_some).collect();
        assert_eq!(failed, [Some(Error::BadKey)]);
        assert!(text(&[backs[1]]) == pattern(LEN, 1));
        duo.settle();
        assert_eq!(duo.lent(), 0);
    });
}

#[test]
fn an_initiator_that_ends_in_its_read_leaves_nothing_registered() {
    each(|net, mut duo| {
        let (target, back) = (filled(LEN, 1), Span::leak(LEN));
        let mr = share(&mut duo, target, 9, BOTH);
        net.halt(Some(LEN / 2));
        access(&mut duo, false, &[back], 0, LEN, 9);
        stands_still(&mut duo, || net.is_read(target));
        let Duo { a, mut b, counts } = duo;
        drop(a);
        let start = Instant::now();
        // What the one that ended had lent, to be written, is not counted off.
        let left = u64::from(counts.writes.load(Relaxed) > 0);
        while counts.lent.load(Relaxed) > left || net.is_read(target) {
            assert!(start.elapsed() < WAIT, "its end is never reported");
            b.next();
        }
        assert!(!net.is_read(target), "memory is read after it was given back");
        b.domain.mr_close(mr).unwrap();
    });
}

#[test]
fn a_target_that_ends_in_an_access_fails_it() {
    for is_write in [true, false] {
        each(|net, mut duo| {
            let (target, local) = (filled(LEN, 1), filled(LEN, 2));
            share(&mut duo, target, 9, BOTH);
            net.halt(Some(LEN / 2));
            access(&mut duo, is_write, &[local], 0, LEN, 9);
            let [from, to] = if is_write { [local, target] } else { [target, local] };
            stands_still(&mut duo, || net.is_read(from) && net.is_filled(to));
            let Duo { mut a, b, counts } = duo;
            drop(b);
            let start = Instant::now();
            let found = loop {
                assert!(start.elapsed() < WAIT, "it is never over");
                if let Some(found) = a.next() {
                    break found;
                }
            };
            assert_eq!(found.err, Some(Error::Reset));
            assert!(!net.is_read(from) && !net.is_filled(to), "memory is accessed after it was given back");
            // What the one that ended had lent is not counted off.
            let is_left = !is_write && counts.writes.load(Relaxed) == 0;
            assert_eq!(
                counts.lent.load(Relaxed),
                u64::from(is_left),
                "what the one that lives has registered"
            );
        });
    }
}

/// Memory of which a part was read by another request is not read after its registration was closed.
/// Requests may share what one of them had registered.
#[test]
fn closed_registration_is_not_read_after_a_partial_read_by_another() {
    let net = FakeNet::default();
    let mut duo = duo(&net);
    let target = filled(300_000, 1);
    share(&mut duo, target, 8, BOTH);
    let mr = share(&mut duo, target, 9, BOTH);
    let third = target.part(200_000, LEN).unwrap();
    let backs = [Span::leak(300_000), Span::leak(66_000), Span::leak(LEN)];
    let pieces: Vec<Span> = (0..5).map(|i| backs[0].part(60_000 * i, 60_000).unwrap()).collect();
    net.halt(Some(62_000));
    access(&mut duo, false, &pieces, 0, 300_000, 8);
    access(&mut duo, false, &[backs[1]], 0, 66_000, 8);
    access(&mut duo, false, &[backs[2]], 200_000, LEN, 9);
    let (start, mut over) = (Instant::now(), 0);
    while over < 2 {
        assert!(start.elapsed() < WAIT);
        over += usize::from(duo.a.next().is_some());
        duo.b.next();
        if over == 1 {
            for _ in 0..50 {
                duo.b.next();
            }
            net.halt(Some(70_000));
        }
    }
    for _ in 0..50 {
        duo.b.next();
        sleep(Duration::from_micros(50));
    }
    assert!(net.is_read(third));
    duo.b.domain.set_patience(link_api::Patience::Retried);
    let closed = duo.b.domain.mr_close(mr);
    assert!(closed.is_err() || !net.is_read(third), "memory is read after its registration was closed");
}

/// A registration with many reads of a silent initiator is closed or busy in about a second.
#[test]
fn close_with_reads_of_a_silent_initiator_takes_about_a_second() {
    let net = FakeNet::default();
    let mut duo = duo(&net);
    let target = filled(LEN, 1);
    let mr = share(&mut duo, target, 9, BOTH);
    net.halt(Some(LEN / 2));
    for _ in 0..8 {
        access(&mut duo, false, &[Span::leak(LEN)], 0, LEN, 9);
    }
    stands_still(&mut duo, || net.is_read(target));
    let start = Instant::now();
    assert_eq!(duo.b.domain.mr_close(mr), Err(Error::Busy));
    // Not one for each of them.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}
