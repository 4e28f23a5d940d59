//! How the processes of a job find each other: each has a rank, and publishes a card, the address of its
//! backend.

use std::fmt;
use std::time::Instant;

use crate::{Error, Rank};

/// A way by which processes learn their ranks and each other's cards. Used by one thread, and no longer than
/// it takes to meet peers: pipes need nothing of it once they are set up.
pub trait Bootstrap: Send + fmt::Debug {
    /// Its name, for people: `file`, `pmix`, `pmi`, `mpi`, `run`.
    fn name(&self) -> &str;

    /// This process's rank, below [`Bootstrap::size`].
    fn rank(&self) -> Rank;

    /// Processes of the job, 1 at least.
    fn size(&self) -> Rank;

    /// Makes this process's card known to all others; called once, before any [`Bootstrap::card`]. It may be
    /// collective, that is, wait until all processes have called it. A card has at most [`CARD_MOST`] bytes.
    fn publish(&mut self, card: &[u8]) -> Result<(), Error>;

    /// The card of a rank. Waits for it until `until`, then [`Error::Again`]; [`Error::Gone`] if that process
    /// is known to have ended. Called until it is had, first when it is needed.
    fn card(&mut self, of: Rank, until: Instant) -> Result<Vec<u8>, Error>;

    /// Reports to the launcher that this process ends as it should. Called once, last.
    fn finalize(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// The longest card, in bytes: what the oldest PMI takes as a value, in hexadecimal.
pub const CARD_MOST: usize = 448;
