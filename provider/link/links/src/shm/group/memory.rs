//! The memory of a group: a word of all, the words of each member, and the slots.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use hmem::{AtomicOp, Datatype, Kind, NotApplied, Span};
use ipc::Mapping;
use ipc::fence::full_fence;
use ipc::memfd::{self, Unfit, Writers};
use link_api::{Arrival, GroupMemory, GroupShape, INLINE, InSlot, SLOTS};

use super::words;

// What different members write is two cache lines apart, or more: hardware fetches lines in pairs.
const PAIR: usize = 128;
/// The word of all members.
const ANY_ASLEEP: usize = 0;
/// Where the words of members begin.
const WORDS: usize = PAIR;
/// The words of a slot: the step that it was filled for, what the operation is, and then short bytes.
const PRINT: usize = 8;
const SHORT: usize = 16;
const _: () = assert!(SHORT + INLINE == PAIR);
const FINISHED: usize = SLOTS as usize * PAIR;
const ASLEEP: usize = FINISHED + PAIR;
/// From the words of one member to those of the next.
const MEMBER: usize = ASLEEP + PAIR;

/// See the module. Valid shapes alone.
#[derive(Debug)]
pub(super) struct Memory {
    shape: GroupShape,
    mapping: Mapping,
}

/// Where the slots begin, on a page.
fn slots_at(shape: &GroupShape) -> usize {
    (WORDS + shape.members * MEMBER).next_multiple_of(4096)
}

fn size(shape: &GroupShape) -> usize {
    slots_at(shape) + shape.members * SLOTS as usize * shape.slot
}

impl Memory {
    pub(super) fn create(shape: GroupShape) -> io::Result<(Memory, OwnedFd)> {
        if !shape.is_valid() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = memfd::create(c"strait-group", size(&shape), Writers::All)?;
        Ok((Memory { shape, mapping: Mapping::new(&fd, size(&shape), None)? }, fd))
    }

    /// What another member made; the reason if it is not as agreed.
    pub(super) fn adopt(shape: GroupShape, fd: &OwnedFd) -> Result<Memory, Unfit> {
        if !shape.is_valid() {
            return Err(Unfit::Size);
        }
        let size = size(&shape);
        Ok(Memory { shape, mapping: memfd::adopt(fd, size..=size)? })
    }

    /// Where the words of a member are.
    fn member(&self, member: usize) -> usize {
        assert!(member < self.shape.members, "no member");
        WORDS + member * MEMBER
    }

    /// Where the words of a member's slot are.
    fn line(&self, member: usize, step: u64) -> usize {
        self.member(member) + (step % SLOTS) as usize * PAIR
    }

    fn wide(&self, at: usize) -> &AtomicU64 {
        // SAFETY: callers ask for words of members, which are inside, and multiples of 8.
        unsafe { self.mapping.wide(at) }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: callers ask for the group's word or a member's, which are inside, and multiples of 4.
        unsafe { self.mapping.word(at) }
    }

    /// Bytes of a slot, for a copy in the call that asks.
    fn span(&self, part: InSlot) -> Span {
        let InSlot { member, step, used, at, len } = part;
        assert!(
            used <= self.shape.slot && at.checked_add(len).is_some_and(|end| end <= used),
            "outside a slot"
        );
        let line = self.line(member, step);
        let first = if used <= INLINE {
            line + SHORT
        } else {
            slots_at(&self.shape) + (member * SLOTS as usize + (step % SLOTS) as usize) * self.shape.slot
        };
        // SAFETY: inside the mapping, by the assertion and the size of the mapping, and used while `self` is
        // borrowed. Others may write it meanwhile: it is copied, and any bytes are a value.
        unsafe { Span::new(self.mapping.base() as usize + first + at, len, Kind::System) }
    }
}

impl GroupMemory for Memory {
    fn publish(&self, step: u64, print: u64) {
        let line = self.line(self.shape.rank, step);
        words::publish(self.wide(line), self.wide(line + PRINT), step, print);
    }

    fn arrival(&self, member: usize, step: u64, print: u64) -> Arrival {
        let line = self.line(member, step);
        words::arrival(self.wide(line), self.wide(line + PRINT), step, print)
    }

    fn finish(&self, step: u64) {
        words::finish(self.wide(self.member(self.shape.rank) + FINISHED), step);
    }

    fn finished(&self, member: usize) -> u64 {
        words::finished(self.wide(self.member(member) + FINISHED))
    }

    fn put(&self, to: InSlot, from: Span) -> bool {
        let to = self.span(InSlot { member: self.shape.rank, ..to });
        to.len() == from.len() && hmem::copy(&[to], 0, &[from], 0, to.len()) == to.len()
    }

    fn get(&self, from: InSlot, into: Span) -> bool {
        let from = self.span(from);
        into.len() == from.len() && hmem::copy(&[into], 0, &[from], 0, from.len()) == from.len()
    }

    fn reduce(
        &self,
        from: InSlot,
        into: Option<Span>,
        (op, datatype): (AtomicOp, Datatype),
    ) -> Result<(), NotApplied> {
        let into = into.unwrap_or_else(|| self.span(InSlot { member: self.shape.rank, ..from }));
        hmem::reduce(into, op, datatype, self.span(from))
    }

    fn may_sleep(&self) -> bool {
        words::may_sleep(self.word(ANY_ASLEEP), full_fence)
    }

    fn wake_next(&self, from: usize) -> Option<usize> {
        if from == 0 {
            words::begin_wake(self.word(ANY_ASLEEP), full_fence);
        }
        let sleeps = |m: &usize| words::take_sleeper(self.word(self.member(*m) + ASLEEP));
        (from..self.shape.members).find(sleeps)
    }

    fn sleep(&self) {
        let asleep = self.word(self.member(self.shape.rank) + ASLEEP);
        words::sleep(asleep, self.word(ANY_ASLEEP), full_fence);
    }
}
