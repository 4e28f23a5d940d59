//! How long a peer's device may not answer until its queue pair is in error.

use std::time::Duration;

/// How often a request is sent again: as often as a queue pair can (3 bits).
pub(crate) const RETRIES: u8 = 7;
/// The longest wait has a code of 5 bits; 0 would be none at all.
const CODES: std::ops::RangeInclusive<u8> = 1..=31;
/// A wait of 0.27 s. The last packet of a message, where it is lost, is sent again after one, and it has to
/// come within the 0.5 s for which a peer that takes memory back, or ends an access, waits for the answer.
const MOST: Patience = Patience(16);
/// Where nothing else is wanted.
const LEAST: Duration = Duration::from_secs(2);

/// The code of how long an acknowledgement is waited for: 4.096 us times two to its power, before a request
/// is sent again, and before it is given up after the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(u8);

impl Patience {
    /// The shortest one by which a request is tried for so long, no longer than [`MOST`], and no shorter than
    /// `ack_delay`, the code of how long this device may take to acknowledge (`local_ca_ack_delay`).
    pub(crate) fn of(wanted: Option<Duration>, ack_delay: u8) -> Patience {
        let wanted = wanted.unwrap_or(LEAST);
        let shortest = CODES.map(Patience).find(|one| one.longest() >= wanted).map_or(MOST.0, |one| one.0);
        Patience(shortest.min(MOST.0).max(ack_delay.min(*CODES.end())))
    }

    /// As `ibv_qp_attr.timeout` has it.
    pub(crate) fn code(self) -> u8 {
        self.0
    }

    /// How long a request is tried.
    pub(crate) fn longest(self) -> Duration {
        Duration::from_nanos(4_096 << self.0) * (u32::from(RETRIES) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_tried_for_as_long_as_is_wanted_and_less_than_twice_that() {
        for seconds in [1, 2] {
            let wanted = Duration::from_secs(seconds);
            let longest = Patience::of(Some(wanted), 0).longest();
            assert!(wanted <= longest && longest < 2 * wanted, "{wanted:?}: {longest:?}");
        }
        for seconds in [3, 30, 3_600] {
            assert_eq!(Patience::of(Some(Duration::from_secs(seconds)), 0), MOST);
        }
        assert_eq!(Patience::of(None, 0), Patience::of(Some(LEAST), 0));
    }

    #[test]
    fn the_code_is_one_that_a_queue_pair_takes_and_no_less_than_the_devices() {
        let of = |seconds, delay| Patience::of(Some(Duration::from_secs(seconds)), delay).code();
        assert_eq!((of(0, 0), of(u64::MAX, 0)), (1, 16));
        assert_eq!((of(1, 15), of(2, 18), of(2, 255)), (15, 18, 31));
    }
}
