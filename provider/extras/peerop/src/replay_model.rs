//! All interleavings of senders and receivers that replay graphs, launch others and make eager calls, over
//! the operations that [`super`] makes. Accesses are sequentially consistent here; their order is loom's.

use std::collections::HashSet;

use super::*;
use crate::testing::word;

/// What a thread of the model does at once.
#[derive(Clone, Debug)]
enum Step {
    Op(Op),
    /// Writes the next number to a slot, in two halves, as a copy does: this is the first.
    WriteFirst(usize),
    WriteSecond(usize),
    /// Reads a slot, in two halves: the first is to have the next number of that slot.
    ReadFirst(usize),
    ReadSecond(usize),
}

const WORDS: usize = 6;
const SLOTS: usize = 2;

/// Where everything is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    words: [u32; WORDS],
    slots: [[u8; 2]; SLOTS],
    written: [u8; SLOTS],
    read: [u8; SLOTS],
    next: Vec<usize>,
}

#[derive(Debug, PartialEq)]
enum Fault {
    /// A receiver read what was not the next transfer.
    Misread,
    /// No thread can go on, and not all are at their end.
    Stuck,
}

fn index(place: Place) -> usize {
    place.offset as usize / 4
}

impl State {
    /// The state behind a step; `None` while it has to wait.
    fn after(&self, step: &Step) -> Result<Option<State>, Fault> {
        let mut s = self.clone();
        match step {
            Step::Op(Op::Fence(_)) => {}
            Step::Op(Op::Store32 { to, value }) => s.words[index(*to)] = *value,
            Step::Op(Op::Add32 { to, value }) => {
                s.words[index(*to)] = s.words[index(*to)].wrapping_add(*value);
            }
            Step::Op(Op::Poll { at, until, value }) => {
                if !until.is_met(s.words[index(*at)], *value) {
                    return Ok(None);
                }
            }
            Step::Op(op) => panic!("the model has no {op:?}"),
            Step::WriteFirst(slot) => {
                s.written[*slot] += 1;
                s.slots[*slot][0] = s.written[*slot];
            }
            Step::WriteSecond(slot) => s.slots[*slot][1] = s.written[*slot],
            Step::ReadFirst(slot) => {
                s.read[*slot] += 1;
                if s.slots[*slot][0] != s.read[*slot] {
                    return Err(Fault::Misread);
                }
            }
            Step::ReadSecond(slot) => {
                if s.slots[*slot][1] != s.read[*slot] {
                    return Err(Fault::Misread);
                }
            }
        }
        Ok(Some(s))
    }
}

/// Goes through all interleavings from the state that `first` has; the number of states, or the first fault.
fn explore(first: [u32; WORDS], threads: &[Vec<Step>]) -> Result<usize, Fault> {
    let (slots, written, read) = ([[0; 2]; SLOTS], [0; SLOTS], [0; SLOTS]);
    let begin = State { words: first, slots, written, read, next: vec![0; threads.len()] };
    let (mut seen, mut todo) = (HashSet::from([begin.clone()]), vec![begin]);
    while let Some(state) = todo.pop() {
        let mut goes_on = false;
        for (t, steps) in threads.iter().enumerate() {
            let Some(step) = steps.get(state.next[t]) else { continue };
            let Some(mut after) = state.after(step)? else { continue };
            goes_on = true;
            after.next[t] += 1;
            if seen.insert(after.clone()) {
                todo.push(after);
            }
        }
        if !goes_on && threads.iter().zip(&state.next).any(|(steps, at)| *at < steps.len()) {
            return Err(Fault::Stuck);
        }
    }
    Ok(seen.len())
}

fn pair(n: u64) -> Pair {
    Pair { flag: word(2 * n), credit: word(2 * n + 1) }
}

fn ops(ops: impl IntoIterator<Item = Op>) -> impl Iterator<Item = Step> {
    ops.into_iter().map(Step::Op)
}

/// One transfer: what a graph has once, and an eager call queues.
fn send(pair: Pair, slot: usize) -> Vec<Step> {
    let write = [Step::WriteFirst(slot), Step::WriteSecond(slot)];
    ops(pair.acquire()).chain(write).chain(ops(pair.signal())).collect()
}

fn receive(pair: Pair, slot: usize) -> Vec<Step> {
    let read = [Step::ReadFirst(slot), Step::ReadSecond(slot)];
    ops(pair.wait()).chain(read).chain(ops(pair.release())).collect()
}

fn times(n: usize, graph: &[Step]) -> Vec<Step> {
    graph.iter().cycle().take(n * graph.len()).cloned().collect()
}

/// The words before the first transfer, of `pairs` pairs.
fn prepared(pairs: usize) -> [u32; WORDS] {
    let memory = crate::testing::TestMemory::new(WORDS);
    for n in 0..pairs as u64 {
        pair(n).prepare(&memory).unwrap();
    }
    std::array::from_fn(|i| memory.load32(word(i as u64)).unwrap())
}

#[test]
fn replays_run_ahead_or_lag_behind_and_nothing_is_misread() {
    let states =
        explore(prepared(1), &[times(5, &send(pair(0), 0)), times(5, &receive(pair(0), 0))]).unwrap();
    assert!(states > 50, "{states}");
}

#[test]
fn a_second_graph_and_eager_calls_in_between_are_transfers_like_others() {
    // The sender's graph has two exchanges and is launched, then an eager call, then a second graph of one,
    // then the first one again. The receiver's has one, launched as often.
    let (one, eager) = (send(pair(0), 0), send(pair(0), 0));
    let graph: Vec<Step> = times(2, &one);
    let sender = [graph.clone(), eager, one, graph].concat();
    let receiver = times(6, &receive(pair(0), 0));
    assert!(explore(prepared(1), &[sender, receiver]).is_ok());
}

#[test]
fn answers_go_back_and_forth_with_a_pair_each_way() {
    let ping = [send(pair(0), 0), receive(pair(1), 1)].concat();
    let pong = [receive(pair(0), 0), send(pair(1), 1)].concat();
    assert!(explore(prepared(2), &[times(4, &ping), times(4, &pong)]).is_ok());
}

#[test]
fn graphs_side_by_side_have_a_pair_each() {
    let threads = [
        times(3, &send(pair(0), 0)),
        times(3, &send(pair(1), 1)),
        times(3, &receive(pair(0), 0)),
        times(3, &receive(pair(1), 1)),
    ];
    assert!(explore(prepared(2), &threads).is_ok());
}

/// Two senders of one flag, side by side; the receiver waits for both, then uses both.
fn shared(wait: impl Fn(Shared) -> Vec<Op>) -> Result<usize, Fault> {
    let flag = Shared { flag: word(0) };
    let credits = [word(1), word(2)];
    let sender = |i: usize| {
        let write = [Step::WriteFirst(i), Step::WriteSecond(i)];
        let all: Vec<Step> = ops(flag.acquire(credits[i])).chain(write).chain(ops(flag.signal())).collect();
        times(3, &all)
    };
    let mut receiver: Vec<Step> = ops(wait(flag)).collect();
    for (i, credit) in credits.into_iter().enumerate() {
        receiver.extend([Step::ReadFirst(i), Step::ReadSecond(i)]);
        receiver.extend(ops(flag.release(credit)));
    }
    explore([0, 1, 1, 0, 0, 0], &[sender(0), sender(1), times(3, &receiver)])
}

#[test]
fn several_senders_raise_one_flag() {
    shared(|flag| flag.wait(2).to_vec()).unwrap();
}

// Broken twins: each must fail.

/// As a pair without the credit: the receiver resets the flag, and that is all.
fn reset_alone() -> [Vec<Step>; 2] {
    let pair = pair(0);
    let write = [Step::WriteFirst(0), Step::WriteSecond(0)];
    let send: Vec<Step> = write.into_iter().chain(ops(pair.signal())).collect();
    let read = [Step::ReadFirst(0), Step::ReadSecond(0)];
    let receive: Vec<Step> = ops(pair.wait()).chain(read).collect();
    [times(2, &send), times(2, &receive)]
}

#[test]
fn twin_with_reset_alone_fails() {
    assert!(explore(prepared(1), &reset_alone()).is_err());
    // Without data, signals are lost: the receiver waits for ever.
    let signals = reset_alone()
        .map(|steps| steps.into_iter().filter(|step| matches!(step, Step::Op(_))).collect::<Vec<_>>());
    assert_eq!(explore(prepared(1), &signals), Err(Fault::Stuck));
}

#[test]
fn twin_whose_wait_does_not_reset_fails() {
    let keeps = |steps: Vec<Step>, word: Place| -> Vec<Step> {
        let clears = |s: &Step| matches!(s, Step::Op(Op::Store32 { to, value: 0 }) if *to == word);
        steps.into_iter().filter(|s| !clears(s)).collect()
    };
    let receiver = keeps(receive(pair(0), 0), pair(0).flag);
    let threads = [times(2, &send(pair(0), 0)), times(2, &receiver)];
    assert_eq!(explore(prepared(1), &threads), Err(Fault::Misread));
    // The same of the credit.
    let sender = keeps(send(pair(0), 0), pair(0).credit);
    let threads = [times(3, &sender), times(3, &receive(pair(0), 0))];
    assert!(explore(prepared(1), &threads).is_err());
}

#[test]
fn twin_that_clears_the_flag_behind_the_credit_fails() {
    let [poll, clear, fence] = pair(0).wait();
    let read = [Step::ReadFirst(0), Step::ReadSecond(0)];
    let receiver: Vec<Step> =
        ops([poll, fence]).chain(read).chain(ops(pair(0).release())).chain(ops([clear])).collect();
    let threads = [times(2, &send(pair(0), 0)), times(2, &receiver)];
    assert_eq!(explore(prepared(1), &threads), Err(Fault::Stuck), "a signal is lost");
}

#[test]
fn twin_with_two_graphs_at_once_on_one_pair_fails() {
    let send = send(pair(0), 0);
    let threads = [send.clone(), send, times(2, &receive(pair(0), 0))];
    assert!(explore(prepared(1), &threads).is_err());
}

#[test]
fn twin_whose_receiver_resets_a_shared_flag_fails() {
    let reset = |flag: Shared| {
        let [poll, _, fence] = flag.wait(2);
        vec![poll, Op::Store32 { to: flag.flag, value: 1 }, fence]
    };
    assert!(shared(reset).is_err(), "a transfer counts twice");
    let keeps = |flag: Shared| vec![flag.wait(2)[0].clone()];
    assert!(shared(keeps).is_err());
}

#[test]
fn the_choice_is_by_senders_and_means_alone() {
    let means = |reduction, kernel| Means { memory_operations: true, reduction, kernel };
    for (senders, means, method) in [
        (Senders::One, means(true, true), Method::Alternation),
        (Senders::One, means(false, false), Method::Alternation),
        (Senders::Several, means(true, true), Method::Reduction),
        (Senders::Several, means(true, false), Method::Reduction),
        (Senders::Several, means(false, true), Method::Kernel),
    ] {
        let choice = choose(senders, means).unwrap();
        assert_eq!(choice.method, method, "{senders:?} {means:?}");
        let text = choice.to_string();
        assert!(text.contains(choice.why) && text.contains(": "), "{text}");
    }
    assert!(matches!(choose(Senders::Several, means(false, false)), Err(Error::NoMeans(_))));
    let none = Means { memory_operations: false, reduction: true, kernel: true };
    assert!(matches!(choose(Senders::One, none), Err(Error::NoMeans(_))));
}
