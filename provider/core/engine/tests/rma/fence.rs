//! FENCE: what it is posted with takes effect behind every earlier operation to that peer, whatever way each
//! of them takes, and however late each of them is.

use std::cell::Cell;
use std::rc::Rc;

use engine::{Atomic, Ctx, Error, OpFlags, Rma, What};
use hmem::{AtomicOp, Datatype, Span};
use testkit::*;

/// Bytes of an operation, at most.
const PART: usize = 4000;
/// Operations of a list, at most, and lists of a run.
const LIST: usize = 6;
const LISTS: usize = 4;

/// Numbers that are drawn.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A list, where it goes, and what is posted behind it.
struct List {
    /// Memory of the target's, and what is to be there.
    parts: Vec<(Span, Vec<u8>)>,
    /// Memory that what is posted behind it changes.
    mark: Span,
    received: bool,
    /// All of it was seen.
    over: bool,
}

impl List {
    /// Whether what is posted behind the list has begun to take effect.
    fn is_marked(&self, net: &Net) -> bool {
        self.received || net[1].look(self.mark, self.mark.len()).iter().any(|b| *b != 0)
    }

    fn is_there(&self, net: &Net) -> bool {
        self.parts.iter().all(|(at, want)| net[1].look(*at, want.len()) == *want)
    }
}

/// A run, with FENCE or without: whether what is posted behind a list was seen before the list.
struct Run {
    net: Net,
    dice: Dice,
    fence: OpFlags,
    lists: Vec<List>,
    overtaken: bool,
    /// Key of the next registration.
    key: u64,
}

impl Run {
    fn new(direct: Direct, seed: u64, fence: bool) -> Run {
        let mut dice = Dice(seed);
        let capacity = direct.least_capacity() + dice.one_of(&[0, 1, 4, 60]);
        let (rows, looks) = (dice.below(2) == 0, dice.below(2) == 0);
        let mut net = Net::with(2, Setup { direct, capacity, seed, rows, looks, ..Setup::default() });
        net.set_boards(dice.below(2) == 0);
        if direct == Direct::InCall && dice.below(2) == 0 {
            // Both sides copy what is long.
            net.exchange(100_000, 9);
        }
        net.hold(0, 1);
        let fence = if fence { OpFlags::FENCE } else { OpFlags::empty() };
        Run { net, dice, fence, lists: Vec::new(), overtaken: false, key: 1 }
    }

    /// One side does something, or something gets through; what is seen then has to be in order.
    fn step(&mut self) {
        match self.dice.below(5) {
            0 | 1 => self.net.let_pass(0, 1, 1),
            2 => {
                self.net[0].progress();
            }
            _ => {
                self.net[1].progress();
            }
        }
        self.look();
    }

    fn look(&mut self) {
        for c in self.net[1].rx().iter().filter(|c| c.what.contains(What::RECV)) {
            self.lists[c.ctx.0].received = true;
        }
        for list in self.lists.iter_mut().filter(|l| !l.over && l.is_marked(&self.net)) {
            list.over = list.is_there(&self.net);
            self.overtaken |= !list.over;
        }
    }

    /// Until it is taken.
    fn post(&mut self, mut post: impl FnMut(&mut Node) -> Result<(), Error>) {
        for _ in 0..100_000 {
            match post(&mut self.net[0]) {
                Ok(()) => return self.look(),
                Err(Error::Again) => self.step(),
                Err(e) => panic!("refused: {e}"),
            }
            let failed = self.net[0].tx().into_iter().find(|c| c.err.is_some());
            assert_eq!(failed, None);
        }
        panic!("never taken");
    }

    /// Memory of the target, a device's now and then, and its key.
    fn target(&mut self, len: usize) -> (Span, u64) {
        let memory = if self.dice.below(8) == 0 { self.net.device(len) } else { self.net.memory(1, len) };
        self.key += 1;
        self.net[1].share(memory, self.key);
        (memory, self.key)
    }

    /// Bytes of the initiator, a device's now and then.
    fn source(&mut self, bytes: &[u8]) -> Span {
        if self.dice.below(8) > 0 {
            return self.net.bytes(0, bytes);
        }
        let span = self.net.device(bytes.len());
        assert_eq!(hmem::write(&[span], 0, bytes), bytes.len());
        span
    }

    /// A write, an atomic or a read, and what it leaves at the target.
    fn post_one(&mut self, seed: usize) -> Option<(Span, Vec<u8>)> {
        let len = self.dice.one_of(&[1, 8, 100, 256, 257, 500, 1000, 3000, PART]);
        let (silent, delivery) = (OpFlags::INJECT, OpFlags::COMPLETION | OpFlags::DELIVERY);
        let flags = self.dice.one_of(&[OpFlags::COMPLETION, OpFlags::COMPLETION, silent, delivery]);
        let what = self.dice.below(8);
        let (memory, key) = self.target(if what == 0 { 8 } else { len });
        match what {
            0 => {
                let value = seed as u64 + 1;
                let operand = [self.net.bytes(0, &value.to_ne_bytes())];
                let (op, datatype, remote) = (AtomicOp::AtomicWrite, Datatype::Uint64, [there(0, 8, key)]);
                let atomic = Atomic {
                    to: 1,
                    op,
                    datatype,
                    operand: &operand,
                    compare: &[],
                    result: &[],
                    remote: &remote,
                    data: None,
                    ctx: Ctx(0),
                    flags,
                };
                self.post(|node| node.atomic(&atomic));
                Some((memory, value.to_ne_bytes().to_vec()))
            }
            1 => {
                let (into, remote) = (self.net.memory(0, len), [there(0, len, key)]);
                self.post(|node| node.rma(&read(1, &[into], &remote, 0)));
                None
            }
            _ => {
                let bytes = pattern(len, seed + 1);
                let from = self.source(&bytes);
                let half = len / 2;
                let two = [there(0, half, key), there(half as u64, len - half, key)];
                let one = [there(0, len, key)];
                let remote = if what == 2 && half > 0 { &two[..] } else { &one };
                let data = (what == 3).then_some(7);
                self.post(|node| node.rma(&Rma { data, flags, ..write(1, &[from], remote, 0) }));
                Some((memory, bytes))
            }
        }
    }

    /// What stands for the list, with the flag that is tested.
    fn post_mark(&mut self, mark: Span, key: u64, at: usize) {
        let len = mark.len();
        let (fence, dice) = (self.fence, &mut self.dice);
        let flags = fence | dice.one_of(&[OpFlags::COMPLETION, OpFlags::INJECT]);
        let what = dice.below(4);
        let ones = self.net.bytes(0, &vec![1; len]);
        match what {
            0 => {
                let room = self.net.memory(1, 8);
                self.net[1].recv(&from_any(&[room], at)).unwrap();
                let iov = [ones.part(0, 8).unwrap()];
                self.post(|node| node.send(&engine::Send { flags, ..msg(1, &iov, 0) }));
            }
            1 => {
                let (operand, remote) = ([ones.part(0, 8).unwrap()], [there(0, 8, key)]);
                let atomic = Atomic {
                    to: 1,
                    op: AtomicOp::AtomicWrite,
                    datatype: Datatype::Uint64,
                    operand: &operand,
                    compare: &[],
                    result: &[],
                    remote: &remote,
                    data: None,
                    ctx: Ctx(0),
                    flags,
                };
                self.post(|node| node.atomic(&atomic));
            }
            2 => self.post(|node| node.rma(&Rma { flags, ..write(1, &[ones], &[there(0, len, key)], 0) })),
            _ => {
                let two = [there(0, 4, key), there(4, len - 4, key)];
                self.post(|node| node.rma(&Rma { flags, ..write(1, &[ones], &two, 0) }));
            }
        }
    }

    /// Whether a list was overtaken.
    fn all(mut self) -> bool {
        for at in 0..LISTS {
            let n = 1 + self.dice.below(LIST);
            let parts = (0..n).filter_map(|i| self.post_one(at * LIST + i)).collect();
            let len = self.dice.one_of(&[8, 8, 8, 300, PART]);
            self.key += 1;
            let (mark, key) = (self.net.memory(1, len), self.key);
            self.net[1].share(mark, key);
            self.lists.push(List { parts, mark, received: false, over: false });
            self.post_mark(mark, key, at);
            for _ in 0..self.dice.below(20) {
                self.step();
            }
        }
        // The rest, one by one, as far as that goes; and then whatever is left.
        for _ in 0..2000 {
            if self.lists.iter().all(|l| l.over) {
                break;
            }
            self.step();
        }
        self.net.let_pass(0, 1, usize::MAX);
        self.net.settle();
        self.look();
        assert!(self.net[0].tx().iter().all(|c| c.err.is_none()));
        assert!(self.lists.iter().all(|l| l.is_marked(&self.net) && l.is_there(&self.net)));
        self.net.assert_idle();
        self.overtaken
    }
}

fn overtaken(direct: Direct, fence: bool) -> Vec<u64> {
    (0..RUNS).filter(|seed| Run::new(direct, *seed, fence).all()).collect()
}

const RUNS: u64 = 100;

#[test]
fn nothing_is_seen_before_what_it_was_fenced_from() {
    for direct in Direct::ALL {
        assert_eq!(overtaken(direct, true), [0; 0], "{direct:?}");
    }
}

/// The same without the flag, so that the test above is known to see what it looks for.
#[test]
fn without_a_fence_it_is_seen_before_on_every_kind_of_link() {
    for direct in Direct::ALL {
        let n = overtaken(direct, false).len();
        assert!(n > 0, "{direct:?}: {n} of {RUNS} runs");
    }
}

/// GPI-2 writes its data and the notification of them by one operation of two elements. Neither side copies a
/// later part while the other one is at an earlier one.
#[test]
fn the_elements_of_a_write_take_effect_in_their_order() {
    for len in [100, 3000, 100_000, 300_000, 5 << 20] {
        let mut net = Net::with(2, Setup::default());
        net.exchange(100_000, 9);
        let (target, mark) = (net.memory(0, len), net.memory(0, 8));
        net[0].share(target, 1);
        net[0].share(mark, 2);
        let want = pattern(len, 3);
        for warm in [true, false] {
            let (from, ones) = (net.bytes(1, &want), net.bytes(1, &[1; 8]));
            let (iov, two) = ([from, ones], [there(0, len, 1), there(0, 8, 2)]);
            hmem::write(&[target, mark], 0, &vec![0; len + 8]);
            net[1].rma(&Rma { flags: FENCED, ..write(0, &iov, &two, 1) }).unwrap();
            let all = want.clone();
            let overtaken = Rc::new(Cell::new(false));
            let seen = Rc::clone(&overtaken);
            let other = move |node: &mut Node| {
                node.progress();
                let (mut first, mut rest) = ([0; 8], vec![0; all.len()]);
                hmem::read(&[mark], 0, &mut first);
                hmem::read(&[target], 0, &mut rest);
                seen.set(seen.get() || first != [0; 8] && rest != all);
            };
            if warm {
                net.settle();
            } else {
                net.while_copying(0, 1, other, |node| while node.progress() > 0 {});
                net.settle();
            }
            assert!(!overtaken.get(), "{len}: the second element was seen before the first");
            assert!(net[0].look(target, len) == want && net[0].look(mark, 8) == [1; 8]);
            assert_eq!(net[1].sent().err, None);
        }
        net.assert_idle();
    }
}

/// The same where operations end later, and an adapter begins with any part of one; and in frames.
#[test]
fn the_elements_of_a_write_take_effect_in_their_order_by_every_kind_of_link() {
    const LEN: usize = 5000;
    for (direct, seed) in Direct::ALL.into_iter().flat_map(|d| (0..40).map(move |seed| (d, seed))) {
        let mut net = Net::with(2, Setup { direct, seed, ..Setup::default() });
        let (target, mark) = (net.memory(1, LEN), net.memory(1, 8));
        net[1].share(target, 1);
        net[1].share(mark, 2);
        let (from, ones) = (net.bytes(0, &pattern(LEN, 3)), net.bytes(0, &[1; 8]));
        let (iov, two) = ([from, ones], [there(0, LEN, 1), there(0, 8, 2)]);
        net[0].rma(&Rma { flags: FENCED, ..write(1, &iov, &two, 1) }).unwrap();
        let mut dice = Dice(seed);
        while net[1].look(mark, 8) == [0; 8] {
            net[dice.below(2)].progress();
        }
        assert!(net[1].look(target, LEN) == pattern(LEN, 3), "{direct:?} {seed}");
        net.settle();
        assert_eq!(net[0].sent().err, None);
        net.assert_idle();
    }
}

const FENCED: OpFlags = OpFlags::COMPLETION.union(OpFlags::FENCE);
