//! A byte ring from one producer to one consumer.
//!
//! The ring is made of lines of 128 bytes, each a pair of cache lines, since hardware fetches those in pairs.
//! A record starts on a line and may run over the ring's end:
//!
//! ```text
//! | commit: u32 | frame ... (padding to whole lines) | commit of the next record = 0 | ...
//! ```
//!
//! A commit word is 0 while there is no record, else the frame's length plus one. Before the producer
//! publishes a record it stores 0 to the commit word behind it, so the consumer never takes stale bytes of an
//! earlier lap for a record. A frame that fits one cache line thus changes hands by one cache line, and one
//! that fits the pair by the two at once. The consumer publishes its position (`head`, in lines, wrapping)
//! only now and then, and the producer reads it only when it seems short of room.
//!
//! **Short laps.** Pages of a ring take memory once they were written, and cache. So a producer that has
//! little under way ends a lap early ([`soon`]): it puts a record at the ring's start, and then a word which
//! says so ([`ELSEWHERE`]) where the consumer looks next. The lines behind that word count as a record that
//! has been taken. Where the consumer is behind, the lap goes on, and the ring is used as far as it is
//! needed. If the consumer falls behind after a lap has ended early, the next one comes to records that were
//! not taken: another such word leads past these, to the lines that were left out.
//!
//! Both positions are private; what the other side writes is checked against them.
//!
//! The orders that matter, each tested with a twin that lacks it: the commit word is stored with Release
//! (after frame and zero) and loaded with Acquire; `head` too (after the copy out); [`ELSEWHERE`] is
//! stored with Release, after the record to which it leads.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ipc::word::Word;

/// Bytes of a line.
pub(crate) const LINE: usize = 128;

/// Bytes of a cache line.
pub(in crate::shm) const CACHE_LINE: usize = 64;

/// Bytes of a commit word.
pub(in crate::shm) const COMMIT: usize = 4;

/// Longest frame that a line has room for. One that short is always in one stretch.
pub(crate) const SHORT: usize = LINE - COMMIT;

/// Longest frame that a cache line has room for.
pub(crate) const SHORTEST: usize = CACHE_LINE - COMMIT;

/// The memory of a ring and its control words.
pub(crate) trait Mem {
    type Word: Word;

    /// Lines of the ring.
    fn lines(&self) -> u32;
    /// First word of a line, which is below `lines`.
    fn commit(&self, line: u32) -> &Self::Word;
    /// Where the consumer is. It alone writes it.
    fn head(&self) -> &Self::Word;
    /// Set by the consumer when it wants to be woken, see `wake`.
    fn bell(&self) -> &Self::Word;
    /// Set by the producer when it wants to be notified of room, see `wake`.
    fn want(&self) -> &Self::Word;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Gives the pages of all lines back that are neither in the page of this one nor in that of control
    /// words, and have no record: they read 0 then. Whether that was done.
    fn give_back(&self, _all_but: u32) -> bool {
        false
    }
    /// Has the processor fetch the cache line of byte `at` of the ring to read it. Nothing depends on it.
    fn will_read(&self, at: usize);
    /// Has the processor fetch that cache line to write it. Nothing depends on it.
    fn will_write(&self, at: usize);
    /// Has the cache line of byte `at` of the ring, which was written, leave the processor's own caches for
    /// one that is shared. Nothing depends on it.
    fn hand_over(&self, at: usize);
    /// Copies to bytes `at..at+len` of the ring, which are inside it.
    ///
    /// # Safety
    /// `src` must be valid for reads of `len` bytes, and the bytes the producer's own.
    unsafe fn put(&self, at: usize, src: *const u8, len: usize);
    /// Copies from bytes `at..at+len` of the ring, which are inside it.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `len` bytes, and the bytes the consumer's own.
    unsafe fn get(&self, at: usize, dst: *mut u8, len: usize);
}

/// A commit word that has this bit says at which line the next record is.
pub(in crate::shm) const ELSEWHERE: u32 = 1 << 31;

/// Most cache lines of a frame that are fetched together.
const FETCHED: usize = 16;

/// Lines of a page.
const PAGE: u32 = 4096 / LINE as u32;
/// Bytes of control words, in the page where the ring begins.
pub(in crate::shm) const WORDS: usize = 1024;
/// Lines of the ring in that page.
pub(in crate::shm) const FIRST: u32 = PAGE - (WORDS / LINE) as u32;

/// The other side broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Longest frame on a ring of so many lines: two fit even while a quarter is not given back.
pub(crate) fn max_frame(lines: u32) -> usize {
    (lines as usize / 2 - 1) * LINE
}

/// At which line of so many a lap may end first: at the end of a page.
pub(in crate::shm) fn soon(lines: u32) -> u32 {
    ((lines / 16).max(1).next_multiple_of(PAGE) - (PAGE - FIRST)).clamp(1, lines / 4)
}

/// After how many lines a consumer publishes its position, where laps are so long: often enough that they may
/// be as short again ([`soon`]), and at every quarter of the ring.
fn share(lines: u32, lap: u32) -> u32 {
    (lap / 8).clamp(1, (lines / 4).max(1))
}

/// Lines of a record.
#[inline]
pub(in crate::shm) fn lines_of(len: usize) -> u32 {
    ((len + (COMMIT + LINE - 1)) / LINE) as u32
}

/// The stretches of the ring that make up `len` bytes from byte `at` on, which may be beyond the
/// end by less than one lap.
#[inline]
pub(in crate::shm) fn stretches(lines: u32, at: usize, len: usize) -> [(usize, usize); 2] {
    let cap = lines as usize * LINE;
    let at = if at >= cap { at - cap } else { at };
    let first = len.min(cap - at);
    [(at, first), (0, len - first)]
}

/// Where in a ring of so many lines bytes `off..off+len` of the record on a line start, if they do
/// not run over its end.
#[inline]
pub(in crate::shm) fn straight(lines: u32, line: u32, off: usize, len: usize) -> Option<usize> {
    let at = line as usize * LINE + COMMIT + off;
    (at + len <= lines as usize * LINE).then_some(at)
}

/// Where in a ring of so many lines the cache lines of a frame begin that are fetched together, after the
/// first one, which is there.
fn fetched(lines: u32, line: u32, len: usize) -> impl Iterator<Item = usize> {
    let at = line as usize * LINE;
    let end = (at + COMMIT + len).min(lines as usize * LINE).min(at + FETCHED * CACHE_LINE);
    (at + CACHE_LINE..end).step_by(CACHE_LINE)
}

/// The receiving half. What a frame of one line touches comes first, with the address of the memory:
/// [`crate::shm::peer::Inbound`] has it on one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Consumer<M> {
    /// Length of the frame at hand.
    len: usize,
    /// Longest frame there may be.
    most: usize,
    lines: u32,
    pos: u32,
    line: u32,
    /// What `head` says, and after how many lines it is to say more.
    published: u32,
    share: u32,
    mem: M,
}

impl<M: Mem> Consumer<M> {
    /// Starts at the line at which the producer does.
    pub(crate) fn new(mem: M) -> Consumer<M> {
        let line = mem.head().load(Relaxed) % mem.lines();
        Consumer { line, ..Consumer::starting_at(mem, line) }
    }

    /// As if `pos` lines had gone through already, and the next were the first.
    pub(crate) fn starting_at(mem: M, pos: u32) -> Consumer<M> {
        let lines = mem.lines();
        let share = share(lines, soon(lines));
        Consumer { mem, lines, pos, line: 0, published: pos, share, len: 0, most: max_frame(lines) }
    }

    pub(crate) fn mem(&self) -> &M {
        &self.mem
    }

    pub(crate) fn into_mem(self) -> M {
        self.mem
    }

    /// How many lines were read, wrapping.
    pub(crate) fn pos(&self) -> u32 {
        self.pos
    }

    /// The commit word of the next record.
    #[inline]
    pub(crate) fn word(&self) -> &M::Word {
        self.mem.commit(self.line)
    }

    /// Whether anything, sound or not, is there.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.word().load(Relaxed) != 0
    }

    /// Whether anything is there behind the frame at hand.
    #[inline]
    pub(crate) fn followed(&self) -> bool {
        let next = self.line + lines_of(self.len);
        let next = if next >= self.lines { next - self.lines } else { next };
        self.mem.commit(next).load(Relaxed) != 0
    }

    /// The length of the next frame, which is then at hand, if there is one.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Result<Option<usize>, Broken> {
        // Acquire: the frame's bytes, and the zero behind it, come with the word.
        match self.mem.commit(self.line).load(Acquire) {
            0 => Ok(None),
            word => {
                let len = word as usize - 1;
                if len > self.most {
                    return self.go(word);
                }
                self.len = len;
                if (SHORTEST + 1..=SHORT).contains(&len) {
                    // So it comes while the first is looked at. Of longer frames the processor fetches more
                    // by itself, once one is copied: see `will_copy`.
                    self.mem.will_read(self.line as usize * LINE + CACHE_LINE);
                }
                Ok(Some(len))
            }
        }
    }

    /// The frame at hand was waited for and is about to be copied. Its lines come from the sender's core all
    /// at once, while the program finds out where they go: the copy would ask for the first of them only
    /// then.
    #[inline(always)]
    pub(crate) fn will_copy(&self) {
        // What fits two cache lines is on its way already.
        if self.len > SHORT {
            fetched(self.lines, self.line, self.len).for_each(|at| self.mem.will_read(at));
        }
    }

    /// The next record is elsewhere, if `word` says so: as [`Consumer::peek`], there.
    #[cold]
    fn go(&mut self, word: u32) -> Result<Option<usize>, Broken> {
        let line = word & !ELSEWHERE;
        // One leads to a record and not to another: so this ends.
        let len = match line != word && line < self.lines {
            true => self.mem.commit(line).load(Acquire) as usize,
            false => return Err(Broken),
        };
        let left_out = match line {
            0 => self.lines - self.line,
            _ => line.wrapping_sub(self.line),
        };
        if len == 0 || len - 1 > self.most || line == self.line || left_out > self.lines {
            return Err(Broken);
        }
        if line == 0 {
            self.share = share(self.lines, self.line);
        }
        self.pos = self.pos.wrapping_add(left_out);
        self.line = line;
        self.len = len - 1;
        Ok(Some(self.len))
    }

    /// Where in the ring bytes `off..off+len` of the frame at hand are, if they are all of the frame
    /// and one stretch.
    #[inline(always)]
    pub(crate) fn straight(&self, off: usize, len: usize) -> Option<usize> {
        if off.checked_add(len)? > self.len {
            return None;
        }
        if self.len <= SHORT {
            return Some(self.line as usize * LINE + COMMIT + off);
        }
        straight(self.lines, self.line, off, len)
    }

    /// Where in the ring bytes `off..off+len` of the frame at hand are, cut to what there is.
    #[inline]
    pub(crate) fn stretches(&self, off: usize, len: usize) -> [(usize, usize); 2] {
        let off = off.min(self.len);
        stretches(self.lines, self.line as usize * LINE + COMMIT + off, len.min(self.len - off))
    }

    /// The first `N` bytes of the frame at hand, which lie on one line; `None` if it is shorter.
    #[inline]
    pub(crate) fn first<const N: usize>(&self) -> Option<[u8; N]> {
        const { assert!(N <= LINE - COMMIT) };
        if self.len < N {
            return None;
        }
        let mut bytes = [0; N];
        // SAFETY: all of the line is inside the ring, `bytes` has room for `N`, and a frame at hand
        // is ours until `advance`.
        unsafe { self.mem.get(self.line as usize * LINE + COMMIT, bytes.as_mut_ptr(), N) };
        Some(bytes)
    }

    /// Copies bytes of the frame at hand; returns how many there were.
    #[inline]
    pub(crate) fn read(&self, off: usize, dst: &mut [u8]) -> usize {
        if let Some(at) = self.straight(off, dst.len()) {
            // SAFETY: `dst` is a slice; `straight` stays inside the ring; a frame at hand is ours until
            // `advance`.
            unsafe { self.mem.get(at, dst.as_mut_ptr(), dst.len()) };
            return dst.len();
        }
        let [(at, n), (wrapped, rest)] = self.stretches(off, dst.len());
        // SAFETY: `n + rest` is at most `dst.len()`; `stretches` stays inside the ring; a frame at
        // hand is ours until `advance`.
        unsafe { self.mem.get(at, dst.as_mut_ptr(), n) };
        if rest > 0 {
            // SAFETY: as above, for the rest of `dst`.
            unsafe { self.mem.get(wrapped, dst.as_mut_ptr().add(n), rest) };
        }
        n + rest
    }

    /// Gives the frame at hand back; returns whether the position was published.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> bool {
        self.advance_lines(lines_of(self.len))
    }

    /// Gives a frame at hand of one line back: as [`Consumer::advance`].
    #[inline(always)]
    pub(crate) fn advance_line(&mut self) -> bool {
        debug_assert_eq!(lines_of(self.len), 1);
        self.advance_lines(1)
    }

    #[inline(always)]
    fn advance_lines(&mut self, n: u32) -> bool {
        self.len = 0;
        self.line += n;
        if self.line >= self.lines {
            self.line -= self.lines;
            self.share = share(self.lines, self.lines);
        }
        self.pos = self.pos.wrapping_add(n);
        if self.pos.wrapping_sub(self.published) < self.share {
            return false;
        }
        self.published = self.pos;
        // Release: our copies out of these lines come before.
        self.mem.head().store(self.pos, Release);
        true
    }

    /// What comes behind the frame at hand is not taken, whatever it is.
    pub(crate) fn spoil(&mut self) {
        // Shorter than any but an empty one, which means nothing.
        self.most = 0;
    }

    /// Whether the producer can see how far this side has read.
    pub(crate) fn is_published(&self) -> bool {
        self.published == self.pos
    }

    /// Publishes the position as it is.
    pub(crate) fn publish(&mut self) {
        self.published = self.pos;
        self.mem.head().store(self.pos, Release);
    }
}

#[cfg(all(test, loom))]
#[path = "ring_loom.rs"]
pub(crate) mod model;

#[cfg(all(test, not(loom)))]
#[path = "ring_tests.rs"]
mod tests;

#[cfg(all(test, not(any(miri, loom))))]
#[path = "ring_model_tests.rs"]
mod model_tests;

#[cfg(all(test, miri, not(loom)))]
#[path = "ring_heap.rs"]
mod heap;
