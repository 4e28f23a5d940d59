//! The queue pairs of all peers, by number.

mod product;

use std::collections::HashMap;

use crate::pair::Pair;
use crate::pairs::product::ByProduct;

/// A number, and which of those that had it.
#[derive(Debug, Default)]
struct Slot {
    pair: Option<Pair>,
    generation: u16,
}

/// Bits of an id: the number of the pair above that of the request, its generation above that.
const NUMBER: u32 = 32;
const GENERATION: u32 = 48;
/// Generations, which wrap; the bit above is of receives.
const GENERATIONS: u16 = 0x7fff;
/// Most pairs.
const MOST: usize = 1 << (GENERATION - NUMBER);

impl Slot {
    /// What ids of requests have above the number of the request, where the slot has this number.
    #[inline]
    fn id(&self, number: u32) -> u64 {
        u64::from(self.generation) << GENERATION | u64::from(number) << NUMBER
    }
}

/// Numbers that no pair has, or that the connection of a pair which was removed before it was closed has.
#[derive(Debug, Default)]
struct Unused {
    free: Vec<u32>,
    kept: Vec<u32>,
}

impl Unused {
    fn keep(&mut self, number: u32) {
        self.kept.push(number);
    }

    /// The connection that a number was kept for is closed.
    fn release(&mut self, number: u32) {
        if let Some(at) = self.kept.iter().position(|n| *n == number) {
            self.free.push(self.kept.swap_remove(at));
        }
    }
}

/// All queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    slots: Vec<Slot>,
    unused: Unused,
    by_qpn: HashMap<u32, u32, ByProduct>,
    /// Those that are closed, and not destroyed yet.
    closing: Vec<u32>,
}

impl Pairs {
    /// Takes on a pair, which is made with its number; an error if there are too many.
    pub(crate) fn add(&mut self, make: impl FnOnce(u32) -> Result<Pair, String>) -> Result<u32, String> {
        if self.unused.free.is_empty() {
            if self.slots.len() == MOST {
                return Err(format!("it has {MOST} peers, and can have no more"));
            }
            self.unused.free.push(self.slots.len() as u32);
            self.slots.push(Slot::default());
        }
        let number = *self.unused.free.last().unwrap_or(&0);
        let pair = make(number)?;
        self.unused.free.pop();
        self.by_qpn.insert(pair.qp.number(), number);
        self.slots[number as usize].pair = Some(pair);
        Ok(number)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Pair> {
        self.slots.get(number as usize)?.pair.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Pair> {
        self.slots.get_mut(number as usize)?.pair.as_mut()
    }

    /// A pair, and what ids of its requests have above the number of the request.
    #[inline]
    pub(crate) fn with_id(&mut self, number: u32) -> Option<(&mut Pair, u64)> {
        let slot = self.slots.get_mut(number as usize)?;
        let id = slot.id(number);
        slot.pair.as_mut().map(|pair| (pair, id))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_qpn.len()
    }

    /// The numbers of all pairs.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.pair.is_some()).map(|(number, _)| number).collect()
    }

    /// The number of the pair whose queue pair has this one.
    #[inline]
    pub(crate) fn of_qpn(&self, qpn: u32) -> Option<u32> {
        self.by_qpn.get(&qpn).copied()
    }

    /// What ids of a pair's requests have above the number of the request.
    #[inline]
    pub(crate) fn id(&self, number: u32) -> u64 {
        self.slots[number as usize].id(number)
    }

    /// The pair that an id is of, and the number of the request; `None`: its pair is gone.
    #[inline]
    pub(crate) fn of_id(&self, id: u64) -> Option<(u32, u32)> {
        let number = (id >> NUMBER) as u16;
        let slot = self.slots.get(usize::from(number))?;
        let is_it = slot.pair.is_some() && u64::from(slot.generation) == id >> GENERATION;
        is_it.then_some((number.into(), id as u32))
    }

    /// A pair is closed, and is to be removed when it is over.
    pub(crate) fn note_closing(&mut self, number: u32) {
        self.closing.push(number);
    }

    #[inline]
    pub(crate) fn has_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Whether there is one among those that this names.
    pub(crate) fn has_closing_of(&self, is_one: impl Fn(u32) -> bool) -> bool {
        self.closing.iter().any(|number| is_one(*number))
    }

    /// Removes a pair that is over, if there is one among those that may go: its number, and what it was.
    pub(crate) fn take_over(&mut self, shared: bool, may_go: impl Fn(u32) -> bool) -> Option<(u32, Pair)> {
        let is_over = |n: u32| may_go(n) && self.get(n).is_none_or(|pair| pair.is_over(shared));
        let at = self.closing.iter().position(|n| is_over(*n))?;
        let number = self.closing.swap_remove(at);
        self.remove(number).map(|pair| (number, pair))
    }

    /// Removes a pair that is closed, or was offered alone.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Pair> {
        let pair = self.take(number)?;
        self.unused.free.push(number);
        Some(pair)
    }

    /// Removes a pair whose connection may not be closed yet, and has the number until it is
    /// ([`Pairs::release`]); whether it is closed.
    pub(crate) fn stop(&mut self, number: u32) -> Option<(Pair, bool)> {
        let closing = self.closing.iter().position(|n| *n == number);
        let pair = self.take(number)?;
        match closing {
            Some(at) => {
                self.closing.swap_remove(at);
                self.unused.free.push(number);
            }
            None => self.unused.keep(number),
        }
        Some((pair, closing.is_some()))
    }

    /// The connection of a pair that was stopped is closed: another one may have its number.
    pub(crate) fn release(&mut self, number: u32) {
        self.unused.release(number);
    }

    fn take(&mut self, number: u32) -> Option<Pair> {
        let slot = self.slots.get_mut(number as usize)?;
        let pair = slot.pair.take()?;
        slot.generation = (slot.generation + 1) & GENERATIONS;
        self.by_qpn.remove(&pair.qp.number());
        Some(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_another_pairs_once_its_connection_is_closed() {
        let mut unused = Unused::default();
        unused.keep(3);
        unused.release(4);
        assert!(unused.free.is_empty(), "the connection of 3 is not closed");
        unused.release(3);
        unused.release(3);
        assert_eq!((unused.free, unused.kept), (vec![3], vec![]), "once");
    }
}
