//! Ranks and cards by MPI.

use std::time::Instant;

use super::library::Library;
use crate::{Bootstrap, CARD_MOST, Error, Rank};

/// Ranks of MPI_COMM_WORLD.
#[derive(Debug)]
pub struct MpiBootstrap {
    library: Library,
    rank: Rank,
    size: Rank,
    cards: Vec<u8>,
}

/// A card, behind its length.
const ROOM: usize = CARD_MOST + 2;

impl MpiBootstrap {
    /// By the MPI of this name, which is started if it does not run.
    pub fn open(name: &str) -> Result<MpiBootstrap, Error> {
        let (library, _) = Library::load(name)?;
        let (rank, size) = library.place()?;
        Ok(MpiBootstrap { library, rank, size, cards: Vec::new() })
    }
}

impl Bootstrap for MpiBootstrap {
    fn name(&self) -> &str {
        "mpi"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> Rank {
        self.size
    }

    fn publish(&mut self, card: &[u8]) -> Result<(), Error> {
        if card.len() > CARD_MOST {
            return Err(Error::Invalid(format!("a card of {} bytes", card.len())));
        }
        let mut mine = (card.len() as u16).to_ne_bytes().to_vec();
        mine.extend(card);
        mine.resize(ROOM, 0);
        let mut all = vec![0u8; ROOM * self.size as usize];
        // SAFETY: `ROOM` bytes of this process, and a place for as many of each.
        let rc =
            unsafe { (self.library.table.allgather)(mine.as_ptr().cast(), ROOM, all.as_mut_ptr().cast()) };
        self.library.check(rc, "MPI_Allgather")?;
        self.cards = all;
        Ok(())
    }

    fn card(&mut self, of: Rank, _until: Instant) -> Result<Vec<u8>, Error> {
        let card = self.cards.chunks_exact(ROOM).nth(of as usize);
        let card = card.ok_or_else(|| Error::Invalid(format!("rank {of} of a job of {}", self.size)))?;
        let len = usize::from(u16::from_ne_bytes([card[0], card[1]]));
        card[2..]
            .get(..len)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| Error::Broken(format!("the card of rank {of} is none")))
    }
}
