//! The ring under loom: two producers, one drain, two laps of a ring of one slot, with a twin for each thing
//! that the protocol relies on.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ipc::word::Wide;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::twin::{Twin, WideTwin};

/// Slots of two words: what eight are for is the same, and loom has less to look through.
const WORDS: usize = 2;
/// Commands in all: the second is of the second lap.
const COMMANDS: u64 = 2;

struct Shared {
    slot: [WideTwin; WORDS],
    reserved: WideTwin,
    consumed: WideTwin,
    /// What the commands name; that of ticket t.
    memory: [UnsafeCell<u64>; COMMANDS as usize],
    by_first_word: bool,
    keeps_to_consumed: bool,
}

impl Shared {
    /// As `put`, of fewer words.
    fn put(&self, ticket: u64) {
        let word = ticket + 5 | lap(ticket, 0) << LAP_BIT;
        self.slot.iter().for_each(|w| w.store(word, Release));
    }

    /// As `take`.
    fn take(&self, ticket: u64) -> Option<[u64; WORDS]> {
        let mut words = [0; WORDS];
        for (i, to) in words.iter_mut().enumerate() {
            *to = self.slot[i].load(Acquire);
            if *to >> LAP_BIT != lap(ticket, 0) && (i == 0 || !self.by_first_word) {
                return None;
            }
        }
        Some(words)
    }

    /// One command, if there is room for it now.
    fn produce(&self) {
        let ticket = if self.keeps_to_consumed {
            reserve(&self.reserved, &self.consumed, 1, 0)
        } else {
            let at = self.reserved.load(Relaxed);
            self.reserved.compare_exchange(at, at + 1).is_ok().then_some(at)
        };
        if let Some(ticket) = ticket {
            // SAFETY: the ticket is this producer's; the drain reads after it has taken the command.
            self.memory[ticket as usize].with_mut(|m| unsafe { *m = ticket + 40 });
            self.put(ticket);
        }
    }

    /// Takes the command of this ticket, if it is there.
    fn drain(&self, ticket: u64) -> bool {
        let Some(words) = self.take(ticket) else { return false };
        let words = words.map(|w| w & !(1 << LAP_BIT));
        assert_eq!(words, [ticket + 5; WORDS], "words of two commands");
        // SAFETY: the command has been taken, so its producer is done with the memory.
        let seen = self.memory[ticket as usize].with(|m| unsafe { *m });
        assert_eq!(seen, ticket + 40);
        self.consumed.store(ticket + 1, Release);
        true
    }
}

struct Broken {
    words: Twin,
    reserved: Twin,
    by_first_word: bool,
    keeps_to_consumed: bool,
}

const SOUND: Broken =
    Broken { words: Twin::Sound, reserved: Twin::Sound, by_first_word: false, keeps_to_consumed: true };

fn model(broken: &'static Broken) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let shared = Arc::new(Shared {
            slot: [(); WORDS].map(|()| WideTwin::new(broken.words)),
            reserved: WideTwin::new(broken.reserved),
            consumed: WideTwin::new(Twin::Sound),
            memory: [(); COMMANDS as usize].map(|()| UnsafeCell::new(0)),
            by_first_word: broken.by_first_word,
            keeps_to_consumed: broken.keeps_to_consumed,
        });
        let producers = [(); 2].map(|()| {
            let shared = shared.clone();
            thread::spawn(move || shared.produce())
        });
        // Nothing here waits: loom looks at what a drain finds at any time, and at what is left for it in the
        // end.
        let mut ticket = 0;
        for _ in 0..2 {
            ticket += u64::from(ticket < COMMANDS && shared.drain(ticket));
        }
        producers.into_iter().for_each(|p| p.join().unwrap());
        while ticket < COMMANDS && shared.drain(ticket) {
            ticket += 1;
        }
        assert_eq!(ticket, shared.reserved.load(Relaxed), "a command was lost, or taken twice");
    });
}

#[test]
fn every_command_is_taken_once_and_whole() {
    model(&SOUND);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_stores_is_taken_before_its_memory_is_written() {
    model(const { &Broken { words: Twin::Release, ..SOUND } });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_loads_sees_memory_as_it_was() {
    model(const { &Broken { words: Twin::Acquire, ..SOUND } });
}

#[test]
#[should_panic(expected = "words of two commands")]
fn twin_that_looks_at_the_first_word_alone_takes_half_a_command() {
    model(const { &Broken { by_first_word: true, ..SOUND } });
}

#[test]
#[should_panic]
fn twin_that_reserves_in_two_steps_gives_a_ticket_to_two() {
    model(const { &Broken { reserved: Twin::Exchange, ..SOUND } });
}

#[test]
#[should_panic]
fn twin_that_does_not_keep_to_consumed_writes_over_a_command() {
    model(const { &Broken { keeps_to_consumed: false, ..SOUND } });
}
