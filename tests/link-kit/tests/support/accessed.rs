//! RMA over a provider of libfabric's: long accesses are reads of it, and end with their registrations.
//!
//! Memory that was given back is made inaccessible, or freed, so that a provider that still touches it ends
//! the test.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use below::Below as _;
use engine::{Access, Error, MrId, Reg};
use hmem::Span;
use ofi::Fabric;
use testkit::{from_any, msg, pattern, read, there, write};

use super::duo::Duo;
use super::fabric;
use super::killed::is_in_the_middle;
use super::memory::{filled, forbid, pages, room};

const WAIT: Duration = Duration::from_secs(120);

/// Registers memory of the second one's under a key.
pub fn share(duo: &mut Duo<Fabric>, span: Span, key: u64) -> MrId {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    duo.b.domain.mr_reg(&Reg { iov: &[span], access, key: Some(key) }).expect("a key that is free").0
}

/// Posts a write or a read of the first one's, from byte `at` on of what has that key.
pub fn access(duo: &mut Duo<Fabric>, is_write: bool, local: Span, at: usize, key: u64) {
    let (to, remote) = (duo.a.peer, [there(at as u64, local.len(), key)]);
    duo.post(|a| match is_write {
        true => a.domain.rma(a.ep, &write(to, &[local], &remote, 1)),
        false => a.domain.rma(a.ep, &read(to, &[local], &remote, 2)),
    });
}

/// Counted by what is asked of the provider: one `fi_read`, or for a read one `fi_write` of its target where
/// there are writes.
#[test]
fn a_long_write_and_a_long_read_are_one_access_each() {
    let has_writes = fabric().about().writes;
    let mut duo = Duo::new(fabric);
    let target = filled(5 << 20, 1);
    share(&mut duo, target, 9);
    let mut want = pattern(5 << 20, 1);
    for (i, len) in [64 << 10, 100_000, 4 << 20].into_iter().enumerate() {
        let (local, back) = (filled(len, 10 + i), room(len));
        want[77..77 + len].copy_from_slice(&pattern(len, 10 + i));
        for (is_write, span) in [(true, local), (false, back)] {
            access(&mut duo, is_write, span, 77, 9);
            assert_eq!(duo.complete(1, 0).0[0].err, None);
            let [messages, bytes, reads, read] = duo.counts.take();
            assert_eq!((reads, read), (1, len as u64), "accesses of the provider below, and their bytes");
            let writes = duo.counts.writes.swap(0, Relaxed);
            assert_eq!(writes, u64::from(!is_write && has_writes), "writes of the provider below");
            assert!(messages <= 8 && bytes < 2_000, "{messages} messages of {bytes} bytes");
        }
        assert!(link_kit::text(&[back]) == pattern(len, 10 + i) && link_kit::text(&[target]) == want);
    }
    duo.settle();
    assert_eq!(duo.lent(), 0, "what is registered when all are over");
}

#[test]
fn accesses_that_the_registration_does_not_allow_are_refused() {
    let mut duo = Duo::new(fabric);
    let (target, local) = (filled(100_000, 1), filled(100_000, 2));
    share(&mut duo, target, 9);
    for is_write in [true, false] {
        for (at, key, why) in [(0, 8, Error::BadKey), (1, 9, Error::Range)] {
            access(&mut duo, is_write, local, at, key);
            assert_eq!(duo.complete(1, 0).0[0].err, Some(why));
        }
    }
    duo.settle();
    assert_eq!((duo.counts.take()[2], duo.lent()), (0, 0), "reads, and what is lent");
}

#[test]
fn a_registration_that_is_closed_in_the_middle_of_an_access() {
    for is_write in [true, false] {
        // All of it may have come before the registration is closed.
        let in_time = (0..20).any(|_| is_closed_in_time(is_write));
        assert!(in_time, "no registration was closed in time");
    }
}

fn is_closed_in_time(is_write: bool) -> bool {
    let mut duo = Duo::new(fabric);
    let (target, local) = (pages(u8::from(!is_write)), pages(u8::from(is_write)));
    let mr = share(&mut duo, target, 9);
    access(&mut duo, is_write, local, 0, 9);
    let (start, into) = (Instant::now(), if is_write { target } else { local });
    let mut completion = None;
    while completion.is_none() && !is_in_the_middle(into) {
        assert!(start.elapsed() < WAIT, "nothing is read");
        completion = completion.or(duo.a.next());
        assert!(duo.b.next().is_none());
    }
    duo.b.domain.set_patience(link_api::Patience::Retried);
    while let Err(why) = duo.b.domain.mr_close(mr) {
        assert_eq!(why, Error::Busy);
        assert!(start.elapsed() < WAIT, "it is never closed");
        completion = completion.or_else(|| duo.a.next());
    }
    forbid(target);
    while completion.is_none() {
        assert!(start.elapsed() < WAIT, "it is never over");
        completion = duo.a.next();
        assert!(duo.b.next().is_none());
    }
    let in_time = completion.is_some_and(|c| c.err == Some(Error::BadKey));
    assert!(in_time || completion.is_some_and(|c| c.err.is_none()), "{completion:?}");
    // Others go on.
    duo.b.domain.set_patience(link_api::Patience::Second);
    duo.send(&[filled(100_000, 3)], &[room(100_000)]);
    assert_eq!(duo.lent(), 0);
    in_time
}

/// What it had under way ends with it, and what others have goes on.
#[test]
fn a_receiver_that_is_closed_in_the_middle_of_its_read() {
    let Duo { mut a, mut b, counts } = Duo::new(fabric);
    let (from, into, start) = (pages(1), pages(0), Instant::now());
    b.domain.recv(b.rx, &from_any(&[into], 2)).expect("a receive");
    a.domain.send(a.ep, &msg(a.peer, &[from], 1)).expect("room");
    while !is_in_the_middle(into) && counts.reads.load(Relaxed) < 2 {
        assert!(start.elapsed() < WAIT, "nothing is read");
        if a.next().or(b.next()).is_some() {
            // All of it has come before it was closed.
            return;
        }
    }
    drop(b);
    forbid(into);
    while a.next().is_none() {
        assert!(start.elapsed() < WAIT, "it is never over");
    }
    forbid(from);
    assert_eq!(counts.lent.load(Relaxed), 0);
    Duo::new(fabric).send(&[filled(100_000, 3)], &[room(100_000)]);
}
