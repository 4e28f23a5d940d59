//! A job that a launcher started, or that a user started by hand: see the crate `bootstrap`.

use std::time::Instant;

use bootstrap::Exchange;

use crate::{Bootstrap, CARD_MOST, Error, Rank};

/// Ranks and cards by an exchange: all cards travel when this process's is published.
#[derive(Debug)]
pub struct ExchangeBootstrap {
    exchange: Box<dyn Exchange>,
    cards: Vec<Vec<u8>>,
}

impl ExchangeBootstrap {
    /// The job that the environment names; of one process, if it names none.
    pub fn from_environment() -> Result<ExchangeBootstrap, Error> {
        ExchangeBootstrap::new(bootstrap::find().map_err(wrong)?)
    }

    /// The job of an exchange.
    pub fn new(exchange: Box<dyn Exchange>) -> Result<ExchangeBootstrap, Error> {
        match Rank::try_from(exchange.size()) {
            Ok(_) => Ok(ExchangeBootstrap { exchange, cards: Vec::new() }),
            Err(_) => Err(Error::Unsupported(format!("a job of {} processes", exchange.size()))),
        }
    }

    /// Waits until all processes have called it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.exchange.barrier().map_err(wrong)
    }
}

fn wrong(e: bootstrap::Error) -> Error {
    match e {
        bootstrap::Error::Environment(why) => Error::Invalid(why),
        bootstrap::Error::Peers(why) => Error::Gone(why),
        bootstrap::Error::System(why) => Error::System(why),
    }
}

impl Bootstrap for ExchangeBootstrap {
    fn name(&self) -> &str {
        self.exchange.way()
    }

    fn rank(&self) -> Rank {
        self.exchange.rank() as Rank
    }

    fn size(&self) -> Rank {
        self.exchange.size() as Rank
    }

    fn publish(&mut self, card: &[u8]) -> Result<(), Error> {
        self.cards = self.exchange.allgather(card).map_err(wrong)?;
        Ok(())
    }

    fn card(&mut self, of: Rank, _until: Instant) -> Result<Vec<u8>, Error> {
        match self.cards.get(of as usize) {
            Some(card) if card.len() <= CARD_MOST => Ok(card.clone()),
            Some(card) => Err(Error::Broken(format!("the card of rank {of} has {} bytes", card.len()))),
            None => Err(Error::Invalid(format!("rank {of} of a job of {}", self.exchange.size()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_one_process_has_its_own_card() {
        let mut job = ExchangeBootstrap::new(Box::new(bootstrap::Single)).unwrap();
        assert_eq!((job.rank(), job.size(), job.name()), (0, 1, "single"));
        assert!(job.card(0, Instant::now()).is_err(), "it was not published");
        job.publish(b"card").unwrap();
        assert_eq!(job.card(0, Instant::now()).unwrap(), b"card");
        assert!(job.card(1, Instant::now()).is_err());
        job.publish(&[0; CARD_MOST + 1]).unwrap();
        assert!(matches!(job.card(0, Instant::now()), Err(Error::Broken(_))));
        job.barrier().unwrap();
    }
}
