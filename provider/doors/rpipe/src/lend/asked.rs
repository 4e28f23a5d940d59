//! Atomic operations that the lender does for this process, by its processor's instructions: one message
//! requests, one answers. The request of a call whose time is over stays. The same call again waits for its
//! answer, and sends none; another call waits for that first. So each is done once, whatever is called again.

use crate::Atomic;

/// An operation, and where its word is in the memory.
pub(super) type Wanted = (usize, Atomic);

/// The requests of this process to the lender.
#[derive(Debug, Default)]
pub(super) struct Asked {
    last: u32,
    /// Not answered yet.
    pending: Option<(u32, Wanted)>,
}

/// What comes next of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A request of this number is sent.
    Ask(u32),
    /// The answer of this number is waited for; whether it is this call's.
    Await(u32, bool),
}

impl Asked {
    pub(super) fn next(&mut self, wanted: Wanted) -> Next {
        match self.pending {
            Some((number, pending)) => Next::Await(number, pending == wanted),
            None => {
                self.last = self.last.wrapping_add(1);
                self.pending = Some((self.last, wanted));
                Next::Ask(self.last)
            }
        }
    }

    /// The request is answered, or could not be sent.
    pub(super) fn settle(&mut self) {
        self.pending = None;
    }
}

/// All that two borrowers and a lender can do in some steps, with times that are over at any of them.
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
        /// The lender loads, and stores in a later step.
        Torn,
    }

    #[derive(Debug, Default)]
    struct Borrower {
        asked: Asked,
        requests: VecDeque<(u32, Wanted)>,
        answers: VecDeque<(u32, u64)>,
        /// Adds of 1 and of 16 that have returned, and the call that has not.
        returned: [u64; 2],
        calling: Option<usize>,
    }

    fn wanted(which: usize) -> Wanted {
        (8, Atomic { op: AtomicOp::Sum, wide: true, operand: [1, 16][which], compare: 0 })
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
        /// A call, up to where it waits or has returned. Each of them is called until it has returned.
        fn call(&mut self, of: usize, fresh: usize, twin: Twin) {
            let one = &mut self.borrowers[of];
            let which = *one.calling.get_or_insert(fresh);
            if twin == Twin::Again {
                one.asked.settle();
            }
            loop {
                let (number, mine) = match one.asked.next(wanted(which)) {
                    Next::Ask(number) => {
                        one.requests.push_back((number, wanted(which)));
                        return;
                    }
                    Next::Await(number, mine) => (number, mine || twin == Twin::AnyAnswer),
                };
                let Some(at) = one.answers.iter().position(|(answered, _)| *answered == number) else {
                    return;
                };
                let (_, was) = one.answers.remove(at).unwrap();
                one.asked.settle();
                if mine {
                    assert!(self.seen.insert(was), "two operations have found the same");
                    one.returned[which] += 1;
                    one.calling = None;
                    return;
                }
            }
        }

        /// A step of the lender, for a borrower's request.
        fn serve(&mut self, of: usize, twin: Twin) {
            if let Some((was, of)) = self.loaded.take() {
                let one = &mut self.borrowers[of];
                let (number, (_, atomic)) = one.requests.pop_front().unwrap();
                self.word = was + atomic.operand;
                one.answers.push_back((number, was));
                return;
            }
            let Some((number, (_, atomic))) = self.borrowers[of].requests.front().copied() else { return };
            if twin == Twin::Torn {
                self.loaded = Some((self.word, of));
                return;
            }
            let was = self.word;
            self.word += atomic.operand;
            self.borrowers[of].requests.pop_front();
            self.borrowers[of].answers.push_back((number, was));
        }

        /// The program gives a call up, and makes another one.
        fn gives_up(&mut self, of: usize) {
            self.borrowers[of].calling = self.borrowers[of].calling.map(|which| 1 - which);
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
        let mut given_up = 0;
        let mut mapped = 0;
        for _ in 0..STEPS {
            let step = order % 6;
            order /= 6;
            match step {
                0 => world.call(0, 0, twin),
                1 => world.call(1, 0, twin),
                2 => world.serve(0, twin),
                3 => world.serve(1, twin),
                4 => {
                    given_up += u64::from(world.borrowers[0].calling.is_some());
                    world.gives_up(0);
                }
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
                if world.borrowers[of].calling.is_some() {
                    world.call(of, 0, twin);
                }
            }
        }
        let [ones, sixteens] = [0, 1].map(|n| world.borrowers.iter().map(|one| one.returned[n]).sum::<u64>());
        assert!(world.borrowers.iter().all(|one| one.calling.is_none()), "a call does not return");
        // One that was given up, whose answer no call has got, is done once at most.
        let done = (world.word - 256 * mapped - 16 * sixteens - ones) as i64;
        let of_given_up =
            (0..=given_up as i64).flat_map(|a| (0..=given_up as i64 - a).map(move |b| a + 16 * b));
        assert!({ of_given_up }.any(|extra| extra == done), "{done} more than all that have returned");
    }

    fn explore(twin: Twin) {
        (0..6u64.pow(STEPS as u32 - 2)).for_each(|order| run(order * 36 + order % 36, twin));
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
    fn twin_whose_lender_loads_and_stores() {
        explore(Twin::Torn);
    }
}
