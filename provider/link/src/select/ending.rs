//! Peers whose end one link has reported, and others have not.

use link_api::{Gone, PeerId};

/// A link of the endpoint: a further one, or shared memory.
pub(super) type Which = Option<usize>;

#[derive(Debug)]
struct Ending {
    peer: PeerId,
    why: Gone,
    /// These have not.
    owing: Vec<Which>,
}

/// All peers that are ending.
#[derive(Debug, Default)]
pub(super) struct Endings(Vec<Ending>);

impl Endings {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn contains(&self, peer: PeerId) -> bool {
        self.0.iter().any(|e| e.peer == peer)
    }

    /// One link has reported the end of a peer, and these owe it.
    pub(super) fn begin(&mut self, peer: PeerId, why: Gone, owing: Vec<Which>) {
        self.0.push(Ending { peer, why, owing });
    }

    /// One link owes the end of a peer that is ending.
    pub(super) fn owe(&mut self, by: Which, peer: PeerId) {
        if let Some(ending) = self.0.iter_mut().find(|e| e.peer == peer) {
            if !ending.owing.contains(&by) {
                ending.owing.push(by);
            }
        }
    }

    /// A link reports the end of a peer that is ending. If that was the last one: the reason that the first one gave.
    pub(super) fn report(&mut self, by: Which, peer: PeerId) -> Option<Gone> {
        let at = self.0.iter().position(|e| e.peer == peer)?;
        self.0[at].owing.retain(|owing| *owing != by);
        self.0[at].owing.is_empty().then(|| self.0.swap_remove(at).why)
    }
}
