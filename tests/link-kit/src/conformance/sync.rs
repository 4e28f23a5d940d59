//! Access to a peer's memory in the call: [`get`](link_api::RmaLink::get) and
//! [`put`](link_api::RmaLink::put).

use hmem::Span;
use link_api::{
    Allow, Channel, Direct, Grant, InUse, Link as _, NoDirect, PeerId, Revoke, RmaCaps, RmaLink, Way,
};
use wire::Seg;

use crate::harness::Drive;
use crate::{Ends, Harness, bytes, name, text};

/// Where `off..off+len` of some memory is, as its owner sends it to a peer.
pub(super) fn seg(span: Span, off: usize, len: usize) -> Seg {
    Seg { addr: (span.addr() + off as u64).into(), len: (len as u64).into() }
}

/// Tries until no peer is inside an access.
pub(super) fn until_left<H: Harness>(h: &mut H, mut call: impl FnMut() -> Result<(), InUse>) {
    h.until("that peers have left", |_| call() == Ok(()));
}

/// Two links, and memory of the second one.
fn with_memory<H: Harness>(h: &mut H, len: usize) -> (Ends<H::Link>, Span) {
    let ends = h.pair();
    assert!(ends.a.path(ends.to_b).rma.contains(RmaCaps::SYNC), "this group is for links with it");
    let there = h.memory(&ends.b, len, false);
    hmem::write(&[there], 0, &bytes(len, 1));
    (ends, there)
}

/// Whether an access of eight bytes in both directions is refused, and how; nothing is touched then.
fn refused<L: RmaLink>(link: &mut L, peer: PeerId, grant: Grant, there: Span) -> Option<[NoDirect; 2]> {
    let (here, before) = (Span::leak(8), text(&[there]));
    hmem::write(&[here], 0, b"untaken!");
    let got =
        link.access(Way::Get, peer, &Direct::new(grant, &[seg(there, 0, there.len())], &[here], 8).at(3, 0));
    if got.is_ok() {
        assert_eq!(text(&[here]), before[3..11], "bytes that were read");
    } else {
        assert_eq!(text(&[here]), b"untaken!", "an access that was refused has read");
    }
    hmem::write(&[here], 0, b"written!");
    let put =
        link.access(Way::Put, peer, &Direct::new(grant, &[seg(there, 0, there.len())], &[here], 8).at(3, 0));
    if put.is_ok() {
        assert_eq!(text(&[there])[3..11], *b"written!");
        hmem::write(&[there], 0, &before);
    } else {
        assert!(text(&[there]) == before, "an access that was refused has written");
    }
    assert_eq!(got.is_ok(), put.is_ok(), "reads and writes are refused alike: {got:?} and {put:?}");
    Some([got.err()?, put.err()?])
}

/// Bytes at any offset, of memory in any number of parts.
pub fn bytes_are_read_and_written_where_they_should_be<H: Harness>(h: &mut H) {
    const LEN: usize = 20_000;
    let (Ends { mut a, to_b, b: _b, .. }, there) = with_memory(h, LEN);
    let grant = Grant::Request(name(3, 1));
    let remote = [seg(there, 100, 5_000), seg(there, 6_000, 0), seg(there, 9_000, 8_000)];
    let is_there = |all: &[u8]| [&all[100..5_100], &all[9_000..17_000]].concat();
    for (roff, loff, len) in [(0, 0, 13_000), (1, 7, 1), (4_999, 3, 2), (4_000, 499, 6_001), (12_999, 0, 1)] {
        let local = [Span::leak(500), Span::leak(13_000)];
        assert_eq!(
            a.access(Way::Get, to_b, &Direct::new(grant, &remote, &local, len).at(roff, loff)),
            Ok(()),
            "{len} bytes at {roff}"
        );
        let (got, all) = (text(&local), is_there(&text(&[there])));
        assert!(got[loff..loff + len] == all[roff..roff + len], "{len} bytes from {roff} to {loff}");
        assert!(got[..loff].iter().chain(&got[loff + len..]).all(|b| *b == 0), "bytes beside those");

        let mut want = text(&[there]);
        hmem::write(&local, 0, &bytes(13_500, roff + 2));
        assert_eq!(
            a.access(Way::Put, to_b, &Direct::new(grant, &remote, &local, len).at(roff, loff)),
            Ok(()),
            "{len} bytes at {roff}"
        );
        for (i, byte) in text(&local)[loff..loff + len].iter().enumerate() {
            let at = roff + i;
            want[if at < 5_000 { 100 + at } else { 4_000 + at }] = *byte;
        }
        assert!(text(&[there]) == want, "{len} bytes from {loff} to {roff}, and nothing else");
    }
}

/// What is outside of the segments that were named, there, or of the spans here.
pub fn nothing_outside_of_what_was_named_is_touched<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, b: _b, .. }, there) = with_memory(h, 300);
    let grant = Grant::Request(name(3, 1));
    let remote = [seg(there, 100, 60), seg(there, 160, 4)];
    let here = Span::leak(300);
    let local = here.part(100, 100).expect("a part of it");
    for (roff, len) in [(0, 65), (64, 1), (1, 64), (1_000, 1), (usize::MAX, 2), (usize::MAX - 7, 8)] {
        let (before, own) = (text(&[there]), bytes(300, 9));
        hmem::write(&[here], 0, &own);
        let got = a.access(Way::Get, to_b, &Direct::new(grant, &remote, &[local], len).at(roff, 0));
        assert!(got.is_err(), "{len} bytes at {roff} of 64 were read");
        let put = a.access(Way::Put, to_b, &Direct::new(grant, &remote, &[local], len).at(roff, 0));
        assert!(put.is_err(), "{len} bytes at {roff} of 64 were written");
        let now = text(&[there]);
        assert!(now[..100] == before[..100] && now[164..] == before[164..], "bytes beside what was named");
        let now = text(&[here]);
        assert!(now[..100] == own[..100] && now[200..] == own[200..], "bytes beside what was given");
    }
    hmem::write(&[here], 0, &bytes(300, 9));
    let long = [seg(there, 0, 300)];
    assert!(
        a.access(Way::Get, to_b, &Direct::new(grant, &long, &[local], 101)).is_err(),
        "more was read than there is room for"
    );
    assert!(
        a.access(Way::Get, to_b, &Direct::new(grant, &long, &[local], 2).at(0, 99)).is_err(),
        "more was read than there is room for"
    );
    let now = text(&[here]);
    assert!(now[..100] == bytes(300, 9)[..100] && now[200..] == bytes(300, 9)[200..]);
}

/// [`NoDirect::Memory`].
pub fn memory_that_is_not_mapped_is_refused<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, b: _b, .. }, there) = with_memory(h, 64);
    let (grant, here) = (Grant::Request(name(3, 1)), [Span::leak(64)]);
    let nothing = [Seg { addr: 64.into(), len: 64.into() }];
    assert_eq!(a.access(Way::Get, to_b, &Direct::new(grant, &nothing, &here, 64)), Err(NoDirect::Memory));
    assert_eq!(a.access(Way::Put, to_b, &Direct::new(grant, &nothing, &here, 64)), Err(NoDirect::Memory));
    assert_eq!(refused(&mut a, to_b, grant, there), None, "other memory still is");
}

/// [`revoke`](link_api::RmaLink::revoke).
pub fn a_request_that_was_taken_back_allows_nothing_and_others_still_do<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, mut b, to_a }, there) = with_memory(h, 64);
    let (one, other) = (name(3, 1), name(4, 1));
    assert_eq!(refused(&mut a, to_b, Grant::Request(one), there), None);
    until_left(h, || b.revoke(Revoke::Request(to_a, one)));
    let revoked = Some([NoDirect::Revoked; 2]);
    assert_eq!(refused(&mut a, to_b, Grant::Request(one), there), revoked, "after it was taken back");
    assert_eq!(refused(&mut a, to_b, Grant::Request(other), there), None, "another request");
    let later = Grant::Request(name(3, 2));
    assert_eq!(refused(&mut a, to_b, later, there), None, "a later request at the same place");
    // Also by a request that was never used.
    until_left(h, || b.revoke(Revoke::Request(to_a, other)));
    assert_eq!(refused(&mut a, to_b, Grant::Request(other), there), revoked);
}

/// [`renew`](link_api::RmaLink::renew).
pub fn a_name_that_was_renewed_allows_again<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, mut b, to_a }, there) = with_memory(h, 64);
    for generation in [1, 2, 9] {
        let request = name(5, generation);
        until_left(h, || b.revoke(Revoke::Request(to_a, request)));
        let answer = refused(&mut a, to_b, Grant::Request(request), there);
        assert_eq!(answer, Some([NoDirect::Revoked; 2]));
        b.allow(Allow::Request(to_a, request));
        assert_eq!(refused(&mut a, to_b, Grant::Request(request), there), None, "after it was renewed");
    }
}

/// [`close`](link_api::RmaLink::close).
pub fn an_endpoint_that_closed_is_not_accessed<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, mut b, .. }, there) = with_memory(h, 64);
    let grants = [Grant::Request(name(3, 1)), Grant::Request(name(9, 4)), Grant::Agreed];
    for grant in grants {
        assert_eq!(refused(&mut a, to_b, grant, there), None, "{grant:?} before it closed");
    }
    until_left(h, || b.revoke(Revoke::All));
    for grant in grants {
        assert!(refused(&mut a, to_b, grant, there).is_some(), "{grant:?} after it closed");
    }
}

/// Nor is one that ended; the link knows then that it did.
pub fn an_endpoint_that_ended_is_not_accessed<H: Harness>(h: &mut H) {
    let (Ends { mut a, to_b, b, .. }, there) = with_memory(h, 64);
    h.end(b);
    assert!(refused(&mut a, to_b, Grant::Request(name(3, 1)), there).is_some(), "right after its end");
    h.until("a link that knows of an end", |_| a.channel(to_b) == Channel::Ended);
    assert_eq!(h.closed(&mut a).0, to_b);
    let answer = refused(&mut a, to_b, Grant::Request(name(3, 1)), there);
    assert_eq!(answer, Some([NoDirect::Fault; 2]), "after its end was reported");
}
