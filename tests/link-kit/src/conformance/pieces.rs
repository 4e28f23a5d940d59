//! Counters of pieces.

use link_api::{MAX_PIECES, RmaLink as _};

use crate::harness::Drive;
use crate::{Ends, Harness};

/// "No piece is handed out twice": nor is one left out.
pub fn each_piece_is_handed_out_once<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    for (round, of) in [1, 2, 3, 100, 1_000, MAX_PIECES].into_iter().enumerate() {
        let counter = a.pieces_open(to_b).expect("a counter is free");
        let mut next = 0;
        while next <= of {
            // In turns, and several by one side in a row.
            let mine = (usize::from(next) + round) % 3 > 0;
            let piece = match mine {
                true => a.pieces_claim(to_b, counter, true, of),
                false => b.pieces_claim(to_a, counter, false, of),
            };
            assert_eq!(piece, (next < of).then_some(next), "piece {next} of {of} is next");
            next += 1;
        }
        assert_eq!(a.pieces_claim(to_b, counter, true, of), None, "all {of} are taken");
        assert_eq!(b.pieces_claim(to_a, counter, false, of), None, "all {of} are taken");
        a.pieces_close(to_b, counter);
    }
}

/// [`pieces_close`](link_api::RmaLink::pieces_close).
pub fn a_counter_that_is_closed_hands_out_nothing<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let counter = a.pieces_open(to_b).expect("a counter is free");
    assert_eq!(b.pieces_claim(to_a, counter, false, 9), Some(0));
    a.pieces_close(to_b, counter);
    assert_eq!(a.pieces_claim(to_b, counter, true, 9), None, "a counter that was closed");
    assert_eq!(b.pieces_claim(to_a, counter, false, 9), None, "a counter that was closed");
    // Both sides have counters of their own.
    let (ours, theirs) = (a.pieces_open(to_b).expect("free"), b.pieces_open(to_a).expect("free"));
    assert_eq!(a.pieces_claim(to_b, ours, true, 2), Some(0));
    assert_eq!(b.pieces_claim(to_a, theirs, true, 2), Some(0));
    assert_eq!(a.pieces_claim(to_b, theirs, false, 2), Some(1));
    assert_eq!(b.pieces_claim(to_a, ours, false, 2), Some(1));
    a.pieces_close(to_b, ours);
    b.pieces_close(to_a, theirs);
    // They are so many and no more, and each that is closed is free.
    let all: Vec<_> = std::iter::from_fn(|| a.pieces_open(to_b)).take(100_000).collect();
    assert!((1..100_000).contains(&all.len()), "{} counters at once", all.len());
    for (i, counter) in all.iter().enumerate() {
        assert!(!all[..i].contains(counter), "two transfers have one counter");
    }
    a.pieces_close(to_b, all[0]);
    assert!(a.pieces_open(to_b).is_some(), "one was closed");
}

/// [`PieceCounter::generation`](link_api::PieceCounter::generation): "a generation does not come again".
pub fn a_generation_does_not_come_again<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let mut old = Vec::new();
    for _ in 0..200 {
        let counter = a.pieces_open(to_b).expect("a counter is free");
        assert!(!old.contains(&counter), "{counter:?} comes again");
        for stale in &old {
            assert_eq!(b.pieces_claim(to_a, *stale, false, 9), None, "by the name of an earlier transfer");
            assert_eq!(a.pieces_claim(to_b, *stale, true, 9), None, "by the name of an earlier transfer");
        }
        assert_eq!(b.pieces_claim(to_a, counter, false, 9), Some(0), "of a transfer that is not closed");
        a.pieces_close(to_b, counter);
        old.push(counter);
    }
}

/// [`pieces_begun`](link_api::RmaLink::pieces_begun).
pub fn it_is_known_whether_a_second_piece_was_taken<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    for by_peer in [true, false] {
        let counter = a.pieces_open(to_b).expect("a counter is free");
        assert_eq!(a.pieces_claim(to_b, counter, true, 5), Some(0));
        assert!(!a.pieces_begun(to_b, counter), "only the first was taken");
        let second = match by_peer {
            true => b.pieces_claim(to_a, counter, false, 5),
            false => a.pieces_claim(to_b, counter, true, 5),
        };
        assert_eq!(second, Some(1));
        assert!(a.pieces_begun(to_b, counter), "a second one was taken");
        a.pieces_close(to_b, counter);
        assert!(a.pieces_begun(to_b, counter), "nothing is left of a counter that was closed");
    }
}
