//! Waiting for one of several pipes, and whose turn it is among them.
//!
//! A round is one look at each pipe, and each that has a message gets a step, so none waits for more than one
//! message of each of the others. Rounds of all pipes are few where few have messages: those that had some in
//! the last one are looked at alone for `SHORT` rounds at most.

use std::collections::VecDeque;

use crate::core::Context;
use crate::core::Visit;
use crate::core::{Patience, WaitStep, Waiting};
use crate::{Error, Pipe};

/// Rounds of those alone that had messages in the last round of all.
const SHORT: u32 = 16;

/// Pipes, by their places.
pub(crate) trait Several {
    fn visit(&mut self, at: usize, visit: Visit) -> Result<bool, Error>;
}

impl Several for [Pipe] {
    #[inline]
    fn visit(&mut self, at: usize, visit: Visit) -> Result<bool, Error> {
        Ok(self.get_mut(at).is_some_and(|pipe| pipe.visit(visit)))
    }
}

/// Turns between two rounds that ask, with progress: writers that begin, or end, while others write without
/// end.
const ASK: u32 = 256;

/// Whose turn it is.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Those that are looked at.
    open: Vec<u32>,
    /// Where a round of all begins.
    first: usize,
    /// Found in this round, and not had yet.
    found: VecDeque<u32>,
    /// Found in the last round of all.
    busy: Vec<u32>,
    /// Rounds of these before the next of all.
    short: u32,
    /// Ends are set up when they are asked, and not when their writers begin.
    begin: bool,
    /// Turns since the last round that asked.
    had: u32,
}

impl Turns {
    pub(crate) fn new(count: usize, begin: bool) -> Turns {
        let open = (0..count as u32).collect();
        let (found, busy) = (VecDeque::with_capacity(count), Vec::with_capacity(count));
        Turns { open, first: 0, found, busy, short: 0, begin, had: 0 }
    }

    /// Nothing is to be waited for.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// One is not looked at any more.
    pub(crate) fn remove(&mut self, at: usize) {
        self.open.retain(|one| *one as usize != at);
        self.busy.retain(|one| *one as usize != at);
        self.found.retain(|one| *one as usize != at);
    }

    /// The next one that has a message, by their flags.
    #[inline]
    fn next_raised<S: Several + ?Sized>(&mut self, all: &mut S) -> Result<Option<usize>, Error> {
        if self.found.is_empty() {
            self.round(all)?;
        }
        Ok(self.found.pop_front().map(|at| at as usize))
    }

    fn round<S: Several + ?Sized>(&mut self, all: &mut S) -> Result<(), Error> {
        if self.short > 0 {
            self.short -= 1;
            for at in &self.busy {
                if all.visit(*at as usize, Visit::Flag)? {
                    self.found.push_back(*at);
                }
            }
            if !self.found.is_empty() {
                return Ok(());
            }
        }
        self.first = if self.first + 1 < self.open.len() { self.first + 1 } else { 0 };
        let (before, behind) = self.open.split_at(self.first.min(self.open.len()));
        for at in behind.iter().chain(before) {
            if all.visit(*at as usize, Visit::Flag)? {
                self.found.push_back(*at);
            }
        }
        self.busy.clear();
        self.busy.extend(&self.found);
        self.short = SHORT;
        Ok(())
    }

    /// The next one of which a read ends at once, asked in turn.
    fn ask<S: Several + ?Sized>(&mut self, all: &mut S) -> Result<Option<usize>, Error> {
        for _ in 0..self.open.len() {
            self.first = if self.first + 1 < self.open.len() { self.first + 1 } else { 0 };
            let at = self.open[self.first] as usize;
            if all.visit(at, Visit::Ask { begin: self.begin })? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Waits until a read of one ends at once: its place.
    #[inline]
    pub(crate) fn wait<S: Several + ?Sized>(
        &mut self,
        all: &mut S,
        context: &Context,
        patience: Patience,
    ) -> Result<usize, Error> {
        self.had += 1;
        if self.had < ASK {
            if let Some(at) = self.next_raised(all)? {
                return Ok(at);
            }
        }
        self.wait_longer(all, context, patience)
    }

    #[cold]
    fn wait_longer<S: Several + ?Sized>(
        &mut self,
        all: &mut S,
        context: &Context,
        patience: Patience,
    ) -> Result<usize, Error> {
        if self.had >= ASK {
            context.progress()?;
        }
        self.had = 0;
        if let Some(at) = self.ask(all)? {
            return Ok(at);
        }
        let mut polls = true;
        for at in &self.open {
            polls &= all.visit(*at as usize, Visit::Polls)?;
        }
        let mut waiting = Waiting::new(patience, polls);
        loop {
            let step = waiting.step(context);
            if let Some(at) = self.next_raised(all)? {
                return Ok(at);
            }
            if step == Ok(WaitStep::Poll) {
                continue;
            }
            if let Some(at) = self.ask(all)? {
                return Ok(at);
            }
            if step? == WaitStep::Sleep {
                let mut wakes = true;
                for at in &self.open {
                    wakes &= all.visit(*at as usize, Visit::Arm)?;
                }
                // The writers may leave their fences to this.
                context.barrier().heavy();
                // What a writer did not see the word for.
                if let Some(at) = self.next_raised(all)? {
                    return Ok(at);
                }
                if let Some(at) = self.ask(all)? {
                    return Ok(at);
                }
                waiting.sleep(context, wakes);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Pipes that have so many messages each, and how often they were looked at.
    struct Fake {
        left: Vec<u32>,
        looks: u32,
    }

    impl Several for Fake {
        fn visit(&mut self, at: usize, visit: Visit) -> Result<bool, Error> {
            self.looks += u32::from(visit == Visit::Flag);
            Ok(self.left[at] > 0)
        }
    }

    impl Fake {
        fn next(&mut self, turns: &mut Turns) -> Option<usize> {
            let at = turns.next_raised(self).unwrap();
            at.inspect(|at| self.left[*at] -= 1)
        }
    }

    #[test]
    fn none_waits_for_a_second_message_of_another() {
        let mut all = Fake { left: vec![1000, 0, 20, 1000, 3], looks: 0 };
        let mut turns = Turns::new(5, false);
        let mut had = [0u32; 5];
        for n in 1..=2023 {
            let at = all.next(&mut turns).unwrap();
            had[at] += 1;
            let behind = (0..5).filter(|other| all.left[*other] > 0).map(|other| had[other]).min();
            assert!(behind.is_none_or(|least| had[at] <= least + 2), "message {n} of {at}: {had:?}");
        }
        assert_eq!((had, all.next(&mut turns)), ([1000, 0, 20, 1000, 3], None));
    }

    #[test]
    fn one_that_begins_waits_for_few_messages_of_those_that_are_busy() {
        let mut all = Fake { left: vec![u32::MAX, 0, u32::MAX, 0], looks: 0 };
        let mut turns = Turns::new(4, false);
        (0..100).for_each(|_| assert!(all.next(&mut turns).is_some()));
        for other in [1, 3] {
            all.left[other] = 1;
            let waited = (0..1000).position(|_| all.next(&mut turns) == Some(other)).unwrap();
            assert!(waited <= 2 * (SHORT as usize + 2), "{waited} messages");
        }
    }

    #[test]
    fn pipes_without_messages_are_looked_at_seldom_while_another_has_some() {
        let mut all = Fake { left: vec![0; 32], looks: 0 };
        all.left[7] = 1700;
        let mut turns = Turns::new(32, false);
        (0..1700).for_each(|_| assert_eq!(all.next(&mut turns), Some(7)));
        assert!(all.looks <= 1700 * 3, "{} looks at 32 pipes for 1700 messages", all.looks);
    }

    #[test]
    fn one_that_is_removed_has_no_turn() {
        let mut all = Fake { left: vec![5, 5, 5], looks: 0 };
        let mut turns = Turns::new(3, false);
        assert!(all.next(&mut turns).is_some());
        turns.remove(1);
        let rest: Vec<_> = std::iter::from_fn(|| all.next(&mut turns)).collect();
        assert!(!rest.contains(&1) && rest.len() >= 9, "{rest:?}");
        [0, 2].into_iter().for_each(|at| turns.remove(at));
        assert!(turns.is_empty() && all.next(&mut turns).is_none());
    }
}
