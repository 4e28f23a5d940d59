//! The link over another provider of the libfabric core that runs, opened below Strait: cxi, efa, psm3,
//! verbs, or one that needs no hardware.
//!
//! An endpoint is reached under its IP address and port, as over TCP: a connection there shows which peer it
//! is and that it has the key of the job, carries each side's address on the fabric to the other, and its end
//! is that of the peer, which providers often do not report. Frames go by the fabric once a message has made
//! its way to the peer and back; where none does, they go by the connection, if that is allowed.
//!
//! | module | what it holds |
//! |---|---|
//! | `below` | [`Below`]: what a network below has to give |
//! | `choice` | which provider that is, and how the core is called for it |
//! | `fabric` | [`Fabric`]: [`Below`] by libfabric's calls |
//! | `places` | messages that are received and sent, each from a place of its own |
//! | `slab` | memory that operations in flight use |
//! | `channel` | what two ends have agreed on: keys, order, room |
//! | `options` | how a link is opened |
//! | `net` | a fabric and the connections besides: the parts of both, peers that end or break the rules |
//! | `parts` | what it is made of: the provider below, peers, what has arrived, reads, sleep |
//! | `peer` | what it has of a peer, in parts |
//! | `meet` | how two endpoints agree on a fabric, or not |
//! | `link` | [`OfiLink`]: what is done with what comes by either way, and its end |
//! | `frames` | the engine's calls of it |
//! | `registration` | how memory is registered |
//! | `remote`, `lender` | accesses to memory, by libfabric's calls; the endpoint that peers access it by |
//! | `lent` | what two endpoints have of each other's memory |
//! | `dealings` | memory that is lent to peers and taken back; accesses to theirs |
//! | `fds` | descriptors that others own |

mod below;
mod channel;
mod choice;
mod dealings;
mod fabric;
mod fds;
mod frames;
mod lender;
mod lent;
mod link;
mod meet;
mod net;
mod options;
mod parts;
mod peer;
mod places;
mod registration;
mod remote;
mod slab;

pub use below::{About, Below, Buffer, Dest, Did, Lease, Message, NotSent, Piece, Poll, Stop, Usage, Waits};
pub use choice::{Beyond, FABRICS, SOFT, has_adapter, open};
pub use fabric::Fabric;
pub use link::OfiLink;
pub use options::OfiOptions;
