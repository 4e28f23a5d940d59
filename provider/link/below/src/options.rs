//! How a link is opened.

use std::time::Duration;

use wire::session::JobKey;

/// Shorter messages fit into one frame, whose copy takes less than a registration and a read
/// (docs/measurements/hosts.md).
const LEAST_READ: usize = 64 << 10;

/// Each part takes a registration, of both sides, and a request of its own.
const STRIPES: usize = 256 << 10;

/// How to open an [`BelowLink`](crate::BelowLink).
#[derive(Clone, Debug)]
pub struct BelowOptions {
    /// What endpoints of one job have in common.
    pub key: JobKey,
    /// Whether frames may go by the connection where the fabric does not lead to a peer.
    pub fallback: bool,
    /// How long it may take until that turns out.
    pub patience: Duration,
    /// How long after a message was lost the connection may take to report the end of the peer.
    pub grace: Duration,
    /// How long a read may take that a peer which lives wants to be over.
    pub leave: Duration,
    /// How long an endpoint that is closed waits at most until its peers have what was sent.
    pub linger: Duration,
    /// After how much time in which nothing has gone by it a connection of a network whose ends connect is
    /// closed, until something is to go by it again; `None`: it stays.
    pub idle: Option<Duration>,
    /// From how many bytes on memory is accessed in parts, by rails, where there are such.
    pub stripes: usize,
    /// See [`Path::eager`](link_api::Path::eager).
    pub eager: usize,
    /// See [`Path::eager_in_a_row`](link_api::Path::eager_in_a_row).
    pub eager_in_a_row: usize,
    /// See [`Path::least_get`](link_api::Path::least_get).
    pub least_get: usize,
}

impl BelowOptions {
    /// For endpoints with this key.
    pub fn new(key: JobKey) -> BelowOptions {
        BelowOptions {
            key,
            fallback: true,
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            leave: Duration::from_millis(500),
            linger: Duration::from_secs(1),
            idle: None,
            stripes: STRIPES,
            eager: 16 << 10,
            eager_in_a_row: 32 << 10,
            least_get: LEAST_READ,
        }
    }
}
