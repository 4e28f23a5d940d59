//! Published registrations that operations in flight access, without the peer.

use hmem::Span;
use link_api::{
    Allow, Direct, Grant, Link as _, PeerId, Region, RegionVersion, Revoke, RmaCaps, RmaLink, Way,
};

use super::handles::done;
use super::sync::seg;
use crate::harness::{Drive, next};
use crate::{Ends, Harness, bytes, text};

fn region(key: u64, span: Span) -> Region {
    let (addr, len) = (span.addr(), span.len() as u64);
    Region { key, addr, len, read: true, write: true, virt_addr: false, target_must_observe: false }
}

/// What a peer publishes under a key, once that is known: both poll meanwhile.
fn find<H: Harness>(
    h: &mut H,
    (a, to_b): (&mut H::Link, PeerId),
    b: &mut H::Link,
    key: u64,
) -> (Region, RegionVersion) {
    assert!(a.path(to_b).rma.contains(RmaCaps::REGIONS), "this group is for such links");
    let mut found = None;
    h.until("what a peer has published", |_| {
        assert!(next(a).is_none() && next(b).is_none());
        found = a.published(to_b, key);
        found.is_some()
    });
    found.expect("just found")
}

/// Takes something back; the peer polls meanwhile.
fn revoke<H: Harness>(h: &mut H, a: &mut H::Link, b: &mut H::Link, what: Revoke) {
    h.until("that the peer has left", |_| {
        assert!(next(a).is_none());
        b.revoke(what) == Ok(())
    });
}

/// Starts an access of a version of a registration, from its front.
fn start<L: RmaLink>(
    link: &mut L,
    (way, peer): (Way, PeerId),
    version: RegionVersion,
    (there, here): (Span, Span),
) -> Result<link_api::OpId, link_api::NoDirect> {
    let (remote, local) = ([seg(there, 0, here.len())], [here]);
    link.start(way, peer, &Direct::new(Grant::Region(version), &remote, &local, here.len()))
}

/// [`RmaCaps::REGIONS`]: "its end means that the bytes are where they belong".
pub fn bytes_of_a_region_are_there_when_an_access_is_over<H: Harness>(h: &mut H) {
    const LEN: usize = 200_000;
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let there = h.memory(&b, LEN, true);
    hmem::write(&[there], 0, &bytes(LEN, 1));
    b.allow(Allow::Region(&region(7, there), there));
    let (found, version) = find(h, (&mut a, to_b), &mut b, 7);
    assert_eq!(found, region(7, there));
    for (round, len) in [1, 8, 500, 4_096, 16_384, 16_385, 65_537, LEN].into_iter().enumerate() {
        let here = h.memory(&a, len, true);
        let before = text(&[there]);
        let op =
            start(&mut a, (Way::Get, to_b), version, (there, here)).expect("a registration that is known");
        // The peer does nothing meanwhile.
        assert!(done(h, &mut a, op), "{len} bytes that are read");
        assert!(text(&[here]) == before[..len], "{len} bytes that were read");
        hmem::write(&[here], 0, &bytes(len, 10 + round));
        let op =
            start(&mut a, (Way::Put, to_b), version, (there, here)).expect("a registration that is known");
        assert!(done(h, &mut a, op), "{len} bytes that are written");
        let now = text(&[there]);
        assert!(
            now[..len] == bytes(len, 10 + round) && now[len..] == before[len..],
            "{len} bytes were written"
        );
    }
    assert_eq!(a.published(to_b, 8), None, "a key that was never published");
}

/// [`Region::read`], [`Region::write`], its length: what is not allowed is refused before it is started, and
/// ends nothing.
pub fn what_a_region_does_not_allow_is_refused<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let there = h.memory(&b, 4_096, true);
    for (key, read, write) in [(1, true, false), (2, false, true)] {
        b.allow(Allow::Region(&Region { read, write, ..region(key, there) }, there));
        let (_, version) = find(h, (&mut a, to_b), &mut b, key);
        let here = h.memory(&a, 64, true);
        let (may, not) = if read { (Way::Get, Way::Put) } else { (Way::Put, Way::Get) };
        assert!(start(&mut a, (not, to_b), version, (there, here)).is_err(), "{not:?}, key {key}");
        let beyond = [seg(there, 4_090, 64)];
        let access = Direct::new(Grant::Region(version), &beyond, std::slice::from_ref(&here), 64);
        assert!(a.start(may, to_b, &access).is_err(), "beyond its end");
        let op = start(&mut a, (may, to_b), version, (there, here)).expect("what is allowed");
        assert!(done(h, &mut a, op));
    }
    h.quiet(&mut a);
}

/// [`Revoke::Region`], also with an access in flight: "when it returns `Ok`, no peer accesses it any more".
pub fn a_region_that_was_taken_back_is_not_touched<H: Harness>(h: &mut H) {
    const LEN: usize = 256 << 10;
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let (there, other) = (h.memory(&b, LEN, true), h.memory(&b, 64, true));
    b.allow(Allow::Region(&region(1, there), there));
    b.allow(Allow::Region(&region(2, other), other));
    let (_, first) = find(h, (&mut a, to_b), &mut b, 1);
    let (_, second) = find(h, (&mut a, to_b), &mut b, 2);
    let here = h.memory(&a, LEN, true);
    hmem::write(&[here], 0, &bytes(LEN, 3));
    let op = start(&mut a, (Way::Put, to_b), first, (there, here)).expect("a registration that is known");
    let mut over = false;
    h.until("that the peer has left", |_| {
        over |= matches!(next(&mut a), Some(link_api::Event::Done(which, _) | link_api::Event::Cut(which)) if which == op);
        b.revoke(Revoke::Region(1)) == Ok(())
    });
    let then = text(&[there]);
    if !over {
        done(h, &mut a, op);
    }
    assert!(start(&mut a, (Way::Put, to_b), first, (there, here)).is_err(), "what was taken back");
    assert_eq!(a.published(to_b, 1), None, "what is not published any more");
    (0..20).for_each(|_| h.pass_long());
    assert!(text(&[there]) == then, "memory is written after it was taken back");
    let short = here.part(0, 64).expect("a part");
    let op = start(&mut a, (Way::Put, to_b), second, (other, short)).expect("another registration");
    assert!(done(h, &mut a, op));
    revoke(h, &mut a, &mut b, Revoke::Region(3));
    revoke(h, &mut a, &mut b, Revoke::All);
    assert!(start(&mut a, (Way::Put, to_b), second, (other, short)).is_err(), "after all was taken back");
}

/// "Publishes a registration, or a change of it."
pub fn a_region_that_changed_is_another_in_flight<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let (one, other) = (h.memory(&b, 64, true), h.memory(&b, 128, true));
    hmem::write(&[other], 0, &bytes(128, 5));
    b.allow(Allow::Region(&region(1, one), one));
    let (_, first) = find(h, (&mut a, to_b), &mut b, 1);
    b.allow(Allow::Region(&region(1, other), other));
    h.until("the change to be known", |_| {
        assert!(next(&mut a).is_none() && next(&mut b).is_none());
        a.published(to_b, 1).is_some_and(|(_, version)| version != first)
    });
    let (found, second) = find(h, (&mut a, to_b), &mut b, 1);
    assert_eq!(found, region(1, other));
    let here = h.memory(&a, 64, true);
    assert!(start(&mut a, (Way::Get, to_b), first, (one, here)).is_err(), "the version before the change");
    let op = start(&mut a, (Way::Get, to_b), second, (other, here)).expect("the version after it");
    assert!(done(h, &mut a, op) && text(&[here]) == bytes(128, 5)[..64]);
}

/// Memory whose accesses the owner counts goes by frames.
pub fn a_region_that_its_owner_must_observe_is_not_accessed_without_it<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let there = h.memory(&b, 64, true);
    b.allow(Allow::Region(&Region { target_must_observe: true, ..region(1, there) }, there));
    for _ in 0..200 {
        assert!(a.published(to_b, 1).is_none());
        assert!(next(&mut a).is_none() && next(&mut b).is_none());
        h.pass();
    }
}
