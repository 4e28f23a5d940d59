//! TCP, to peers on other hosts.
//!
//! An endpoint listens on the port that is in its name. A connection is made when it is needed, by either
//! side, and carries frames both ways. Before that, the two sides show each other that they have the key of
//! the job ([`wire::session`]).
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | [`TcpOptions`] |
//! | `sock` | system calls |
//! | `channel` | a connection that is agreed on |
//! | `channel::line` | its socket, and whether it ends |
//! | `channel::outgoing` | frames on their way out, and what waits for room |
//! | `channel::incoming`, `at_hand` | records as they come; the bytes of a frame that was handed out |
//! | `channel::landing` | long frames that go where they belong as they come |
//! | `channel::pool` | memory to receive into, which counts |
//! | `channel::rails` | further connections to a peer, which carry long frames |
//! | `channel::connection`, `striped` | all of these together; what a connection that has rails does otherwise |
//! | `handshake` | connections that are being made, by this side or another |
//! | `peer` | what an endpoint has of a peer |
//! | `link` | [`TcpLink`]: state, and opening |
//! | `calls`, `guests` | connections that this side makes; that others make |
//! | `agreement` | which of several connections to a peer counts |
//! | `promised`, `promises` | connections of others that are accepted and not confirmed: what is done with them; what there is of them |
//! | `listen` | where rails are made to |
//! | `names` | which name a caller may have |
//! | `attach` | how rails come to be, and what they are watched for |
//! | `sensible` | which addresses a peer may have it call for these |
//! | `service` | what descriptors and time bring about |
//! | `watched` | the descriptors that are watched |
//! | `table` | the kernel's table of all descriptors |
//! | `farewell` | the end of an endpoint, or of its process |
//! | `frames` | the engine's calls |

mod agreement;
mod attach;
mod calls;
mod channel;
mod farewell;
mod frames;
mod guests;
mod handshake;
mod link;
mod listen;
mod names;
mod options;
mod peer;
mod promised;
mod promises;
mod sensible;
mod service;
mod sock;
mod table;
mod watched;

pub use farewell::lost_at_ends;
pub use link::TcpLink;
pub use options::TcpOptions;
