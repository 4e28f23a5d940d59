//! Streams that send: two processes of one host exchange messages, puts and gets from CUDA streams, from
//! graphs or from the CPU, over memory that each maps of the other.
//!
//! An [`Endpoint`] is connected to one peer. A [`List`] has the operations of a batch; a stream, a graph that
//! is made node by node, a stream that is being captured, or the CPU executes it, any number of times. All
//! values in it are constants: each message has a flag and a credit ([`peerop::replay::Pair`]).
//!
//! | layer | modules |
//! |---|---|
//! | words | `error`; `failure`; `layout` |
//! | memory that both processes map; what a peer has to know | `memory`; `blob` |
//! | what the threads of an endpoint share; what ends every wait | `shared`; `watch` |
//! | a peer whose memory is not mapped; what its agent says | `agent`; `carried` |
//! | an endpoint; the lists of its operations | `endpoint`; `list` |
//! | the kernels that move data; what executes lists | `kernel`, `pass`; `run` |
//! | words of the program's and of libfabric's counters, without an endpoint | `word` |

mod agent;
mod blob;
mod carried;
mod endpoint;
mod error;
mod failure;
mod kernel;
mod layout;
mod limit;
mod list;
mod memory;
mod pass;
mod run;
mod shared;
mod slots;
mod watch;
mod word;

pub use agent::{Carrier, Feed, Job, Post};
pub use endpoint::{Abort, Endpoint, Options, Path, Through};
pub use error::Error;
pub use failure::{Failure, Kind};
/// Where in the first line of an endpoint's words 8 bytes are that nothing uses.
pub const SPARE: usize = layout::SPARE;
pub use list::{List, Put};
pub use word::{Condition, Page, Word, share_a_queue};
