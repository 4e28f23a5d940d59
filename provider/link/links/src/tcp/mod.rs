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
//! | `channel::connection` | all of these together |
//! | `channel::connection::striped` | what a connection that has rails does otherwise |
//! | `channel::silence` | which connections are closed since nothing comes by them |
//! | `meet` | how connections come to be |
//! | `meet::own` | what an endpoint says of itself |
//! | `meet::handshake` | connections that are being made, by this side or another |
//! | `meet::agreement` | which of several connections to a peer counts |
//! | `meet::promises` | connections of others that are accepted and not confirmed |
//! | `meet::names` | which name a caller may have |
//! | `meet::meeting`, `answers` | connections that are being made; what came of calls |
//! | `meet::calls`, `callers` | connections that this side makes; that others make |
//! | `meet::listening` | where an endpoint is called |
//! | `meet::railed` | peers that may have rails |
//! | `meet::sensible` | which addresses a peer may have it call for these |
//! | `peer`, `peers` | what an endpoint has of a peer; of all of them |
//! | `looks`, `ticks`, `sleep` | how often connections are looked at; the timer; what a sleeper waits for |
//! | `receiving`, `to_self` | what frames are received into; those of an endpoint to itself |
//! | `reports` | what the engine is to hear |
//! | `link` | [`TcpLink`]: its parts, and opening |
//! | `connections` | all connections that are agreed on |
//! | `attach` | how rails come to be, and what they are watched for |
//! | `service` | what descriptors and time bring about |
//! | `watched` | the descriptors that are watched |
//! | `table` | the kernel's table of all descriptors |
//! | `farewell` | the end of an endpoint, or of its process |
//! | `frames` | the engine's calls |

mod attach;
mod channel;
mod connections;
mod cork;
mod farewell;
mod frames;
mod link;
mod looks;
mod meet;
mod options;
mod peer;
mod peers;
mod receiving;
mod reports;
mod service;
mod sleep;
mod sock;
mod table;
mod ticks;
mod to_self;
mod watched;

pub use farewell::lost_at_ends;
pub use link::TcpLink;
pub use options::TcpOptions;
