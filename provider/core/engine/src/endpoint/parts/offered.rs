//! Large messages that were sent and not yet received, as a sign that bytes travel both ways: peers copy them
//! while this side copies what it receives.

/// Large transfers received since a peer took a message from which on bytes are held to travel one way:
/// messages that were offered before that may have no receive for long.
const ONE_WAY: u32 = 16;

/// Large messages that peers were offered and have yet to take.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Offered {
    untaken: u32,
    /// Large transfers received since a peer took one of them, or since the first of them was offered.
    since: u32,
}

impl Offered {
    /// A peer was offered one more.
    pub(in crate::endpoint) fn offer(&mut self) {
        if self.untaken == 0 {
            self.since = 0;
        }
        self.untaken += 1;
    }

    /// One of them has been taken, or has failed.
    pub(in crate::endpoint) fn end(&mut self) {
        self.untaken = self.untaken.saturating_sub(1);
        self.since = 0;
    }

    /// A large message, or what a large write brings, has been received.
    pub(in crate::endpoint) fn take_in(&mut self) {
        self.since = self.since.saturating_add(1);
    }

    /// Whether peers are likely to take one of them while a message is taken in here.
    pub(in crate::endpoint) fn are_both_ways(&self) -> bool {
        self.untaken > 0 && self.since < ONE_WAY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_never_taken_counts_for_so_long() {
        let mut offered = Offered::default();
        assert!(!offered.are_both_ways());
        for _ in 0..3 {
            (0..2 * ONE_WAY).for_each(|_| offered.take_in());
            offered.offer();
            for _ in 0..ONE_WAY {
                assert!(offered.are_both_ways());
                offered.take_in();
            }
            assert!(!offered.are_both_ways());
            // Nor does it help to offer more that are not taken; of those that are, each does.
            offered.offer();
            assert!(!offered.are_both_ways());
            offered.end();
            assert!(offered.are_both_ways());
            offered.end();
            assert!(!offered.are_both_ways());
        }
    }
}
