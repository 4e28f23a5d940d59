//! The backends, by their names.

mod far;
mod mpi;
mod near;
mod reach;
mod strait;
mod terms;

pub use mpi::{Mpi, MpiBootstrap};
pub use near::Near;
pub use reach::Reach;
pub use strait::Strait;

use crate::{Backend, Error, Rank, Settings};

/// Names that [`open`] knows, the default first.
pub const NAMES: &[&str] = &["strait", "libfabric", "mpi"];

/// Opens the backend of the settings for a process of this rank. Its name may have an argument behind a
/// colon.
pub fn open(settings: &Settings, rank: Rank) -> Result<Box<dyn Backend>, Error> {
    let (kind, argument) = settings.backend.split_once(':').unwrap_or((&settings.backend, ""));
    match kind {
        "strait" => Ok(Box::new(Strait::open(rank, argument.parse()?, settings)?)),
        "libfabric" => Ok(Box::new(Strait::open(rank, Reach::Provider(argument.into()), settings)?)),
        "mpi" => Ok(Box::new(Mpi::open(argument, rank)?)),
        _ => Err(Error::Unsupported(format!("there is no backend {kind:?}; there are {}", NAMES.join(", ")))),
    }
}
