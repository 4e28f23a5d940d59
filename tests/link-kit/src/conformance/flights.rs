//! Taking memory back of which an access is in flight.

use link_api::{Direct, Event, Grant, Revoke, RmaLink as _, Way};

use super::handles::{REQUEST, done, ways, with_memory};
use super::sync::seg;
use crate::harness::{Drive, next};
use crate::{Ends, Harness, bytes, text};

/// "When it returns `Ok`, the peer is in none any more": also none that was in flight.
pub fn memory_that_was_taken_back_in_flight_is_not_touched<H: Harness>(h: &mut H) {
    const LEN: usize = 256 << 10;
    let (Ends { mut a, to_b, mut b, to_a }, there) = with_memory(h, LEN);
    let here = h.memory(&a, LEN, true);
    hmem::write(&[here], 0, &bytes(LEN, 50));
    let way = *ways(&a, to_b).last().expect("a way");
    // Where that can be had, half of the bytes are there and half are not.
    let halted = h.halt(Some(LEN / 2));
    let op = a.start(way, to_b, &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, LEN)], &[here], LEN));
    let op = op.expect("memory that was exported to it");
    if halted {
        let (to, of) = if way == Way::Put { (there, 50) } else { (here, 1) };
        h.until("half of the bytes", |_| text(&[to])[..LEN / 2] == bytes(LEN, of)[..LEN / 2]);
    } else {
        (0..5).for_each(|_| h.pass());
    }
    let mut over = false;
    // Where the owner has to wait for the peer, this one goes on meanwhile.
    h.until("that the peer has left", |_| {
        let left = b.revoke(Revoke::Request(to_a, REQUEST)) == Ok(());
        over |=
            !left && matches!(next(&mut a), Some(Event::Done(which, _) | Event::Cut(which)) if which == op);
        left
    });
    if way == Way::Get {
        // What it holds from now on is another's.
        hmem::write(&[there], 0, &[0xa5; LEN]);
    }
    let then = text(&[there]);
    h.halt(None);
    if !over {
        done(h, &mut a, op);
    }
    assert!(text(&[there]) == then, "memory is written after it was taken back");
    let tail = |all: &[u8]| all.windows(64).any(|part| part == [0xa5; 64]);
    assert!(way == Way::Put || !tail(&text(&[here])), "memory is read after it was taken back");
    h.quiet(&mut a);
}
