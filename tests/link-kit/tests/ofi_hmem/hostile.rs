//! Programs and providers that do what they should not, or what is seldom done.

use std::time::Instant;

use link_kit::text;

use super::*;
use crate::killed::is_in_the_middle;

/// Sends `src`, until a part of it is at `dst`.
fn begin(duo: &mut Duo<Fabric>, src: Span, dst: Span) {
    let (to, start) = (duo.a.peer, Instant::now());
    duo.b.domain.recv(duo.b.rx, &from_any(&[dst], 2)).expect("a receive");
    duo.post(|a| a.domain.send(a.ep, &msg(to, &[src], 1)));
    while !is_in_the_middle(dst) {
        assert!(start.elapsed() < WAIT, "it does not begin, or is over at once");
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
    }
}

/// As one that was mapped by hand may be.
#[test]
fn a_range_on_two_devices_goes_in_frames_and_nothing_is_asked_for_it() {
    let mut duo = duo();
    let at = driver().map_on(&[1, 0]) + (2 << 20) - LEN / 2;
    // SAFETY: so many bytes of it, for good.
    let both = unsafe { Span::new(at, LEN, Kind::Cuda) };
    // More often than registrations may be refused.
    for i in 0..10 {
        hmem::write(&[both], 0, &pattern(LEN, i));
        duo.send(&[both], &[Span::leak(LEN)]);
        duo.send(&[host(LEN, i)], &[both]);
    }
    assert_eq!((duo.counts.take()[2], counts()), (0, Counts::default()));
    duo.send(&[filled(LEN, 3)], &[room(LEN)]);
    assert_eq!((duo.counts.take()[2], counts().lent, counts().local), (1, 1, 1));
}

/// A provider that grants one use only is not asked for the other one each time.
/// A refusal of one use says nothing of the other.
#[test]
fn refused_registration_use_is_not_requested_each_time() {
    const REMOTE_READ: u64 = libfabric_sys::FI_REMOTE_READ;
    for (refused, code) in [
        (libfabric_sys::FI_READ, libfabric_sys::FI_EINVAL),
        (REMOTE_READ, libfabric_sys::FI_EINVAL),
        (libfabric_sys::FI_READ, libfabric_sys::FI_EOPNOTSUPP),
    ] {
        let mut duo = duo();
        let before = counts();
        refuse_for(i32::MAX, code, refused);
        for i in 0..20 {
            // Of one endpoint both are asked for in turns.
            duo.send(&[filled(LEN, i)], &[Span::leak(LEN)]);
            std::mem::swap(&mut duo.a, &mut duo.b);
            duo.send(&[host(LEN, i)], &[room(LEN)]);
            std::mem::swap(&mut duo.a, &mut duo.b);
        }
        let now = counts();
        let most = if code == libfabric_sys::FI_EINVAL { 8 } else { 1 };
        assert_eq!(now.refused - before.refused, most);
        let granted = if refused == REMOTE_READ { now.local - before.local } else { now.lent - before.lent };
        assert_eq!((granted, duo.counts.take()[2]), (20, 20), "registrations, and reads");
        assert_eq!((now.open, duo.lent()), (0, 0));
    }
}

/// A provider without room for a registration now may have room later.
/// As where its cache of registrations, or the adapter, is full.
#[test]
fn full_registration_table_is_no_permanent_refusal() {
    let mut duo = duo();
    let to = duo.a.peer;
    for most in [0, 1, 3] {
        limit(most);
        const N: usize = 40;
        let of: Vec<[Span; 2]> = (0..N).map(|i| [filled(LEN, i), room(LEN)]).collect();
        for (i, [src, dst]) in of.iter().enumerate() {
            duo.b.domain.recv(duo.b.rx, &from_any(&[*dst], i)).expect("a receive");
            duo.post(|a| a.domain.send(a.ep, &msg(to, &[*src], i)));
        }
        let (sent, got) = duo.complete(N, N);
        assert!(sent.iter().chain(&got).all(|c| c.err.is_none()));
        assert!(of.iter().all(|[src, dst]| text(&[*src]) == text(&[*dst])));
        duo.settle();
        assert_eq!((counts().open, duo.lent()), (0, 0));
        duo.counts.take();
        limit(-1);
        duo.send(&[filled(LEN, 1)], &[room(LEN)]);
        // With none that is open nothing says that there will be room.
        assert_eq!(duo.counts.take()[2], u64::from(most > 0), "{most}: reads");
        if most == 0 {
            duo = super::duo();
            duo.counts.take();
        }
    }
}

/// By the program, and with its context: an error of the program's. `tcp` of libfabric 2.1.0 sends no more of
/// that read and reports nothing, so that the message has no end of its own.
#[test]
fn a_message_whose_memory_is_gone_while_a_peer_reads_it_can_be_cancelled() {
    for with_context in [false, true] {
        let mut duo = duo();
        let cu = driver();
        let ctx = with_context.then(|| cu.make_context(1));
        let (src, dst, start) = (memory::pages(1), Span::leak(memory::LEN), Instant::now());
        begin(&mut duo, src, dst);
        memory::forbid(src);
        if let Some(ctx) = ctx {
            cu.end_context(ctx);
        }
        cu.enter(1);
        duo.a.domain.set_patience(link_api::Patience::Retried);
        let (mut begun, mut sent, mut received) = (None, None, None);
        while let Err(why) = duo.a.domain.ep_cancel_in_turns(duo.a.ep, Ctx(1), &mut begun) {
            assert_eq!(why, Error::Busy);
            assert!(start.elapsed() < WAIT, "it is never cancelled");
            received = received.or_else(|| duo.b.next());
        }
        while sent.is_none() || received.is_none() {
            assert!(start.elapsed() < WAIT, "it is never over");
            sent = sent.or_else(|| duo.a.next());
            received = received.or_else(|| duo.b.next());
        }
        assert_eq!(sent.expect("its end").err, Some(Error::Cancelled));
        assert!(received.expect("its end").err.is_some());
        duo.settle();
        assert_eq!((counts().open, duo.lent()), (0, 0));
        // What comes by the same endpoints has its own bytes.
        for i in 0..5 {
            duo.send(&[filled(LEN, i)], &[room(LEN)]);
        }
    }
}

/// Memory that is gone while it is read into costs no more than its message.
/// Likewise where it is put.
#[test]
fn memory_gone_in_a_read_fails_only_its_message() {
    let mut duo = duo();
    let (src, dst, seen) = (memory::pages(1), room(memory::LEN), room(8));
    begin(&mut duo, src, dst);
    memory::forbid(dst);
    let (_, got) = duo.complete(1, 1);
    assert!(got[0].err.is_some(), "{got:?}");
    duo.settle();
    assert_eq!((counts().open, duo.lent()), (0, 0));
    duo.send(&[filled(LEN, 3)], &[room(LEN)]);
    duo.send(&[filled(8, 4)], &[seen]);
}

/// The child has copies of all objects, and of the sockets.
#[test]
fn a_fork_while_memory_is_lent_takes_nothing_from_the_parent() {
    let mut duo = duo();
    let (src, dst) = (memory::pages(1), room(memory::LEN));
    begin(&mut duo, src, dst);
    assert_eq!(counts().open, 2);
    // SAFETY: the child has this thread alone, and ends with it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(duo)));
        // SAFETY: likewise.
        unsafe { libc::_exit(ended.is_err().into()) }
    }
    let (sent, got) = duo.complete(1, 1);
    assert_eq!((sent[0].err, got[0].err), (None, None));
    assert!(text(&[dst]) == text(&[src]));
    let mut status = 0;
    // SAFETY: a place for it.
    assert_eq!((unsafe { libc::waitpid(child, &mut status, 0) }, status), (child, 0));
    duo.settle();
    assert_eq!((counts().open, duo.lent(), duo.counts.take()[2]), (0, 0, 1));
    duo.send(&[filled(LEN, 3)], &[room(LEN)]);
}

#[test]
fn no_bytes_are_registered_where_there_are_none() {
    let mut duo = duo();
    let none = |span: Span| span.part(0, 0).expect("a part");
    let (device, into) = (filled(LEN, 1), room(LEN));
    duo.send(&[none(device)], &[none(into)]);
    duo.send(&[], &[into]);
    let before = counts();
    duo.send(&[none(device), device, none(device)], &[none(into), into]);
    assert_eq!((counts().lent - before.lent, counts().local - before.local), (1, 1));
    share(&mut duo, device, 9);
    let before = counts();
    for is_write in [false, true] {
        access(&mut duo, is_write, none(into), 5, 9);
        assert_eq!(duo.complete(1, 0).0[0].err, None);
    }
    assert_eq!((counts(), duo.lent()), (before, 0));
}
