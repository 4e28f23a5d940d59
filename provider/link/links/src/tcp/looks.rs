//! How often all connections are looked at, and which one alone otherwise.

use link_api::PeerId;

/// Of so many looks, all but one are at one connection alone: as long as others have nothing the number is
/// doubled.
const ROUND: std::ops::RangeInclusive<u32> = 4..=32;

#[derive(Debug)]
pub(super) struct Looks {
    /// The peer whose connection is looked at without asking whether it has something.
    hot: Option<PeerId>,
    /// Looks at it since the last one at all, and how many there may be.
    looks: u32,
    round: u32,
    /// The connection that is looked at and not watched.
    unwatched: Option<PeerId>,
}

impl Looks {
    pub(super) fn new() -> Looks {
        Looks { hot: None, looks: 0, round: *ROUND.start(), unwatched: None }
    }

    /// Counts a look.
    #[inline]
    pub(super) fn count(&mut self) {
        self.looks += 1;
    }

    /// The connection that this look is at alone, unless it is at all.
    #[inline]
    pub(super) fn at_one(&self) -> Option<PeerId> {
        self.hot.filter(|_| self.looks < self.round)
    }

    /// The connection that the next look is at alone, if that needs nothing else.
    #[inline]
    pub(super) fn next_at_one(&self) -> Option<PeerId> {
        self.hot.filter(|_| self.looks + 1 < self.round && !self.is_other_unwatched())
    }

    /// This look is at all connections.
    #[inline]
    pub(super) fn at_all(&mut self) {
        self.looks = 0;
    }

    /// The peer whose connection is looked at without asking whether it has something.
    #[inline]
    pub(super) fn hot(&self) -> Option<PeerId> {
        self.hot
    }

    #[inline]
    pub(super) fn set_hot(&mut self, peer: PeerId) {
        self.hot = Some(peer);
    }

    /// None is, until one has something.
    pub(super) fn cool(&mut self) {
        self.hot = None;
    }

    /// All are looked at often.
    pub(super) fn shorten(&mut self) {
        self.round = *ROUND.start();
    }

    /// All are looked at less often, as others have had nothing; `false`: they are as rarely as may be.
    pub(super) fn lengthen(&mut self) -> bool {
        let is_shorter = self.round < *ROUND.end();
        if is_shorter {
            self.round *= 2;
        }
        is_shorter
    }

    /// Whether the connection that is not watched is another one than the one that is looked at.
    #[inline]
    pub(super) fn is_other_unwatched(&self) -> bool {
        self.unwatched.is_some() && self.unwatched != self.hot
    }

    /// Whether this peer's connection is looked at and not watched.
    pub(super) fn is_unwatched(&self, peer: PeerId) -> bool {
        self.unwatched == Some(peer)
    }

    /// This peer's connection is looked at and not watched.
    pub(super) fn set_unwatched(&mut self, peer: PeerId) {
        self.unwatched = Some(peer);
    }

    /// This peer's connection is watched.
    pub(super) fn set_watched(&mut self, peer: PeerId) {
        self.unwatched = self.unwatched.filter(|known| *known != peer);
    }

    /// All connections are to be watched, and looked at often: the one that is not.
    #[inline]
    pub(super) fn take_unwatched(&mut self) -> Option<PeerId> {
        let peer = self.unwatched.take()?;
        self.shorten();
        Some(peer)
    }
}
