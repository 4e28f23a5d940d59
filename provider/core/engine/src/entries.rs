//! The entries of a completion queue.

use crate::types::Completion;

/// A queue that grows. In place of a `VecDeque` because entries are built where they stay: one that
/// is built on the stack first is read back before it has left the store buffer, and that alone costs
/// more than the rest of a completion.
#[derive(Debug)]
pub(crate) struct Entries {
    /// As many as a power of two; those that are not in use hold anything.
    slots: Box<[Completion]>,
    first: usize,
    len: usize,
}

impl Entries {
    pub(crate) fn with_capacity(n: usize) -> Self {
        Entries { slots: blank(n.next_power_of_two()), first: 0, len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn at(&self, n: usize) -> usize {
        self.first.wrapping_add(n) & (self.slots.len() - 1)
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Completion> {
        if self.len == 0 { None } else { self.slots.get(self.at(0)) }
    }

    /// Drops the first entry, if there is one.
    #[inline]
    pub(crate) fn drop_front(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            // A queue that is read as it fills stays on the same few cache lines.
            self.first = if self.len == 0 { 0 } else { self.at(1) };
        }
    }

    /// Adds what `make` makes.
    #[inline(always)]
    pub(crate) fn push(&mut self, make: impl FnOnce() -> Completion) {
        if self.len == self.slots.len() {
            self.grow();
        }
        let at = self.at(self.len);
        self.slots[at] = make();
        self.len += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let mut slots = blank(2 * self.slots.len());
        let (tail, head) = self.slots.split_at(self.first);
        slots[..head.len()].copy_from_slice(head);
        slots[head.len()..head.len() + tail.len()].copy_from_slice(tail);
        (self.slots, self.first) = (slots, 0);
    }
}

fn blank(n: usize) -> Box<[Completion]> {
    vec![Completion::BLANK; n].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Ctx;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn a_queue_that_is_read_as_it_fills_stays_in_its_first_entries() {
        let mut entries = Entries::with_capacity(8);
        for n in 0..20 {
            entries.push(|| Completion { ctx: Ctx(n), ..Completion::BLANK });
            assert!(std::ptr::eq(entries.front().unwrap(), &entries.slots[0]));
            entries.drop_front();
        }
    }

    proptest! {
        #[test]
        fn like_any_queue(steps in prop::collection::vec(any::<bool>(), 0..300)) {
            let (mut real, mut model) = (Entries::with_capacity(1), VecDeque::new());
            for (n, push) in steps.into_iter().enumerate() {
                if push {
                    real.push(|| Completion { ctx: Ctx(n), ..Completion::BLANK });
                    model.push_back(n);
                } else {
                    real.drop_front();
                    model.pop_front();
                }
                prop_assert_eq!((real.len(), real.front().map(|c| c.ctx.0)), (model.len(), model.front().copied()));
            }
        }
    }
}
