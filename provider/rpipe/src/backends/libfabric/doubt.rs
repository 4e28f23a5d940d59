//! Operations that fail before it is known whether their peer has ended: a provider may notice that first,
//! and has as many words for it as there are providers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::{Error, Event, Rank, Token};

/// For so long a failure may be the peer's end.
const DOUBT: Duration = Duration::from_millis(500);

/// What has failed.
#[derive(Debug, Default)]
pub struct Doubts {
    failed: Vec<(Rank, Token, Error, Instant)>,
    refused: HashMap<Rank, Instant>,
}

impl Doubts {
    pub fn is_empty(&self) -> bool {
        self.failed.is_empty()
    }

    /// An operation has failed: it is told of later.
    pub fn add(&mut self, peer: Rank, token: Token, error: Error) {
        self.failed.push((peer, token, error, Instant::now()));
    }

    /// What a call comes to whose operation was refused, or not.
    pub fn judge(&mut self, peer: Rank, outcome: Result<(), Error>) -> Result<(), Error> {
        match outcome {
            Err(Error::System(why)) => {
                let since = *self.refused.entry(peer).or_insert_with(Instant::now);
                Err(if since.elapsed() < DOUBT { Error::Again } else { Error::System(why) })
            }
            Ok(()) if !self.refused.is_empty() => {
                self.refused.remove(&peer);
                Ok(())
            }
            other => other,
        }
    }

    /// The peer has ended: what has failed because of that.
    pub fn ended(&mut self, peer: Rank) -> Vec<Token> {
        let (ended, others) = std::mem::take(&mut self.failed).into_iter().partition(|one| one.0 == peer);
        self.failed = others;
        let ended: Vec<(Rank, Token, Error, Instant)> = ended;
        ended.into_iter().map(|(_, token, ..)| token).collect()
    }

    /// What has failed by itself, as it seems.
    pub fn tell(&mut self, ready: &mut Vec<Event>) {
        self.failed.retain(|(_, token, error, since)| {
            let waits = since.elapsed() < DOUBT;
            if !waits {
                ready.push(Event::Failed(*token, error.clone()));
            }
            waits
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_of_a_peers_end_or_is_told_a_little_later() {
        let (mut doubts, mut ready) = (Doubts::default(), Vec::new());
        let wrong = || Error::System("wrong".into());
        for peer in [1, 2] {
            doubts.add(peer, Token(peer.into()), wrong());
            assert_eq!(doubts.judge(peer, Err(wrong())), Err(Error::Again));
        }
        assert_eq!(doubts.judge(1, Ok(())), Ok(()));
        assert_eq!(doubts.ended(1), [Token(1)]);
        let until = Instant::now() + Duration::from_secs(60);
        while ready.is_empty() && Instant::now() < until {
            doubts.tell(&mut ready);
        }
        assert!(matches!(&ready[..], [Event::Failed(Token(2), Error::System(_))]), "{ready:?}");
        assert!(doubts.is_empty());
        assert_eq!(doubts.judge(2, Err(wrong())), Err(wrong()));
        assert_eq!(doubts.judge(2, Err(Error::Again)), Err(Error::Again));
    }
}
