//! How an endpoint is opened.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipc::Ports;

use crate::name::Port;
use crate::shm::channel::ring;
use crate::shm::channel::segment::{MAX_RING, MIN_RING};
use crate::shm::memory::windows::Windows;

/// Bytes of a ring by default. They take memory only where they were touched.
pub const DEFAULT_RING: usize = 124 << 10;

/// Bytes of a ring to one of the first [`NEAR`] peers, by default. Between cores that share
/// no cache a long ring moves up to twice the bytes, since the side that is ahead seldom has to wait; between
/// many, such rings would take too much memory.
pub const LONG_RING: usize = 508 << 10;

/// Bytes of a ring to one of the next peers, up to [`FEW`] in all.
pub const MIDDLE_RING: usize = 252 << 10;

/// How many peers at a time have a long ring, most often those that a process exchanges most with: it met
/// them first.
pub const NEAR: usize = 4;

/// How many have a long ring or one between.
pub const FEW: usize = 16;

/// Bytes of the ring that is made for an option of so many.
pub(super) fn size(ring: usize) -> usize {
    ring.clamp(MIN_RING, MAX_RING).next_multiple_of(4096)
}

/// Most bytes of payload that travel inside a frame of a ring for which so many bytes were asked.
pub fn eager_most(ring: usize) -> usize {
    ring::max_frame((size(ring) / ring::LINE) as u32) - wire::EAGER_HEAD
}

/// How to open a [`ShmLink`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The endpoint's name. Port 0 takes a free one, an unspecified address serves all of the
    /// host's; `None` is `0.0.0.0:0`.
    pub bind: Option<SocketAddr>,
    /// Bytes of the ring to each peer; rounded up to pages, and to [`MIN_RING`].
    pub ring: usize,
    /// Bytes of the ring to the first [`NEAR`] peers, and at most to the next ones, up to [`FEW`]; no less
    /// than `ring`.
    pub long_ring: usize,
    /// See [`link_api::Path::eager`]: what paths say, which the link itself makes no use of.
    pub eager: usize,
    /// See [`link_api::Path::eager_in_a_row`].
    pub eager_in_a_row: usize,
    /// See [`link_api::Path::eager_one_way`].
    pub eager_one_way: usize,
    /// Whether to reach peers' memory directly where the kernel allows it.
    pub cma: bool,
    /// Whether a device copies from or to a peer's device memory where the driver allows it.
    pub device_direct: bool,
    /// How long a peer that was never reached may take to appear.
    pub connect_timeout: Duration,
    /// How long a peer waits for descriptors or memory that a channel to or from it needs and that this
    /// process lacks.
    pub patience: Duration,
    /// The protocol that peers have to speak, by its number: [`wire::VERSION`] for the engine's frames.
    pub version: u16,
    /// Whether the port of the name listens.
    pub port: Port,
    /// Among which the port is chosen where `bind` has none, if it listens or may do so later.
    pub ports: Ports,
    /// Windows that peers may ask this endpoint for, and where those of peers go.
    pub windows: Option<Arc<Windows>>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            bind: None,
            ring: DEFAULT_RING,
            long_ring: LONG_RING,
            eager: 8 << 10,
            eager_in_a_row: 8 << 10,
            eager_one_way: 8 << 10,
            cma: true,
            device_direct: true,
            connect_timeout: Duration::from_secs(3),
            patience: Duration::from_secs(3),
            version: wire::VERSION,
            port: Port::Reserved,
            ports: Ports::default(),
            windows: None,
        }
    }
}
