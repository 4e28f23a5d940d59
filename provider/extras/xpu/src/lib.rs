//! What the host does for kernels that send: rings of commands that a device writes and a drain carries out,
//! completions and counters that the device reads, and tables of peers' memory that it may reach by itself.
//!
//! The layouts are `include/strait_xpu_layout.h`'s. A device is anything that writes such slots: a kernel, or
//! a thread in a test. Everything it writes is checked as a peer's (`command`), and no reference to memory
//! that it writes is made but to atomics (`words`).
//!
//! | layer | modules |
//! |---|---|
//! | words | `layout`, `error`, [`words`] |
//! | a ring's protocol, and what a command may be | [`ring`], [`command`] |
//! | commands under way, their order | `window` |
//! | completions and counters in shared memory | [`queue`], [`counter`] |
//! | the engine does it | [`port`], `post`, [`drain`] |
//! | what polls | [`thread`], and how it rests |
//! | a program's own context, its threads, its rings | [`context`], `handle` |
//! | the data that its processes exchange | `blob` |
//! | a device's side, for code of this process | [`device`] |

#[cfg(all(test, loom))]
#[path = "../../../base/ipc/src/shared/twin.rs"]
mod twin;

mod backlog;
mod blob;
pub mod command;
pub mod context;
pub mod counter;
pub mod device;
pub mod drain;
pub mod error;
mod handle;
pub mod layout;
pub mod port;
mod post;
pub mod queue;
pub mod ring;
pub mod side;
pub mod thread;
mod window;
pub mod words;

pub use context::{Context, Options, Waker};
pub use counter::CounterSide;
pub use device::Producer;
pub use drain::Drain;
pub use error::Error;
pub use handle::{RingHandle, RingRequest};
pub use port::{Peers, Port, Regions};
pub use queue::{Place, QueueSide};
pub use side::{Near, RingOptions, RingPlaces};
pub use thread::{DrainThread, Drains, Feed, Pace};
pub use words::Words;
