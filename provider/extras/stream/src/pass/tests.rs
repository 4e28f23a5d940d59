//! All orders of what the blocks of two kernels and the watchdogs do, as the kernel of [`super`] does it.

use std::collections::HashSet;
use std::hash::Hash;

use super::*;
use crate::slots::{LEAST, ONE_PART, PUT_BLOCKS};

mod answers;
mod puts;

const SLOTS: usize = 2;
const BLOCKS: usize = 2;
const MESSAGES: usize = 2;
/// Of each message: parts, and how many of them a slot has. A slot has two words, each with memory of its own.
const SHAPES: [[(usize, usize); MESSAGES]; 2] = [[(3, 2), (3, 1)], [(3, 1), (4, 2)]];
const WORDS: usize = 2 * SLOTS;

/// What a broken twin does otherwise.
#[derive(Clone, Copy, PartialEq)]
enum Twin {
    None,
    /// Blocks take parts in turn: two of them have one slot.
    ByPart,
    /// The word that was waited for is cleared behind the one that is raised.
    ClearsLate,
    /// A sender that finds the error word raises its flag, as a stream does behind a kernel.
    RaisesAlways,
    /// A wait ends by the word alone.
    NoError,
    /// A part that has a slot for itself is where the slot's other words have theirs, too.
    OneMemory,
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Before it loads the error word, of a receive; polls; has taken the word; has looked at the error word;
    /// has copied; has raised.
    Begin,
    Poll,
    Taken,
    Looked,
    Copied,
    Raised,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Block {
    message: usize,
    /// Of those that the block has.
    nth: usize,
    at: At,
    /// The error word as it was loaded last, or what the first block says of it.
    error: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// Flags, and credits, of each slot.
    words: [[bool; WORDS]; 2],
    slots: [(usize, usize); WORDS],
    shapes: usize,
    /// The error words of the sender and of the receiver.
    errors: [bool; 2],
    blocks: [[Block; BLOCKS]; 2],
    /// What the watchdog has done: nothing, the peer's error word, both.
    watchdog: usize,
    /// What the first block of a kernel says of the error word; it is unsaid when the kernel ends.
    says: [Option<bool>; 2],
}

#[derive(Debug, PartialEq)]
enum Fault {
    Misread,
    Stuck,
}

/// The parts of a message that a block has, with their words.
fn parts_of(twin: Twin, block: usize, shapes: usize, message: usize) -> Vec<(usize, usize)> {
    let taken = |(parts, of_slot): (usize, usize)| parts.div_ceil(of_slot);
    let first: usize = SHAPES[shapes][..message].iter().copied().map(taken).sum();
    let (parts, of_slot) = SHAPES[shapes][message];
    let of = |p: usize| if twin == Twin::ByPart { p / 2 % BLOCKS } else { p % (SLOTS * of_slot) % BLOCKS };
    let word = |p: usize| (first + p / of_slot) % SLOTS * 2 + p % of_slot;
    (0..parts).filter(|p| of(*p) == block).map(|p| (p, word(p))).collect()
}

impl State {
    /// Whether a block that receives finds that the endpoint has failed; the first one has looked.
    fn known(&self, b: Block, side: usize, block: usize) -> bool {
        if block == 0 { b.error } else { self.says[side].unwrap_or(self.errors[side]) }
    }

    /// What comes of the next step of a block; empty: it waits, or has ended.
    fn step(&self, twin: Twin, side: usize, block: usize) -> Result<Vec<State>, Fault> {
        let b = self.blocks[side][block];
        // Kernels of a stream are one after the other.
        if b.message == MESSAGES || self.blocks[side].iter().any(|other| other.message < b.message) {
            return Ok(Vec::new());
        }
        let parts = parts_of(twin, block, self.shapes, b.message);
        let ends = |s: &mut State, b: &mut Block| {
            *b = Block { message: b.message + 1, nth: 0, at: At::Begin, error: false };
            let is_last = (0..BLOCKS).all(|n| n == block || s.blocks[side][n].message == b.message);
            s.says[side] = s.says[side].filter(|_| !is_last);
        };
        let with = |change: &dyn Fn(&mut State, &mut Block)| {
            let (mut s, mut of) = (self.clone(), b);
            change(&mut s, &mut of);
            s.blocks[side][block] = of;
            s
        };
        let Some((part, slot)) = parts.get(b.nth).copied() else {
            return Ok(vec![with(&|s, b| ends(s, b))]);
        };
        let sends = side == 0;
        // A sender waits for credits.
        let (waits, raises) = if sends { (1, 0) } else { (0, 1) };
        let failed = self.errors[side];
        let leaves = |s: &mut State, b: &mut Block| {
            if twin == Twin::RaisesAlways && sends {
                s.words[raises][slot] = true;
            }
            ends(s, b);
        };
        Ok(match b.at {
            At::Begin if block == 0 => vec![with(&|s, b| {
                s.says[side] = Some(failed);
                (b.at, b.error) = (At::Poll, failed && !sends);
            })],
            At::Begin => vec![with(&|_, b| b.at = At::Poll)],
            // It looks before it takes the word of a receive.
            At::Poll
                if block > 0 && !sends && !failed && self.words[waits][slot] && self.says[side].is_none() =>
            {
                Vec::new()
            }
            At::Poll if self.words[waits][slot] => match !sends && self.known(b, side, block) {
                true => vec![with(&leaves)],
                false => vec![with(&|s, b| {
                    b.at = At::Taken;
                    s.words[waits][slot] = twin == Twin::ClearsLate;
                })],
            },
            At::Poll if failed && twin != Twin::NoError => vec![with(&leaves)],
            At::Poll => Vec::new(),
            At::Taken if block == 0 => vec![with(&|s, b| {
                (b.at, b.error) = (At::Looked, failed);
                s.says[side] = Some(failed);
            })],
            // The first block has yet to say it, of a send; or it takes too long, and the block looks itself.
            At::Taken if self.says[side].is_none() && !failed => Vec::new(),
            At::Taken => vec![with(&|s, b| (b.at, b.error) = (At::Looked, s.says[side].unwrap_or(true)))],
            At::Looked => {
                let number = (b.message, part);
                if !sends && self.slots[slot] != number {
                    return Err(Fault::Misread);
                }
                vec![with(&|s, b| {
                    b.at = At::Copied;
                    if sends {
                        s.slots[slot] = number;
                        if twin == Twin::OneMemory && SHAPES[s.shapes][b.message].1 == 1 {
                            s.slots[slot + 1] = number;
                        }
                    }
                })]
            }
            At::Copied => vec![with(&|s, b| {
                b.at = At::Raised;
                if !b.error || twin == Twin::RaisesAlways {
                    s.words[raises][slot] = true;
                }
            })],
            At::Raised => vec![with(&|s, b| {
                if twin == Twin::ClearsLate {
                    s.words[waits][slot] = false;
                }
                (b.nth, b.at) = (b.nth + 1, At::Poll);
            })],
        })
    }
}

/// Goes through all orders. `fails`: a watchdog of that side fails the endpoint at any time.
fn explore(twin: Twin, fails: Option<usize>) -> Result<usize, Fault> {
    let each: Result<Vec<usize>, Fault> =
        (0..SHAPES.len()).map(|shapes| explore_one(twin, fails, shapes)).collect();
    each.map(|seen| seen.into_iter().sum())
}

fn explore_one(twin: Twin, fails: Option<usize>, shapes: usize) -> Result<usize, Fault> {
    let block = Block { message: 0, nth: 0, at: At::Begin, error: false };
    let begin = State {
        words: [[false; WORDS], [true; WORDS]],
        slots: [(9, 9); WORDS],
        shapes,
        errors: [false; 2],
        blocks: [[block; BLOCKS]; 2],
        watchdog: 0,
        says: [None; 2],
    };
    let steps = |state: &State| {
        let sides = (0..2).flat_map(|side| (0..BLOCKS).map(move |block| (side, block)));
        let all = sides.map(|(side, block)| state.step(twin, side, block)).collect::<Result<Vec<_>, _>>();
        all.map(|all| all.into_iter().flatten().collect())
    };
    let has_ended = |state: &State| state.blocks.iter().flatten().all(|b| b.message == MESSAGES);
    explore_from(begin, fails, steps, |state| (&mut state.errors, &mut state.watchdog), has_ended)
}

/// Goes through all orders of `steps` and of a watchdog, which fails the endpoint of that side at any time; how
/// many states there are.
fn explore_from<S: Clone + Eq + Hash>(
    begin: S,
    fails: Option<usize>,
    steps: impl Fn(&S) -> Result<Vec<S>, Fault>,
    watchdog: impl Fn(&mut S) -> (&mut [bool; 2], &mut usize),
    has_ended: impl Fn(&S) -> bool,
) -> Result<usize, Fault> {
    let (mut seen, mut todo) = (HashSet::from([begin.clone()]), vec![begin]);
    while let Some(state) = todo.pop() {
        let mut after = steps(&state)?;
        let mut failed = state.clone();
        let (errors, done) = watchdog(&mut failed);
        if let Some(side) = fails.filter(|_| *done < 2) {
            errors[if *done == 0 { 1 - side } else { side }] = true;
            *done += 1;
            after.push(failed);
        }
        if after.is_empty() && !has_ended(&state) {
            return Err(Fault::Stuck);
        }
        todo.extend(after.into_iter().filter(|s| seen.insert(s.clone())));
    }
    Ok(seen.len())
}

#[test]
fn each_part_arrives_once_by_whatever_order_of_blocks() {
    assert!(explore(Twin::None, None).unwrap() > 1000);
}

#[test]
fn every_wait_ends_when_a_watchdog_fails_the_endpoint_and_no_part_is_misread() {
    for side in 0..2 {
        assert!(explore(Twin::None, Some(side)).unwrap() > 1000);
    }
}

#[test]
fn twins_fail() {
    assert_eq!(explore(Twin::ByPart, None), Err(Fault::Misread), "two blocks of one slot");
    assert!(explore(Twin::ClearsLate, None).is_err(), "a word that is cleared late is lost");
    let raises: Vec<bool> = (0..2).map(|side| explore(Twin::RaisesAlways, Some(side)).is_err()).collect();
    assert!(raises.contains(&true), "a flag without its part");
    assert_eq!(explore(Twin::NoError, Some(0)), Err(Fault::Stuck), "a wait that looks at its word alone");
    assert_eq!(explore(Twin::OneMemory, None), Err(Fault::Misread), "two words with one memory");
}

/// The lane's word of two blocks that wait: a block says its own if none is said, and takes its own back.
/// Whether a wait can be left unsaid for ever, or said when all have left.
fn said(says_again: bool, own_alone: bool) -> bool {
    // The word; of each block: where it is, and what it has loaded.
    type Said = (u32, [(u8, u32); 2]);
    let begin: Said = (0, [(0, 0); 2]);
    let (mut seen, mut todo) = (HashSet::from([begin]), vec![begin]);
    while let Some((word, blocks)) = todo.pop() {
        for n in 0..2 {
            let own = n as u32 + 1;
            let (at, loaded) = blocks[n];
            let mut go = |word: u32, at: u8, loaded: u32| {
                let mut blocks = blocks;
                blocks[n] = (at, loaded);
                if seen.insert((word, blocks)) {
                    todo.push((word, blocks));
                }
            };
            match at {
                // Looks; says; waits on; leaves.
                0 => go(word, 1, word),
                1 if loaded == 0 => go(own, 2, 0),
                1 => go(word, 2, 0),
                2 => {
                    if says_again {
                        go(word, 0, 0);
                    }
                    go(word, 3, 0);
                }
                3 => go(word, 4, word),
                4 => go(if loaded == own || !own_alone { 0 } else { word }, 5, 0),
                _ => {}
            }
        }
        let waits = |b: &(u8, u32)| b.0 == 2;
        let left = |b: &(u8, u32)| b.0 == 5;
        let unsaid = word == 0 && blocks.iter().all(|b| waits(b) || left(b)) && blocks.iter().any(waits);
        if blocks.iter().all(left) && word != 0 || unsaid && !says_again {
            return true;
        }
    }
    false
}

#[test]
fn a_wait_is_said_again_until_it_is_over_and_the_word_is_0_behind_the_last_one() {
    assert!(!said(true, true));
    assert!(said(false, true), "the twin that says it once is left unsaid by the end of another");
}

/// Which bytes of a slot a part has, and which word.
fn within(layout: &Layout, s: &Slots, part: u32) -> (usize, usize, u32) {
    let (slot, word) = s.place(part);
    assert!(slot < s.count && word < crate::layout::WORDS);
    let begin = s.at + word as usize * s.cell;
    assert!(begin + s.part <= layout.device_stride());
    (begin, begin + s.part, word)
}

#[test]
fn the_parts_of_a_message_are_all_of_it_and_it_takes_a_slot_for_each_slot_bytes_at_most() {
    for (slots, slot_bytes) in
        [(5, 48), (1, 16), (32, 65536), (7, 4096), (1, 262_144), (3, 1 << 20), (9, 100_000)]
    {
        let layout = Layout { slots, slot_bytes, signals: 1 };
        // The bytes of each word, by any message.
        let mut words: Vec<Option<(usize, usize)>> = vec![None; crate::layout::WORDS as usize];
        let near = [slot_bytes as usize - 16, slot_bytes as usize, slot_bytes as usize + 16];
        let any = [0, 1, 16, 1023, LEAST, LEAST + 1, ONE_PART + 1, 65536, 131_072, 300_000, 600_001, 1 << 20];
        for len in near.into_iter().chain(any).chain([2 << 20, (9 << 20) + 7, 64 << 20]) {
            let s = Slots::of(&layout, 0, slots - 1, len);
            let parts = s.parts as usize;
            assert!(parts * s.part >= len && (parts - 1) * s.part <= len, "{len}: {s:?}");
            assert!(s.part % 16 == 0 && s.cell % 16 == 0 && s.blocks() <= s.count << s.shift);
            let most = len.div_ceil(slot_bytes as usize).max(1) as u32;
            assert!(s.taken() <= most, "{len} of {slot_bytes}: {s:?}");
            for part in 0..s.parts.min(64) {
                let (begin, end, word) = within(&layout, &s, part);
                let of = words[word as usize].get_or_insert((begin, end));
                *of = (of.0.min(begin), of.1.max(end));
            }
        }
        let mut all: Vec<(usize, usize)> = words.into_iter().flatten().collect();
        all.sort_unstable();
        assert!(
            all.windows(2).all(|two| two[0].1 <= two[1].0),
            "{slot_bytes}: words with one memory: {all:?}"
        );
    }
    // What was measured: parts of 8 KiB and more, by as many blocks.
    let layout = Layout { slots: 32, slot_bytes: 65536, signals: 1 };
    let of = |len: usize| Slots::of(&layout, 0, 0, len);
    let shape = |len| (of(len).part >> 10, of(len).parts, of(len).taken());
    assert_eq!([32, 64, 128].map(|kib| shape(kib << 10)), [(32, 1, 1), (8, 8, 1), (8, 16, 2)]);
    assert_eq!([256, 1024, 2048].map(|kib| shape(kib << 10)), [(16, 16, 4), (64, 16, 16), (128, 16, 16)]);
}

#[test]
fn a_block_that_fails_has_a_fence_before_it_says_that_it_has_left() {
    let text = module();
    for (size, ..) in WIDTHS {
        let label = |name: &str| text.find(&format!("{name}{size}:")).unwrap();
        let (said, count) = (label("SAID"), label("COUNT"));
        // Any failure goes through here, and nothing else leads from a failure to the count and the end.
        assert!(text[said..count].contains("membar.sys;") && !text[said..count].contains("bra "));
        let before = &text[label("DONE")..said];
        assert_eq!(before.matches(&format!("bra COUNT{size}")).count(), 1, "where nothing failed");
        assert!(!before.contains(&format!("bra ENDED{size}")));
    }
}

#[test]
fn the_parts_of_a_put_are_all_of_it_one_behind_another() {
    for len in [0, 1, 4096, ONE_PART, ONE_PART + 1, 65536, 70_001, 262_144, 1 << 20, (9 << 20) + 7, 64 << 20]
    {
        let s = Slots::spread(16, len, PUT_BLOCKS);
        let parts = s.parts as usize;
        assert!(
            parts * s.part >= len && (parts - 1) * s.part <= len && s.blocks() == s.parts,
            "{len}: {s:?}"
        );
        assert!(s.is_joint() == (parts > 1) && (parts == 1 || s.count == s.parts && s.part % 16 == 0));
        assert!((0..s.parts).all(|part| s.place(part) == (part, 0)));
        let whole = s.whole(len);
        assert!(whole.parts == 1 && whole.part >= len && !whole.is_joint() && whole.at == 16);
        // A block's wait has a code of its own.
        assert!((s.parts as usize) << WORD_AT < 1 << 24);
    }
    for (slots, slot_bytes) in [(1, 16), (32, 65536), (1024, 16), (3, 1 << 20)] {
        let layout = Layout { slots, slot_bytes, signals: 1024 };
        assert!(layout.lines() < 1 << WORD_AT);
        for len in [0, 16, 65536, 300_000, 64 << 20] {
            assert!(!Slots::of(&layout, 0, 0, len).is_joint(), "{len}: a message has a word for each part");
        }
    }
}
