//! Devices that write anything: nothing outside of what a ring may name is touched, every command ends, and
//! the drain goes on.

mod common;

use std::sync::atomic::Ordering::{Acquire, Release};

use common::{Pair, put, signal};
use hmem::Span;
use xpu::command::{Limits, Local, Op, Raw, Work};
use xpu::error::code;
use xpu::layout::{ANY, NO_REGION, SLOT_WORDS, flag};

/// A region of 64 bytes.
fn region() -> Span {
    Span::leak(64)
}

fn refused(raw: Raw, regions: &[Option<Span>]) -> i32 {
    raw.check(&Limits { peers: 2, regions, message: Some(32) }).unwrap_err()
}

#[test]
fn each_field_is_checked() {
    let (of, closed) = (region(), None);
    let regions = [Some(of), closed];
    let good = Raw { op: Op::Put as u8, peer: 1, local: of.addr(), length: 64, ..Raw::default() };
    assert!(good.check(&Limits { peers: 2, regions: &regions, message: Some(32) }).is_ok());
    let (put, send) = (Op::PutSignal as u8, Op::Send as u8);
    for (bad, why, what) in [
        (Raw { op: 0, ..good }, code::NOSYS, "no operation"),
        (Raw { op: 13, ..good }, code::NOSYS, "an unknown operation"),
        (Raw { flags: 0x100, ..good }, code::BADFLAGS, "an unknown flag"),
        (Raw { flags: flag::SIGNAL_ADD, ..good }, code::BADFLAGS, "a flag of another operation"),
        (Raw { op: Op::Recv as u8, flags: flag::FENCE, ..good }, code::BADFLAGS, "a fenced receive"),
        (Raw { op: Op::Nop as u8, flags: flag::FENCE, ..good }, code::BADFLAGS, "a fenced nop"),
        (Raw { peer: 2, ..good }, code::ADDRNOTAVAIL, "an unknown peer"),
        (Raw { peer: ANY, ..good }, code::ADDRNOTAVAIL, "no peer"),
        (Raw { region: 2, ..good }, code::NOMR, "an unknown region"),
        (Raw { region: 1, ..good }, code::NOMR, "a region that was closed"),
        (Raw { region: NO_REGION, ..good }, code::NOMR, "no region"),
        (Raw { length: 65, ..good }, code::FAULT, "one byte too many"),
        (Raw { local: of.addr() - 1, length: 1, ..good }, code::FAULT, "one byte too early"),
        (Raw { local: u64::MAX, length: 2, ..good }, code::FAULT, "around the end of all addresses"),
        (
            Raw { flags: flag::INLINE_DATA, region: NO_REGION, length: 9, ..good },
            code::INVAL,
            "too many in itself",
        ),
        (Raw { flags: flag::INLINE_DATA, length: 8, ..good }, code::INVAL, "both in itself and in a region"),
        (Raw { op: send, length: 33, ..good }, code::MSGSIZE, "too long a message"),
        (Raw { op: put, operand: 4, ..good }, code::INVAL, "a signal across two words"),
        (
            Raw { op: put, flags: flag::SIGNAL_32, value: 1 << 32, ..good },
            code::INVAL,
            "a value that is too long",
        ),
        (Raw { op: Op::Atomic as u8, length: 1 << 16, ..good }, code::INVAL, "more than one element"),
        (
            Raw { op: Op::Atomic as u8, length: 11 | 2 << 8, ..good },
            code::OPNOTSUPP,
            "an element of 16 bytes",
        ),
        (
            Raw { op: Op::Atomic as u8, length: 7 | 12 << 8, ..good },
            code::OPNOTSUPP,
            "one that compares, without",
        ),
        (
            Raw { op: Op::Fetch as u8, length: 7 | 2 << 8, local: of.addr() + 60, ..good },
            code::FAULT,
            "its result outside",
        ),
    ] {
        assert_eq!(refused(bad, &regions), why, "{what}");
    }
}

/// What a check lets through is inside.
#[test]
fn any_words_make_nothing_that_is_outside() {
    let of = region();
    let regions = [Some(of), None, Some(of.part(8, 8).unwrap())];
    bolero::check!().with_type::<([u64; SLOT_WORDS], u8, u8)>().for_each(|(words, op, near)| {
        let mut raw = Raw::of(words);
        assert_eq!(Raw::of(&raw.pack(words[0] >> 63)), raw, "what is packed comes back");
        // Otherwise next to none would get far.
        raw.op = *op % 14;
        raw.region %= 4;
        raw.peer %= 3;
        if *near > 64 {
            raw.local = of.addr().wrapping_add(u64::from(*near) % 72).wrapping_sub(4);
            raw.length %= 80;
            raw.flags &= flag::ALL;
        }
        let Ok(command) = raw.check(&Limits { peers: 2, regions: &regions, message: Some(32) }) else {
            return;
        };
        let inside =
            |s: Span| s.is_empty() || s.addr() >= of.addr() && s.addr() + s.len() as u64 <= of.addr() + 64;
        let local = |l: Local| match l {
            Local::Memory(s) => assert!(inside(s)),
            Local::Inline(_, len) => assert!(len <= 8),
        };
        match command.work {
            Work::Put { local: l, .. } | Work::Send { local: l, .. } => local(l),
            Work::Get { local: s, .. } | Work::Recv { local: s, .. } => assert!(inside(s)),
            Work::Atomic { result, datatype, .. } => {
                assert!(
                    datatype.size() <= 8 && result.is_none_or(|s| inside(s) && s.len() == datatype.size())
                );
            }
            Work::Signal(_) | Work::Nop => {}
        }
    });
}

/// A generator that is the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn the_drain_goes_on_after_any_commands_and_each_ends() {
    let pair = Pair::with(|r| r.log2_entries = Some(4));
    let read = pair.ring.read.clone().unwrap();
    let entries = pair.ring.entries.clone().unwrap();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    // The queue is read, so that it does not stop the ring.
    let read_on = || {
        let read = read.words.get(read.at);
        let seen = read.load(Acquire);
        let commit = entries.words.get(entries.at + (seen % 16) as usize * 8 + 7);
        if commit.load(Acquire) == seen + 1 {
            read.store(seen + 1, Release);
        }
    };
    for _ in 0..2_000 {
        let mut raw = put(&pair, 0, 0, 4, None);
        // Any field may be anything; remote ones go as they are to the target, which checks them.
        for _ in 0..=random.next() % 3 {
            let value = random.next() >> (random.next() % 64);
            match random.next() % 10 {
                0 => raw.op = value as u8,
                1 => raw.flags = value as u16 & flag::ALL,
                2 => raw.peer = value as u32,
                3 => raw.region = value as u32 & NO_REGION,
                4 => raw.local = raw.local.wrapping_add(value),
                5 => raw.remote = raw.remote.wrapping_add(value),
                6 => raw.key = value,
                7 => raw.length = value,
                8 => raw.operand = value,
                _ => raw.op = (value % 9) as u8,
            }
        }
        // A message that nothing receives would end with its peer.
        if raw.op == Op::Send as u8 || raw.op == Op::Tsend as u8 {
            raw.op = 0;
        }
        common::until(|| {
            read_on();
            pair.producer.post(&[raw]).is_some()
        });
    }
    common::until(|| {
        read_on();
        pair.producer.done() == 2_000
    });
    assert!(pair.producer.failed() > 100 && pair.producer.error() != 0);
    assert_eq!(pair.producer.error() >> 63, 0, "the ring has ended");
    // An honest one after all of that; weak, since not all that it would come after has arrived.
    pair.producer.post(&[signal(&pair, 70, 4711, flag::SIGNAL_WEAK)]).unwrap();
    common::until(|| pair.theirs.get(70).load(Acquire) == 4711);
}

#[test]
fn slots_that_no_producer_wrote_as_it_should_are_commands_as_any() {
    let pair = Pair::new();
    // Whatever is in a slot's words, once all have the lap bit it is a command; with some of them, none.
    let ring = &pair.ring;
    let slots = ring.slots();
    (0..7).for_each(|at| slots.words.get(slots.at + at).store(u64::MAX, Release));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(pair.producer.done(), 0, "half a command was taken");
    slots.words.get(slots.at + 7).store(u64::MAX, Release);
    common::until(|| pair.producer.done() == 1);
    assert_eq!(pair.producer.error() as u32 as i32, code::NOSYS);
}

/// A device that has read what is not written ends its queue, and with it the ring: its waits end.
#[test]
fn a_ring_ends_with_its_queue() {
    let pair = Pair::with(|r| r.log2_entries = Some(1));
    let read = pair.ring.read.clone().unwrap();
    read.words.get(read.at).store(99, Release);
    let raw = Raw { op: Op::Nop as u8, flags: flag::COMPLETION, ..Raw::default() };
    for _ in 0..4 {
        pair.producer.post(&[raw]);
    }
    common::until(|| pair.producer.error() & xpu::layout::ERROR_ENDED != 0);
}
