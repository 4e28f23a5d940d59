//! One endpoint's link, as its parts see it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

use ipc::fence::Barrier;
use ipc::rights::Spare;
use ipc::{Poller, Timer};
use link_api::{OpId, Patience, PeerId};
use wire::Addr;
use wire::channel::Space;

use super::admission::Admission;
use super::allowance::Allowance;
use super::expected::Expected;
use super::guest::{Contested, Guest};
use super::looks::Looks;
use super::mr_table::MrTable;
use super::options::OpenOptions;
use super::parted::Parted;
use super::peer::Peer;
use super::rings::Rings;
use super::shrink::Shrinking;
use crate::name::Name;

/// Polls between two readings of the clock, the fewer the longer they take: reading it costs more than they do.
pub(super) const PACE: std::ops::RangeInclusive<u32> = 16..=128;

/// One endpoint's link to all peers on this host.
#[derive(Debug)]
pub struct ShmLink {
    pub(super) peers: Vec<Peer>,
    /// Those that were forgotten, to be used again.
    pub(super) free: Vec<u32>,
    /// The rings of all peers with a channel to us.
    pub(super) rings: Rings,
    /// The peer of which a frame was handed out, or `NO_PEER`.
    pub(super) held: u32,
    /// The last quick poll found nothing.
    pub(super) idle: bool,
    /// Polls so far, and at which one to read the clock.
    pub(super) calls: u32,
    pub(super) clock_at: u32,
    pub(super) pace: u32,
    /// From one poll to the next it took longer than from one reading of the sockets to the next, when that was last known.
    pub(super) rare: bool,
    /// `armed`, or `dying` or `pending` is not empty, or `rings` is.
    pub(super) slow: bool,
    /// Another link of the endpoint carries frames: the first call by this one may wait a little.
    pub(super) patient: bool,
    pub(super) armed: bool,
    /// The last `arm` found nothing to do.
    pub(super) quiet: bool,
    pub(super) dying: VecDeque<u32>,
    /// So many polls are for what lives, before one for those.
    pub(super) others_first: u32,
    pub(super) barrier: Barrier,
    pub(super) max_frame: usize,
    /// Of all rings to peers.
    pub(super) longer_laps: Allowance,
    /// When the clock was last read, and the sockets.
    pub(super) clock_read: Instant,
    pub(super) serviced: Instant,
    /// When it was last found out which peers still send.
    pub(super) cooled: Instant,
    /// Which rings are next asked whether they need their pages.
    pub(super) shrinking: Shrinking,

    pub(super) addr: Addr,
    pub(super) ids: HashMap<Addr, PeerId>,
    /// Peers that call us by another name too, by their name and that one: these count as peers of
    /// their own, so that either has its own channels.
    pub(super) callers: HashMap<(Addr, Addr), PeerId>,
    /// Whether we serve every address of the host.
    pub(super) everywhere: bool,
    pub(super) poller: Poller,
    pub(super) listener: OwnedFd,
    /// Accepted, but no hello yet, or no room for what it is about.
    pub(super) guests: Vec<Option<Guest>>,
    /// Under which names callers are let in.
    pub(super) admission: Admission,
    /// Channels under the name of a peer that has one, and lives as far as can be seen.
    pub(super) contested: Vec<Contested>,
    /// Wakes a sleeper to decide on them, while there are any.
    pub(super) contest: Option<Timer>,
    /// Since when there are connections that wait to be accepted, as far as is known.
    pub(super) behind: Option<Instant>,
    /// A peer has many successors that wait for its end.
    pub(super) many_successors: bool,
    /// The registrations that peers access without our help.
    pub(super) mr_table: MrTable,
    /// A descriptor that gives its place away where one is needed for a moment.
    pub(super) spare: Spare,
    /// Since when there are no descriptors, or no memory, for peers that call.
    pub(super) lacking: Option<Instant>,
    /// What a peer that calls, and one that is called, last found lacking here, as an errno.
    pub(super) lacks: [Option<i32>; 2],
    /// Peers with a ring that had no room lately.
    pub(super) starved: Vec<u32>,
    /// A peer could not be reached just yet, so the next `arm` refuses to sleep: nothing would wake
    /// us when it can.
    pub(super) connecting: bool,
    pub(super) options: OpenOptions,
    /// Where a packed frame is put together that runs over a ring's end.
    pub(super) scratch: Vec<u8>,
    pub(super) incarnation: u64,
    pub(super) pid: u32,
    pub(super) space: Space,
    /// Channels that were given up while a peer was inside an access.
    pub(super) parted: Vec<Parted>,
    /// Peers that receives wait for, and that were not met.
    pub(super) expected: Expected,
    /// When peers are next asked whether they are another program by now.
    pub(super) looks: Looks,
    /// How long a peer is waited for that is inside an access.
    pub(super) patience: Patience,
    /// Peers see that nothing here is accessed any more.
    pub(super) closed: bool,
    /// Copies that a device has in its queue, and from or to which peers' memory.
    pub(super) pending: xfer::DeviceCopies<OpId>,
    pub(super) pending_peers: Vec<(OpId, PeerId)>,
    /// Polls since a driver was last asked for them.
    pub(super) polls_since_asked: u32,
    pub(super) copies_started: u64,
    pub(super) warned_cma: bool,
    pub(super) warned_uid: bool,
    pub(super) warned_fds: bool,
    /// Reserves the port.
    pub(super) name: Name,
}
