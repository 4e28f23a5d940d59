//! Access by handles, which is over later: [`start`](link_api::RmaLink::start).

use std::thread;
use std::time::{Duration, Instant};

use hmem::Span;
use link_api::{
    Allow, Connect, Direct, Event, Grant, HandleNote, Link as _, NoDirect, OpId, PeerId, Revoke, RmaCaps,
    RmaLink, Way,
};
use wire::Handle;

use super::sync::{seg, until_left};
use crate::harness::{Drive, next};
use crate::{Ends, Harness, bytes, name, text};

pub(super) const REQUEST: u64 = 1 << 32 | 3;

/// The handles that a peer lacks. A link that has closed what it had, or is about to, exports none until it
/// is connected.
fn lacking<L: RmaLink>(owner: &mut L, to: PeerId, iov: &[Span], way: Way) -> Vec<Handle> {
    let start = Instant::now();
    loop {
        if let Some(handles) = owner.export_handles(to, iov, way) {
            return handles;
        }
        assert!(start.elapsed() < Duration::from_secs(15), "memory that can be reached by handles");
        let _ = owner.connect(to, Connect::Now);
        thread::yield_now();
    }
}

/// Waits until a link is connected, as one is that a frame with a handle has come to.
fn connected<L: RmaLink>(link: &mut L, to: PeerId) {
    let start = Instant::now();
    while link.connect(to, Connect::Now).is_err() {
        assert!(start.elapsed() < Duration::from_secs(15), "a connection by which handles have come");
        thread::yield_now();
    }
}

/// Exports memory to a peer, as the engine does by frames.
fn export<L: RmaLink>(
    (owner, to): (&mut L, PeerId),
    (user, from): (&mut L, PeerId),
    iov: &[Span],
    ways: &[Way],
) -> Vec<Handle> {
    let mut all = Vec::new();
    for way in ways {
        let handles = lacking(owner, to, iov, *way);
        connected(user, from);
        for handle in &handles {
            owner.note_handle(to, HandleNote::Exported(handle));
            user.note_handle(from, HandleNote::Imported(handle));
        }
        all.extend(handles);
    }
    all
}

/// The ways that a link's operations go.
pub(super) fn ways<L: RmaLink>(link: &L, peer: PeerId) -> &'static [Way] {
    let both = RmaCaps::HOST_HANDLES | RmaCaps::DEVICE_HANDLES | RmaCaps::HOST_PUTS;
    if link.path(peer).rma.intersects(both) { &[Way::Get, Way::Put] } else { &[Way::Get] }
}

/// Two links, and memory of the second that the first may reach.
pub(super) fn with_memory<H: Harness>(h: &mut H, len: usize) -> (Ends<H::Link>, Span) {
    let mut ends = h.pair();
    let caps = ends.a.path(ends.to_b).rma;
    let such = RmaCaps::HOST_HANDLES | RmaCaps::DEVICE_HANDLES | RmaCaps::HOST_GETS;
    assert!(caps.intersects(such), "this group is for such links");
    let there = h.memory(&ends.b, len, true);
    hmem::write(&[there], 0, &bytes(len, 1));
    let ways = ways(&ends.a, ends.to_b);
    let handles = export((&mut ends.b, ends.to_a), (&mut ends.a, ends.to_b), &[there], ways);
    assert!(!handles.is_empty(), "memory that was never exported needs a handle");
    (ends, there)
}

/// How an operation went.
pub(super) fn done<H: Harness>(h: &mut H, link: &mut H::Link, op: OpId) -> bool {
    match h.event(link, "an operation to be over") {
        Event::Done(which, ok) if which == op => ok,
        Event::Cut(which) if which == op => false,
        other => panic!("{op:?} is in flight, but {other:?}"),
    }
}

/// Whether an access was refused, before or after it was started.
fn fails<H: Harness>(h: &mut H, link: &mut H::Link, found: Result<OpId, NoDirect>) -> bool {
    match found {
        Ok(op) => !done(h, link, op),
        Err(_) => true,
    }
}

/// [`Event::Done`]: "whether all bytes are there".
pub fn bytes_are_there_when_an_access_is_over<H: Harness>(h: &mut H) {
    const LEN: usize = 40_000;
    let (Ends { mut a, to_b, b: _b, .. }, there) = with_memory(h, LEN);
    let remote = [seg(there, 100, 5_000), seg(there, 6_000, 0), seg(there, 9_000, 30_000)];
    for len in [1, 4_999, 5_001, 35_000] {
        let local = [h.memory(&a, 500, true), h.memory(&a, LEN, true)];
        let before = text(&[there]);
        let op = a
            .start(Way::Get, to_b, &Direct::new(Grant::Request(REQUEST), &remote, &local, len))
            .expect("memory that was exported to it");
        assert!(done(h, &mut a, op));
        let all = [&before[100..5_100], &before[9_000..39_000]].concat();
        assert!(text(&local)[..len] == all[..len], "{len} bytes that were read");
        assert!(text(&local)[len..].iter().all(|b| *b == 0), "bytes behind those");

        hmem::write(&local, 0, &bytes(LEN, len));
        if !ways(&a, to_b).contains(&Way::Put) {
            let put = a.start(Way::Put, to_b, &Direct::new(Grant::Request(REQUEST), &remote, &local, len));
            assert!(put.is_err() && text(&[there]) == before, "a way that there is not");
            continue;
        }
        let op = a
            .start(Way::Put, to_b, &Direct::new(Grant::Request(REQUEST), &remote, &local, len))
            .expect("memory that was exported to it");
        assert!(done(h, &mut a, op));
        let mut want = before;
        for (at, byte) in bytes(LEN, len)[..len].iter().enumerate() {
            want[if at < 5_000 { 100 + at } else { 4_000 + at }] = *byte;
        }
        assert!(text(&[there]) == want, "{len} bytes that were written, and nothing else");
    }
    h.quiet(&mut a);
}

/// [`export_handles`](link_api::RmaLink::export_handles): "the handles that this peer lacks".
pub fn a_handle_is_exported_once_to_each_peer<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let mut c = h.open();
    let (c_to_b, to_c) = (c.peer(&b.addr()), b.peer(&c.addr()));
    h.say(&mut c, c_to_b, b"also");
    h.take(&mut b);
    let iov = [h.memory(&b, 1_000, true), h.memory(&b, 3_000, true)];
    let lacks = lacking(&mut b, to_a, &iov, Way::Get);
    assert!(!lacks.is_empty());
    assert_eq!(b.export_handles(to_a, &iov, Way::Get).as_ref(), Some(&lacks), "it was not exported yet");
    assert_eq!(export((&mut b, to_a), (&mut a, to_b), &iov, &[Way::Get]), lacks);
    assert_eq!(b.export_handles(to_a, &iov, Way::Get), Some(Vec::new()), "it was exported");
    let part = [iov[1].part(10, 20).expect("a part of it")];
    assert_eq!(b.export_handles(to_a, &part, Way::Get), Some(Vec::new()), "of a part as well");
    assert_eq!(lacking(&mut b, to_c, &iov, Way::Get).len(), lacks.len(), "another peer was not");
}

/// "Memory of which the peer has sent a handle."
pub fn memory_without_a_handle_is_refused<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, b, .. }, _) = with_memory(h, 64);
    let (here, there) = (h.memory(&a, 64, true), h.memory(&b, 64, true));
    hmem::write(&[here], 0, &[1; 64]);
    for &way in ways(&a, to_b) {
        let started =
            a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, 64)], &[here], 64));
        assert!(fails(h, &mut a, started), "{way:?} of memory that was never exported");
    }
    assert_eq!((text(&[here]), text(&[there])), (vec![1; 64], vec![0; 64]));
    h.quiet(&mut a);
}

/// More than a handle names, than the segments hold, or than there is room for.
pub fn nothing_outside_of_a_handle_is_touched<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, b: _b, .. }, there) = with_memory(h, 4_096);
    let here = h.memory(&a, 8_192, true);
    let short = here.part(0, 10).expect("a part of it");
    let before = (text(&[here]), text(&[there]));
    for &way in ways(&a, to_b) {
        let beyond = [seg(there, 4_000, 97)];
        let started = a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), &beyond, &[here], 97));
        assert!(fails(h, &mut a, started), "{way:?} beyond the end of what was exported");
        let started =
            a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, 10)], &[here], 11));
        assert!(fails(h, &mut a, started), "{way:?} of more than the segments hold");
        let started =
            a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, 11)], &[short], 11));
        assert!(fails(h, &mut a, started), "{way:?} of more than there is room for");
        let (remote, local) = ([seg(there, 0, 64)], [here]);
        let front = Direct::new(Grant::Request(REQUEST), &remote, &local, 16);
        for access in [front.at(1, 0), front.at(0, 1), Direct { grant: Grant::Agreed, ..front }] {
            let started = a.start(way, to_b, &access);
            assert!(fails(h, &mut a, started), "{way:?} of other than the fronts by a request: {access:?}");
        }
        let mut around = seg(there, 0, 16);
        around.len = u64::MAX.into();
        let started = a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), &[around], &[here], 16));
        assert!(fails(h, &mut a, started), "{way:?} of a segment that goes around");
    }
    assert!((text(&[here]), text(&[there])) == before, "an access that was refused has moved bytes");
}

/// [`OpId`]: "given out by `start`, and never again", and each is over once.
pub fn operations_are_distinguished<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, b: _b, .. }, there) = with_memory(h, 64_000);
    let mut seen: Vec<OpId> = Vec::new();
    for _ in 0..5 {
        let here: Vec<Span> = (0..8).map(|_| h.memory(&a, 8_000, true)).collect();
        let mut flying = Vec::new();
        for (i, span) in here.iter().enumerate() {
            let remote = [seg(there, 8_000 * i, 8_000 - 900 * i)];
            let op = a.start(
                Way::Get,
                to_b,
                &Direct::new(Grant::Request(REQUEST), &remote, &[*span], 8_000 - 900 * i),
            );
            let op = op.expect("memory that was exported to it");
            assert!(!seen.contains(&op), "{op:?} was given out before");
            seen.push(op);
            flying.push((op, i));
        }
        let all = text(&[there]);
        while !flying.is_empty() {
            let Event::Done(op, true) = h.event(&mut a, "an operation to be over") else {
                panic!("no success")
            };
            let at = flying.iter().position(|(known, _)| *known == op).expect("one that is in flight");
            let (_, i) = flying.swap_remove(at);
            let (from, len) = (8_000 * i, 8_000 - 900 * i);
            assert!(text(&[here[i]])[..len] == all[from..from + len], "bytes of {op:?}, which is over");
        }
    }
    h.quiet(&mut a);
}

/// [`cancel`](link_api::RmaLink::cancel): "no event reports it any more, and when this returns its memory is
/// not accessed any more".
pub fn a_cancelled_operation_touches_nothing_and_is_not_reported<H: Harness>(h: &mut H) {
    const LEN: usize = 256 << 10;
    let (Ends { mut a, to_b, mut b, to_a }, there) = with_memory(h, 2 * LEN);
    for (round, &way) in ways(&a, to_b).iter().cycle().take(4).enumerate() {
        let (here, other) = (h.memory(&a, LEN, true), h.memory(&a, LEN, true));
        hmem::write(&[here], 0, &bytes(LEN, 50 + round));
        let (front, back) = ([seg(there, 0, LEN)], [seg(there, LEN, LEN)]);
        let start = |a: &mut H::Link, way, remote: &[_], local| {
            a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), remote, &[local], LEN))
        };
        // A link whose handles are for the time of a request may end all with one operation: they are exported
        // anew.
        let is_retiring = a.path(to_b).rma.contains(RmaCaps::HOST_GETS);
        let mut tries = 0;
        let mut export_anew = |h: &mut H, a: &mut H::Link, what: &str| {
            tries += 1;
            assert!(is_retiring && tries < 1_000, "{what}");
            h.pass_long();
            let ways = ways(a, to_b);
            export((&mut b, to_a), (a, to_b), &[there], ways);
        };
        let mut op = start(&mut a, way, &front, here);
        // They may end once more after an operation by new ones is over.
        while op.is_err() && round > 0 {
            export_anew(h, &mut a, "memory that was exported to it");
            op = start(&mut a, way, &front, here);
        }
        let op = op.expect("memory that was exported to it");
        (0..3 * round).for_each(|_| h.pass());
        a.cancel(op);
        let mut then = (text(&[here]), text(&[there]));
        // One that is as long, and begins later, is over later.
        let mut next = start(&mut a, Way::Get, &back, other);
        while !matches!(next, Ok(op) if done(h, &mut a, op)) {
            export_anew(h, &mut a, "an operation besides");
            next = start(&mut a, Way::Get, &back, other);
        }
        let next = next.expect("one that is over");
        if is_retiring && way == Way::Put {
            // What was under way to the peer may have come there until that has ended the handles.
            then.1 = text(&[there]);
            (0..20).for_each(|_| h.pass_long());
        }
        assert!((text(&[here]), text(&[there])) == then, "{way:?}: memory is accessed after a cancel");
        h.quiet(&mut a);
        // It is over for good, and may be cancelled again.
        a.cancel(op);
        a.cancel(next);
    }
}

/// [`revoke`](link_api::RmaLink::revoke) and [`renew`](link_api::RmaLink::renew), of a request of which
/// nothing is in flight.
pub fn a_request_that_was_taken_back_starts_and_moves_nothing<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, mut b, to_a }, there) = with_memory(h, 64);
    let here = h.memory(&a, 64, true);
    let before = (text(&[here]), text(&[there]));
    until_left(h, || b.revoke(Revoke::Request(to_a, REQUEST)));
    for &way in ways(&a, to_b) {
        let started =
            a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, 64)], &[here], 64));
        assert_eq!(started, Err(NoDirect::Revoked), "{way:?} by a request that was taken back");
    }
    h.quiet(&mut a);
    assert!((text(&[here]), text(&[there])) == before);
    for request in [name(9, 1), REQUEST] {
        if request == REQUEST {
            b.allow(Allow::Request(to_a, REQUEST));
            // A frame names it anew.
            h.say(&mut b, to_a, b"again");
            h.take(&mut a);
        }
        let op =
            a.start(Way::Get, to_b, &Direct::new(Grant::Request(request), &[seg(there, 0, 64)], &[here], 64));
        assert!(done(h, &mut a, op.expect("a request that is not taken back, or was renewed")));
        assert!(text(&[here]) == before.1);
    }
}

/// Also then [`Event::Done`] says that it is over, once.
pub fn an_operation_to_a_peer_that_ends_is_reported_once<H: Harness>(h: &mut H) {
    const LEN: usize = 256 << 10;
    let (Ends { mut a, to_b, b, .. }, there) = with_memory(h, LEN);
    let here = h.memory(&a, LEN, true);
    let op =
        a.start(Way::Get, to_b, &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, LEN)], &[here], LEN));
    let op = op.expect("memory that was exported to it");
    h.end(b);
    let (mut over, mut ended) = (0, false);
    h.until("the end of the peer, and of the operation", |_| {
        match next(&mut a) {
            Some(Event::Done(which, _) | Event::Cut(which)) => {
                assert_eq!((which, over), (op, 0), "Done comes twice");
                over += 1;
            }
            Some(Event::Closed(peer, _)) => {
                assert_eq!(peer, to_b);
                ended = true;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        over > 0 && ended
    });
    h.quiet(&mut a);
    let again =
        a.start(Way::Get, to_b, &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, LEN)], &[here], LEN));
    assert!(again.is_err(), "an access to a peer that has ended");
}
