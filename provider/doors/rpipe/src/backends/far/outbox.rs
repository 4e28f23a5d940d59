//! Messages to peers that have not left yet.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::{Error, Rank};

/// Messages to one peer, in order.
#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<(u8, Vec<u8>)>,
    /// When the first one is tried again, if that is not at once.
    next: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: HashMap<Rank, Waiting>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn has(&self, rank: Rank) -> bool {
        self.waiting.contains_key(&rank)
    }

    /// Keeps a message, behind those to the same peer. `is_once`: one says as much as many.
    pub(super) fn add(&mut self, to: Rank, kind: u8, message: Vec<u8>, next: Option<Instant>, is_once: bool) {
        let waiting = self.waiting.entry(to).or_default();
        waiting.next = waiting.next.or(next);
        if !is_once || waiting.messages.back().is_none_or(|(last, _)| *last != kind) {
            waiting.messages.push_back((kind, message));
        }
    }

    /// Sends what waits, as far as there is room; the peers to which that has failed, of which nothing waits
    /// any more. `later`: when one is tried again for which there is no connection.
    pub(super) fn drain(
        &mut self,
        mut post: impl FnMut(Rank, &[u8]) -> Result<(), Error>,
        later: impl Fn() -> Option<Instant>,
    ) -> Vec<(Rank, Error)> {
        let mut failed = Vec::new();
        self.waiting.retain(|rank, waiting| {
            if waiting.next.is_some_and(|next| Instant::now() < next) {
                return true;
            }
            waiting.next = None;
            while let Some((_, message)) = waiting.messages.front() {
                match post(*rank, message) {
                    Ok(()) => drop(waiting.messages.pop_front()),
                    Err(Error::Again) => return true,
                    Err(Error::Exhausted(_)) => {
                        waiting.next = later();
                        return true;
                    }
                    Err(fault) => {
                        failed.push((*rank, fault));
                        return false;
                    }
                }
            }
            false
        });
        failed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn messages_leave_in_order_and_those_of_a_peer_that_failed_are_dropped() {
        let mut outbox = Outbox::default();
        for (to, kind, byte) in [(1, 0, 1), (1, 0, 2), (2, 0, 3), (3, 9, 4), (3, 9, 5)] {
            outbox.add(to, kind, vec![byte], None, kind == 9);
        }
        let (mut left, mut room) = (Vec::new(), 1);
        let mut post = |rank: Rank, message: &[u8]| match rank {
            2 => Err(Error::Gone("it has ended".into())),
            3 => Err(Error::Exhausted("no descriptor".into())),
            _ if room == 0 => Err(Error::Again),
            _ => {
                room -= 1;
                left.push(message[0]);
                Ok(())
            }
        };
        let later = || Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(outbox.drain(&mut post, later), [(2, Error::Gone("it has ended".into()))]);
        assert!(outbox.has(1) && !outbox.has(2) && outbox.has(3));
        assert_eq!(left, [1]);
        let all = |outbox: &mut Outbox| {
            let mut sent = Vec::new();
            let post = |rank, message: &[u8]| {
                sent.push((rank, message[0]));
                Ok(())
            };
            outbox.drain(post, || None);
            sent
        };
        assert_eq!(all(&mut outbox), [(1, 2)], "3 is not tried yet");
        outbox.waiting.get_mut(&3).unwrap().next = None;
        assert_eq!(all(&mut outbox), [(3, 4)], "a message that says as much as many goes once");
        assert!(outbox.is_empty());
    }
}
