//! How processes reach each other's memory: handles, and what was opened by them.
//!
//! An allocation's number never comes again, so what is remembered under it cannot be taken for a
//! later allocation at the same address.
//!
//! | module | what it holds |
//! |---|---|
//! | `handle` | handles |
//! | `dmabuf` | memory of this process of which the program has named a dma-buf |
//! | `bytes` | handles as bytes |
//! | `exported` | the handles that were made of this process's memory |
//! | `owner` | other processes |
//! | `file`, `mapped`, `opened` | their memory, mapped here |
//! | `open` | what is mapped, to be found again |
//! | `passed` | memory by a descriptor that was passed |
//! | `plan` | the parts of a copy |

mod bytes;
mod dmabuf;
mod exported;
mod file;
mod handle;
mod mapped;
mod open;
mod opened;
mod owner;
mod passed;
mod plan;

pub use bytes::List;
pub use dmabuf::{Dmabuf, find_dmabuf, has_dmabuf};
pub(crate) use exported::{cached_export, nameless};
pub(crate) use file::{File, describe as describe_file, fetch, inode, vet as vet_file};
pub use file::{FileAt, export_file};
pub use handle::{Export, HandleType};
pub(crate) use mapped::Backing;
pub use mapped::Mapped;
pub use open::{forget, is_open, open, open_uncached};
pub use opened::Opened;
pub use owner::Owner;
pub use passed::Passed;
pub use plan::{NoPlan, Plan, plan};
