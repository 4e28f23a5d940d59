//! Counters of pieces that both sides take from at once.

use std::thread;

use link_api::{MAX_PIECES, RmaLink as _};

use crate::harness::Drive;
use crate::{Ends, Harness};

/// "No piece is handed out twice", by two threads.
pub fn two_threads_never_take_the_same_piece<H: Harness>(h: &mut H)
where
    H::Link: Send,
{
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    for round in 0..20 {
        let counter = a.pieces_open(to_b).expect("a counter is free");
        let (a, b) = (&mut a, &mut b);
        let (ours, theirs) = thread::scope(|s| {
            let other = s.spawn(|| {
                std::iter::from_fn(|| b.pieces_claim(to_a, counter, false, MAX_PIECES)).collect::<Vec<_>>()
            });
            let ours: Vec<_> =
                std::iter::from_fn(|| a.pieces_claim(to_b, counter, true, MAX_PIECES)).collect();
            (ours, other.join().expect("claims do not panic"))
        });
        let mut all = [ours, theirs].concat();
        all.sort_unstable();
        assert!(all == Vec::from_iter(0..MAX_PIECES), "in round {round}, each piece once");
        a.pieces_close(to_b, counter);
    }
}
