//! How long a peer's device may not answer until its queue pair is in error.

use std::time::Duration;

/// How often a request is sent again: as often as a queue pair can (3 bits).
pub(crate) const RETRIES: u8 = 7;
/// A wait of 0.27 s. The last packet of a message, where it is lost, is sent again after one, and it has to
/// come within the 0.5 s for which a peer that takes memory back, or ends an access, waits for the answer.
const WAIT: u8 = 16;
/// The longest wait: a code has 5 bits.
const LONGEST: u8 = 31;

/// The code of how long an acknowledgement is waited for: 4.096 us times two to its power, before a request
/// is sent again, and before it is given up after the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(u8);

impl Patience {
    /// No shorter than `ack_delay`, the code of how long the device may take to acknowledge
    /// (`local_ca_ack_delay`).
    pub(crate) fn of(ack_delay: u8) -> Patience {
        Patience(WAIT.max(ack_delay.min(LONGEST)))
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
    fn a_request_is_tried_for_2_s_and_less_than_twice_that() {
        let longest = Patience::of(0).longest();
        let wanted = Duration::from_secs(2);
        assert!(wanted <= longest && longest < 2 * wanted, "{longest:?}");
    }

    #[test]
    fn the_code_is_one_that_a_queue_pair_takes_and_no_less_than_the_devices() {
        assert_eq!([0, 15, 18, 255].map(|delay| Patience::of(delay).code()), [16, 16, 18, 31]);
    }
}
