//! The same agreement as that of [`crate::board`], of collectives that are begun before the earlier ones are
//! over: no call waits.
//!
//! Each rank has two words in memory that all share: what it has posted, as there, and how many outcomes it
//! has found, one after another. A rank posts a collective that pushes another
//! one out of its word only when all ranks have found the outcome of that one: until then the collective is
//! not posted.
//!
//! The stores are Release and the loads Acquire: what a rank has read for an outcome is over before others
//! see that it has found it.

use std::sync::atomic::Ordering::{Acquire, Release};

use ipc::word::Wide;

use crate::board::{HISTORY, Kind, Outcome, Past, Words};

/// What a rank wrote cannot follow what it wrote before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt(pub usize);

/// What a model of it leaves out.
#[cfg(all(test, loom))]
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// A collective is posted whatever it pushes out.
    NoRoom,
    /// It is posted when all have posted the one that is pushed out.
    PostedAlone,
}

/// One rank's side. `BITS` collectives are in a word.
#[derive(Debug)]
pub struct Window<W: Words, const BITS: u32 = HISTORY> {
    posted: W,
    found: W,
    rank: usize,
    own: Past<BITS>,
    /// How many it has posted, and found the outcome of.
    count: u64,
    done: u64,
    /// What the ranks' words were.
    seen: Vec<(Past<BITS>, u64)>,
    #[cfg(all(test, loom))]
    flaw: Flaw,
}

impl<W: Words, const BITS: u32> Window<W, BITS> {
    /// The side of that rank, with words that are 0 at first; `None` if there is none such.
    pub fn new(posted: W, found: W, rank: usize) -> Option<Window<W, BITS>> {
        const { assert!(BITS > 0 && BITS < 63) };
        let ranks = posted.ranks();
        (rank < ranks && found.ranks() == ranks).then(|| Window {
            posted,
            found,
            rank,
            own: Past::default(),
            count: 0,
            done: 0,
            seen: vec![(Past::default(), 0); ranks],
            #[cfg(all(test, loom))]
            flaw: Flaw::None,
        })
    }

    /// Whether so many more can be posted now.
    pub fn has_room(&mut self, wanted: u64) -> Result<bool, Corrupt> {
        let Some(pushed_out) = self.pushed_out(wanted) else { return Ok(true) };
        if self.ignores_room() {
            return Ok(true);
        }
        if self.done < pushed_out {
            return Ok(false);
        }
        for rank in others(self.rank, self.seen.len()) {
            if self.seen[rank].1 < pushed_out && self.read_found(rank)? < pushed_out {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The last one that so many more would push out.
    fn pushed_out(&self, wanted: u64) -> Option<u64> {
        (self.count + wanted).checked_sub(u64::from(BITS)).filter(|n| *n > 0)
    }

    /// Whether that rank is waited for: for the outcome of the oldest one that was posted or, where all have
    /// an outcome, for room for one more.
    pub fn waits_for(&mut self, rank: usize) -> Result<bool, Corrupt> {
        if rank == self.rank {
            return Ok(false);
        }
        if self.waiting() > 0 {
            let number = (self.done + 1) & Past::<BITS>::NUMBERS;
            return Ok(self.read_posted(rank)?.kind(number).is_none());
        }
        let found = self.read_found(rank)?;
        Ok(self.pushed_out(1).is_some_and(|pushed_out| found < pushed_out))
    }

    /// Posts one more, for which there was room: to which this rank passes memory of that kind.
    pub fn post(&mut self, kind: Kind) {
        self.count += 1;
        self.own = self.own.with(kind);
        self.posted.word(self.rank).store(self.own.word(), Release);
    }

    /// How many were posted whose outcome was not found yet.
    pub fn waiting(&self) -> u64 {
        self.count - self.done
    }

    /// The outcome of the oldest of these, once it is known: of one to which this rank passes host memory at
    /// once.
    pub fn outcome(&mut self) -> Result<Option<Outcome>, Corrupt> {
        if self.waiting() == 0 {
            return Ok(None);
        }
        let number = (self.done + 1) & Past::<BITS>::NUMBERS;
        let mut outcome = Some(Outcome::Device);
        if self.own.kind(number) == Some(Kind::Host) {
            outcome = Some(Outcome::Staged);
        } else {
            for rank in others(self.rank, self.seen.len()) {
                match self.read_posted(rank)?.kind(number) {
                    Some(Kind::Device) => {}
                    Some(Kind::Host) => {
                        outcome = Some(Outcome::Staged);
                        break;
                    }
                    None => outcome = None,
                }
            }
        }
        if outcome.is_some() {
            self.done += 1;
            self.found.word(self.rank).store(self.done, Release);
        }
        Ok(outcome)
    }

    fn read_posted(&mut self, rank: usize) -> Result<Past<BITS>, Corrupt> {
        let word = Past::of(self.posted.word(rank).load(Acquire));
        if !self.seen[rank].0.may_become(word) {
            return Err(Corrupt(rank));
        }
        self.seen[rank].0 = word;
        Ok(word)
    }

    fn read_found(&mut self, rank: usize) -> Result<u64, Corrupt> {
        let found = self.found_word(rank);
        // No rank has found the outcome of what this one has not posted, unless with host memory: a rank
        // counts at most as far as numbers are apart.
        if found < self.seen[rank].1 || found > self.count + Past::<BITS>::NUMBERS / 2 {
            return Err(Corrupt(rank));
        }
        self.seen[rank].1 = found;
        Ok(found)
    }

    #[cfg(all(test, loom))]
    fn ignores_room(&self) -> bool {
        self.flaw == Flaw::NoRoom
    }

    #[cfg(not(all(test, loom)))]
    fn ignores_room(&self) -> bool {
        false
    }

    #[cfg(all(test, loom))]
    fn found_word(&self, rank: usize) -> u64 {
        if self.flaw == Flaw::PostedAlone {
            return Past::<BITS>::of(self.posted.word(rank).load(Acquire)).number();
        }
        self.found.word(rank).load(Acquire)
    }

    #[cfg(not(all(test, loom)))]
    fn found_word(&self, rank: usize) -> u64 {
        self.found.word(rank).load(Acquire)
    }
}

/// All ranks but that one.
fn others(own: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (0..ranks).filter(move |rank| *rank != own)
}

#[cfg(all(test, loom))]
#[path = "window_loom.rs"]
mod window_loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    struct CellWord(Cell<u64>);

    impl Wide for CellWord {
        fn load(&self, _: std::sync::atomic::Ordering) -> u64 {
            self.0.get()
        }

        fn store(&self, v: u64, _: std::sync::atomic::Ordering) {
            self.0.set(v);
        }

        fn compare_exchange(&self, _: u64, _: u64) -> Result<(), u64> {
            unreachable!("words have one writer")
        }
    }

    #[derive(Clone)]
    struct CellWords(Rc<Vec<CellWord>>);

    impl CellWords {
        fn new(ranks: usize) -> CellWords {
            CellWords(Rc::new((0..ranks).map(|_| CellWord(Cell::new(0))).collect()))
        }
    }

    impl Words for CellWords {
        type Word = CellWord;

        fn ranks(&self) -> usize {
            self.0.len()
        }

        fn word(&self, rank: usize) -> &CellWord {
            &self.0[rank]
        }
    }

    type Sides = Vec<Window<CellWords, 3>>;

    fn sides(ranks: usize) -> (CellWords, CellWords, Sides) {
        let (posted, found) = (CellWords::new(ranks), CellWords::new(ranks));
        let side = |rank| Window::new(posted.clone(), found.clone(), rank).unwrap();
        let all = (0..ranks).map(side).collect();
        (posted, found, all)
    }

    proptest! {
        #[test]
        fn ranks_in_any_order_find_the_outcome_of_all_kinds(
            kinds in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 12), 2..5),
            turns in proptest::collection::vec((0usize..5, any::<bool>()), 0..200),
        ) {
            let ranks = kinds.len();
            let (_, _, mut all) = sides(ranks);
            let mut outcomes = vec![Vec::new(); ranks];
            let mut go = |rank: usize, posts: bool| {
                let side = &mut all[rank];
                if posts && side.count < 12 && side.has_room(1) == Ok(true) {
                    let is_device = kinds[rank][side.count as usize];
                    side.post(if is_device { Kind::Device } else { Kind::Host });
                }
                while let Ok(Some(outcome)) = side.outcome() {
                    outcomes[rank].push(outcome == Outcome::Device);
                }
            };
            for (rank, posts) in turns {
                go(rank % ranks, posts);
            }
            for _ in 0..40 {
                (0..ranks).for_each(|rank| go(rank, true));
            }
            let wanted: Vec<bool> = (0..12).map(|n| kinds.iter().all(|of| of[n])).collect();
            for of in outcomes {
                prop_assert_eq!(&of, &wanted);
            }
        }
    }

    #[test]
    fn a_rank_posts_no_more_than_its_word_has_until_others_have_found_the_outcome() {
        let (_, _, mut all) = sides(2);
        for _ in 0..3 {
            assert_eq!(all[0].has_room(1), Ok(true));
            all[0].post(Kind::Host);
            assert_eq!(all[0].outcome(), Ok(Some(Outcome::Staged)));
        }
        assert_eq!(all[0].has_room(1), Ok(false));
        all[1].post(Kind::Device);
        assert_eq!(all[0].has_room(1), Ok(false));
        assert_eq!(all[1].outcome(), Ok(Some(Outcome::Staged)));
        assert_eq!((all[0].has_room(1), all[1].outcome()), (Ok(true), Ok(None)));
    }

    #[test]
    fn a_rank_is_waited_for_until_it_has_posted_and_for_room_until_it_has_found_the_outcome() {
        let (_, _, mut all) = sides(3);
        all[0].post(Kind::Device);
        all[1].post(Kind::Device);
        assert_eq!(all[0].outcome(), Ok(None));
        assert_eq!([0, 1, 2].map(|rank| all[0].waits_for(rank)), [Ok(false), Ok(false), Ok(true)]);
        all[2].post(Kind::Host);
        assert_eq!(all[0].outcome(), Ok(Some(Outcome::Staged)));
        for _ in 0..2 {
            all[0].post(Kind::Host);
            assert_eq!(all[0].outcome(), Ok(Some(Outcome::Staged)));
        }
        assert_eq!(all[2].outcome(), Ok(Some(Outcome::Staged)));
        assert_eq!(all[0].has_room(1), Ok(false));
        assert_eq!([0, 1, 2].map(|rank| all[0].waits_for(rank)), [Ok(false), Ok(true), Ok(false)]);
        assert_eq!((all[1].outcome(), all[0].has_room(1)), (Ok(Some(Outcome::Staged)), Ok(true)));
        assert_eq!(all[0].waits_for(1), Ok(false));
    }

    #[test]
    fn words_that_cannot_be_are_errors() {
        let (posted, found, mut all) = sides(2);
        (0..3).for_each(|_| all[0].post(Kind::Device));
        posted.word(1).0.set(Past::<3>::default().with(Kind::Device).word());
        assert_eq!(all[0].outcome(), Ok(Some(Outcome::Device)));
        found.word(1).0.set(u64::MAX);
        assert_eq!(all[0].has_room(1), Err(Corrupt(1)));
        posted.word(1).0.set(Past::<3>::default().with(Kind::Host).word());
        assert_eq!(all[0].outcome(), Err(Corrupt(1)));
    }
}
