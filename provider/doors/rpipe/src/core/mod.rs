//! The core: streams from a writer to a reader, with the heap, the slots and the tags of each; and the job
//! that they are in. What is named here is all that the tiers above use.

mod atomic;
mod backend;
mod bootstrap;
mod context;
mod control;
mod error;
pub(crate) mod forked;
mod heap;
#[cfg(all(test, loom))]
mod loom_words;
mod memory;
mod pipe;
mod received;
mod settings;
mod slot;
mod stream;
mod tags;

pub use atomic::{Atomic, AtomicOp};
pub use backend::{
    Backend, CONTROL_MOST, Event, GRANTS_MOST, Get, Grant, Promise, Put, Rank, Region, RegionId, RemoteId,
    Rma, Token, Wakeup,
};
pub use bootstrap::{Bootstrap, CARD_MOST};
pub use context::Context;
pub use error::Error;
pub use heap::{ALIGN_MOST, Block, Heap, Policy, State, Usage};
pub use memory::Memory;
pub use pipe::{Address, Pipe, PipeOptions, Side};
pub use settings::{ALL as SETTINGS, Setting, Settings, Sync};
pub use stream::{Mode, OnDevice, Patience, Stats, Taken};

pub(crate) use backend::{NO_DEVICES, check_control};
pub(crate) use context::{Net, Service, TOKENS};
pub(crate) use control::{Reason, closed};
pub(crate) use pipe::Visit;
pub(crate) use settings::{HEAP_MOST, SLOTS, granule, text};
pub(crate) use slot::HANDLERS;
pub(crate) use stream::{Contenders, WaitStep, Waiting};
#[cfg(all(test, not(loom)))]
pub(crate) use stream::{lacking_tests, tests};
