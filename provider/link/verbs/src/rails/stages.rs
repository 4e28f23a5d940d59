//! How far the queue pair of a rail is with each peer, and what is said of it.
//!
//! One end begins, and no other: it announces a queue pair of each rail, or that it has none, and the other
//! end its own, or that it has none. Then the first one posts a write of no bytes, and says so when that was
//! acknowledged: from then on either end uses it. Where it was not, no packet gets there and back, and it
//! says that it has none.

use std::collections::HashMap;

/// How far the queue pair of a rail is with a peer; by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The peer is about to say whether it has one.
    Expected,
    /// It was announced; the peer has said nothing of it.
    Offered(u32),
    /// The two are connected, and the write of no bytes is under way.
    Proving(u32),
    /// The two are connected; the peer, which began, proves it.
    Joined(u32),
    /// It can be used.
    Made(u32),
    /// It takes no accesses of this side any more; the peer may use it.
    Left(u32),
    /// There is none.
    Refused,
}

impl Stage {
    /// The number of the queue pair.
    pub(crate) fn number(self) -> Option<u32> {
        match self {
            Stage::Offered(n) | Stage::Proving(n) | Stage::Joined(n) | Stage::Made(n) | Stage::Left(n) => {
                Some(n)
            }
            Stage::Expected | Stage::Refused => None,
        }
    }

    /// That, if the peer may use it.
    pub(crate) fn in_use(self) -> Option<u32> {
        match self {
            Stage::Made(n) | Stage::Left(n) => Some(n),
            _ => None,
        }
    }
}

/// What a peer says of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    /// An address, which is kept beside.
    Address,
    /// It has none.
    None,
    /// It can be used.
    Proven,
}

/// What follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// This side makes one, connects it and announces it, or says that it has none.
    Make,
    /// This side connects this one, and posts the write of no bytes.
    Prove(u32),
    /// This one is not needed any more, if there is one.
    Drop(Option<u32>),
    /// It was in use, and is gone at the peer: the connection is of no use.
    Lost,
    /// It can be used.
    Made,
    /// No peer says so that keeps to this.
    Nonsense,
}

/// The queue pairs of one rail, by the number of the peer's first one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stages(HashMap<u32, Stage>);

impl Stages {
    pub(crate) fn get(&self, first: u32) -> Option<Stage> {
        self.0.get(&first).copied()
    }

    pub(crate) fn set(&mut self, first: u32, stage: Stage) {
        self.0.insert(first, stage);
    }

    /// This side posts no accesses to it any more, as long as the connection lasts.
    pub(crate) fn leave(&mut self, first: u32) {
        if let Some(Stage::Made(number)) = self.get(first) {
            self.set(first, Stage::Left(number));
        }
    }

    /// The peer's first queue pair is not used any more: how far this one was.
    pub(crate) fn end(&mut self, first: u32) -> Option<Stage> {
        self.0.remove(&first)
    }

    /// The peers that have, or are to have, a queue pair of this rail.
    pub(crate) fn peers(&self) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.0.iter().filter(|(_, stage)| stage.number().is_some()).map(|(first, _)| *first).collect();
        all.sort_unstable();
        all
    }

    /// The peer that has this queue pair.
    pub(crate) fn peer_of(&self, number: u32) -> Option<u32> {
        self.0.iter().find(|(_, stage)| stage.number() == Some(number)).map(|(first, _)| *first)
    }

    /// How many peers use it.
    pub(crate) fn made(&self) -> usize {
        self.0.values().filter(|stage| matches!(stage, Stage::Made(_))).count()
    }

    /// Whether the peer has yet to say something.
    pub(crate) fn is_awaited(&self, first: u32) -> bool {
        let stage = self.get(first);
        matches!(stage, Some(Stage::Expected | Stage::Offered(_) | Stage::Proving(_) | Stage::Joined(_)))
    }

    /// What follows from what a peer says.
    pub(crate) fn hear(&mut self, first: u32, said: Said) -> Heard {
        match (self.get(first), said) {
            (Some(Stage::Expected), Said::Address) => Heard::Make,
            (Some(Stage::Expected), Said::None) => {
                self.set(first, Stage::Refused);
                Heard::Drop(None)
            }
            (Some(Stage::Offered(number)), Said::Address) => {
                self.set(first, Stage::Proving(number));
                Heard::Prove(number)
            }
            // It was given up here meanwhile, which the peer is about to hear, or has heard.
            (Some(Stage::Refused), _) => Heard::Drop(None),
            (Some(Stage::Offered(number) | Stage::Proving(number) | Stage::Joined(number)), Said::None) => {
                self.set(first, Stage::Refused);
                Heard::Drop(Some(number))
            }
            (Some(Stage::Made(_) | Stage::Left(_)), Said::None) => Heard::Lost,
            (Some(Stage::Joined(number)), Said::Proven) => {
                self.set(first, Stage::Made(number));
                Heard::Made
            }
            _ => Heard::Nonsense,
        }
    }

    /// The write of no bytes is over, acknowledged or not: what is to be said; `None`: it was given up
    /// before. In `Err` the queue pair that is not needed any more.
    pub(crate) fn note_proven(&mut self, first: u32, is_done: bool) -> Option<Result<(), u32>> {
        let Some(Stage::Proving(number)) = self.get(first) else { return None };
        self.set(first, if is_done { Stage::Made(number) } else { Stage::Refused });
        Some(if is_done { Ok(()) } else { Err(number) })
    }

    /// The queue pair has failed. What follows: the connection is of no use (`Ok`), or it is left out, which
    /// is said to the peer, and is not needed any more (`Err`); `None`: it was given up before.
    pub(crate) fn note_failed(&mut self, first: u32) -> Option<Result<(), u32>> {
        match self.get(first)? {
            Stage::Made(_) | Stage::Left(_) => Some(Ok(())),
            Stage::Expected | Stage::Refused => None,
            Stage::Offered(number) | Stage::Proving(number) | Stage::Joined(number) => {
                self.set(first, Stage::Refused);
                Some(Err(number))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const FIRST: u32 = 3;
    const NUMBER: u32 = 4;

    /// Two ends, of which the first begins, and what is on its way to each.
    #[derive(Clone, Debug, Default)]
    struct Two {
        ends: [Stages; 2],
        to: [VecDeque<Said>; 2],
        /// Whether the second can make one; whether packets get there and back. Where the first cannot, it
        /// says so.
        can: bool,
        leads: bool,
        /// Whether the device of each is still to fail.
        fails: [bool; 2],
        /// An end has given the connection up.
        is_lost: bool,
    }

    impl Two {
        fn key(&self) -> String {
            let stages = self.ends.each_ref().map(|end| end.get(FIRST));
            format!("{stages:?} {:?} {:?} {}", self.to, self.fails, self.is_lost)
        }

        fn say(&mut self, i: usize, said: Said) {
            self.to[1 - i].push_back(said);
        }

        /// What an end does next of what it hears; `twin`: it is so hasty as to use one before it is proven.
        fn hear(&mut self, i: usize, twin: bool) -> bool {
            let Some(said) = self.to[i].pop_front() else { return true };
            match self.ends[i].hear(FIRST, said) {
                Heard::Make if self.can => {
                    self.ends[i].set(FIRST, if twin { Stage::Made(NUMBER) } else { Stage::Joined(NUMBER) });
                    self.say(i, Said::Address);
                }
                Heard::Make => {
                    self.ends[i].set(FIRST, Stage::Refused);
                    self.say(i, Said::None);
                }
                Heard::Prove(_) | Heard::Drop(_) | Heard::Made => {}
                Heard::Lost => self.is_lost = true,
                Heard::Nonsense => return false,
            }
            true
        }

        /// The write is over, which it is once the other end is connected, or has failed.
        fn prove(&mut self, i: usize) {
            let works =
                self.leads && self.fails[1 - i] && self.ends[1 - i].get(FIRST) != Some(Stage::Refused);
            match self.ends[i].note_proven(FIRST, works) {
                Some(Ok(())) => self.say(i, Said::Proven),
                Some(Err(_)) => self.say(i, Said::None),
                None => {}
            }
        }

        fn fail(&mut self, i: usize) {
            self.fails[i] = false;
            match self.ends[i].note_failed(FIRST) {
                Some(Ok(())) => self.is_lost = true,
                Some(Err(_)) => self.say(i, Said::None),
                None => {}
            }
        }
    }

    /// All orders: both ends use it in the end, or neither, or the connection is given up.
    fn explore(twin: bool) -> Result<(usize, usize), String> {
        let (mut ends, mut made) = (0, 0);
        for bits in 0..32 {
            let is = |bit: u32| bits >> bit & 1 == 1;
            // A device that is not to fail has failed at no time: `fails` is spent by failing.
            let mut start = Two { can: is(0), leads: is(1), fails: [true; 2], ..Two::default() };
            let may_fail = [is(2), is(3)];
            let begins = is(4);
            start.ends[0].set(FIRST, if begins { Stage::Offered(NUMBER) } else { Stage::Refused });
            start.ends[1].set(FIRST, Stage::Expected);
            start.say(0, if begins { Said::Address } else { Said::None });
            let (mut open, mut seen) = (vec![start], HashSet::new());
            while let Some(two) = open.pop() {
                if two.is_lost || !seen.insert(two.key()) {
                    continue;
                }
                let before = open.len();
                for (i, may_fail) in may_fail.into_iter().enumerate() {
                    let mut next = two.clone();
                    if !two.to[i].is_empty() {
                        if !next.hear(i, twin) {
                            return Err(format!("nonsense: {two:?}"));
                        }
                        open.push(next);
                    }
                    let mut next = two.clone();
                    if matches!(two.ends[i].get(FIRST), Some(Stage::Proving(_))) {
                        next.prove(i);
                        open.push(next);
                    }
                    let mut next = two.clone();
                    next.ends[i].leave(FIRST);
                    open.push(next);
                    if may_fail && two.fails[i] {
                        let mut next = two.clone();
                        next.fail(i);
                        open.push(next);
                    }
                }
                // It may be left at any time.
                if open.len() > before + 2 {
                    continue;
                }
                let are = two.ends.each_ref().map(|end| end.get(FIRST).and_then(Stage::in_use).is_some());
                if are[0] != are[1] || two.ends.iter().any(|end| end.is_awaited(FIRST)) {
                    return Err(format!("one end alone: {two:?}"));
                }
                if are[0] && !(begins && two.can && two.leads) {
                    return Err(format!("one that does not lead there: {two:?}"));
                }
                (ends, made) = (ends + 1, made + usize::from(are[0]));
            }
        }
        Ok((ends, made))
    }

    #[test]
    fn both_ends_use_a_rail_or_neither_and_only_one_that_leads_there() {
        let (ends, made) = explore(false).expect("agreement");
        assert!(ends >= 16 && made >= 1, "{ends} ends, {made} with a rail");
    }

    #[test]
    fn an_address_where_no_rail_was_agreed_on_makes_no_sense() {
        for said in [Said::Address, Said::None, Said::Proven] {
            assert_eq!(Stages::default().hear(FIRST, said), Heard::Nonsense);
        }
    }

    #[test]
    fn an_end_that_uses_a_rail_before_it_is_proven_is_found() {
        explore(true).expect_err("no agreement");
    }
}
