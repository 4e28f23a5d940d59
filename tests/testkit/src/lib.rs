//! Endpoints that talk to each other inside one process, for tests that read as stories.
//!
//! A [`Net`] has nodes, each with a domain and an endpoint of its own, that know each other: node
//! `i` is address `i` of every address vector. Frames go through memory, in order, and as slowly,
//! late or wrong as a test likes; nothing happens but when a node makes progress.
//!
//! ```
//! use testkit::{Net, from_any, msg};
//!
//! let mut net = Net::new(2);
//! let (hello, room) = (net.bytes(0, b"hello"), net.memory(1, 8));
//! net[1].recv(&from_any(&[room], 7)).unwrap();
//! net[0].send(&msg(1, &[hello], 3)).unwrap();
//! net.settle();
//! assert_eq!(net[0].sent().ctx.0, 3);
//! let got = net[1].received();
//! assert_eq!((got.ctx.0, got.len, got.src), (7, 5, 0));
//! assert_eq!(net[1].look(room, 5), b"hello");
//! ```
#![forbid(unsafe_code)]

mod group_memory;
mod groups;
mod hub;
mod link;
mod net;
mod node;
mod ops;
mod rma;

use engine::Config;

pub use hub::Place;
pub use link::MemLink;
pub use net::Net;
pub use node::Node;
pub use ops::{from, from_any, msg, pattern, read, tagged, there, with_tag, write};

/// What a [`Net`] is like.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Of every domain.
    pub config: Config,
    /// Bytes of a payload that travel inside a frame, and of many in a row.
    pub eager: usize,
    /// See [`link_api::Path::eager_in_a_row`].
    pub eager_in_a_row: usize,
    /// See [`link_api::Path::eager_one_way`].
    pub eager_one_way: usize,
    /// Longest frame.
    pub max_frame: usize,
    /// Frames that fit between two nodes, each way.
    pub capacity: usize,
    /// Bytes of frames that leave room to spare.
    pub spare: usize,
    /// How nodes access each other's host memory.
    pub direct: Direct,
    /// Whether a node's device may reach another node's.
    pub peer_access: bool,
    /// Entries of each completion queue.
    pub cq_size: usize,
    /// Whether the nodes are in each other's address vectors.
    pub acquainted: bool,
    /// Picks which sender is heard next.
    pub seed: u64,
    /// Whether nodes make progress by a quick look where they can.
    pub looks: bool,
    /// Whether a call of progress goes on with frames of the same sender.
    pub rows: bool,
    /// Whether members of a group share memory.
    pub shared: bool,
}

/// How nodes access each other's host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// They try, and cannot.
    Never,
    /// In the call, as the kernel does it.
    InCall,
    /// By operations that end later, in the order they were started, as a network adapter does it.
    Later,
    /// By operations that end later, in any order, between frames.
    AnyOrder,
    /// As of `AnyOrder`, but that memory is got alone, and none put.
    Gets,
    /// There is no such thing, of the host's memory or a device's: all goes in frames.
    Frames,
}

impl Direct {
    /// All of them.
    pub const ALL: [Direct; 6] =
        [Direct::InCall, Direct::Never, Direct::Later, Direct::AnyOrder, Direct::Gets, Direct::Frames];

    /// Least frames that have to fit between two nodes for a message to be sent: its own, and one with a
    /// handle.
    pub fn least_capacity(self) -> usize {
        if self.has_handles() { 2 } else { 1 }
    }

    /// Whether there are handles of host memory.
    pub(crate) fn has_handles(self) -> bool {
        self.is_by_handles() || self == Direct::Gets
    }

    /// Whether all takes handles, of either way.
    pub fn is_by_handles(self) -> bool {
        matches!(self, Direct::Later | Direct::AnyOrder)
    }
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            config: Config { virt_addr: false, rma_order: false },
            eager: 256,
            eager_in_a_row: 600,
            eager_one_way: 600,
            max_frame: 512,
            capacity: 64,
            spare: usize::MAX,
            direct: Direct::InCall,
            peer_access: false,
            cq_size: 64,
            acquainted: true,
            seed: 1,
            looks: true,
            rows: false,
            shared: false,
        }
    }
}
