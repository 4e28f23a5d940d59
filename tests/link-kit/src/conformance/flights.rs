//! Taking memory back of which an access is in flight.

use link_api::{Event, RmaLink as _, Way};

use super::handles::{REQUEST, done, with_memory};
use super::sync::seg;
use crate::harness::{Drive, next};
use crate::{Ends, Harness, bytes, text};

/// "When it returns `Ok`, the peer is in none any more": also none that was in flight.
pub fn memory_that_was_taken_back_in_flight_is_not_touched<H: Harness>(h: &mut H) {
    const LEN: usize = 256 << 10;
    let (Ends { mut a, to_b, mut b, to_a }, there) = with_memory(h, LEN);
    let here = h.memory(&a, LEN, true);
    hmem::write(&[here], 0, &bytes(LEN, 50));
    let op = a.start(Way::Put, to_b, REQUEST, &[seg(there, 0, LEN)], &[here], LEN);
    let op = op.expect("memory that it was told of");
    (0..5).for_each(|_| h.pass());
    let mut over = false;
    // Where the owner has to wait for the peer, this one goes on meanwhile.
    h.until("that the peer has left", |_| {
        let left = b.revoke(to_a, REQUEST) == Ok(());
        over |= !left && matches!(next(&mut a), Some(Event::Done(which, _)) if which == op);
        left
    });
    let then = text(&[there]);
    if !over {
        done(h, &mut a, op);
    }
    assert!(text(&[there]) == then, "memory is accessed after it was taken back");
    h.quiet(&mut a);
}
