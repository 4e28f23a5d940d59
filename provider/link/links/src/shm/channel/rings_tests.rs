//! The list of rings by itself: each word here stands for the next commit word of a ring.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

/// A list of so many rings, the first `hot` of them hot; and their words.
fn rings(n: usize, hot: usize) -> (Rings, Vec<AtomicU32>) {
    let words: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
    let mut rings = Rings::new();
    for (id, word) in words.iter().enumerate() {
        // SAFETY: the caller holds the words as long as the list.
        unsafe { rings.list(id as u32, word) };
    }
    (0..hot as u32).for_each(|id| rings.warm(id));
    (rings, words)
}

/// The peer of a ring that has a frame.
fn find(rings: &mut Rings) -> Option<u32> {
    let (id, hot) = rings.find()?;
    assert_eq!(hot, rings.place(id).unwrap() < rings.hot());
    Some(id)
}

#[test]
fn one_look_finds_a_frame_among_many_hot_rings() {
    for n in [1, 2, 3, 4, 5, 7, 8, 9, 32, LOOKS] {
        let (mut rings, words) = rings(n, n);
        for id in (0..n).rev().chain(0..n) {
            assert_eq!(find(&mut rings), None);
            words[id].store(1, Relaxed);
            assert_eq!(find(&mut rings), Some(id as u32), "of {n}");
            words[id].store(0, Relaxed);
        }
    }
}

#[test]
fn two_looks_find_a_frame_among_twice_as_many() {
    const N: usize = 2 * LOOKS;
    let (mut rings, words) = rings(N, N);
    for id in (0..N).rev().step_by(7) {
        words[id].store(1, Relaxed);
        assert_eq!(find(&mut rings).or_else(|| find(&mut rings)), Some(id as u32));
        words[id].store(0, Relaxed);
    }
}

#[test]
fn a_ring_that_never_runs_dry_does_not_keep_others_waiting() {
    let (mut rings, words) = rings(40, 20);
    words[3].store(1, Relaxed);
    words[17].store(1, Relaxed);
    let found: Vec<_> = (0..6).map(|_| find(&mut rings).unwrap()).collect();
    assert_eq!(found, [3, 17, 3, 17, 3, 17]);
    words[33].store(1, Relaxed);
    // Those that are not hot are asked for separately, some at a time.
    assert!((0..20usize.div_ceil(COLD)).any(|_| rings.find_cold() == Some(33)));
    rings.warm(33);
    let found: Vec<_> = (0..6).map(|_| find(&mut rings).unwrap()).collect();
    for id in [3, 17, 33] {
        assert_eq!(found.iter().filter(|found| **found == id).count(), 2, "{found:?}");
    }
}

#[test]
fn rings_that_all_have_frames_take_turns() {
    for n in [2, 3, 4, 5, 7, 8, 31, LOOKS, LOOKS + 3] {
        let (mut rings, words) = rings(n, n);
        words.iter().for_each(|word| word.store(1, Relaxed));
        for turn in 0..3 * n {
            assert_eq!(find(&mut rings), Some((turn % n) as u32), "of {n}");
        }
        // The one whose turn it was is the last to be asked again.
        let (last, left) = (3 * n as u32 - 1, (3 * n - 1) % n);
        words.iter().enumerate().for_each(|(id, word)| word.store(u32::from(id == left), Relaxed));
        assert_eq!((0..2).find_map(|_| find(&mut rings)), Some(last % n as u32), "of {n}");
    }
}

#[test]
fn where_no_hot_ring_has_a_frame_the_others_are_looked_at() {
    let (mut rings, words) = rings(40, 2);
    for id in [2, 39, 11] {
        words[id].store(1, Relaxed);
        assert!((0..=38usize.div_ceil(COLD)).any(|_| find(&mut rings) == Some(id as u32)));
        words[id].store(0, Relaxed);
    }
}

#[test]
fn rings_come_go_warm_and_cool() {
    let (mut rings, words) = rings(10, 4);
    assert_eq!((rings.hot(), rings.sole()), (4, NO_PEER));
    rings.cool(|id| id == 2);
    assert_eq!((rings.hot(), rings.sole()), (1, 2));
    rings.warm(2);
    assert_eq!((rings.hot(), rings.sole()), (1, 2));
    rings.warm(9);
    assert_eq!((rings.hot(), rings.sole()), (2, NO_PEER));
    rings.unlist(2);
    assert_eq!((rings.hot(), rings.sole()), (1, 9));
    rings.unlist(0);
    rings.unlist(0);
    rings.unlist(77);
    assert!(!rings.are_hot());
    let mut left: Vec<u32> = rings.peers().collect();
    left.sort();
    assert_eq!(left, [1, 3, 4, 5, 6, 7, 8, 9]);
    // Nothing is heard of those that went, all of those that stayed.
    words.iter().for_each(|word| word.store(1, Relaxed));
    left.iter().for_each(|id| rings.warm(*id));
    assert!(rings.are_hot());
    let mut found: Vec<u32> = (0..8).map(|_| find(&mut rings).unwrap()).collect();
    found.sort();
    assert_eq!(found, left);
    // One stays hot though none is busy.
    rings.cool(|_| false);
    assert_eq!(rings.hot(), 1);
    left.iter().for_each(|id| rings.unlist(*id));
    assert!(rings.is_empty() && find(&mut rings).is_none() && rings.find_cold().is_none());
    // SAFETY: the word lives as long as the list.
    unsafe { rings.list(2, &words[2]) };
    assert_eq!((rings.hot(), find(&mut rings)), (0, Some(2)));
}

#[test]
fn a_ring_is_looked_at_where_it_is_read_next() {
    let (mut rings, words) = rings(5, 5);
    let other = AtomicU32::new(0);
    words[1].store(1, Relaxed);
    assert_eq!(find(&mut rings), Some(1));
    // SAFETY: as above.
    unsafe { rings.moved(1, &other) };
    assert_eq!(find(&mut rings), None);
    other.store(1, Relaxed);
    assert_eq!(find(&mut rings), Some(1));
}

#[test]
fn only_the_ring_of_a_peer_that_is_waited_for_is_asked() {
    let (mut rings, words) = rings(5, 4);
    words[1].store(1, Relaxed);
    assert_eq!(rings.has_awaited(), None);
    for id in [3, 4] {
        rings.awaits(id);
        assert_eq!(rings.has_awaited(), Some(false));
        words[id as usize].store(1, Relaxed);
        assert_eq!(rings.has_awaited(), Some(true));
    }
    // One that has no ring, and one that had.
    rings.awaits(77);
    assert_eq!(rings.has_awaited(), None);
    rings.awaits(3);
    rings.unlist(3);
    assert_eq!(rings.has_awaited(), None);
    // Where a sole one is read is not noted in the list.
    rings.cool(|id| id == 1);
    rings.awaits(1);
    assert_eq!((rings.sole(), rings.has_awaited()), (1, None));
    rings.awaits(0);
    assert_eq!(rings.has_awaited(), Some(false));
}

#[test]
fn one_word_says_which_ring_a_poll_reads() {
    let (mut rings, words) = rings(6, 0);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut noise = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n) as u32
    };
    let mut quick = 0;
    for step in 0..20_000 {
        let id = noise(6);
        match noise(6) {
            0 => rings.warm(id),
            1 => rings.unlist(id),
            2 => rings.cool(|other| other == id),
            3 => rings.awaits(id),
            4 => rings.awaits(NO_PEER),
            // SAFETY: the words live as long as the list.
            _ if rings.place(id).is_none() => unsafe { rings.list(id, &words[id as usize]) },
            _ => {}
        }
        let hot: Vec<u32> = rings.peers().take(rings.hot()).collect();
        let expected = match hot[..] {
            [sole] if [sole, NO_PEER].contains(&rings.awaited()) => sole,
            _ => NO_PEER,
        };
        assert_eq!(rings.quick(), expected, "step {step}");
        quick += u32::from(expected != NO_PEER);
    }
    assert!(quick > 1000, "{quick}");
}
