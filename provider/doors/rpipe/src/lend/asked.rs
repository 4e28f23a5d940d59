//! Atomic operations that the lender does for this process, by its processor's instructions: one message
//! requests, one answers. The request of a call whose time is over stays. The same call again waits for its
//! answer, and sends none; another call waits for that first, and keeps it for the call that it belongs to.
//! So each is done once, whatever is called again.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

use crate::{Atomic, Block};

/// An operation of a thread, and its word: which byte of which block. Another thread's is another one, and so
/// is one of a block that has the same place later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    thread: ThreadId,
    word: (Block, usize),
    atomic: Atomic,
}

impl Wanted {
    pub(super) fn new(word: (Block, usize), atomic: Atomic) -> Wanted {
        Wanted { thread: thread::current().id(), word, atomic }
    }
}

/// So many answers are kept for calls whose time was over; of more the oldest is forgotten.
const KEPT: usize = 256;

/// The requests of this process to the lender.
#[derive(Debug, Default)]
pub(super) struct Asked {
    last: u32,
    /// Not answered yet.
    pending: Option<(u32, Wanted)>,
    /// Answers to calls whose time was over.
    kept: VecDeque<(Wanted, u64)>,
}

/// What comes next of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A request of this number is sent.
    Ask(u32),
    /// The answer of this number is waited for; whether it is this call's.
    Await(u32, bool),
    /// It was done by an earlier call of this one; what the word was.
    Done(u64),
}

impl Asked {
    pub(super) fn next(&mut self, wanted: Wanted) -> Next {
        if let Some(at) = self.kept.iter().position(|(of, _)| *of == wanted) {
            return self.kept.remove(at).map_or(Next::Done(0), |(_, was)| Next::Done(was));
        }
        match self.pending {
            Some((number, pending)) => Next::Await(number, pending == wanted),
            None => {
                self.last = self.last.wrapping_add(1);
                self.pending = Some((self.last, wanted));
                Next::Ask(self.last)
            }
        }
    }

    /// The request is answered, with what the word was if the operation is done, or could not be sent. An
    /// answer that is not `mine`, the present call's, is kept.
    pub(super) fn settle(&mut self, was: Option<u64>, mine: bool) {
        let pending = self.pending.take();
        if let Some(((_, wanted), was)) = pending.zip(was).filter(|_| !mine) {
            self.kept.truncate(KEPT - 1);
            self.kept.push_front((wanted, was));
        }
    }
}

/// All that two borrowers and a lender can do in some steps, with times that are over at any of them. Of
/// each borrower two threads call, one of them at a time.
#[cfg(all(test, not(loom)))]
mod model {
    use std::collections::{HashSet, VecDeque};

    use super::*;
    use crate::AtomicOp;

    const STEPS: usize = 9;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Twin {
        Sound,
        /// A call whose time was over asks again.
        Again,
        /// Another call takes the answer that is there for its own.
        AnyAnswer,
        /// The answer to another thread's call is forgotten.
        Forgets,
        /// The lender loads, and stores in a later step.
        Torn,
    }

    #[derive(Debug, Default)]
    struct Borrower {
        asked: Asked,
        requests: VecDeque<(u32, Wanted)>,
        answers: VecDeque<(u32, u64)>,
        /// Adds of 1 and of 16, those of the first and of the second thread, that have returned.
        returned: [u64; 2],
        /// Which of them have begun one and not returned.
        calling: [bool; 2],
    }

    fn wanted(which: usize) -> Wanted {
        let block = Block { granule: 0, generation: 1 };
        let operand = [1, 16][which];
        Wanted::new((block, 8), Atomic { op: AtomicOp::Sum, wide: true, operand, compare: 0 })
    }

    #[derive(Debug, Default)]
    struct World {
        word: u64,
        /// What the lender has loaded, and whose request it does (the broken twin alone).
        loaded: Option<(u64, usize)>,
        borrowers: [Borrower; 2],
        seen: HashSet<u64>,
    }

    impl World {
        /// A call of a thread, up to where it waits or has returned. It is called until it has returned.
        fn call(&mut self, of: usize, which: usize, twin: Twin) {
            let one = &mut self.borrowers[of];
            one.calling[which] = true;
            if twin == Twin::Again {
                one.asked.settle(None, true);
            }
            let was = loop {
                let (number, mine) = match one.asked.next(wanted(which)) {
                    Next::Ask(number) => {
                        one.requests.push_back((number, wanted(which)));
                        return;
                    }
                    Next::Await(number, mine) => (number, mine || twin == Twin::AnyAnswer),
                    Next::Done(was) => break was,
                };
                let Some(at) = one.answers.iter().position(|(answered, _)| *answered == number) else {
                    return;
                };
                let (_, was) = one.answers.remove(at).unwrap();
                one.asked.settle(Some(was), mine || twin == Twin::Forgets);
                if mine {
                    break was;
                }
            };
            assert!(self.seen.insert(was), "two operations have found the same");
            one.returned[which] += 1;
            one.calling[which] = false;
        }

        /// A step of the lender, for a borrower's request.
        fn serve(&mut self, of: usize, twin: Twin) {
            if let Some((was, of)) = self.loaded.take() {
                let one = &mut self.borrowers[of];
                let (number, wanted) = one.requests.pop_front().unwrap();
                self.word = was + wanted.atomic.operand;
                one.answers.push_back((number, was));
                return;
            }
            let Some((number, wanted)) = self.borrowers[of].requests.front().copied() else { return };
            if twin == Twin::Torn {
                self.loaded = Some((self.word, of));
                return;
            }
            let was = self.word;
            self.word += wanted.atomic.operand;
            self.borrowers[of].requests.pop_front();
            self.borrowers[of].answers.push_back((number, was));
        }

        /// A borrower that has the memory mapped: one step.
        fn mapped(&mut self) {
            assert!(self.seen.insert(self.word), "two operations have found the same");
            self.word += 256;
        }
    }

    /// One order of steps, given by the digits of `order`; what is left is done at the end.
    fn run(mut order: u64, twin: Twin) {
        let mut world = World::default();
        let mut mapped = 0;
        for _ in 0..STEPS {
            let step = order % 6;
            order /= 6;
            match step {
                0 => world.call(0, 0, twin),
                1 => world.call(1, 0, twin),
                2 => world.serve(0, twin),
                3 => world.serve(1, twin),
                4 => world.call(0, 1, twin),
                _ => {
                    mapped += 1;
                    world.mapped();
                }
            }
        }
        for _ in 0..STEPS {
            for of in 0..2 {
                world.serve(of, twin);
                world.serve(of, twin);
                for which in 0..2 {
                    if world.borrowers[of].calling[which] {
                        world.call(of, which, twin);
                    }
                }
            }
        }
        let [ones, sixteens] = [0, 1].map(|n| world.borrowers.iter().map(|one| one.returned[n]).sum::<u64>());
        assert!(world.borrowers.iter().all(|one| one.calling == [false; 2]), "a call does not return");
        assert_eq!(
            world.word,
            256 * mapped + 16 * sixteens + ones,
            "not each call that returned was done once"
        );
    }

    fn explore(twin: Twin) {
        (0..6u64.pow(STEPS as u32 - 2)).for_each(|order| run(order * 36 + order % 36, twin));
    }

    #[test]
    fn the_answer_of_an_operation_is_for_its_thread_and_block_alone() {
        let atomic = Atomic { op: AtomicOp::Sum, wide: true, operand: 0, compare: 0 };
        let of = |generation| Wanted::new((Block { granule: 0, generation }, 8), atomic);
        let mut asked = Asked::default();
        assert_eq!(asked.next(of(1)), Next::Ask(1));
        thread::scope(|s| {
            let other = s.spawn(|| {
                assert_eq!(asked.next(of(1)), Next::Await(1, false));
                asked.settle(Some(7), false);
                assert_eq!(asked.next(of(1)), Next::Ask(2));
                asked.settle(Some(9), true);
            });
            other.join().unwrap();
        });
        assert_eq!(asked.next(of(2)), Next::Ask(3));
        asked.settle(Some(9), true);
        assert_eq!(asked.next(of(1)), Next::Done(7));
        assert_eq!(asked.next(of(1)), Next::Ask(4));
    }

    #[test]
    fn each_operation_is_done_once_and_its_call_has_its_own_answer() {
        explore(Twin::Sound);
    }

    #[test]
    #[should_panic]
    fn twin_that_asks_again_after_its_time() {
        explore(Twin::Again);
    }

    #[test]
    #[should_panic]
    fn twin_that_takes_the_answer_of_another_call() {
        explore(Twin::AnyAnswer);
    }

    #[test]
    #[should_panic]
    fn twin_that_forgets_the_answer_to_another_call() {
        explore(Twin::Forgets);
    }

    #[test]
    #[should_panic]
    fn twin_whose_lender_loads_and_stores() {
        explore(Twin::Torn);
    }
}
