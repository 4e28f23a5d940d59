//! One endpoint's link, as its parts see it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

use ipc::fence::Barrier;
use ipc::rights::Spare;
use ipc::{Poller, Timer, socket};
use link_api::{OpId, PeerId};
use wire::Addr;
use wire::channel::Space;

use super::expected::Expected;
use super::guest::{Contested, Guest};
use super::looks::Looks;
use super::mr_table::MrTable;
use super::options::OpenOptions;
use super::parted::Parted;
use super::peer::Peer;
use crate::name::Name;

/// Most rings that are polled each time.
pub(super) const HOT: usize = 4;
pub(super) const NO_PEER: u32 = u32::MAX;

/// Polls between two readings of the clock, the fewer the longer they take: reading it costs more than they do.
pub(super) const PACE: std::ops::RangeInclusive<u32> = 16..=128;

/// One endpoint's link to all peers on this host.
#[derive(Debug)]
pub struct ShmLink {
    pub(super) peers: Vec<Peer>,
    /// Those that were forgotten, to be used again.
    pub(super) free: Vec<u32>,
    /// Peers that sent lately, the first `hot_len` of them, and which is next.
    pub(super) hot: [u32; HOT],
    pub(super) hot_len: usize,
    pub(super) hot_next: usize,
    /// Every peer with a channel to us, and which is next.
    pub(super) ins: Vec<u32>,
    pub(super) ins_next: usize,
    /// The peer of which a frame was handed out, or `NO_PEER`.
    pub(super) held: u32,
    /// The last quick poll found nothing.
    pub(super) idle: bool,
    /// Polls so far, and at which one to read the clock.
    pub(super) calls: u32,
    pub(super) clock_at: u32,
    pub(super) pace: u32,
    /// `armed`, or `dying` is not empty, or `ins` is.
    pub(super) slow: bool,
    /// Another link of the endpoint has brought frames: the first call by this one may wait a little.
    pub(super) patient: bool,
    pub(super) armed: bool,
    /// The last `arm` found nothing to do.
    pub(super) quiet: bool,
    pub(super) dying: VecDeque<u32>,
    pub(super) barrier: Barrier,
    pub(super) max_frame: usize,
    /// When the clock was last read, and the sockets.
    pub(super) clock_read: Instant,
    pub(super) serviced: Instant,
    /// When it was last found out which peers still send.
    pub(super) cooled: Instant,

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

impl Drop for ShmLink {
    fn drop(&mut self) {
        // A forked child only closes its copies. The endpoint's own process ends the connections
        // for good, even while a child still holds copies.
        if std::process::id() != self.pid {
            return;
        }
        // Copies in flight are from or to peers' memory: before these see the end of the connection.
        self.pending.cancel(|_| true);
        if !self.closed {
            let _ = self.close_to_all();
        }
        // The listener first: a peer that sees its channel end finds nothing to connect to.
        socket::shutdown(&self.listener);
        // Those that were not met yet, which a child's copy of the listener would keep; each takes a descriptor.
        self.spare.give();
        while let Ok(sock) = socket::accept(&self.listener) {
            socket::shutdown(&sock);
        }
        let others = self.contested.iter().map(Contested::sock);
        others.chain(self.guests.iter().flatten().map(Guest::sock)).for_each(socket::shutdown);
        for peer in &self.peers {
            let ins = peer.inb.iter().chain(&peer.waiting).map(|i| &i.sock);
            ins.chain(peer.out.as_ref().map(|o| &o.sock)).for_each(socket::shutdown);
        }
    }
}
