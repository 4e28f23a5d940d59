//! Taking memory back that many processes access by themselves.
//!
//! A peer copies to registered memory through a mapping or with CMA, and no kernel can revoke that for one
//! address. So memory that may be taken back has a *slot* in a table, shared memory that all peers map, and
//! each user of the table has a *reader slot* there. A slot is a generation. An access writes the slot's
//! number to its reader slot, then loads the generation, and leaves the memory alone if it is another one
//! ([`access`]). To take memory back is to change the generation, then to load all reader slots, and to wait
//! for those that name the slot. A reader slot has its user's name, so that those of processes that have
//! ended are skipped.
//!
//! ```text
//! | reader slots used | reader slot: process, pid namespace, slot + 1 | ... | generation | ... |
//! ```
//!
//! Peers write the table. One that writes what is wrong has others wait, for as long as the caller says and
//! no longer, or has its own user's memory changed.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use crate::process::Name;
use crate::shared::fence::full_fence;
use crate::shared::word::Word;
use crate::{Mapping, access};

const LINE: usize = 64;
const READERS: u32 = 1023;
const SLOTS: u32 = 16 << 10;

/// The words of a table.
trait Words {
    type Word: Word;

    /// How many reader slots there are.
    fn readers(&self) -> u32;
    /// How many of them were ever used.
    fn used(&self) -> &Self::Word;
    /// The process that has a reader slot: 0 if it is free.
    fn process(&self, reader: u32) -> &Self::Word;
    /// The pid namespace of that process.
    fn namespace(&self, reader: u32) -> &Self::Word;
    /// The number of the slot that it accesses, and 1; 0 for none.
    fn inside(&self, reader: u32) -> &Self::Word;
    fn generation(&self, slot: u32) -> &Self::Word;
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// The name that a reader slot has.
fn name<W: Words>(words: &W, reader: u32) -> Name {
    let process = words.process(reader).load(Acquire);
    Name { process, namespace: words.namespace(reader).load(Relaxed) }
}

/// Takes a reader slot for `me`, if need be one whose user has ended.
fn claim<W: Words>(words: &W, me: Name, ended: impl Fn(Name) -> bool) -> Option<u32> {
    let free = |reader: &u32| words.process(*reader).compare_exchange(0, me.process).is_ok();
    let left = |reader: &u32| {
        let user = name(words, *reader);
        ended(user) && words.process(*reader).compare_exchange(user.process, me.process).is_ok()
    };
    let reader = (0..words.readers()).find(free).or_else(|| (0..words.readers()).find(left))?;
    words.namespace(reader).store(me.namespace, Relaxed);
    words.inside(reader).store(0, Release);
    loop {
        let used = words.used().load(Relaxed);
        if used > reader || words.used().compare_exchange(used, reader + 1).is_ok() {
            return Some(reader);
        }
    }
}

/// Gives a reader slot back.
fn release<W: Words>(words: &W, reader: u32) {
    words.inside(reader).store(0, Release);
    // A free one has no namespace, and that of a process that has ended gets its successor's: so the two
    // words always agree.
    words.namespace(reader).store(0, Relaxed);
    words.process(reader).store(0, Release);
}

/// Whether memory with this slot and generation may be accessed, until `leave`.
#[inline]
fn enter<W: Words>(words: &W, reader: u32, slot: u32, generation: u32) -> bool {
    let is_current = || words.generation(slot).load(Acquire) == generation;
    access::enter(words.inside(reader), slot + 1, || words.fence(), is_current)
}

#[inline]
fn leave<W: Words>(words: &W, reader: u32) {
    access::leave(words.inside(reader));
}

/// Ends a generation, and waits until no reader slot names the slot; whether that came to pass before `wait`,
/// which gets the process that is waited for, gave up.
fn end<W: Words>(words: &W, slot: u32, generation: u32, mut wait: impl FnMut(Name) -> Wait) -> bool {
    words.generation(slot).store(generation.wrapping_add(1), Release);
    words.fence();
    for reader in 0..words.used().load(Relaxed).min(words.readers()) {
        while access::is_inside(words.inside(reader), Some(slot + 1)) {
            let user = name(words, reader);
            match wait(user) {
                Wait::On => {}
                // Not if another process has the reader slot by now.
                Wait::Ended if words.process(reader).load(Acquire) == user.process => break,
                Wait::Ended => {}
                Wait::Expired => return false,
            }
        }
    }
    true
}

/// Whether to wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    On,
    /// Not for this process, which has ended.
    Ended,
    /// No more.
    Expired,
}

/// A revocation table in shared memory.
#[derive(Clone, Debug)]
pub struct RevocationTable(Arc<Mapping>);

impl RevocationTable {
    /// Bytes of that memory.
    pub const SIZE: usize = (READERS as usize + 1) * LINE + SLOTS as usize * 4;
    /// Slots of a table.
    pub const SLOTS: u32 = SLOTS;

    /// The table in a mapping that can be written, if that is large enough.
    pub fn new(memory: Arc<Mapping>) -> Option<RevocationTable> {
        (memory.len() >= Self::SIZE).then_some(RevocationTable(memory))
    }

    /// Takes a reader slot; `None` if all are taken. A reader slot is of one access at a time.
    pub fn claim(&self) -> Option<u32> {
        claim(self, Name::own(), Name::has_ended)
    }

    /// Gives a reader slot back.
    pub fn release(&self, reader: u32) {
        release(self, reader);
    }

    /// Whether memory with this slot and generation may be accessed, until `leave`.
    #[inline]
    pub fn enter(&self, reader: u32, slot: u32, generation: u32) -> bool {
        slot < SLOTS && enter(self, reader, slot, generation)
    }

    #[inline]
    pub fn leave(&self, reader: u32) {
        leave(self, reader);
    }

    /// Ends a generation, and waits until no access is under way, those of processes that have ended not
    /// counted; whether that came to pass within `patience`.
    pub fn end(&self, slot: u32, generation: u32, patience: Duration) -> bool {
        // An access of a large piece takes its time: whether a process lives is asked now and then.
        const ASK: Duration = Duration::from_micros(500);
        if slot >= SLOTS {
            return true;
        }
        let begin = Instant::now();
        let (mut polls, mut asked) = (0u32, begin);
        end(self, slot, generation, |user| {
            polls += 1;
            if polls < 100 {
                std::hint::spin_loop();
                return Wait::On;
            }
            std::thread::yield_now();
            if asked.elapsed() < ASK {
                return Wait::On;
            }
            asked = Instant::now();
            match begin.elapsed() > patience {
                _ if user.has_ended() => Wait::Ended,
                true => Wait::Expired,
                false => Wait::On,
            }
        })
    }

    /// The pid of a process that is inside an access to memory with this slot, processes that have ended not
    /// counted; 0 if all there are of another pid namespace, so that it is not known whether they have.
    pub fn inside_of(&self, slot: u32) -> Option<u32> {
        if slot >= SLOTS {
            return None;
        }
        let mut found = None;
        for reader in 0..self.used().load(Relaxed).min(READERS) {
            if !access::is_inside(self.inside(reader), Some(slot + 1)) {
                continue;
            }
            let user = name(self, reader);
            // As in `end`: not if another process has the reader slot by now.
            if user.has_ended() && self.process(reader).load(Acquire) == user.process {
                continue;
            }
            if let Some(pid) = user.pid() {
                return Some(pid);
            }
            found = Some(0);
        }
        found
    }

    #[inline]
    fn word(&self, line: u32, at: usize) -> &AtomicU32 {
        let at = line as usize * LINE + at * 4;
        assert!(at + 4 <= Self::SIZE);
        // SAFETY: inside by the line above, as the mapping has so many bytes, and a multiple of 4.
        unsafe { self.0.word(at) }
    }
}

impl Words for RevocationTable {
    type Word = AtomicU32;

    fn readers(&self) -> u32 {
        READERS
    }
    fn used(&self) -> &AtomicU32 {
        self.word(0, 0)
    }
    fn process(&self, reader: u32) -> &AtomicU32 {
        self.word(1 + reader, 0)
    }
    fn namespace(&self, reader: u32) -> &AtomicU32 {
        self.word(1 + reader, 1)
    }
    #[inline]
    fn inside(&self, reader: u32) -> &AtomicU32 {
        self.word(1 + reader, 2)
    }
    #[inline]
    fn generation(&self, slot: u32) -> &AtomicU32 {
        self.word(1 + READERS, slot as usize)
    }
    #[inline]
    fn fence(&self) {
        full_fence();
    }
}

#[cfg(all(test, loom))]
#[path = "revocation_table_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::memfd::{self, Writers};

    const SHORT: Duration = Duration::from_millis(20);

    fn memory(len: usize) -> Arc<Mapping> {
        let fd = memfd::create(c"test", len, Writers::All).unwrap();
        Arc::new(Mapping::new(&fd, len, None).unwrap())
    }

    fn table() -> RevocationTable {
        RevocationTable::new(memory(RevocationTable::SIZE.next_multiple_of(4096))).unwrap()
    }

    #[test]
    fn a_slot_that_no_reader_names_is_taken_back() {
        let t = table();
        let (one, other) = (t.claim().unwrap(), t.claim().unwrap());
        assert_ne!(one, other);
        assert!(t.enter(one, 5, 0));
        t.leave(one);
        // Inside another one.
        assert!(t.enter(other, 6, 0));
        assert!(t.end(5, 0, SHORT));
        assert!(!t.enter(one, 5, 0) && t.enter(one, 5, 1));
        // Inside this one: the wait ends all the same.
        assert!(!t.end(5, 1, SHORT));
        t.release(one);
        assert_eq!(t.claim(), Some(one));
        assert!(!t.enter(one, SLOTS, 0) && t.end(SLOTS, 0, SHORT));
    }

    /// A process that has ended is not waited for, and its reader slot is reused.
    #[test]
    fn reader_slot_of_an_ended_process_is_reused() {
        let t = table();
        let me = t.claim().unwrap();
        // Killed, and not waited for.
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let user = Name::of(child.id()).unwrap();
        let reader = claim(&t, user, Name::has_ended).unwrap();
        assert!(t.enter(reader, 1, 0));
        assert!(!t.end(1, 0, SHORT), "a process is inside");
        assert_eq!((t.inside_of(1), t.inside_of(2)), (Some(child.id()), None));
        child.kill().unwrap();
        assert!(t.end(1, 1, Duration::from_secs(60)));
        assert_eq!(t.inside_of(1), None);
        child.wait().unwrap();
        assert!(t.end(1, 2, Duration::from_secs(60)));
        // Its pid in another namespace says nothing.
        t.namespace(reader).store(user.namespace ^ 1, Relaxed);
        assert!(!t.end(1, 3, SHORT));
        assert_eq!(t.inside_of(1), Some(0));
        // Its reader slot is taken when there is no other.
        t.namespace(reader).store(user.namespace, Relaxed);
        (reader + 1..READERS).for_each(|_| assert!(t.claim().is_some()));
        assert_eq!(t.claim(), Some(reader));
        assert_eq!(t.claim(), None);
        t.release(me);
        assert_eq!(t.claim(), Some(me));
    }

    #[test]
    fn a_table_with_noise_ends_no_wait_late() {
        let t = table();
        // SAFETY: the whole mapping, of this test alone.
        unsafe { t.0.base().write_bytes(0xff, RevocationTable::SIZE) };
        assert_eq!(t.claim(), None);
        assert!(t.end(9, 4, SHORT));
        assert!(RevocationTable::new(memory(4096)).is_none());
    }
}
