//! How a record is written where it has found room, and published.

use std::sync::atomic::Ordering::{Relaxed, Release};

use ipc::word::Word as _;

use super::{NONE, Producer};
use crate::shm::channel::ring::{
    CACHE_LINE, COMMIT, ELSEWHERE, LINE, Mem, SHORT, SHORTEST, lines_of, straight, stretches,
};

/// How many lines further on the producer has one fetched, after a frame of one cache line and of two: of
/// longer frames the processor itself sees what comes next.
const AHEAD: [u32; 2] = [4, 3];

/// Most lines that are fetched for an answer.
const ANSWER: u32 = 8;

/// The line so many behind another one, of so many.
#[inline(always)]
fn after(lines: u32, line: u32, n: u32) -> u32 {
    let next = line + n;
    if next >= lines { next - lines } else { next }
}

impl<M: Mem> Producer<M> {
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

    /// Where in the ring a frame of up to [`SHORT`] bytes goes; `None` if only [`Producer::reserve`] knows
    /// whether there is room.
    #[inline(always)]
    pub(crate) fn reserve_short(&self) -> Option<usize> {
        let room = self.stop.wrapping_sub(self.pos) >= 2;
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

    /// The reserved frame is not published, whatever was written of it: that may be where the next commit
    /// words are.
    #[cold]
    pub(crate) fn abandon(&mut self) {
        self.clean = self.pos;
    }

    /// Publishes the reserved frame of `len` bytes.
    #[inline(always)]
    pub(crate) fn publish(&mut self, len: usize) {
        self.publish_lines(len, lines_of(len));
    }

    /// Publishes the frame of [`Producer::reserve_short`].
    #[inline(always)]
    pub(crate) fn publish_short(&mut self, len: usize) {
        debug_assert!(len <= SHORT);
        self.publish_lines(len, 1);
    }

    #[inline(always)]
    fn publish_lines(&mut self, len: usize, n: u32) {
        // Read once: stores to the ring may be to anywhere, as far as the compiler knows.
        let &mut Producer { lines, line, pos, stop, clean, .. } = self;
        let next = after(lines, line, n);
        let end = pos.wrapping_add(n);
        if clean != end {
            self.mem.commit(next).store(0, Relaxed);
            if self.left != NONE {
                return self.publish_elsewhere(len, next, end);
            }
        }
        // Release: the frame's bytes and the zero come before.
        self.mem.commit(line).store(len as u32 + 1, Release);
        if n == 1 {
            self.mem.hand_over(line as usize * LINE);
        }
        self.line = next;
        self.pos = end;
        // If the next frame takes one line, this is the word behind it. Between its bytes and its
        // commit word this store would wait for a line that the consumer has, while the consumer,
        // looking, takes the frame's line away again.
        let has_further = stop.wrapping_sub(end) > 1;
        if has_further {
            self.mem.commit(after(lines, next, 1)).store(0, Relaxed);
        }
        self.clean = end.wrapping_add(u32::from(has_further));
        // The consumer has these lines from the lap before. Stores wait in a queue for one after the other to
        // come from there, and a sender of many short frames would wait for that queue.
        if n == 1 {
            let further = AHEAD[usize::from(len > SHORTEST)];
            self.fetch(after(lines, next, further), len);
        }
    }

    /// Publishes a record, and at the line that was left where it is.
    #[cold]
    fn publish_elsewhere(&mut self, len: usize, next: u32, end: u32) {
        self.mem.commit(self.line).store(len as u32 + 1, Release);
        // Release: the record comes before the way to it.
        self.mem.commit(std::mem::replace(&mut self.left, NONE)).store(ELSEWHERE | self.line, Release);
        self.line = next;
        self.pos = end;
        self.clean = end;
    }

    /// Something of `len` bytes has come that will perhaps be answered by as much. The lines which that takes
    /// are on their way here while the program deals with what came: it would wait for them at its end.
    #[inline(always)]
    pub(crate) fn expect(&self, len: usize) {
        for n in 0..lines_of(len).min(ANSWER) {
            self.fetch(after(self.lines, self.line, n), len);
        }
    }

    /// The line of the next record is on its way here, as much of it as one of few bytes takes.
    #[inline(always)]
    pub(crate) fn expect_short(&self) {
        self.fetch(self.line, 1);
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
}
