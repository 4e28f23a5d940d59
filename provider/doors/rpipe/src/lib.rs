//! Remote memory by malloc, messages by a pipe, and no synchronization to write.
//!
//! A pipe leads from a writer to a reader. The writer allocates in the pipe's heap, which is memory of the
//! reader, writes, and sends; the reader gets the next message where it is, and frees it. The two ends
//! exchange which blocks are in use, and which may be used again.
//!
//! | module | what it holds |
//! |---|---|
//! | `core` | pipes: [`Context`], [`Pipe`], [`Heap`], and [`Backend`], what they need of a path |
//! | `backends` | those there are, by name |
//! | `start` | which [`Bootstrap`] a process has |
//! | `device` | memory of devices |
//! | `group` | [`Group`]: collective calls |
//! | `many` | [`Many`]: the readers' ends of pipes of many writers, as one |
//! | `lend` | [`Lent`] and [`Borrowed`]: memory of a process that makes no calls, and its heap |
//! | `lock` | the lock of a pipe, which the thread that uses it alone takes by two stores |
//! | `c` | the interface of C |

pub mod backends;
pub mod c;
mod core;
mod device;
mod group;
mod job;
mod lend;
mod lock;
mod many;
pub mod start;

pub use crate::core::{
    ALIGN_MOST, Address, Atomic, AtomicOp, Backend, Block, Bootstrap, CARD_MOST, CONTROL_MOST, Context,
    Error, Event, GRANTS_MOST, Get, Grant, Heap, Memory, Mode, OnDevice, Patience, Pipe, PipeOptions, Policy,
    Promise, Put, Rank, Region, RegionId, RemoteId, Rma, SETTINGS, Setting, Settings, Side, State, Stats,
    Sync, Taken, Token, Usage, Wakeup,
};
pub use device::{Device, DeviceMemory, PeerMemory};
pub use group::{Combine, Group, Neighbor, Number, Operation};
pub use lend::{Borrowed, LendStats, Lent};
pub use many::{Many, Received};
