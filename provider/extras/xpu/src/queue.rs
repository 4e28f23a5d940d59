//! Completion queues in memory that a device reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::error::{code, ended};
use crate::layout::{self, Completion, word_of};
use crate::words::Words;

/// A place in shared memory: a structure's first word.
#[derive(Clone, Debug)]
pub struct Place {
    /// The memory.
    pub words: Arc<Words>,
    /// Which word of it.
    pub at: usize,
}

impl Place {
    /// Where a device finds it.
    pub fn device(&self) -> u64 {
        self.words.device(self.at)
    }

    /// Its words, from this one on.
    #[inline]
    pub(crate) fn word(&self, n: usize) -> &std::sync::atomic::AtomicU64 {
        self.words.get(self.at + n)
    }

    /// The words of slot number `n` of an array of slots.
    #[inline]
    pub(crate) fn slot(&self, n: usize) -> &[std::sync::atomic::AtomicU64; layout::SLOT_WORDS] {
        self.words.eight(self.at + n * layout::SLOT_WORDS)
    }

    /// Writes a whole structure, before a device knows of it.
    pub fn write(&self, words: &[u64]) {
        for (n, w) in words.iter().enumerate() {
            self.word(n).store(*w, Relaxed);
        }
    }
}

/// The host's side of a queue.
#[derive(Debug)]
pub struct QueueSide {
    log2: u32,
    entries: Place,
    read: Place,
    head: Place,
    written: u64,
    seen_read: u64,
    /// Completions that wait for room.
    pending: VecDeque<Completion>,
    ended: bool,
}

/// Most completions of peers' writes that wait for room: a device that reads none must not have this process
/// keep ever more.
const NOTICES: usize = 1 << 16;

impl QueueSide {
    /// A queue of 2^`log2` entries, in these places: entries, [`layout::QueueRead`] and [`layout::Queue`].
    pub fn new(log2: u32, entries: Place, read: Place, head: Place, timeout_ns: u64) -> QueueSide {
        let view = layout::Queue {
            version: layout::VERSION,
            log2_entries: log2,
            entries: entries.device(),
            read: read.device(),
            timeout_ns,
            ..layout::Queue::default()
        };
        head.write(&view.words());
        QueueSide {
            log2,
            entries,
            read,
            head,
            written: 0,
            seen_read: 0,
            pending: VecDeque::new(),
            ended: false,
        }
    }

    /// Where a device finds what it has to know.
    pub fn view(&self) -> u64 {
        self.head.device()
    }

    /// Whether completions wait for room: no more commands are taken then whose completions it would get.
    pub(crate) fn is_behind(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether nothing comes into it any more: nor can a command of a ring that has it end with an entry.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn push(&mut self, entry: Completion) {
        self.pending.push_back(entry);
        self.flush();
    }

    /// What a peer's write has to say.
    pub(crate) fn notice(&mut self, entry: Completion) {
        if self.pending.len() < NOTICES {
            self.push(entry);
        } else {
            self.end(code::OVERRUN);
        }
    }

    /// Writes what there is room for. Returns how many.
    pub(crate) fn flush(&mut self) -> usize {
        let mut n = 0;
        while let Some(entry) = self.pending.front().copied().filter(|_| !self.ended) {
            if self.written - self.seen_read >= 1 << self.log2 && !self.poll_read() {
                break;
            }
            self.written += 1;
            let entry = Completion { commit: self.written, ..entry };
            let slot = ((self.written - 1) & ((1 << self.log2) - 1)) as usize;
            let last = word_of!(Completion.commit);
            let words = entry.words();
            for (i, w) in words.iter().enumerate().take(last) {
                self.entries.word(slot * words.len() + i).store(*w, Relaxed);
            }
            self.entries.word(slot * words.len() + last).store(entry.commit, Release);
            self.pending.pop_front();
            n += 1;
        }
        n
    }

    /// Whether the device has read on. What it cannot have read ends the queue.
    fn poll_read(&mut self) -> bool {
        let read = self.read.word(word_of!(QueueRead.read)).load(Acquire);
        if read < self.seen_read || read > self.written {
            self.end(code::INVAL);
            return false;
        }
        let has_read = read > self.seen_read;
        self.seen_read = read;
        has_read
    }

    /// The format that a device is to give entries in, libfabric's number: before the queue is shown to it.
    pub fn set_format(&self, format: u64) {
        self.head.word(word_of!(Queue.format)).store(format, Release);
    }

    pub(crate) fn end(&mut self, errno: i32) {
        self.ended = true;
        let error = self.head.word(word_of!(Queue.error));
        if error.load(Relaxed) == 0 {
            error.store(ended(errno), Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(log2: u32) -> (Arc<Words>, QueueSide) {
        let words = Words::new(64).unwrap();
        let place = |at| Place { words: words.clone(), at };
        let q = QueueSide::new(log2, place(0), place(32), place(40), 7);
        (words, q)
    }

    #[test]
    fn entries_are_committed_by_number_and_wait_for_room() {
        let (words, mut q) = queue(1);
        for context in 1..=3 {
            q.push(Completion { context, ..Completion::default() });
        }
        let entry = |slot: usize| [words.get(slot * 8).load(Relaxed), words.get(slot * 8 + 7).load(Relaxed)];
        assert_eq!((entry(0), entry(1)), ([1, 1], [2, 2]));
        assert!(q.is_behind(), "an entry was written over one that is not read");
        words.get(32).store(1, Release);
        assert_eq!(q.flush(), 1);
        assert_eq!(entry(0), [3, 3]);
        assert!(!q.is_behind());
    }

    /// strait_fi_xpu_device.cuh gives entries in that format.
    #[test]
    fn a_device_finds_the_format_of_entries_behind_the_error_word() {
        let (words, q) = queue(1);
        q.set_format(4);
        assert_eq!((words.get(40 + 4).load(Relaxed), words.get(40 + 5).load(Relaxed)), (0, 4));
    }

    #[test]
    fn a_device_that_has_read_what_is_not_written_ends_the_queue() {
        for read in [3, u64::MAX] {
            let (words, mut q) = queue(1);
            for _ in 0..2 {
                q.push(Completion::default());
            }
            words.get(32).store(read, Release);
            q.push(Completion::default());
            assert!(q.is_behind());
            assert_eq!(words.get(40 + word_of!(Queue.error)).load(Acquire), ended(code::INVAL));
        }
    }

    /// What peers write to a queue that is not read takes bounded memory.
    #[test]
    fn unread_queue_takes_bounded_memory() {
        let (words, mut q) = queue(1);
        for _ in 0..3 * NOTICES {
            q.notice(Completion::default());
        }
        assert!(q.pending.len() <= NOTICES && q.is_ended(), "{} wait", q.pending.len());
        assert_eq!(words.get(40 + word_of!(Queue.error)).load(Acquire), ended(code::OVERRUN));
    }
}
