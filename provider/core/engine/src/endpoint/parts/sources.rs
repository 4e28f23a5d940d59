//! Whether large messages come from few peers or from many in turn. Messages of 64 KiB that come from many
//! senders in turn the receiver copies sooner alone than with the help of each sender; those of one and the
//! same sender, as in a broadcast, it does not.

use link_api::PeerId;

/// Up to so many peers in turn are few.
const FEW: usize = 2;

/// So many messages of few peers after many, and they are few. Less would do for it to change while each peer
/// has some in a row.
const LONG: u8 = 16;

/// The peers that large messages came from last.
#[derive(Debug)]
pub(in crate::endpoint) struct Sources {
    /// The last of them first.
    recent: [PeerId; FEW],
    /// Messages of others than these, less those of one of these.
    others: u8,
}

impl Default for Sources {
    fn default() -> Self {
        Sources { recent: [PeerId(u32::MAX); FEW], others: 0 }
    }
}

impl Sources {
    /// A large message comes from a peer.
    pub(in crate::endpoint) fn count(&mut self, peer: PeerId) {
        let found = self.recent.iter().position(|p| *p == peer);
        self.others = match found {
            Some(_) => self.others.saturating_sub(1),
            None => (self.others + 1).min(FEW as u8 + LONG),
        };
        self.recent[..=found.unwrap_or(FEW - 1)].rotate_right(1);
        self.recent[0] = peer;
    }

    /// Whether they come from more peers than few.
    pub(in crate::endpoint) fn are_many(&self) -> bool {
        usize::from(self.others) > FEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_peers_in_turn_are_few_and_more_are_many() {
        for n in [1, 2, 3, 31] {
            let mut sources = Sources::default();
            (0..80).for_each(|i| sources.count(PeerId(i % n)));
            assert_eq!(sources.are_many(), n > 2, "{n}");
            // What was is forgotten as soon as they are few.
            (0..40).for_each(|i| sources.count(PeerId(i % 2)));
            assert!(!sources.are_many(), "{n}");
        }
    }
}
