//! The network of an RDMA device, by libibverbs: InfiniBand, RoCE or iWARP. [`VerbsLink`] is the link over
//! it.
//!
//! Each peer that is met has a queue pair (RC) of its own here and there, which the two announce to each
//! other by the connection that they meet by. Receives are posted to one shared receive queue, or, where the
//! device has none, to each queue pair. What is posted is counted, so that no queue overruns: a sender knows
//! how many messages its peer has room for, and where the shared queue is empty all the same, the device
//! waits and sends again (RNR).
//!
//! | module | what it holds |
//! |---|---|
//! | `choice` | which device, port, GID and MTU; how it would register memory; how long one may not answer |
//! | `address` | what one queue pair announces to another |
//! | `memory` | memory that the device reads and writes |
//! | `receives`, `sends` | places that messages are received into, and sent from |
//! | `pair`, `pairs` | a queue pair, and what was posted to it; those of all peers |
//! | `bounces`, `registered` | places that short accesses to memory go by, and memory that is registered |
//! | `probe` | whether on-demand registrations serve |
//! | `windows` | which peer a key of memory serves |
//! | `seconds` | the same of memory that no window can be bound to: a queue pair for it alone |
//! | `joining` | how that is made, connected and closed; those of iWARP, which librdmacm connects |
//! | `rails` | queue pairs with a peer by further ports |
//! | `remote` | memory that is read and written by RDMA, here and at peers |
//! | `used` | what a request has used, and gives back |
//! | `state` | [`Verbs`]: all that there is of a port |
//! | `network` | [`below::Below`] by these |
//! | `completions` | what is done with completions and events |
//! | `status` | what a completion's status means, and an error |

mod address;
mod bounces;
mod choice;
mod completions;
mod joining;
mod memory;
mod network;
mod pair;
mod pairs;
mod probe;
mod rails;
mod receives;
mod registered;
mod remote;
mod seconds;
mod sends;
mod state;
mod status;
mod used;
mod windows;

pub use choice::{Asked, Options, ask, has_device, open};
pub use state::Verbs;

/// The link over a device, with connections `B`.
pub type VerbsLink<B> = below::BelowLink<B, Verbs>;
