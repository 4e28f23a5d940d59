//! Links that do nothing in the call.

use hmem::Span;
use link_api::{Allow, Direct, Grant, Link as _, NoDirect, Revoke, RmaCaps, RmaLink as _, Way};

use super::sync::seg;
use crate::harness::Drive;
use crate::{Ends, Harness, name, text};

/// "What a link leaves as it is here it cannot do; frames serve instead."
pub fn what_is_not_done_in_a_call_is_refused_for_good<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    assert!(!a.path(to_b).rma.contains(RmaCaps::SYNC), "this group is for links without");
    let (here, there) = (Span::leak(64), h.memory(&b, 64, true));
    hmem::write(&[here], 0, &[1; 64]);
    for grant in [Grant::Request(name(1, 1)), Grant::Agreed] {
        let remote = [seg(there, 0, 64)];
        assert_eq!(a.access(Way::Get, to_b, &Direct::new(grant, &remote, &[here], 64)), Err(NoDirect::Never));
        assert_eq!(a.access(Way::Put, to_b, &Direct::new(grant, &remote, &[here], 64)), Err(NoDirect::Never));
    }
    assert_eq!((text(&[here]), text(&[there])), (vec![1; 64], vec![0; 64]));
    assert_eq!(
        (b.revoke(Revoke::Region(1)), b.revoke(Revoke::Request(to_a, name(1, 1))), b.revoke(Revoke::All)),
        (Ok(()), Ok(()), Ok(()))
    );
    b.allow(Allow::Request(to_a, name(1, 1)));
}
