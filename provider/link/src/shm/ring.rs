//! A byte ring from one producer to one consumer.
//!
//! The ring is made of lines of 128 bytes, each a pair of cache lines, since hardware fetches those in pairs.
//! A record starts on a line and may run over the ring's end:
//!
//! ```text
//! | commit: u32 | frame ... (padding to whole lines) | commit of the next record = 0 | ...
//! ```
//!
//! A commit word is 0 while there is no record, else the frame's length plus one. Before the
//! producer publishes a record it stores 0 to the commit word behind it, so the consumer never
//! takes stale bytes of an earlier lap for a record. A frame that fits one cache line thus changes hands
//! by one cache line, and one that fits the pair by the two at once. The consumer publishes its position
//! (`head`, in lines, wrapping) only once per quarter of the ring, and the producer reads it only when it
//! seems short of room.
//!
//! Both positions are private; what the other side writes is checked against them.
//!
//! The orders that matter, each tested with a twin that lacks it: the commit word is stored with
//! Release (after frame and zero) and loaded with Acquire; `head` likewise (after the copy out).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ipc::word::Word;

/// Bytes of a line.
pub(crate) const LINE: usize = 128;

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Bytes of a commit word.
const COMMIT: usize = 4;

/// Longest frame that a line has room for. One that short is always in one stretch.
pub(crate) const SHORT: usize = LINE - COMMIT;

/// Likewise a cache line.
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
    /// Has the processor fetch the cache line of byte `at` of the ring to read it. Nothing depends on it.
    fn will_read(&self, at: usize);
    /// Likewise, to write it.
    fn will_write(&self, at: usize);
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

/// How many lines further on the producer has one fetched, after a frame of one cache line and of two: of
/// longer frames the processor itself sees what comes next.
const AHEAD: [u32; 2] = [4, 3];

/// Most lines that frames which the consumer can do without may find taken: more than a quarter of the longest
/// ring, and fewer than turns of a shared transfer.
const SPARE: u32 = 48 << 10;

/// Most lines that are fetched for an answer.
const ANSWER: u32 = 8;

/// The other side broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Longest frame on a ring of so many lines: two fit even while a quarter is not given back.
pub(crate) fn max_frame(lines: u32) -> usize {
    (lines as usize / 2 - 1) * LINE
}

/// Lines of a record.
#[inline]
fn lines_of(len: usize) -> u32 {
    (COMMIT + len).div_ceil(LINE) as u32
}

/// The stretches of the ring that make up `len` bytes from byte `at` on, which may be beyond the
/// end by less than one lap.
#[inline]
fn stretches(lines: u32, at: usize, len: usize) -> [(usize, usize); 2] {
    let cap = lines as usize * LINE;
    let at = if at >= cap { at - cap } else { at };
    let first = len.min(cap - at);
    [(at, first), (0, len - first)]
}

/// Where in a ring of so many lines bytes `off..off+len` of the record on a line start, if they do
/// not run over its end.
#[inline]
fn straight(lines: u32, line: u32, off: usize, len: usize) -> Option<usize> {
    let at = line as usize * LINE + COMMIT + off;
    (at + len <= lines as usize * LINE).then_some(at)
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    mem: M,
    lines: u32,
    /// Where the next record goes: in lines since the ring began, and in the ring.
    pos: u32,
    line: u32,
    /// The consumer's position, as far as it was looked at.
    head: u32,
    /// The position, beyond `pos`, of a commit word that is 0 already; `pos` if there is none.
    clean: u32,
}

impl<M: Mem> Producer<M> {
    pub(crate) fn new(mem: M) -> Producer<M> {
        Producer::starting_at(mem, 0)
    }

    /// As if `pos` lines had gone through already.
    pub(crate) fn starting_at(mem: M, pos: u32) -> Producer<M> {
        let lines = mem.lines();
        Producer { mem, lines, pos, line: 0, head: pos, clean: pos }
    }

    pub(crate) fn mem(&self) -> &M {
        &self.mem
    }

    pub(crate) fn into_mem(self) -> M {
        self.mem
    }

    /// Whether a frame of `len` bytes, at most [`max_frame`], finds room.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<bool, Broken> {
        // One line more, for the commit word of the record after this one.
        let need = lines_of(len) + 1;
        if self.pos.wrapping_sub(self.head) + need <= self.lines {
            return Ok(true);
        }
        self.read_head()?;
        Ok(self.pos.wrapping_sub(self.head) + need <= self.lines)
    }

    #[cold]
    fn read_head(&mut self) -> Result<(), Broken> {
        // Acquire: the consumer's copies out of the lines it gave back come before our stores.
        let head = self.mem.head().load(Acquire);
        if head.wrapping_sub(self.head) > self.pos.wrapping_sub(self.head) {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    /// Whether half of the ring is free, and fewer lines are taken than a shared transfer has turns: the
    /// consumer, which publishes its position at every quarter, then polls the ring.
    pub(crate) fn has_room_to_spare(&mut self) -> bool {
        let most = (self.lines / 2).min(SPARE);
        if self.pos.wrapping_sub(self.head) < most {
            return true;
        }
        // What is wrong with the ring is found when it is used.
        self.read_head().is_ok() && self.pos.wrapping_sub(self.head) < most
    }

    /// Whether the consumer, which has closed, had read all that was published.
    #[cold]
    pub(crate) fn is_read(&mut self) -> bool {
        self.read_head().is_ok() && self.head == self.pos
    }

    /// Where in the ring bytes `off..off+len` of the reserved frame go, if that is one stretch.
    #[inline]
    pub(crate) fn straight(&self, off: usize, len: usize) -> Option<usize> {
        straight(self.lines, self.line, off, len)
    }

    /// Where in the ring bytes `off..off+len` of the reserved frame go.
    #[inline]
    pub(crate) fn stretches(&self, off: usize, len: usize) -> [(usize, usize); 2] {
        stretches(self.lines, self.line as usize * LINE + COMMIT + off, len)
    }

    /// Where in the ring a frame of up to [`SHORT`] bytes goes; `None` if only [`Producer::reserve`] can tell
    /// whether there is room.
    #[inline(always)]
    pub(crate) fn reserve_short(&self) -> Option<usize> {
        let room = self.pos.wrapping_sub(self.head) + 2 <= self.lines;
        room.then_some(self.line as usize * LINE + COMMIT)
    }

    /// Writes bytes of the reserved frame.
    ///
    /// # Safety
    /// `off..off+src.len()` must be inside what the last [`Producer::reserve`] said has room.
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, off: usize, src: &[u8]) {
        if let Some(at) = self.straight(off, src.len()) {
            // SAFETY: `src` is a slice; `straight` stays inside the ring, and the caller says that
            // these bytes are reserved, so they are ours.
            return unsafe { self.mem.put(at, src.as_ptr(), src.len()) };
        }
        let [(at, n), (wrapped, rest)] = self.stretches(off, src.len());
        // SAFETY: `src` is a slice; `stretches` stays inside the ring, and the caller says that
        // these bytes are reserved, so they are ours.
        unsafe { self.mem.put(at, src.as_ptr(), n) };
        if rest > 0 {
            // SAFETY: as above, for the rest of `src`.
            unsafe { self.mem.put(wrapped, src.as_ptr().add(n), rest) };
        }
    }

    /// Publishes the reserved frame of `len` bytes.
    #[inline(always)]
    pub(crate) fn publish(&mut self, len: usize) {
        self.publish_lines(len, lines_of(len));
    }

    /// Likewise, of [`Producer::reserve_short`].
    #[inline(always)]
    pub(crate) fn publish_short(&mut self, len: usize) {
        debug_assert!(len <= SHORT);
        self.publish_lines(len, 1);
    }

    #[inline(always)]
    fn publish_lines(&mut self, len: usize, n: u32) {
        let next = self.after(self.line, n);
        let end = self.pos.wrapping_add(n);
        if self.clean != end {
            self.mem.commit(next).store(0, Relaxed);
        }
        // Release: the frame's bytes and the zero come before.
        self.mem.commit(self.line).store(len as u32 + 1, Release);
        self.line = next;
        self.pos = end;
        self.clean = end;
        // If the next frame takes one line, this is the word behind it. Between its bytes and its
        // commit word this store would wait for a line that the consumer has, while the consumer,
        // looking, takes the frame's line away again.
        if end.wrapping_add(1).wrapping_sub(self.head) < self.lines {
            self.mem.commit(self.after(next, 1)).store(0, Relaxed);
            self.clean = end.wrapping_add(1);
        }
        // The consumer has these lines from the lap before. Stores wait in a queue for one after the other to come
        // from there, and a sender of many short frames would wait for that queue.
        if n == 1 {
            let further = AHEAD[usize::from(len > SHORTEST)];
            self.fetch(self.after(next, further), len);
        }
    }

    /// Something of `len` bytes has come that will perhaps be answered by as much. The lines which that takes
    /// are on their way here while the program deals with what came: it would wait for them at its end.
    #[inline(always)]
    pub(crate) fn expect(&self, len: usize) {
        for n in 0..lines_of(len).min(ANSWER) {
            self.fetch(self.after(self.line, n), len);
        }
    }

    /// Has a line fetched, as much of it as a frame of `len` bytes may take.
    #[inline(always)]
    fn fetch(&self, line: u32, len: usize) {
        let at = line as usize * LINE;
        self.mem.will_write(at);
        if len > SHORTEST {
            self.mem.will_write(at + CACHE_LINE);
        }
    }

    #[inline(always)]
    fn after(&self, line: u32, n: u32) -> u32 {
        let next = line + n;
        if next >= self.lines { next - self.lines } else { next }
    }
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    mem: M,
    lines: u32,
    pos: u32,
    line: u32,
    /// What `head` says.
    published: u32,
    /// Length of the frame at hand.
    len: usize,
    /// Longest frame there may be.
    most: usize,
}

impl<M: Mem> Consumer<M> {
    pub(crate) fn new(mem: M) -> Consumer<M> {
        Consumer::starting_at(mem, 0)
    }

    /// As if `pos` lines had gone through already.
    pub(crate) fn starting_at(mem: M, pos: u32) -> Consumer<M> {
        let lines = mem.lines();
        Consumer { mem, lines, pos, line: 0, published: pos, len: 0, most: max_frame(lines) }
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

    /// Whether anything, sound or not, is there.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.mem.commit(self.line).load(Relaxed) != 0
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
                    return Err(Broken);
                }
                self.len = len;
                if (SHORTEST + 1..=SHORT).contains(&len) {
                    // So it comes while the first is looked at. Of longer frames the processor fetches more by
                    // itself.
                    self.mem.will_read(self.line as usize * LINE + CACHE_LINE);
                }
                Ok(Some(len))
            }
        }
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

    /// Gives the frame at hand back; returns how many lines it took, and whether the position was published.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> (u32, bool) {
        let n = lines_of(self.len);
        self.len = 0;
        self.line += n;
        if self.line >= self.lines {
            self.line -= self.lines;
        }
        self.pos = self.pos.wrapping_add(n);
        if self.pos.wrapping_sub(self.published) < self.lines / 4 {
            return (n, false);
        }
        self.published = self.pos;
        // Release: our copies out of these lines come before.
        self.mem.head().store(self.pos, Release);
        (n, true)
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

#[cfg(all(test, miri, not(loom)))]
#[path = "ring_heap.rs"]
mod heap;
