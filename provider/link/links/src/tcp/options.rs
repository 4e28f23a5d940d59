//! How an endpoint is opened.

use std::net::IpAddr;
use std::time::Duration;

use wire::session::JobKey;

/// How to open a [`super::TcpLink`].
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// What endpoints of one job have in common.
    pub key: JobKey,
    /// Whether that is a secret, for people.
    pub secret: bool,
    /// How long a host may not answer before its endpoints are gone, and how long a connection may take to be
    /// made.
    pub timeout: Duration,
    /// How long an endpoint that is closed, or a process that exits, waits for what was sent to be
    /// acknowledged.
    pub linger: Duration,
    /// How long an expected peer that was never reached may take to appear.
    pub connect_timeout: Duration,
    /// How long a connection from elsewhere may take to show that it has the key.
    pub guest_timeout: Duration,
    /// How many connections at a time may be about to do so.
    pub guests: usize,
    /// How many connections a peer may have, each by an interface of its own: 1 to
    /// [`wire::session::MOST_RAILS`].
    pub rails: usize,
    /// The addresses at which the others are made, if not those of the host's interfaces.
    pub rails_at: Vec<IpAddr>,
    /// From how many bytes on a frame may go on any of them.
    pub striped: usize,
    /// Whether short frames are kept back by [`link_api::Cork::Gather`], and stay until a later call: the
    /// application makes calls of progress while it waits for what it has posted.
    pub gathers: bool,
    /// See [`link_api::Path::eager`].
    pub eager: usize,
    /// See [`link_api::Path::eager_in_a_row`].
    pub eager_in_a_row: usize,
}

impl TcpOptions {
    /// For endpoints with this key.
    pub fn new(key: JobKey) -> TcpOptions {
        TcpOptions {
            key,
            secret: false,
            timeout: Duration::from_secs(30),
            linger: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            guest_timeout: Duration::from_secs(5),
            guests: 256,
            rails: 1,
            rails_at: Vec::new(),
            striped: 64 << 10,
            gathers: false,
            eager: 64 << 10,
            eager_in_a_row: 256 << 10,
        }
    }
}
