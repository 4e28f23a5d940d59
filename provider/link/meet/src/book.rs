//! Peers by number and by name.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Index, IndexMut};

/// Peers, whose numbers are their places in the list; a number that was given back is used again. `N` is a
/// name.
#[derive(Debug)]
#[repr(C)]
pub struct Book<N, P> {
    list: Vec<P>,
    ids: HashMap<N, u32>,
    free: Vec<u32>,
}

impl<N, P> Default for Book<N, P> {
    fn default() -> Book<N, P> {
        Book { list: Vec::new(), ids: HashMap::new(), free: Vec::new() }
    }
}

impl<N: Eq + Hash, P> Book<N, P> {
    /// The number of the peer of this name, if it is known.
    #[inline]
    pub fn find(&self, name: &N) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// The number of the peer of this name, known or new: `make` makes one, of what had the number before.
    pub fn named(&mut self, name: N, make: impl FnOnce(Option<&P>) -> P) -> u32 {
        let (list, free) = (&mut self.list, &mut self.free);
        *self.ids.entry(name).or_insert_with(|| match free.pop() {
            Some(id) => {
                list[id as usize] = make(list.get(id as usize));
                id
            }
            None => {
                list.push(make(None));
                list.len() as u32 - 1
            }
        })
    }

    /// Frees a number for another peer, if it is that of this name. What is at it stays until then.
    pub fn free(&mut self, name: &N, id: u32) -> bool {
        let is_its = self.ids.get(name) == Some(&id);
        if is_its {
            self.ids.remove(name);
            self.free.push(id);
        }
        is_its
    }

    /// All numbers, those that are free among them.
    pub fn ids(&self) -> std::ops::Range<u32> {
        0..self.list.len() as u32
    }

    /// How many names are known.
    pub fn names(&self) -> usize {
        self.ids.len()
    }

    /// The peers at all numbers.
    pub fn list(&self) -> &[P] {
        &self.list
    }

    pub fn list_mut(&mut self) -> &mut [P] {
        &mut self.list
    }

    /// Takes all peers out, at the end.
    pub fn take(&mut self) -> Vec<P> {
        std::mem::take(&mut self.list)
    }

    #[inline(always)]
    pub fn get(&self, id: u32) -> Option<&P> {
        self.list.get(id as usize)
    }

    #[inline(always)]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut P> {
        self.list.get_mut(id as usize)
    }
}

impl<N, P> Index<u32> for Book<N, P> {
    type Output = P;

    #[inline(always)]
    fn index(&self, id: u32) -> &P {
        &self.list[id as usize]
    }
}

impl<N, P> IndexMut<u32> for Book<N, P> {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut P {
        &mut self.list[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_once_it_is_freed_under_its_name() {
        let mut book = Book::default();
        assert_eq!((book.named("a", |_| 1), book.named("b", |_| 2), book.named("a", |_| 3)), (0, 1, 0));
        assert_eq!((book[0], book[1], book.list().len(), book.names()), (1, 2, 2, 2));
        assert!(!book.free(&"b", 0) && !book.free(&"c", 0));
        assert!(book.free(&"a", 0) && !book.free(&"a", 0));
        assert_eq!((book.find(&"a"), book.find(&"b"), book.names()), (None, Some(1), 1));
        assert_eq!((book.named("c", |old| old.map_or(0, |old| old + 10)), book[0]), (0, 11));
        assert_eq!((book.ids(), book.take()), (0..2, vec![11, 2]));
    }
}
