//! Requests, named by numbers that a peer may send back.

/// Slots that are used again, each time under another name: a name that has gone by, or that a peer
/// made up, finds nothing.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Pool<T> {
    pub(crate) fn with_capacity(n: usize) -> Self {
        Pool { slots: Vec::with_capacity(n), free: Vec::with_capacity(n) }
    }

    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(self.slots.len()).expect("fewer than 2^32 requests at once");
                self.slots.push(Slot { generation: 1, value: None });
                at
            }
        };
        let slot = &mut self.slots[at as usize];
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(at)
    }

    fn slot(&mut self, name: u64) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(name as u32 as usize)?;
        (slot.generation == (name >> 32) as u32).then_some(slot)
    }

    pub(crate) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        self.slot(name)?.value.as_mut()
    }

    pub(crate) fn remove(&mut self, name: u64) -> Option<T> {
        let slot = self.slot(name)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(name as u32);
        Some(value)
    }

    /// Drops a value in its place.
    pub(crate) fn end(&mut self, name: u64) {
        let Some(slot) = self.slot(name).filter(|slot| slot.value.is_some()) else { return };
        slot.value = None;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(name as u32);
    }

    /// Exchanges what has this name.
    pub(crate) fn replace(&mut self, name: u64, value: T) -> Option<T> {
        self.slot(name)?.value.as_mut().map(|old| std::mem::replace(old, value))
    }

    /// Whether something had this name before, and has it no more.
    pub(crate) fn is_past(&self, name: u64) -> bool {
        let Some(slot) = self.slots.get(name as u32 as usize) else { return false };
        let (generation, now) = ((name >> 32) as u32, slot.generation);
        generation != 0 && now.wrapping_sub(generation) as i32 > 0
    }

    /// The names of all that `keep` picks.
    pub(crate) fn names(&self, keep: impl Fn(&T) -> bool) -> Vec<u64> {
        (0u64..)
            .zip(&self.slots)
            .filter(|(_, s)| s.value.as_ref().is_some_and(&keep))
            .map(|(at, s)| u64::from(s.generation) << 32 | at)
            .collect()
    }

    /// All, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let named = (0u64..).zip(&self.slots);
        named.filter_map(|(at, s)| Some((u64::from(s.generation) << 32 | at, s.value.as_ref()?)))
    }

    /// Whether `pick` picks any.
    pub(crate) fn any(&self, pick: impl Fn(&T) -> bool) -> bool {
        self.slots.iter().filter_map(|s| s.value.as_ref()).any(pick)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_good_once() {
        let mut pool = Pool::with_capacity(1);
        let a = pool.insert('a');
        assert_eq!(pool.get_mut(a), Some(&mut 'a'));
        assert_eq!(pool.remove(a), Some('a'));
        let b = pool.insert('b');
        assert_ne!(a, b);
        assert_eq!((pool.remove(a), pool.get_mut(a)), (None, None));
        pool.end(a);
        assert_eq!(pool.len(), 1);
        for made_up in [0, 1, u64::MAX, b + 1, b ^ 1 << 40] {
            assert_eq!(pool.get_mut(made_up), None);
        }
        assert_eq!(pool.names(|_| true), [b]);
        pool.end(b);
        pool.end(b);
        assert_eq!(pool.get_mut(b), None);
        assert_eq!((pool.len(), pool.is_past(b)), (0, true));
    }
}
