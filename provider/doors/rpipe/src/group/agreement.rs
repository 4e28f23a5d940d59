//! Whether members are in the same call: what the messages of each begin with, and notes of those that wait.
//!
//! A member that waits for a message sees those of the members that it does not wait for, and sends a note of
//! its call to the others. Either shows at one of the members that the calls differ.

use super::pieces::differs;
use crate::{Error, Rank};

/// Calls that are remembered: a member that is further behind is not checked.
const LAST: usize = 64;

/// What the messages of the last calls began with.
#[derive(Debug)]
pub(super) struct Agreement {
    calls: [u64; LAST],
    /// Calls so far.
    number: u32,
}

impl Agreement {
    pub(super) fn new() -> Agreement {
        Agreement { calls: [0; LAST], number: 0 }
    }

    /// The number of the next call.
    pub(super) fn next(&self) -> u32 {
        self.number.wrapping_add(1)
    }

    /// Begins the next call, whose messages begin so.
    pub(super) fn begin(&mut self, what: u64) {
        self.number = self.next();
        self.calls[self.number as usize % LAST] = what;
    }

    /// What the messages of this call begin with.
    pub(super) fn now(&self) -> u64 {
        self.calls[self.number as usize % LAST]
    }

    /// Refuses what a message or a note of a member is of, if this one made another call there. A member may
    /// be ahead.
    pub(super) fn check(&self, what: u64, rank: Rank) -> Result<(), Error> {
        let number = (what >> 32) as u32;
        let ahead = number.wrapping_sub(self.number) as i32;
        // An exchange and a note have no number.
        let known = number != 0 && ahead <= 0 && ahead > -(LAST as i32);
        if known && self.calls[number as usize % LAST] != what { Err(differs(rank)) } else { Ok(()) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::pieces::{EXCHANGE, Kind, NOTE, call};
    use super::*;

    #[test]
    fn a_member_may_be_ahead_but_not_in_another_call() {
        let mut a = Agreement::new();
        let of = |number, root| call(Kind::Bcast, root, 0, number);
        for number in 1..=200 {
            assert_eq!(a.next(), number);
            a.begin(of(number, 1));
        }
        assert_eq!(a.now(), of(200, 1));
        for (what, is_right) in [
            (of(200, 1), true),
            (of(200, 2), false),
            (of(140, 1), true),
            (of(140, 2), false),
            (of(201, 2), true),
            // Too long ago to be known.
            (of(100, 2), true),
            (EXCHANGE, true),
            (NOTE, true),
        ] {
            assert_eq!(a.check(what, 3).is_ok(), is_right, "{what:x}");
        }
    }

    #[test]
    fn numbers_wrap() {
        let mut a = Agreement { calls: [0; LAST], number: u32::MAX - 1 };
        for _ in 0..3 {
            a.begin(call(Kind::Barrier, 0, 0, a.next()));
        }
        assert!(a.check(call(Kind::Barrier, 0, 0, u32::MAX), 1).is_ok());
        assert!(a.check(call(Kind::Gather, 0, 0, u32::MAX), 1).is_err());
        assert!(a.check(call(Kind::Gather, 0, 0, 1), 1).is_err());
        assert!(a.check(call(Kind::Gather, 0, 0, 2), 1).is_ok());
    }
}
