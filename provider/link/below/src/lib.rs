//! The link over a network of messages below Strait, whatever that is: another provider of libfabric
//! (`strait-ofi`), or queue pairs of libibverbs (`strait-verbs`).
//!
//! An endpoint is reached under its IP address and port, as over TCP: a connection there shows which peer it
//! is and that it has the key of the job, carries each side's address on the network to the other, and its
//! end is that of the peer, which networks often do not report. Frames go by the network once a message has
//! made its way to the peer and back; where none does, they go by the connection, if that is allowed.
//!
//! | module | what it holds |
//! |---|---|
//! | `network` | [`Below`]: what a network below has to give |
//! | `channel` | what two ends have agreed on: keys, order, room |
//! | `options` | how a link is opened |
//! | `net` | a network and the connections besides: the parts of both, peers that end or break the rules |
//! | `parts` | what it is made of: the network below, peers, what has arrived, reads, sleep |
//! | `peer` | what it has of a peer, in parts |
//! | `meet` | how two endpoints agree on a network, or not |
//! | `link` | [`BelowLink`]: what is done with what comes by either way, and its end |
//! | `frames` | the engine's calls of it |
//! | `lent` | what two endpoints have of each other's memory |
//! | `published` | registrations of a peer's program that are accessed without asking it |
//! | `dealings` | memory that is lent to peers and taken back; how accesses to theirs end |
//! | `accesses` | how they begin |
//! | `fds` | descriptors that others own |

mod accesses;
mod channel;
mod dealings;
mod fds;
mod frames;
mod lent;
mod link;
mod meet;
mod net;
mod network;
mod options;
mod parts;
mod peer;
mod published;

pub use fds::{Fd, is_shallow};
pub use link::BelowLink;
pub use network::{
    About, Below, Buffer, Dest, Did, Keys, LENDER, Lease, Message, Next, NotSent, Offer, Piece, Poll, RAILS,
    RailsWith, Remote, Stop, Usage, Waits,
};
pub use options::BelowOptions;
