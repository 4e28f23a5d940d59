//! All interleavings of two ends that send, propose and connect anew, over a fabric and a connection that do not
//! keep an order between each other.

use std::collections::{HashSet, VecDeque};

use super::*;

/// What is said by the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Said {
    Propose(Counts),
    Answer(bool),
    Announce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Open,
    Closed,
    /// It has announced itself, and the other end has not.
    Announced,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    stage: Stage,
    proposal: Proposal,
    counts: Counts,
    /// How often it was connected.
    epoch: u8,
    /// What it still does.
    sends: u8,
    proposes: u8,
    announces: u8,
}

/// Both ends, and what is under way from each: of messages by the fabric the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    ends: [End; 2],
    fabric: [VecDeque<u8>; 2],
    said: [VecDeque<Said>; 2],
}

/// What is left out of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// It sends while its proposal is not answered.
    Sends,
    /// A proposal is held against what has arrived since this end's own.
    CountsAnew,
    /// It answers by closing whatever has arrived.
    Believes,
}

const ZERO: Counts = Counts { sent: 0, came: 0 };

impl World {
    fn new(sends: [u8; 2], proposes: [u8; 2]) -> World {
        let end = |i: usize| End {
            stage: Stage::Open,
            proposal: Proposal::default(),
            counts: ZERO,
            epoch: 0,
            sends: sends[i],
            proposes: proposes[i],
            announces: 1,
        };
        World { ends: [end(0), end(1)], fabric: Default::default(), said: Default::default() }
    }

    fn close(&mut self, i: usize) {
        assert!(self.fabric.iter().all(VecDeque::is_empty), "a message is lost: {self:?}");
        let end = &mut self.ends[i];
        (end.stage, end.proposal, end.counts) = (Stage::Closed, Proposal::default(), ZERO);
    }

    fn open(&mut self, i: usize) {
        let end = &mut self.ends[i];
        (end.stage, end.epoch, end.counts) = (Stage::Open, end.epoch + 1, ZERO);
    }

    /// All that may happen next.
    fn next(&self, broken: Broken) -> Vec<World> {
        let mut all = Vec::new();
        for i in 0..2 {
            let (end, mut with) = (&self.ends[i], |step: &dyn Fn(&mut World)| {
                let mut next = self.clone();
                step(&mut next);
                all.push(next);
            });
            let is_open = end.stage == Stage::Open;
            if is_open && end.sends > 0 && (!end.proposal.holds() || broken == Broken::Sends) {
                with(&|w| {
                    w.ends[i].sends -= 1;
                    w.ends[i].counts.sent += 1;
                    w.fabric[i].push_back(w.ends[i].epoch);
                });
            }
            if is_open && end.proposes > 0 && !end.proposal.holds() {
                with(&|w| {
                    let counts = w.ends[i].counts;
                    w.ends[i].proposes -= 1;
                    w.ends[i].proposal.make(counts);
                    w.said[i].push_back(Said::Propose(counts));
                });
            }
            if end.stage == Stage::Closed && end.announces > 0 {
                with(&|w| {
                    w.ends[i].announces -= 1;
                    w.ends[i].stage = Stage::Announced;
                    w.said[i].push_back(Said::Announce);
                });
            }
            // An end that has not connected yet has the device of the other one try again.
            if !self.fabric[i].is_empty() && self.ends[1 - i].stage != Stage::Announced {
                with(&|w| {
                    let epoch = w.fabric[i].pop_front();
                    let to = &mut w.ends[1 - i];
                    assert_eq!((to.stage, Some(to.epoch)), (Stage::Open, epoch), "a message of another time");
                    to.counts.came += 1;
                });
            }
            if !self.said[i].is_empty() {
                for is_busy in [false, true] {
                    with(&|w| w.hear(1 - i, is_busy, broken));
                }
            }
        }
        all
    }

    /// An end hears what the other one has said; an access is under way here, if `is_busy`.
    fn hear(&mut self, i: usize, is_busy: bool, broken: Broken) {
        let said = self.said[1 - i].pop_front().expect("something");
        let (counts, stage) = (self.ends[i].counts, self.ends[i].stage);
        match said {
            Said::Propose(theirs) => {
                assert_eq!(stage, Stage::Open, "it is proposed to close what is not open: {self:?}");
                if broken == Broken::CountsAnew && self.ends[i].proposal.holds() {
                    self.ends[i].proposal.make(counts);
                }
                let ours = match broken {
                    Broken::Believes => Counts { sent: theirs.came, came: theirs.sent },
                    _ => counts,
                };
                match self.ends[i].proposal.hear(theirs, Some(ours).filter(|_| !is_busy)) {
                    Heard::Close(says) => {
                        self.said[i].extend(says.then_some(Said::Answer(true)));
                        self.close(i);
                    }
                    Heard::Stay(says) => self.said[i].extend(says.then_some(Said::Answer(false))),
                }
            }
            Said::Answer(closes) => {
                assert!(self.ends[i].proposal.hear_answer(), "what was not proposed is answered: {self:?}");
                if closes {
                    self.close(i);
                }
            }
            Said::Announce => {
                assert!(stage != Stage::Open, "it announces itself twice: {self:?}");
                if stage == Stage::Closed {
                    self.said[i].push_back(Said::Announce);
                }
                self.open(i);
            }
        }
    }

    /// Nothing is under way: both ends are open, or closed, and neither waits.
    fn is_settled(&self) -> bool {
        let [one, other] = &self.ends;
        one.stage == other.stage && !one.proposal.holds() && !other.proposal.holds()
    }
}

/// Explores all; in how many states all was said and both were closed.
fn explore(first: World, broken: Broken) -> usize {
    let (mut seen, mut open, mut closed) = (HashSet::from([first.clone()]), vec![first], 0);
    while let Some(world) = open.pop() {
        let is_quiet =
            world.fabric.iter().all(VecDeque::is_empty) && world.said.iter().all(VecDeque::is_empty);
        if is_quiet {
            assert!(world.is_settled(), "{world:?}");
            closed += usize::from(world.ends[0].stage == Stage::Closed);
        }
        for next in world.next(broken) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    closed
}

#[test]
fn nothing_is_lost_and_neither_end_waits_for_ever() {
    assert!(explore(World::new([2, 1], [2, 1]), Broken::Nothing) > 0);
    assert!(explore(World::new([1, 2], [1, 2]), Broken::Nothing) > 0);
    assert!(explore(World::new([1, 1], [2, 2]), Broken::Nothing) > 0);
}

#[test]
fn two_that_propose_at_once_close() {
    let counts = Counts { sent: 3, came: 5 };
    let theirs = Counts { sent: 5, came: 3 };
    let mut ends = [Proposal::default(), Proposal::default()];
    ends[0].make(counts);
    ends[1].make(theirs);
    assert_eq!(ends[0].hear(theirs, None), Heard::Close(false));
    assert_eq!(ends[1].hear(counts, None), Heard::Close(false));
}

#[test]
#[should_panic(expected = "a message is lost")]
fn an_end_that_sends_while_it_waits_loses_a_message() {
    explore(World::new([1, 1], [1, 1]), Broken::Sends);
}

#[test]
#[should_panic]
fn an_end_that_counts_anew_closes_alone() {
    explore(World::new([1, 1], [1, 1]), Broken::CountsAnew);
}

#[test]
#[should_panic(expected = "a message is lost")]
fn an_end_that_believes_its_peer_loses_a_message() {
    explore(World::new([1, 1], [1, 1]), Broken::Believes);
}

#[test]
fn an_access_and_a_message_begin_the_time_anew() {
    let (mut rest, begin, second) = (Rest::default(), Instant::now(), Duration::from_secs(1));
    let counts = Counts { sent: 3, came: 5 };
    assert!(!rest.is_idle(counts, begin, second), "the first look");
    assert!(!rest.is_idle(counts, begin + second / 2, second));
    assert!(rest.is_idle(counts, begin + second, second));
    assert!(!rest.is_idle(counts, begin + second, second), "it is said once");
    rest.note_access();
    assert!(!rest.is_idle(counts, begin + 3 * second, second));
    let more = Counts { came: 6, ..counts };
    assert!(!rest.is_idle(more, begin + 4 * second, second));
    assert!(rest.is_idle(more, begin + 5 * second, second));
}

#[test]
fn an_end_that_accesses_memory_declines_until_it_does_not() {
    let (mut rest, ours) = (Rest::default(), Counts { sent: 3, came: 5 });
    let theirs = Counts { sent: 5, came: 3 };
    rest.note_access();
    assert_eq!(rest.hear(theirs, Some(ours)), Heard::Stay(true));
    assert_eq!(rest.hear(theirs, None), Heard::Stay(true));
    assert_eq!(rest.hear(theirs, Some(ours)), Heard::Close(true));
}
