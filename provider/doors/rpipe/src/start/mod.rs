//! Which bootstrap a process has: by what its launcher has put into the environment.

mod exchange;
mod file;

pub use exchange::ExchangeBootstrap;
pub use file::FileBootstrap;

use crate::backends::MpiBootstrap;
use crate::core::text;
use crate::{Bootstrap, Error, Settings};

/// The MPI whose job this is, also with another backend: for a program that calls MPI_Init itself.
pub const MPI: &str = "STRAIT_RPIPE_MPI";

/// Finds the job that this process is one of.
pub fn find() -> Result<Box<dyn Bootstrap>, Error> {
    // MPI asks its launcher itself, and gives the answers.
    let backend = Settings::from_environment()?.backend;
    let named = std::env::var_os(MPI).map(|value| text(MPI, value)).transpose()?;
    if let Some(name) = backend.strip_prefix("mpi:").or(named.as_deref()) {
        return Ok(Box::new(MpiBootstrap::open(name)?));
    }
    if let Some(file) = FileBootstrap::from_environment()? {
        return Ok(Box::new(file));
    }
    Ok(Box::new(ExchangeBootstrap::from_environment()?))
}
