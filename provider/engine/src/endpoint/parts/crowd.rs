//! Whether large messages go to few peers or to many in turn, and come from few or many.
//!
//! With 32 ranks that send 16 KiB to each other one copy by the kernel takes less time than two by way of the
//! rings (docs/measurements/node.md). Most likely the lines of a ring have left the caches by the time that
//! its turn comes again. Messages of 64 KiB that come from many senders in turn the receiver copies sooner
//! alone than with the help of each sender; those that come from the one and same sender, as in a broadcast,
//! it does not.

use link_api::PeerId;

/// Peers to which large messages go, by way of rings while they are few: with 15 neither way was quicker in
/// all patterns.
pub(in crate::endpoint) type Targets = Crowd<16>;
/// Peers to which large messages go, while they are no more than a node of a tree has: up to 16 ranks in a
/// binomial one.
pub(in crate::endpoint) type FewTargets = Crowd<4>;
/// Peers from which large messages come, which help to copy while they are few.
pub(in crate::endpoint) type Sources = Crowd<2>;

/// So many messages of few peers after many, and they are few. Less would do for it to change while each peer
/// has some in a row.
const LONG: u8 = 16;

/// The peers that large messages went to, or came from, last. Up to `FEW` in turn are few.
#[derive(Debug)]
pub(in crate::endpoint) struct Crowd<const FEW: usize> {
    /// The last of them first.
    recent: [PeerId; FEW],
    /// Messages of others than these, less those of one of these.
    others: u8,
}

impl<const FEW: usize> Default for Crowd<FEW> {
    fn default() -> Self {
        Crowd { recent: [PeerId(u32::MAX); FEW], others: 0 }
    }
}

impl<const FEW: usize> Crowd<FEW> {
    /// A large message goes to a peer, or comes from it.
    pub(in crate::endpoint) fn count(&mut self, peer: PeerId) {
        let found = self.recent.iter().position(|p| *p == peer);
        self.others = match found {
            Some(_) => self.others.saturating_sub(1),
            None => (self.others + 1).min(FEW as u8 + LONG),
        };
        self.recent[..=found.unwrap_or(FEW - 1)].rotate_right(1);
        self.recent[0] = peer;
    }

    /// Whether they are of more peers than few.
    pub(in crate::endpoint) fn is_many(&self) -> bool {
        usize::from(self.others) > FEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const FEW: usize>() {
        for n in [1, 2, FEW as u32, FEW as u32 + 1, 31] {
            let mut crowd = Crowd::<FEW>::default();
            (0..80).for_each(|i| crowd.count(PeerId(i % n)));
            assert_eq!(crowd.is_many(), n > FEW as u32, "{n}");
            // And what was is forgotten as soon as they are few.
            (0..40).for_each(|i| crowd.count(PeerId(i % 2)));
            assert!(!crowd.is_many(), "{n}");
        }
    }

    #[test]
    fn few_peers_in_turn_are_no_crowd_and_more_are() {
        check::<16>();
        check::<4>();
        check::<2>();
    }
}
