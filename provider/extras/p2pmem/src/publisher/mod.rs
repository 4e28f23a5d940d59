//! What offers memory.

pub mod bar;
mod contract;
pub(crate) mod descriptor;
mod export;
mod host;
mod lease;
mod region;
mod window;

pub use contract::{Kind, Owner, PAGE, Publisher, Source, pages};
pub use export::{Exported, export_memory, export_to_processes};
pub use host::Host;
pub(crate) use lease::map;
pub use lease::{Lease, Mapped};
pub use region::Region;
pub(crate) use window::number_of;
pub use window::{Window, windows};
