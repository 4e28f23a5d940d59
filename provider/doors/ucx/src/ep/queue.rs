//! A queue from which any element can be taken out in one step, by the ticket it was given.

use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// RegionVersion of the first place.
    first: u64,
    /// Neither the first nor the last is empty.
    places: VecDeque<Option<T>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { first: 0, places: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Appends an element; its ticket, good as long as it is in the queue.
    pub(crate) fn push(&mut self, t: T) -> u64 {
        self.places.push_back(Some(t));
        self.first + self.places.len() as u64 - 1
    }

    /// Takes the first element out.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let t = self.places.front_mut()?.take();
        self.trim();
        t
    }

    /// Takes the element with this ticket out.
    pub(crate) fn remove(&mut self, ticket: u64) -> Option<T> {
        let at = usize::try_from(ticket.checked_sub(self.first)?).ok()?;
        let t = self.places.get_mut(at)?.take();
        self.trim();
        t
    }

    fn trim(&mut self) {
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        while let Some(None) = self.places.back() {
            self.places.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_in_order_or_by_ticket() {
        let mut q = Queue::default();
        let tickets: Vec<u64> = (0..6).map(|n| q.push(n)).collect();
        assert_eq!((q.remove(tickets[2]), q.remove(tickets[2])), (Some(2), None));
        assert_eq!((q.remove(tickets[0]), q.remove(tickets[5])), (Some(0), Some(5)));
        assert_eq!(q.pop(), Some(1));
        let again = q.push(7);
        assert_eq!((q.pop(), q.pop()), (Some(3), Some(4)));
        assert_eq!((q.remove(again), q.is_empty(), q.pop()), (Some(7), true, None));
        assert_eq!((q.remove(0), q.remove(u64::MAX)), (None, None));
    }

    #[test]
    fn what_comes_and_goes_leaves_nothing_behind() {
        let mut q = Queue::default();
        let stays = q.push(0);
        for n in 1..1000 {
            let ticket = q.push(n);
            assert_eq!(q.remove(ticket), Some(n));
        }
        assert_eq!((q.places.len(), q.remove(stays)), (1, Some(0)));
    }
}
