//! Counters, and where they lie.

use hmem::Words;

/// A counter.
#[derive(Debug)]
pub(crate) struct Cntr {
    place: Place,
    pub(crate) users: usize,
}

/// Where what was counted lies.
#[derive(Debug)]
enum Place {
    /// Here: completions, and failures.
    Own(u64, u64),
    /// In memory that others may write, too: a device that starts operations, say.
    Shared(Words),
}

/// Which of the two numbers of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    Value,
    Errors,
}

impl Cntr {
    pub(crate) fn new() -> Cntr {
        Cntr { place: Place::Own(0, 0), users: 0 }
    }

    /// One whose numbers lie there, with what they are.
    pub(crate) fn at(words: Words) -> Cntr {
        Cntr { place: Place::Shared(words), users: 0 }
    }

    /// Counts one completion or failure; whether there is a counter.
    ///
    /// The place in the slab is what is asked, not the counter: whether there is one and whether it lies here
    /// is one comparison.
    #[inline(always)]
    pub(crate) fn count(slot: &mut Option<Cntr>, failed: bool) -> bool {
        match slot {
            Some(Cntr { place: Place::Own(value, errors), .. }) => {
                let number = if failed { errors } else { value };
                *number = number.wrapping_add(1);
                true
            }
            other => Cntr::count_elsewhere(other, failed),
        }
    }

    #[cold]
    fn count_elsewhere(slot: &mut Option<Cntr>, failed: bool) -> bool {
        let number = if failed { Number::Errors } else { Number::Value };
        slot.as_mut().map(|c| c.add(number, 1)).is_some()
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.place, Place::Shared(_))
    }

    pub(crate) fn get(&self, number: Number) -> u64 {
        match (&self.place, number) {
            (Place::Own(value, _), Number::Value) => *value,
            (Place::Own(_, errors), Number::Errors) => *errors,
            (Place::Shared(words), _) => words.get(number == Number::Errors),
        }
    }

    pub(crate) fn add(&mut self, number: Number, n: u64) {
        match (&mut self.place, number) {
            (Place::Own(value, _), Number::Value) => *value = value.wrapping_add(n),
            (Place::Own(_, errors), Number::Errors) => *errors = errors.wrapping_add(n),
            (Place::Shared(words), _) => words.add(number == Number::Errors, n),
        }
    }

    pub(crate) fn set(&mut self, number: Number, n: u64) {
        match (&mut self.place, number) {
            (Place::Own(value, _), Number::Value) => *value = n,
            (Place::Own(_, errors), Number::Errors) => *errors = n,
            (Place::Shared(words), _) => words.set(number == Number::Errors, n),
        }
    }
}
