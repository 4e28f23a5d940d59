//! The memory of a group, in one process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hmem::{AtomicOp, Datatype, NotApplied, Span};
use link_api::{Arrival, GroupMemory, GroupShape, InSlot, SLOTS};

/// What a member has published in each slot, with its print, and its slots.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) published: Vec<(u64, u64)>,
    pub(crate) slots: Vec<Span>,
    pub(crate) finished: u64,
    pub(crate) asleep: bool,
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) shape: GroupShape,
    pub(crate) all: Arc<Mutex<Vec<Member>>>,
}

/// What is offered, by the name of its place in the list.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) all: Arc<Mutex<Vec<Member>>>,
    pub(crate) slot: usize,
    pub(crate) to: Vec<usize>,
}

impl Memory {
    fn all(&self) -> MutexGuard<'_, Vec<Member>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn span(&self, part: InSlot) -> Span {
        assert!(part.at + part.len <= part.used && part.used <= self.shape.slot);
        let slot = self.all()[part.member].slots[(part.step % SLOTS) as usize];
        slot.part(part.at, part.len).expect("inside")
    }
}

impl GroupMemory for Memory {
    fn publish(&self, step: u64, print: u64) {
        self.all()[self.shape.rank].published[(step % SLOTS) as usize] = (step, print);
    }

    fn arrival(&self, member: usize, step: u64, print: u64) -> Arrival {
        match self.all()[member].published[(step % SLOTS) as usize] {
            (now, _) if now < step => Arrival::Awaited,
            (now, what) if (now, what) == (step, print) => Arrival::Here,
            _ => Arrival::Wrong,
        }
    }

    fn finish(&self, step: u64) {
        self.all()[self.shape.rank].finished = step;
    }

    fn finished(&self, member: usize) -> u64 {
        self.all()[member].finished
    }

    fn put(&self, to: InSlot, from: Span) -> bool {
        let to = self.span(InSlot { member: self.shape.rank, ..to });
        assert_eq!(to.len(), from.len());
        hmem::copy(&[to], 0, &[from], 0, to.len()) == to.len()
    }

    fn get(&self, from: InSlot, into: Span) -> bool {
        let from = self.span(from);
        assert_eq!(into.len(), from.len());
        hmem::copy(&[into], 0, &[from], 0, from.len()) == from.len()
    }

    fn reduce(
        &self,
        from: InSlot,
        into: Option<Span>,
        (op, datatype): (AtomicOp, Datatype),
    ) -> Result<(), NotApplied> {
        let own = InSlot { member: self.shape.rank, ..from };
        hmem::reduce(into.unwrap_or_else(|| self.span(own)), op, datatype, self.span(from))
    }

    fn may_sleep(&self) -> bool {
        self.all().iter().any(|member| member.asleep)
    }

    fn wake_next(&self, from: usize) -> Option<usize> {
        let mut all = self.all();
        let sleeper = all.iter().skip(from).position(|member| member.asleep)? + from;
        all[sleeper].asleep = false;
        Some(sleeper)
    }

    fn sleep(&self) {
        self.all()[self.shape.rank].asleep = true;
    }
}
