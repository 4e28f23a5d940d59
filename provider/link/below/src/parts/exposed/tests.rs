//! How a registration is published, accessed and taken back, explored: whatever is delivered when, an access
//! that is under way is of a registration that is there.

use std::collections::{BTreeSet, VecDeque};

use link_api::Way;
use wire::Seg;

use super::*;
use crate::network::{About, Buffer, Dest, Did, Message, NotSent, Poll, Remote, Waits};
use crate::published::Published;

/// A network that registers memory, and nothing else.
#[derive(Clone, Debug, Default)]
struct Fake {
    live: BTreeSet<u64>,
    last: u64,
}

impl Remote for Fake {
    fn publish(&mut self, span: Span, _read: bool, _write: bool) -> Option<Lease> {
        self.last += 1;
        self.live.insert(self.last);
        Some(Lease { number: self.last, key: self.last, base: span.addr(), lender: Box::default() })
    }

    fn end_lease(&mut self, number: u64, _is_known: bool) -> bool {
        assert!(self.live.remove(&number), "a registration ends once");
        true
    }
}

impl Below for Fake {
    const LINK: &'static str = "fake";
    const CONNECTS: bool = true;

    fn about(&self) -> About<'_> {
        unreachable!("a registration does not depend on it")
    }
    fn meet(&mut self, _address: &[u8]) -> Result<Dest, String> {
        Err("a connection is made otherwise".into())
    }
    fn part(&mut self, _dest: Dest) {}
    fn send(&mut self, _to: Dest, _message: &Message<'_>) -> Result<(), NotSent> {
        Err(NotSent::Busy)
    }
    fn keeps(&self, _who: u64) -> bool {
        false
    }
    fn poll(&mut self, _how: Poll) -> Option<Did> {
        None
    }
    fn bytes(&self, _buffer: Buffer) -> &[u8] {
        &[]
    }
    fn give_back(&mut self, _buffer: Buffer) {}
    fn try_wait(&mut self) -> bool {
        true
    }
    fn waits(&self) -> Waits {
        Waits::default()
    }
}

/// What is under way between the two.
#[derive(Clone, Copy, Debug)]
enum Note {
    Ask,
    Region(Option<Entry>),
    Revoke(u32),
    Left(u32),
}

const KEY: u64 = 7;
const PEER: PeerId = PeerId(3);
/// What either may do next.
const ACTIONS: [fn(&mut Both) -> bool; 6] =
    [Both::expose, Both::conceal, Both::owner_hears, Both::initiator_hears, Both::access, Both::end_access];

/// The owner of a registration, and one that accesses it.
#[derive(Clone, Debug, Default)]
struct Both {
    owner: Exposed,
    below: Option<Fake>,
    to_owner: VecDeque<Note>,
    to_initiator: VecDeque<Note>,
    published: Published,
    /// The version and the key of the access under way.
    access: Option<(u32, u64)>,
    leaving: Vec<u32>,
    /// Versions are left though an access is under way.
    is_careless: bool,
}

impl Both {
    fn span() -> Span {
        static SPAN: std::sync::OnceLock<Span> = std::sync::OnceLock::new();
        *SPAN.get_or_init(|| Span::leak(64))
    }

    fn expose(&mut self) -> bool {
        let (addr, len) = (Self::span().addr(), 64);
        let (read, write, virt_addr, target_must_observe) = (true, true, false, false);
        let region = Region { key: KEY, addr, len, read, write, virt_addr, target_must_observe };
        let is_new = self.owner.keys().is_empty() && self.owner.number < 3;
        if is_new {
            self.owner.add(region, Self::span());
        }
        is_new
    }

    fn conceal(&mut self) -> bool {
        let was = !self.owner.keys().is_empty();
        let (number, known_to) = self.owner.end(KEY);
        self.to_initiator.extend(known_to.iter().map(|_| Note::Revoke(number)));
        self.owner.finish(&mut self.below, None);
        was
    }

    fn owner_hears(&mut self) -> bool {
        match self.to_owner.pop_front() {
            Some(Note::Ask) => {
                let below = self.below.as_mut().expect("a network");
                let entry = self.owner.answer(below, |_, _| true, (PEER, Dest(0), usize::MAX), KEY);
                self.to_initiator.push_back(Note::Region(entry));
            }
            Some(Note::Left(number)) => {
                self.owner.leave(PEER, number);
                self.owner.finish(&mut self.below, None);
            }
            Some(other) => panic!("{other:?}"),
            None => return false,
        }
        true
    }

    fn initiator_hears(&mut self) -> bool {
        match self.to_initiator.pop_front() {
            Some(Note::Region(entry)) => assert!(self.published.take_note(KEY, entry), "an answer"),
            Some(Note::Revoke(number)) => {
                self.published.forget(number);
                self.leaving.push(number);
                self.leave();
            }
            Some(other) => panic!("{other:?}"),
            None => return false,
        }
        true
    }

    fn access(&mut self) -> bool {
        let Some((region, version)) = self.published.find(KEY) else {
            let asks = self.published.asks(KEY);
            self.to_owner.extend(asks.then_some(Note::Ask));
            return asks;
        };
        let seg = Seg { addr: region.addr.into(), len: 8.into() };
        let found = self.published.place(version, &seg, Way::Put, Dest(0));
        let is_first = self.access.is_none();
        if is_first {
            self.access = found.map(|found| (version.number, found.key));
        }
        is_first
    }

    fn end_access(&mut self) -> bool {
        let was = self.access.take().is_some();
        self.leave();
        was
    }

    fn leave(&mut self) {
        let flying = self.access.map(|(number, _)| number).filter(|_| !self.is_careless);
        let (stay, left) = std::mem::take(&mut self.leaving).into_iter().partition(|n| Some(*n) == flying);
        self.leaving = stay;
        let left: Vec<u32> = left;
        self.to_owner.extend(left.into_iter().map(Note::Left));
    }

    /// Whether the registration of the access under way is there.
    fn is_sound(&self) -> bool {
        let live = &self.below.as_ref().expect("a network").live;
        self.access.is_none_or(|(_, key)| live.contains(&key))
    }
}

/// All that may happen in so many steps, from here on: whether every state is sound. Those with an access
/// under way are counted.
fn explore(both: &Both, steps: usize, accesses: &mut u64) -> bool {
    if !both.is_sound() {
        return false;
    }
    *accesses += u64::from(both.access.is_some());
    steps == 0
        || ACTIONS.iter().all(|action| {
            let mut next = both.clone();
            !action(&mut next) || explore(&next, steps - 1, accesses)
        })
}

const STEPS: usize = 12;

#[test]
fn an_access_under_way_is_of_a_registration_that_is_there() {
    let (both, mut accesses) = (Both { below: Some(Fake::default()), ..Both::default() }, 0);
    assert!(explore(&both, STEPS, &mut accesses), "an access of a registration that has ended");
    assert!(accesses > 1_000, "only {accesses} states have an access under way");
}

#[test]
fn a_peer_that_leaves_too_early_is_found() {
    let both = Both { below: Some(Fake::default()), is_careless: true, ..Both::default() };
    assert!(!explore(&both, STEPS, &mut 0), "the exploration would not notice");
}

/// A peer that does not answer keeps a registration for its time, and no longer.
#[test]
fn a_silent_peer_loses_what_it_knows() {
    let mut both = Both { below: Some(Fake::default()), ..Both::default() };
    for action in [Both::expose, Both::access, Both::owner_hears, Both::initiator_hears, Both::conceal] {
        assert!(action(&mut both));
    }
    assert!(both.owner.is_ending(Some(KEY)) && both.owner.is_ending(None) && !both.owner.is_ending(Some(8)));
    assert_eq!(both.owner.awaited(), [PEER]);
    assert!(both.owner.finish(&mut both.below, Some(Duration::from_secs(60))).is_empty());
    let silent = both.owner.finish(&mut both.below, Some(Duration::ZERO));
    assert_eq!(silent, [(PEER, 1)]);
    assert!(!both.owner.is_ending(None) && both.below.expect("a network").live.is_empty());
}
