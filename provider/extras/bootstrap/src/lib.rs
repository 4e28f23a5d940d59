//! How the processes of a job find each other, without MPI: rank, size, and an exchange of bytes.
//!
//! [`find`] takes what the environment offers:
//!
//! | environment | given by | way |
//! |---|---|---|
//! | `STRAIT_RANK`, `STRAIT_SIZE`, `STRAIT_EXCHANGE` | `strait run`; a user by hand | a socket: [`socket`] |
//! | `PMI_FD`, `PMI_RANK`, `PMI_SIZE` | Hydra of MPICH and Intel MPI | PMI-1: [`pmi`] |
//! | `PMIX_NAMESPACE`, `PMIX_RANK` | Open MPI's mpirun, prterun, Slurm | libpmix by dlopen(3): [`pmix`] |
//! | none of them | | a job of one process |
//!
//! `STRAIT_BOOTSTRAP` names one of `strait`, `pmi`, `pmix` and `single` where there is more than one.

mod address;
mod error;
mod job;
mod net;
pub mod pmi;
pub mod pmix;
mod pmix_abi;
mod protocol;
mod server;
pub mod socket;

pub use address::Address;
pub use error::{Error, LONGEST};
pub use job::{Environment, find, find_in};
pub use net::addresses;
pub use server::{Server, token};

/// Environment variables of `strait run`, and of processes that are started by hand.
pub mod names {
    /// This process's number, from 0.
    pub const RANK: &str = "STRAIT_RANK";
    /// How many processes the job has.
    pub const SIZE: &str = "STRAIT_SIZE";
    /// Where the exchange is: `unix:PATH`, `unix:@NAME`, `tcp:HOST:PORT` or `file:PATH`.
    pub const EXCHANGE: &str = "STRAIT_EXCHANGE";
    /// A word that all processes of the job have to know.
    pub const JOB: &str = "STRAIT_JOB";
    /// Seconds that processes started by hand wait for each other.
    pub const TIMEOUT: &str = "STRAIT_EXCHANGE_TIMEOUT";
    /// Set where a launcher holds the exchange; rank 0 holds it otherwise.
    pub const LAUNCHER: &str = "STRAIT_LAUNCHER";
    /// Which of the ways is to be taken.
    pub const BOOTSTRAP: &str = "STRAIT_BOOTSTRAP";
    /// The file of libpmix, where it is not found by its name.
    pub const PMIX: &str = "STRAIT_PMIX_LIBRARY";
}

/// Rank, size and an exchange of bytes. All processes of the job call the same functions in the same order.
pub trait Exchange: Send + std::fmt::Debug {
    /// This process's number, below [`Exchange::size`].
    fn rank(&self) -> usize;

    /// How many processes the job has, at least 1.
    fn size(&self) -> usize;

    /// Gives these bytes, at most [`LONGEST`], to all processes, and returns what each gave, by rank.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Returns when all processes have called it.
    fn barrier(&mut self) -> Result<(), Error> {
        self.allgather(&[]).map(|_| ())
    }

    /// Which way this is, for logs.
    fn way(&self) -> &'static str;
}

/// A job of one process.
#[derive(Clone, Copy, Debug)]
pub struct Single;

impl Exchange for Single {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Error::check_length(mine)?;
        Ok(vec![mine.to_vec()])
    }

    fn way(&self) -> &'static str {
        "single"
    }
}
