//! The agent over a peer in the same memory; and all orders of what a stream, an agent and a peer do.

use std::cell::RefCell;
use std::collections::HashSet;

use super::*;

const LAYOUT: Layout = Layout { slots: 2, slot_bytes: 32, signals: 1 };

/// What was begun: where from, how long, where to, what is stored, whether it is fenced.
type Begun = (usize, usize, usize, u64, bool);

/// Takes so many.
struct Room(RefCell<(usize, Vec<Begun>)>);

impl Post for Room {
    fn post(&self, from: usize, len: usize, at: usize, value: u64, fenced: bool) -> bool {
        let (room, begun) = &mut *self.0.borrow_mut();
        let has = *room > 0;
        if has {
            *room -= 1;
            begun.push((from, len, at, value, fenced));
        }
        has
    }

    fn job(&self, job: &Job) -> Option<u64> {
        let begun = &mut self.0.borrow_mut().1;
        begun.push((job.near, job.len, job.offset as usize, u64::from(job.region), job.puts));
        Some(begun.len() as u64)
    }

    fn is_done(&self, job: u64) -> bool {
        job == 1
    }

    fn done(&self) -> u64 {
        self.0.borrow().1.len() as u64
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        true
    }
}

#[test]
fn raised_words_are_carried_once_with_their_slots_and_stay_where_there_is_no_room() {
    let near = Words::new(LAYOUT.len()).unwrap();
    let raise = |line: u32, length: u32| {
        near.word(line, LENGTH).store(length, Release);
        near.word(line, 0).store(1, Release);
    };
    raise(LAYOUT.flag(1), 20);
    raise(LAYOUT.credit(0), 0);
    raise(LAYOUT.signal(0), 0);
    let at = |line: u32| line as usize * LINE;
    let slot = (LAYOUT.head() + 32, 20, at(LAYOUT.flag(1)), 1 | 20 << 32, false);
    let credit = (LAYOUT.head(), 0, at(LAYOUT.credit(0)), 1, false);
    let room = Room(RefCell::new((2, Vec::new())));
    assert_eq!(carry(&LAYOUT, &near, &room), (2, false));
    let strip = |b: &Begun| if b.1 == 0 { (0, 0, b.2, b.3, b.4) } else { *b };
    let begun: Vec<Begun> = room.0.borrow().1.iter().map(strip).collect();
    assert_eq!(begun, [slot, strip(&credit)]);
    assert_eq!(near.word(LAYOUT.flag(1), 0).load(Relaxed), 0);
    assert_eq!(near.word(LAYOUT.signal(0), 0).load(Relaxed), 1, "there was no room");
    *room.0.borrow_mut() = (9, Vec::new());
    let turns = [carry(&LAYOUT, &near, &room), carry(&LAYOUT, &near, &room)];
    assert_eq!(turns, [(1, true), (0, true)]);
    // A length that no slot has is not copied as a whole.
    raise(LAYOUT.flag(0), u32::MAX);
    carry(&LAYOUT, &near, &room);
    let (_, len, _, value, _) = *room.0.borrow().1.last().unwrap();
    assert_eq!((len, value), (32, 1 | u64::from(u32::MAX) << 32));
}

fn endpoint() -> Arc<Shared> {
    let shared = Shared {
        own: Words::new(LAYOUT.len()).unwrap(),
        lanes: Words::new(LANES * LINE).unwrap(),
        layout: LAYOUT,
        timeout: std::time::Duration::from_secs(1),
        peer: std::sync::OnceLock::new(),
        stop: std::sync::atomic::AtomicBool::new(false),
        pid: std::process::id(),
    };
    let words = Words::new(LAYOUT.near_len()).unwrap();
    let places = crate::shared::Places::new(&peerop::Targets::new(), &shared, &words).unwrap();
    let (name, agent) = (ipc::process::Name::own(), Some(crate::carried::Carried::default()));
    let (regions, _opened) = (vec![(0, 100)], Vec::new());
    let (direct, permit) = (None, None);
    let peer = Peer { words, name, pid: 1, to: 0, from: 0, regions, _opened, places, agent, direct, permit };
    shared.peer.set(peer).unwrap();
    Arc::new(shared)
}

#[test]
fn a_lane_has_one_job_at_a_time_and_none_behind_a_failure_or_outside_of_a_registration() {
    let (shared, lane) = (endpoint(), 3);
    let peer = shared.peer.get().unwrap();
    let mut agent = Agent { shared: shared.clone(), said: [0; 2], jobs: [None; LANES] };
    let room = Room(RefCell::new((9, Vec::new())));
    let asks = |len: u32, offset: u32| {
        let word = |byte| peer.words.word(LAYOUT.job(lane), byte);
        for (at, value) in [(LENGTH, len), (OFFSET, offset), (WHAT, 0), (0, 1)] {
            word(at).store(value, Release);
        }
    };
    let done = || shared.own.word(LAYOUT.job_done(lane), 0).swap(0, AcqRel);
    asks(30, 70);
    assert_eq!((agent.jobs(peer, &room), done()), (1, 0), "it is under way");
    assert_eq!((agent.jobs(peer, &room), done()), (1, 1));
    assert_eq!(room.0.borrow().1, [(LAYOUT.stage_at(lane), 30, 70, 0, true)]);
    // The next one is never done here, and another is not begun meanwhile.
    asks(1, 0);
    assert_eq!(agent.jobs(peer, &room), 1);
    asks(2, 0);
    assert_eq!((agent.jobs(peer, &room), done()), (0, 0));
    agent.jobs = [None; LANES];
    shared.fail(libc::ECANCELED, Kind::None, 0);
    assert_eq!((agent.jobs(peer, &room), done()), (1, 1), "the lane goes on, and nothing is put");
    assert_eq!(room.0.borrow().1.len(), 2);
    for (len, offset) in [(30, 71), (33, 0), (1, u32::MAX)] {
        let shared = endpoint();
        let peer = shared.peer.get().unwrap();
        let word = |byte| peer.words.word(LAYOUT.job(lane), byte);
        for (at, value) in [(LENGTH, len), (OFFSET, offset), (0, 1)] {
            word(at).store(value, Release);
        }
        let mut agent = Agent { shared: shared.clone(), said: [0; 2], jobs: [None; LANES] };
        assert_eq!(agent.jobs(peer, &room), 1);
        assert_eq!(shared.failure().map(|f| f.errno), Some(libc::EINVAL), "{len} bytes at {offset}");
    }
    assert_eq!(room.0.borrow().1.len(), 2);
}

/// One slot, and some messages: a stream that waits for the credit, writes the slot and raises the flag; the
/// agent of each side; the peer's stream. Messages of the network arrive in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Model {
    /// The sender's stream: messages begun, and whether the credit of the next one was taken.
    sent: u8,
    taken: bool,
    credit: bool,
    /// The near flag and slot.
    flag: bool,
    slot: u8,
    /// The agent has begun with a word that it has not cleared: only in the twin.
    late: bool,
    wire: Vec<u8>,
    /// At the receiver.
    there: Option<u8>,
    received: Vec<u8>,
    /// Its near credit, and credits under way.
    back: bool,
    credits: u8,
}

const MESSAGES: u8 = 3;

/// All states that follow. `clears_first`: as the agent does.
fn steps(m: &Model, clears_first: bool) -> Vec<Model> {
    let mut all = Vec::new();
    let mut step = |f: &dyn Fn(&mut Model)| {
        let mut next = m.clone();
        f(&mut next);
        all.push(next);
    };
    if m.sent < MESSAGES && !m.taken && m.credit {
        step(&|n| (n.credit, n.taken) = (false, true));
    }
    if m.taken {
        step(&|n| {
            (n.taken, n.sent) = (false, n.sent + 1);
            (n.slot, n.flag) = (n.sent, true);
        });
    }
    if m.late {
        step(&|n| (n.flag, n.late) = (false, false));
    } else if m.flag {
        step(&|n| {
            n.wire.push(n.slot);
            (n.flag, n.late) = if clears_first { (false, false) } else { (true, true) };
        });
    }
    if let (Some(first), None) = (m.wire.first(), m.there) {
        let first = *first;
        step(&|n| {
            n.wire.remove(0);
            n.there = Some(first);
        });
    }
    if let Some(message) = m.there {
        step(&|n| {
            n.there = None;
            n.received.push(message);
            n.back = true;
        });
    }
    if m.back {
        step(&|n| (n.back, n.credits) = (false, n.credits + 1));
    }
    if m.credits > 0 {
        step(&|n| (n.credits, n.credit) = (n.credits - 1, true));
    }
    all
}

/// Whether all orders bring each message once, in order.
fn holds(clears_first: bool) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![Model { credit: true, ..Model::default() }]);
    while let Some(m) = open.pop() {
        if !seen.insert(m.clone()) {
            continue;
        }
        let next = steps(&m, clears_first);
        if next.is_empty() && m.received != (1..=MESSAGES).collect::<Vec<_>>() {
            return false;
        }
        open.extend(next);
    }
    assert!(seen.len() > 20, "{} states only", seen.len());
    true
}

#[test]
fn each_message_arrives_once_in_all_orders_of_stream_agent_and_peer() {
    assert!(holds(true));
}

/// The broken twin: an answer that comes before the word is cleared has the next message lost.
#[test]
fn a_word_that_is_cleared_behind_the_copy_loses_a_message() {
    assert!(!holds(false));
}
