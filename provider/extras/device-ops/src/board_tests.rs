use std::convert::Infallible;

use super::*;

const H: Kind = Kind::Host;
const D: Kind = Kind::Device;

fn memory(ranks: usize) -> Arc<Mapping> {
    let len = (ranks * STRIDE).next_multiple_of(4096);
    let fd = ipc::memfd::create(c"board", len, ipc::memfd::Writers::All).unwrap();
    Arc::new(Mapping::new(&fd, len, None).unwrap())
}

fn board(memory: &Arc<Mapping>, ranks: usize, rank: usize) -> Agreement<SharedWords> {
    Agreement::new(SharedWords::new(memory.clone(), 0, ranks).unwrap(), rank).unwrap()
}

/// Ends a wait at once.
fn never() -> Result<(), &'static str> {
    Err("rank 1 is gone")
}

#[test]
fn a_rank_with_host_memory_waits_for_none() {
    let memory = memory(3);
    let mut board = board(&memory, 3, 0);
    for _ in 0..100 {
        assert_eq!(board.agree(H, never), Ok(Outcome::Staged));
    }
}

#[test]
fn one_with_device_memory_sees_a_rank_with_host_memory_however_far_that_is_ahead() {
    let memory = memory(3);
    let (mut slow, mut fast) = (board(&memory, 3, 0), board(&memory, 3, 1));
    for _ in 0..40 {
        fast.agree(H, never).unwrap();
    }
    // Rank 2 has come to none of them.
    for _ in 0..40 {
        assert_eq!(slow.agree(D, never), Ok(Outcome::Staged));
    }
    assert_eq!(slow.agree(D, never), Err(Disagreement::Ended("rank 1 is gone")));
    let over = slow.agree(D, never).unwrap_err();
    assert!(over == Disagreement::Over && over.to_string().contains("free it"));
}

#[test]
fn a_collective_of_all_devices_stays_in_the_history_until_all_are_past_it() {
    let memory = memory(2);
    let (mut fast, mut slow) = (board(&memory, 2, 0), board(&memory, 2, 1));
    // Rank 1 is at the first collective, and has not read rank 0's word yet.
    let words = SharedWords::new(memory.clone(), 0, 2).unwrap();
    words.word(1).store(1 << HISTORY | 1, Release);
    assert_eq!(fast.agree(D, never), Ok(Outcome::Device));
    for _ in 0..HISTORY - 1 {
        assert_eq!(fast.agree(H, never), Ok(Outcome::Staged));
    }
    // It comes to the first collective's outcome, and is past it with the second collective.
    let mut waited = 0;
    let pass = || {
        waited += 1;
        if waited == 3 {
            assert_eq!(slow.agree(D, never), Ok(Outcome::Device));
        } else if waited == 6 {
            assert_eq!(slow.agree(D, never), Ok(Outcome::Staged));
        }
        Ok::<(), ()>(())
    };
    assert_eq!(fast.agree(H, pass), Ok(Outcome::Staged));
    assert_eq!(waited, 6);
}

#[test]
fn words_that_cannot_be_are_errors() {
    let word = |number: u64, kinds: u64| number << HISTORY | kinds;
    let cases = [
        // Backwards; a kind changed; numbers far ahead are backwards too.
        (word(5, 0b11), word(4, 0b1)),
        (word(5, 0b11), word(5, 0b01)),
        (word(5, 0b11), word(6, 0b101)),
        (word(5, 0b11), word(5 + (1 << 32), 0)),
    ];
    for (before, after) in cases {
        let memory = memory(2);
        let mut own = board(&memory, 2, 0);
        let words = SharedWords::new(memory.clone(), 0, 2).unwrap();
        words.word(1).store(before, Release);
        assert_eq!(own.agree(D, never), Ok(Outcome::Staged));
        words.word(1).store(after, Release);
        let e = own.agree(D, never).unwrap_err();
        assert!(e == Disagreement::Corrupt(1) && e.to_string().contains("rank 1"), "{e}");
    }
    // One that goes on is none.
    let earlier: Past<HISTORY> = Past(word(5, 0b11));
    for later in [word(5, 0b11), word(6, 0b111), word(7, 0b1101), word(50, 0b1)] {
        assert!(earlier.may_become(Past(later)));
    }
}

#[test]
fn numbers_wrap() {
    let last = Past::<HISTORY>(u64::MAX << HISTORY | 1);
    let next = last.with(D);
    assert_eq!(next.number(), 0);
    assert_eq!(next.kind(last.number()), Some(D));
    assert_eq!(last.kind(next.number()), None);
    assert!(last.may_become(next) && !next.may_become(last));
}

#[test]
fn memory_without_room_and_ranks_that_are_none_are_refused() {
    let memory = memory(2);
    assert!(SharedWords::new(memory.clone(), 0, memory.len() / STRIDE + 1).is_none());
    assert!(SharedWords::new(memory.clone(), 4, 1).is_none());
    assert!(SharedWords::new(memory.clone(), usize::MAX - 7, 1).is_none());
    assert!(SharedWords::new(memory.clone(), 0, usize::MAX).is_none());
    let words = SharedWords::new(memory, 64, 2).unwrap();
    assert!(Agreement::<_, HISTORY>::new(words, 2).is_none());
}

/// The kind of a rank's memory in a collective; mostly device, so that there are both outcomes.
fn kind(rank: usize, i: usize) -> Kind {
    let mixed = (i as u64 * 4 + rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if mixed >> 60 < 13 { D } else { H }
}

#[test]
fn ranks_at_once_come_to_the_outcome_of_all_their_kinds() {
    const RANKS: usize = 4;
    let memory = memory(RANKS);
    let count = |rank: usize| {
        let mut board = board(&memory, RANKS, rank);
        let wait = || -> Result<(), Infallible> {
            std::thread::yield_now();
            Ok(())
        };
        let outcomes = (0..5000).filter(|i| {
            let all = (0..RANKS).all(|r| kind(r, *i) == D);
            let wanted = if all { Outcome::Device } else { Outcome::Staged };
            assert_eq!(board.agree(kind(rank, *i), wait), Ok(wanted), "rank {rank}, collective {i}");
            all
        });
        outcomes.count()
    };
    let all = std::thread::scope(|scope| {
        let ranks = [0, 1, 2, 3].map(|rank| scope.spawn(move || count(rank)));
        ranks.map(|rank| rank.join().unwrap())
    });
    assert!(all.iter().all(|n| *n == all[0]) && all[0] > 500 && all[0] < 4500, "{all:?}");
}
