//! Whether large messages go to few peers or to many in turn.
//!
//! With 32 ranks that send 16 KiB to each other one copy by the kernel takes less time than two by way of the rings
//! (docs/measurements/node.md). Most likely the lines of a ring have left the caches by the time that its turn comes again.

use link_api::PeerId;

/// Peers to which large messages may go in turn and that count as few; with 15 neither way was quicker in all patterns.
const FEW: usize = 16;

/// The peers that large messages went to last.
#[derive(Debug)]
pub(super) struct Crowd {
    /// The last of them first.
    recent: [PeerId; FEW],
    /// Messages to others than these, less those to one of these.
    others: u8,
}

impl Default for Crowd {
    fn default() -> Crowd {
        Crowd { recent: [PeerId(u32::MAX); FEW], others: 0 }
    }
}

impl Crowd {
    /// A large message goes to a peer.
    pub(super) fn send(&mut self, to: PeerId) {
        let found = self.recent.iter().position(|p| *p == to);
        self.others = match found {
            Some(_) => self.others.saturating_sub(1),
            None => (self.others + 1).min(2 * FEW as u8),
        };
        self.recent[..=found.unwrap_or(FEW - 1)].rotate_right(1);
        self.recent[0] = to;
    }

    /// Whether they go to more peers than few.
    pub(super) fn is_many(&self) -> bool {
        usize::from(self.others) > FEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_peers_in_turn_are_no_crowd_and_more_are() {
        for n in [1, 2, FEW as u32, FEW as u32 + 1, 31] {
            let mut crowd = Crowd::default();
            (0..80).for_each(|i| crowd.send(PeerId(i % n)));
            assert_eq!(crowd.is_many(), n > FEW as u32, "{n}");
            // And what was is forgotten as soon as it goes to few.
            (0..40).for_each(|i| crowd.send(PeerId(i % 2)));
            assert!(!crowd.is_many(), "{n}");
        }
    }
}
