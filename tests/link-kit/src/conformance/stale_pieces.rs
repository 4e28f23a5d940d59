//! Counters of pieces that were closed, and closed again.

use link_api::RmaLink as _;

use crate::harness::Drive;
use crate::{Ends, Harness};

/// A counter that was closed stays so, and is not closed for a later transfer: [`RmaLink::pieces_close`] by
/// the name of an earlier one does nothing.
///
/// [`RmaLink::pieces_close`]: link_api::RmaLink::pieces_close
pub fn closing_by_the_name_of_an_earlier_transfer_does_nothing<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let first = a.pieces_open(to_b).expect("a counter is free");
    a.pieces_close(to_b, first);
    // So many that one is at the place of the first.
    let later: Vec<_> = std::iter::from_fn(|| a.pieces_open(to_b)).take(1_000).collect();
    a.pieces_close(to_b, first);
    for counter in later {
        assert_eq!(b.pieces_claim(to_a, counter, false, 9), Some(0), "of a transfer that is not closed");
    }
}
