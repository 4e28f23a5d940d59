//! Remote memory by malloc, messages by a pipe, and no synchronization to write.
//!
//! A pipe leads from a writer to a reader. The writer allocates in the pipe's heap, which is memory of the
//! reader, writes, and sends; the reader gets the next message where it is, and frees it. That is all: which
//! blocks are in use, and which may be used again, the two ends tell each other.
//!
//! | module | what it holds |
//! |---|---|
//! | `backend` | [`Backend`]: what moves bytes, and what a path promises |
//! | `backends` | those there are, by name |
//! | `biased` | the lock of a pipe, which the thread that uses it alone takes by two stores |
//! | `bootstrap` | [`Bootstrap`]: ranks, and cards of peers |
//! | `start` | which bootstrap a process has |
//! | `heap` | the book of a heap: which blocks are free, held, sent
//! | `many` | [`Many`]: the readers' ends of pipes of many writers, as one |
//! | `group` | [`Group`]: broadcast and neighbour exchange |
//! | `lend` | [`Lent`] and [`Borrowed`]: memory of a process that makes no calls, and its heap |
//! | `loans` | what is known of lent memory, and the messages of it |
//! | `several` | waiting for one of several pipes, and whose turn it is |
//! | `memory` | memory that a peer may write |
//! | `device` | memory of devices |
//! | `forked` | whether this is a forked child |
//! | `error` | what goes wrong |

mod backend;
pub mod backends;
mod biased;
mod bootstrap;
pub mod c;
mod context;
mod control;
mod device;
mod error;
mod forked;
mod group;
mod heap;
mod lend;
mod loans;
#[cfg(all(test, loom))]
mod loom_words;
mod many;
mod memory;
mod pipe;
mod received;
mod settings;
mod several;
mod slot;
pub mod start;
mod stream;
mod tags;

pub use backend::{
    Backend, CONTROL_MOST, Event, GRANTS_MOST, Get, Grant, Promise, Put, Rank, Region, RegionId, RemoteId,
    Token,
};
pub use bootstrap::{Bootstrap, CARD_MOST};
pub use context::Context;
pub use device::{Device, DeviceMemory, PeerMemory};
pub use error::Error;
pub use group::{Group, Neighbor};
pub use heap::{ALIGN_MOST, Block, Heap, Policy, State, Usage};
pub use lend::{Borrowed, LendStats, Lent};
pub use many::{Many, Received};
pub use memory::Memory;
pub use pipe::{Address, Pipe, PipeOptions, Side};
pub use settings::{ALL as SETTINGS, Setting, Settings, Sync};
pub use stream::{Mode, OnDevice, Patience, Stats, Taken};
