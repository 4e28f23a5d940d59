//! The sending half of a ring: where the next record finds room.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use ipc::word::Word as _;

use crate::shm::channel::allowance::{Allowance, Lines};
use crate::shm::channel::ring::{Broken, FIRST, Mem, SHORT, lines_of, soon};

mod publish;

/// Most lines that frames which the consumer can do without may find taken: more than a quarter of the
/// longest ring, and fewer than turns of a shared transfer.
const SPARE: u32 = 48 << 10;

/// After how many laps that ended early the next are twice as long, up to a quarter of the ring, and after as
/// many of these no lap ends early any more. A ring that is used much takes its memory, so far as the
/// endpoint's [`Allowance`] goes: neither side then waits for lines that the other one has just used.
const LAPS: u32 = 8;

/// A lap may end early within so many quarters of the ring.
const LATEST: u32 = 3;

/// No line.
const NONE: u32 = u32::MAX;

/// The sending half. [`crate::shm::peer::Outbound`] has all that frames touch, up to the address of the
/// memory, on one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Producer<M> {
    lines: u32,
    /// Where the next record goes: in lines since the ring began, and in the ring.
    pos: u32,
    line: u32,
    /// The consumer's position, as far as it was looked at.
    head: u32,
    /// Up to where records may go before [`Producer::make_room`] has looked for more: as far as the consumer
    /// has taken what was there, and no further than `lap_end`.
    stop: u32,
    /// From where on it is asked whether the lap may end.
    lap_end: u32,
    /// Where the lap began that followed one that ended early, or a later position that the consumer had come
    /// to; and the first line that the early end left out.
    lap: u32,
    ended: u32,
    /// After how many lines a lap may end early, and how many have since these are so many. Where it is more
    /// than a quarter of the ring, none does.
    length: u32,
    laps: u32,
    /// The line from which the consumer is to be led elsewhere with the next record, if it is one; and how
    /// many are left out on the way.
    left: u32,
    left_out: u32,
    /// The position, beyond `pos`, of a commit word that is 0 already; `pos` if there is none.
    clean: u32,
    mem: M,
    /// The position when this ring was last asked whether it is in use, and when its pages were last to be
    /// given back.
    asked: u32,
    small: u32,
    /// Up to which line records may have gone since pages were last given back.
    reach: u32,
    /// What laps take that are longer than the first ones.
    longer: Lines,
}

impl<M: Mem> Producer<M> {
    /// Starts at a line, which the consumer reads from shared memory. Where rings are written at different
    /// lines, these do not all contend for the same few places of a cache.
    pub(crate) fn new(mem: M, line: u32, allowance: Allowance) -> Producer<M> {
        let line = line % FIRST.min(soon(mem.lines()));
        mem.head().store(line, Relaxed);
        let mut own = Producer { line, ..Producer::starting_at(mem, line, allowance) };
        own.lap_end = soon(own.lines);
        own.settle();
        own
    }

    /// As if `pos` lines had gone through already, and the next were the first.
    pub(crate) fn starting_at(mem: M, pos: u32, allowance: Allowance) -> Producer<M> {
        let lines = mem.lines();
        let lap_end = pos.wrapping_add(soon(lines));
        Producer {
            mem,
            lines,
            pos,
            line: 0,
            head: pos,
            stop: lap_end,
            lap_end,
            lap: pos,
            ended: 0,
            length: soon(lines),
            laps: 0,
            left: NONE,
            left_out: 0,
            clean: pos,
            asked: pos,
            small: pos,
            reach: soon(lines),
            longer: Lines::new(allowance),
        }
    }

    pub(crate) fn mem(&self) -> &M {
        &self.mem
    }

    pub(crate) fn into_mem(self) -> M {
        self.mem
    }

    /// Where the next record goes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn next_line(&self) -> u32 {
        self.line
    }

    /// The positions of the consumer, as far as is known, and of the next record.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn known(&self) -> (u32, u32) {
        (self.head, self.pos)
    }

    /// Whether a frame of `len` bytes, at most [`crate::shm::channel::ring::max_frame`], finds room.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<bool, Broken> {
        // One line more, for the commit word of the record after this one.
        let need = lines_of(len) + 1;
        if self.stop.wrapping_sub(self.pos) >= need {
            return Ok(true);
        }
        self.make_room(need)
    }

    /// Looks how far the consumer is, and whether the lap goes on.
    #[cold]
    fn make_room(&mut self, need: u32) -> Result<bool, Broken> {
        self.read_head()?;
        if self.left != NONE {
            // The record there was not sent in the end, and this one is longer.
            self.go_back();
        }
        if self.lap_end.wrapping_sub(self.pos) < need && !self.end_lap(need) {
            self.put_off(need);
        }
        self.settle();
        if self.stop.wrapping_sub(self.pos) < need && self.pass_by(need) {
            self.settle();
        }
        Ok(self.stop.wrapping_sub(self.pos) >= need)
    }

    /// Whether the consumer is still in the lap that ended early, before this one.
    fn is_behind(&self) -> bool {
        self.pos.wrapping_sub(self.head) > self.pos.wrapping_sub(self.lap)
    }

    /// Lines from here on that hold no record.
    fn room(&self) -> u32 {
        match self.is_behind() && self.line >= self.ended {
            // What that lap left out, and no further: at the ring's start there are records of this one.
            true => self.lines - self.line,
            false => self.lines.saturating_sub(self.pos.wrapping_sub(self.head)),
        }
    }

    fn settle(&mut self) {
        let room = self.room().min(self.lap_end.wrapping_sub(self.pos));
        self.stop = self.pos.wrapping_add(room);
        self.reach = self.reach.max(self.line + room);
    }

    /// Ends the lap here, if little of it is under way.
    fn end_lap(&mut self, need: u32) -> bool {
        let used = self.pos.wrapping_sub(self.head);
        // Behind a longer one the longest frame would not find room (`pass_by`), until the consumer has come
        // to the next record and publishes that it has, which it does where so much was left out. Nothing
        // keeps it from that where the ring is empty.
        let short = self.line <= self.lines / 4 || used == 0 && self.line <= LATEST * (self.lines / 4);
        let may = self.length <= self.lines / 4 && short;
        let ends = may && used <= self.line / 4 && used + need <= self.line;
        if ends {
            // Behind the word that says so.
            self.ended = self.line + 1;
            self.go_to(0, self.lines - self.line);
            self.lap = self.pos;
            self.lap_end = self.pos.wrapping_add(self.length.max(need));
            self.note_early();
        }
        ends
    }

    /// A lap has ended early.
    fn note_early(&mut self) {
        self.laps += 1;
        if self.laps < LAPS {
            return;
        }
        let quarter = self.lines / 4;
        self.laps = 0;
        let length = if self.length < quarter { (2 * self.length).min(quarter) } else { self.lines };
        if self.longer.take(length - self.length) {
            self.length = length;
        }
    }

    fn may_pass_by(&self, need: u32) -> bool {
        self.is_behind() && self.line < self.ended && self.ended + need <= self.lines
    }

    /// The lap has come to where records of the one before are that the consumer has not taken: it goes on
    /// behind these.
    fn pass_by(&mut self, need: u32) -> bool {
        let passes = self.may_pass_by(need);
        if passes {
            self.go_to(self.ended, self.ended - self.line);
            self.lap_end = self.lap.wrapping_add(self.lines + soon(self.lines));
        }
        passes
    }

    /// The next record goes to this line, before which so many are left out.
    fn go_to(&mut self, line: u32, left_out: u32) {
        self.left = std::mem::replace(&mut self.line, line);
        self.left_out = left_out;
        self.pos = self.pos.wrapping_add(left_out);
        self.clean = self.pos;
    }

    /// It goes to where it would have, since the consumer does not know of the new place yet.
    fn go_back(&mut self) {
        if self.line == 0 {
            // No lap has begun.
            self.lap = self.head;
        }
        self.line = std::mem::replace(&mut self.left, NONE);
        self.pos = self.pos.wrapping_sub(self.left_out);
        self.clean = self.pos;
        self.lap_end = self.pos;
    }

    /// The lap goes on: for half of what a first one is, so long as it may end when the consumer has taken
    /// all, and in the end all around the ring; at once where none ends early. A frame of more than half of
    /// what a lap may be, which the consumer has always taken before the next, so takes two places and not
    /// the whole ring.
    fn put_off(&mut self, need: u32) {
        if self.length > self.lines / 4 {
            self.lap_end = self.pos.wrapping_add(self.lines);
            return;
        }
        let lap = self.pos.wrapping_sub(self.line);
        let least = self.line + need;
        let soon = soon(self.lines);
        let longer = least.max(self.lap_end.wrapping_sub(lap).saturating_add(soon.div_ceil(2)));
        let next = if longer <= LATEST * (self.lines / 4) { longer } else { least.max(self.lines + soon) };
        self.lap_end = lap.wrapping_add(next);
    }

    #[cold]
    fn read_head(&mut self) -> Result<(), Broken> {
        // Acquire: the consumer's copies out of the lines it gave back come before our stores.
        let head = self.mem.head().load(Acquire);
        if head.wrapping_sub(self.head) > self.pos.wrapping_sub(self.head) {
            return Err(Broken);
        }
        self.head = head;
        if !self.is_behind() {
            // So long as no lap ends early, positions go once around while this stays: a place of long ago
            // would seem to be ahead of the consumer.
            self.lap = head;
        }
        Ok(())
    }

    /// Called now and then. If little was sent since the last call, and nothing is under way, pages are given
    /// back and laps are as short as at first. Whether pages were given back.
    pub(crate) fn shrink(&mut self) -> bool {
        let few = soon(self.lines);
        let moved = self.pos.wrapping_sub(std::mem::replace(&mut self.asked, self.pos));
        if moved <= few && self.reach <= 2 * few && self.length > few {
            // It takes about what the first laps take, and keeps nothing that others may want.
            self.length = few;
            self.longer.give_back();
            self.laps = 0;
        }
        if moved > few || self.is_small() || self.left != NONE {
            return false;
        }
        // What is wrong with the ring is found when it is used.
        if self.read_head().is_err() || self.head != self.pos {
            return false;
        }
        // Where pages may not go, as those of locked memory (mlockall) may not, this is tried again after
        // some more lines.
        self.small = self.pos;
        if !self.mem.give_back(self.line) {
            return false;
        }
        self.length = few;
        self.longer.give_back();
        self.laps = 0;
        // The next record asks whether it can go to the start.
        self.lap_end = self.pos;
        self.settle();
        self.reach = 0;
        true
    }

    /// Whether it takes about what the first laps take, which the next ones would take again, or was asked to
    /// become so since little more was sent.
    pub(crate) fn is_small(&self) -> bool {
        let few = soon(self.lines);
        self.pos.wrapping_sub(self.small) <= few || self.reach <= 2 * few
    }

    /// Whether a frame of `len` bytes leaves half of the ring free, and fewer lines taken than a shared
    /// transfer has turns: the consumer, which publishes its position at every quarter at least, then polls
    /// the ring. One that is longer than an offer finds room now, and frames behind it that half. The lap
    /// stays as it is: what is sent after this may be another frame.
    pub(crate) fn has_room_to_spare(&mut self, len: usize) -> bool {
        if self.can_spare(len) {
            return true;
        }
        // What is wrong with the ring is found when it is used.
        let read = self.read_head().is_ok();
        if read {
            self.settle();
        }
        read && self.can_spare(len)
    }

    /// Whether a frame of `len` bytes leaves half of the ring free, by what is known of the consumer.
    fn can_spare(&self, len: usize) -> bool {
        let most = (self.lines / 2).min(SPARE);
        self.under_way() + lines_of(len) < most && (len <= SHORT || self.leaves_half(lines_of(len) + 1))
    }

    /// Whether a record of so many lines finds room as things are, and half of the ring behind it. Where the
    /// lap before ended early, free lines are at two places: the one that is not used next counts for
    /// nothing.
    fn leaves_half(&self, need: u32) -> bool {
        let here = self.room();
        let room = match here < need && self.may_pass_by(need) {
            true => self.lines - self.ended,
            false => here,
        };
        self.left == NONE && room >= need + self.lines / 2
    }

    /// Whether the consumer, which has closed, had read all that was published.
    #[cold]
    pub(crate) fn is_read(&mut self) -> bool {
        self.read_head().is_ok() && self.head == self.pos
    }

    /// Lines of records that the consumer has not given back, as far as is known.
    fn under_way(&self) -> u32 {
        let used = self.pos.wrapping_sub(self.head);
        used.saturating_sub(if self.is_behind() { self.lines - self.ended } else { 0 })
    }
}
