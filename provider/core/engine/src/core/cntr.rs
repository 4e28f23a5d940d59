//! Counters, and where they lie.

use hmem::Words;

/// A counter.
#[derive(Debug)]
pub(crate) struct Cntr {
    place: Place,
    /// Deferred work waits for it, and has not heard of a change yet.
    armed: bool,
    /// A device waits for it: see [`crate::Domain::cntr_watch`].
    pub(crate) watched: bool,
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
        Cntr { place: Place::Own(0, 0), armed: false, watched: false, users: 0 }
    }

    /// One whose numbers lie there, with what they are.
    pub(crate) fn at(words: Words) -> Cntr {
        Cntr { place: Place::Shared(words), armed: false, watched: false, users: 0 }
    }

    /// Counts one completion or failure; whether the counter was armed until now.
    ///
    /// The place in the slab is what is asked, not the counter: whether there is one and whether it lies here
    /// is one comparison.
    #[inline(always)]
    pub(crate) fn count(slot: &mut Option<Cntr>, failed: bool) -> bool {
        match slot {
            Some(Cntr { place: Place::Own(value, errors), armed, .. }) => {
                let number = if failed { errors } else { value };
                *number = number.wrapping_add(1);
                std::mem::take(armed)
            }
            other => Cntr::count_elsewhere(other, failed),
        }
    }

    #[cold]
    fn count_elsewhere(slot: &mut Option<Cntr>, failed: bool) -> bool {
        let number = if failed { Number::Errors } else { Number::Value };
        slot.as_mut().is_some_and(|c| {
            c.add(number, 1);
            c.disarm()
        })
    }

    /// Has the next change of it noted.
    pub(crate) fn arm(&mut self) {
        self.armed = true;
    }

    /// Whether it was armed until now.
    pub(crate) fn disarm(&mut self) -> bool {
        std::mem::take(&mut self.armed)
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
