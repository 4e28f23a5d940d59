//! Peers, and the ways to them.

use bitflags::bitflags;

/// A peer of one link: small, dense, given out by [`Link::peer`](crate::Link::peer) and not used again for
/// another address until [`Link::dismiss`](crate::Link::dismiss).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u32);

bitflags! {
    /// How a peer's memory may be accessed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RmaCaps: u16 {
        /// [`RmaLink::get`](crate::RmaLink::get) and [`RmaLink::put`](crate::RmaLink::put) reach host memory,
        /// and are over when the call returns.
        const SYNC = 1;
        /// [`RmaLink::start`](crate::RmaLink::start) reaches host memory of which handles were exchanged.
        const HOST_HANDLES = 1 << 1;
        /// [`RmaLink::start`](crate::RmaLink::start) reaches device memory of which handles were exchanged.
        const DEVICE_HANDLES = 1 << 2;
        /// [`RmaLink::start`](crate::RmaLink::start) gets host memory of which handles were exchanged, to
        /// host memory that does not vanish.
        const HOST_GETS = 1 << 3;
        /// [`RmaLink::start`](crate::RmaLink::start) gets device memory, from and to either. Only with
        /// [`RmaCaps::HOST_GETS`]; some kinds of devices may be refused.
        const DEVICE_GETS = 1 << 4;
        /// [`RmaLink::start`](crate::RmaLink::start) puts host memory that does not vanish to host memory of
        /// which handles were exchanged. Only with [`RmaCaps::HOST_GETS`].
        const HOST_PUTS = 1 << 5;
        /// [`RmaLink::start`](crate::RmaLink::start) reaches registrations that the peer publishes
        /// ([`Grant::Region`](crate::Grant::Region)), from and to host memory that does not vanish.
        /// Its end means that the bytes are where they belong.
        const REGIONS = 1 << 6;
        /// [`RmaLink::start_once`](crate::RmaLink::start_once) writes such registrations with data
        /// ([`Once::Write`](crate::Once::Write)). Only with [`RmaCaps::REGIONS`]; some peers may be refused.
        const DATA = 1 << 7;
        /// [`RmaLink::start_once`](crate::RmaLink::start_once) does atomics on such registrations, which are
        /// atomic to those of processors, too ([`Once::FetchAdd`](crate::Once::FetchAdd),
        /// [`Once::CompareSwap`](crate::Once::CompareSwap)). Only with [`RmaCaps::REGIONS`]; some peers may
        /// be refused.
        const ATOMICS = 1 << 8;
        /// [`RmaCaps::REGIONS`] from and to memory of devices here, too; some may be refused.
        const FROM_DEVICES = 1 << 9;
    }
}

/// The way to one peer: which link, and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The name of the link, for logs and reports.
    pub link: &'static str,
    /// Longest frame, in bytes, at least [`Path::LEAST_FRAME`].
    pub max_frame: usize,
    /// Up to this many bytes of a payload had better travel inside a frame.
    pub eager: usize,
    /// Up to this many if more were posted before and the caller has not polled since, or if `rma` is empty;
    /// no less than `eager`.
    pub eager_in_a_row: usize,
    /// Up to this many of messages that go one way, if `rma` is synchronous: the sender goes on while the
    /// receiver copies; no less than `eager_in_a_row`.
    pub eager_one_way: usize,
    /// How the peer's memory is accessed.
    pub rma: RmaCaps,
    /// With [`RmaCaps::HOST_GETS`]: from this many bytes on memory had better be got; less is quicker in
    /// frames.
    pub least_get: usize,
}

impl Path {
    /// What every link's frames have to hold.
    pub const LEAST_FRAME: usize = 10 << 10;
    /// What of a frame is there, at least, when it is reported before it is whole.
    pub const FRONT: usize = 256;
}

/// A link as it is reported to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its name, as in [`Path::link`].
    pub link: &'static str,
    /// What it offers, or why it is not to be had.
    pub offers: Result<String, String>,
}

/// An access in flight: given out by [`RmaLink::start`](crate::RmaLink::start), and never again. Below 2^56,
/// as [`Frame::slot`](crate::Frame) below 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId(pub u64);
