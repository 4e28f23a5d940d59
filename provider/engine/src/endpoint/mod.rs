//! An endpoint: its peers, its requests, and what it does with each.

mod begun;
mod bound;
mod complete;
mod coop;
mod coop_copy;
mod device;
mod frames;
mod gone;
mod incoming;
mod late;
mod malformed;
mod metered;
mod net;
mod parts;
mod peers;
mod plain;
mod post;
mod progress;
mod revoke;
mod rma;
mod transfer;
mod unsent;

use crate::config::{Cntrs, MrId};
use crate::core::Core;
use crate::pool::Pool;
use crate::types::*;
pub use device::staging::Leaving;
use device::staging::Staging;
use link_api::{Budget, RmaLink};
use net::Net;
use parts::adapt::Adapt;
use parts::bind::Bind;
use parts::injected::Injected;
use parts::queues::Queues;
use parts::request::Request;

#[derive(Debug)]
pub(crate) struct Endpoint<L> {
    pub(crate) id: EpId,
    pub(crate) net: Net<L>,
    pub(crate) bind: Bind,
    requests: Pool<Request>,
    queues: Queues,
    injected: Injected,
    staging: Staging,
    adapt: Adapt,
}

impl<L: RmaLink> Endpoint<L> {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        link: L,
        av: AvId,
        rx: RxId,
        tx_cq: Option<CqId>,
        rx_cq: Option<CqId>,
        cntrs: Cntrs,
        budget: &Budget,
    ) -> Self {
        Endpoint {
            id: EpId(u32::MAX),
            net: Net::new(link, budget),
            bind: Bind::new(av, rx, tx_cq, rx_cq, cntrs),
            requests: Pool::with_capacity(64),
            queues: Queues::default(),
            injected: Injected::default(),
            staging: Staging::new(),
            adapt: Adapt::default(),
        }
    }

    /// Requests that are not done.
    pub(crate) fn under_way(&self) -> usize {
        self.requests.len() + self.queues.unsent().len()
    }

    /// Receives of a shared context that leave it to the endpoint are written to its queue.
    pub(crate) fn write_every_receive(&mut self) {
        self.bind.write_every_receive();
    }

    /// Whether the success of a receive is written to the queue.
    #[inline(always)]
    pub(crate) fn writes(&self, receive: OpFlags) -> bool {
        receive.intersects(self.bind.writes())
    }

    /// Lets peers see a registration, if it is plain memory under a key of its own.
    pub(crate) fn expose(&mut self, core: &Core, mr: MrId) {
        if let Some(mut memory) = core.exposed(mr) {
            memory.target_must_observe |=
                self.bind.cntrs().remote_read.is_some() || self.bind.cntrs().remote_write.is_some();
            self.net.link.publish(&memory);
        }
    }
}
