//! An endpoint: its peers, its requests, and what it does with each.

mod atomics;
mod begun;
mod bounce;
mod bounces;
mod bound;
mod complaints;
mod complete;
mod coop;
mod coop_copy;
mod crowd;
mod gone;
mod handles;
mod header;
mod in_order;
mod incoming;
mod inject;
mod late;
mod lent;
mod malformed;
mod metered;
mod offered;
mod onesided;
mod order;
mod peer;
mod peers;
mod plain;
mod post;
mod progress;
mod quota;
mod request;
mod revoke;
mod staged;
mod staging;
mod transfer;
mod unhurried;
mod unsent;

use std::collections::VecDeque;

use crate::config::{Cntrs, MrId};
use crate::core::Core;
use crate::hash::Map;
use crate::pool::Pool;
use crate::types::*;
use crowd::{FewTargets, Sources, Targets};
use link_api::{Budget, Meter, OpId, PeerId, RmaLink, Share};
use offered::Offered;
use peer::Peer;
use quota::Complaints;
use request::{Request, Unbegun, Unsent};
pub use staging::Leaving;
use staging::Staging;
use unhurried::Unhurried;

#[derive(Debug)]
pub(crate) struct Endpoint<L> {
    pub(crate) id: EpId,
    pub(crate) link: L,
    pub(crate) av: AvId,
    pub(crate) rx: RxId,
    pub(crate) tx_cq: Option<CqId>,
    pub(crate) rx_cq: Option<CqId>,
    pub(crate) cntrs: Cntrs,
    /// A receive with any of these is written to the queue when it succeeds.
    writes: OpFlags,
    peers: Vec<Peer>,
    /// From an index in the address vector to the link's peer.
    route: Vec<Option<PeerId>>,
    requests: Pool<Request>,
    /// Requests with frames to send, or with bytes on their way to a device.
    streams: VecDeque<u64>,
    /// Requests of which we have pieces to copy.
    coop_queue: VecDeque<u64>,
    /// Pieces of cooperative copies taken in this progress call.
    pieces_taken: usize,
    /// Something large was begun, and no call of progress was made since.
    posting: bool,
    /// Operations by handles in flight, and the request each is for.
    in_flight: Vec<(OpId, u64)>,
    /// Requests whose sender is invited, and for how many polls more it is left to that.
    invited: Vec<(u64, u16)>,
    /// Messages that the next calls of progress take in.
    unbegun: VecDeque<Unbegun>,
    offered: Offered,
    targets: Targets,
    few_targets: FewTargets,
    sources: Sources,
    /// Peers whose accesses are to take effect in order, and have something to wait for.
    in_order: Vec<PeerId>,
    /// Peers with a backlog.
    with_backlog: Vec<PeerId>,
    /// A peer whose path is to be logged.
    pub(crate) unlogged_path: Option<PeerId>,
    /// Operations that may be under way to one peer.
    depth: u32,
    /// Bytes of messages sent since the last progress, see `bound`.
    bytes_since_progress: usize,
    /// A poll has found nothing since the last message was received: see `late`.
    waited: bool,
    /// What peers did wrong.
    complaints: Complaints,
    /// What answers take up that found no room, of all peers.
    owed: Share,
    /// Messages of which the link keeps a part.
    unsent: Vec<Unsent>,
    /// Injected messages that were only offered: their bytes, by request.
    kept: Map<u64, Vec<u8>>,
    /// What keeps progress from the short way beside lists of things to do.
    unhurried: Unhurried,
    /// Counts what is done, where that is asked for.
    meter: Option<Box<dyn Meter>>,
    /// How many requests there may be before they are counted by peer.
    many: usize,
    /// Requests whose memory was taken back, and from which peer.
    revoked: Vec<(u64, PeerId)>,
    staging: Staging,
    /// A message that was injected just now and has not left its buffer.
    leaving: Option<(PeerId, u64)>,
}

impl<L: RmaLink> Endpoint<L> {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        mut link: L,
        av: AvId,
        rx: RxId,
        tx_cq: Option<CqId>,
        rx_cq: Option<CqId>,
        cntrs: Cntrs,
        budget: &Budget,
    ) -> Self {
        link.set_budget(budget);
        link.set_early();
        link.tell_kept();
        Endpoint {
            id: EpId(u32::MAX),
            link,
            av,
            rx,
            tx_cq,
            rx_cq,
            cntrs,
            writes: OpFlags::COMPLETION,
            peers: Vec::new(),
            route: Vec::new(),
            requests: Pool::with_capacity(64),
            streams: VecDeque::new(),
            coop_queue: VecDeque::new(),
            pieces_taken: 0,
            posting: false,
            waited: false,
            in_flight: Vec::new(),
            invited: Vec::new(),
            unbegun: VecDeque::new(),
            offered: Offered::default(),
            targets: Targets::default(),
            few_targets: FewTargets::default(),
            sources: Sources::default(),
            in_order: Vec::new(),
            with_backlog: Vec::new(),
            unlogged_path: None,
            depth: quota::DEPTH,
            bytes_since_progress: 0,
            complaints: Complaints::default(),
            owed: budget.share(),
            unsent: Vec::new(),
            kept: Map::default(),
            unhurried: Unhurried::default(),
            meter: None,
            many: quota::MANY,
            revoked: Vec::new(),
            staging: Staging::new(),
            leaving: None,
        }
    }

    /// Requests that are not done.
    pub(crate) fn under_way(&self) -> usize {
        self.requests.len() + self.unsent.len()
    }

    /// Receives of a shared context that leave it to the endpoint are written to its queue.
    pub(crate) fn write_every_receive(&mut self) {
        self.writes |= OpFlags::AS_BOUND;
    }

    /// Whether the success of a receive is written to the queue.
    #[inline(always)]
    pub(crate) fn writes(&self, receive: OpFlags) -> bool {
        receive.intersects(self.writes)
    }

    /// Lets peers see a registration, if it is plain memory under a key of its own.
    pub(crate) fn expose(&mut self, core: &Core, mr: MrId) {
        if let Some(mut memory) = core.exposed(mr) {
            memory.target_must_observe |=
                self.cntrs.remote_read.is_some() || self.cntrs.remote_write.is_some();
            self.link.publish(&memory);
        }
    }
}
