//! The link over another provider of the libfabric core that runs, opened below Strait: cxi, efa, psm3,
//! verbs, or one that needs no hardware.
//!
//! An endpoint is reached under its IP address and port, as over TCP: a connection there tells who is there
//! and shows that it has the key of the job, tells each side the other's address on the fabric, and its end
//! is that of the peer, which providers often do not tell of. Frames go by the fabric once a message has made
//! its way to the peer and back; where none does, they go by the connection, if that is allowed.
//!
//! | module | what it holds |
//! |---|---|
//! | `below` | [`Below`]: what is asked of a provider |
//! | `choice` | which provider that is, and how the core is asked for it |
//! | `fabric` | [`Fabric`]: [`Below`] by libfabric's calls |
//! | `objects`, `slab` | libfabric's objects; memory that operations in flight use |
//! | `channel` | what two ends have agreed on: keys, order, room |
//! | `link`, `options` | [`OfiLink`]: its parts, the end of a peer and its own; how it is opened |
//! | `provider`, `peers`, `inbox`, `saying`, `turns`, `sleep` | its parts |
//! | `peer` | what it has of a peer, in parts |
//! | `meet` | how two endpoints agree on a fabric, or not |
//! | `look` | what is done with what comes by either way, and with time |
//! | `frames` | the engine's calls |
//! | `remote`, `lender` | registrations and reads, by libfabric's calls; the endpoint that peers read from |
//! | `lent`, `reading` | state of both |
//! | `dealings`, `reads` | memory that is lent to peers and taken back; reads of theirs |
//! | `fds` | descriptors that others own |

mod below;
mod channel;
mod choice;
mod dealings;
mod fabric;
mod fds;
mod frames;
mod inbox;
mod lender;
mod lent;
mod link;
mod look;
mod meet;
mod objects;
mod options;
mod peer;
mod peers;
mod provider;
mod reading;
mod reads;
mod remote;
mod saying;
mod slab;
mod sleep;
mod turns;

pub use below::{Below, Buffer, Dest, Did, Lease, Message, NotSent, Usage};
pub use choice::{FABRICS, SOFT, has_adapter, open};
pub use fabric::Fabric;
pub use link::OfiLink;
pub use options::OfiOptions;
