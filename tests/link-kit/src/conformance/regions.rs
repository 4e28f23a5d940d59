//! Published registrations.

use hmem::Span;
use link_api::{Allow, Direct, Grant, PeerId, Region, RegionVersion, Revoke, RmaLink, Way};

use super::sync::{seg, until_left};
use crate::harness::{Drive, next};
use crate::{Ends, Harness, bytes, text};

fn region(key: u64, span: Span) -> Region {
    let (addr, len) = (span.addr(), span.len() as u64);
    Region { key, addr, len, read: true, write: true, virt_addr: false, target_must_observe: false }
}

/// What a peer publishes under a key, once that is known.
fn find<H: Harness>(h: &mut H, link: &mut H::Link, by: PeerId, key: u64) -> (Region, RegionVersion) {
    let mut found = None;
    h.until("what a peer has published", |_| {
        // Polls let the link learn of it.
        assert!(next(link).is_none());
        found = link.published(by, key);
        found.is_some()
    });
    found.expect("just found")
}

/// Whether a region allows accesses. Both directions are tried.
fn allows<L: RmaLink>(link: &mut L, peer: PeerId, version: RegionVersion, there: Span) -> bool {
    let (grant, here, before) = (Grant::Region(version), [Span::leak(16)], text(&[there]));
    let got =
        link.access(Way::Get, peer, &Direct::new(grant, &[seg(there, 0, there.len())], &here, 16).at(8, 0));
    match got {
        Ok(()) => assert_eq!(text(&here), before[8..24]),
        Err(_) => assert_eq!(text(&here), [0; 16], "an access that was refused has read"),
    }
    hmem::write(&here, 0, b"sixteen bytes ..");
    let put =
        link.access(Way::Put, peer, &Direct::new(grant, &[seg(there, 0, there.len())], &here, 16).at(8, 0));
    match put {
        Ok(()) => assert_eq!(text(&[there])[8..24], *b"sixteen bytes .."),
        Err(_) => assert!(text(&[there]) == before, "an access that was refused has written"),
    }
    hmem::write(&[there], 0, &before);
    assert_eq!(got.is_ok(), put.is_ok(), "reads and writes are refused alike: {got:?} and {put:?}");
    got.is_ok()
}

/// [`publish`](link_api::RmaLink::publish) and [`published`](link_api::RmaLink::published).
pub fn a_region_is_found_as_it_was_published_and_accessed<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let spans = [100, 2_000, 64].map(|len| h.memory(&b, len, false));
    let keys = [7, 1 << 40 | 1, 0];
    for (key, span) in keys.into_iter().zip(spans) {
        hmem::write(&[span], 0, &bytes(span.len(), 2));
        let memory = Region { read: key != 7, virt_addr: key == 0, ..region(key, span) };
        b.allow(Allow::Region(&memory, span));
    }
    for (key, span) in keys.into_iter().zip(spans) {
        let (found, version) = find(h, &mut a, to_b, key);
        assert_eq!(found, Region { read: key != 7, virt_addr: key == 0, ..region(key, span) });
        // What it allows is for the caller to look at.
        assert!(allows(&mut a, to_b, version, span), "key {key}");
    }
    assert_eq!(a.published(to_b, 8), None, "a key that was never published");
}

/// [`unpublish`](link_api::RmaLink::unpublish).
pub fn a_region_that_is_not_published_any_more_allows_nothing<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let (one, other) = (h.memory(&b, 64, false), h.memory(&b, 64, false));
    b.allow(Allow::Region(&region(1, one), one));
    b.allow(Allow::Region(&region(2, other), other));
    let ((_, first), (_, second)) = (find(h, &mut a, to_b, 1), find(h, &mut a, to_b, 2));
    assert!(allows(&mut a, to_b, first, one));
    until_left(h, || b.revoke(Revoke::Region(1)));
    assert_eq!(a.published(to_b, 1), None, "what is not published any more");
    assert!(!allows(&mut a, to_b, first, one), "what is not published any more");
    assert!(allows(&mut a, to_b, second, other), "another region");
    // The same again is another version.
    b.allow(Allow::Region(&region(1, one), one));
    let (_, again) = find(h, &mut a, to_b, 1);
    assert!(again != first && allows(&mut a, to_b, again, one));
    assert!(!allows(&mut a, to_b, first, one), "the version before");
    until_left(h, || b.revoke(Revoke::Region(3)));
    until_left(h, || b.revoke(Revoke::All));
    assert!(!allows(&mut a, to_b, again, one) && !allows(&mut a, to_b, second, other), "after it closed");
}

/// "Publishes a registration, or a change of it."
pub fn a_region_that_changed_is_another<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let (one, other) = (h.memory(&b, 64, false), h.memory(&b, 128, false));
    b.allow(Allow::Region(&region(1, one), one));
    let (_, first) = find(h, &mut a, to_b, 1);
    b.allow(Allow::Region(&region(1, other), other));
    let (found, second) = find(h, &mut a, to_b, 1);
    assert_eq!(found, region(1, other));
    assert_ne!(first, second, "a change is another version");
    assert!(!allows(&mut a, to_b, first, one), "the version before the change");
    assert!(allows(&mut a, to_b, second, other), "the version after it");
}
