//! NCCL's collectives, by a library that is opened at run time; RCCL has the same functions.
//!
//! RCCL was not run: its library is found and its functions are those of the table, no more is known.
//!
//! | module | what it holds |
//! |---|---|
//! | `error` | why a call failed |
//! | `library` | the functions, and where they are found |
//! | `table` | its types and operations |
//! | `comm` | a communicator: its life, its stream, its errors |
//! | `collective` | what its ranks do together |

mod collective;
mod comm;
mod error;
mod library;
mod table;

pub use collective::Group;
pub use comm::{Comm, Rank};
pub use error::NcclError;
pub use library::{Library, UniqueId, Vendor};
pub use table::{Element, element};
