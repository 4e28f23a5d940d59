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
mod requests;
mod revoke;
mod rma;
mod transfer;
mod unsent;

use crate::config::{Cntrs, MrId};
use crate::core::Core;
use crate::types::*;
pub use device::staging::Leaving;
use link_api::{Budget, RmaLink};
use net::Net;
use parts::adapt::Adapt;
use parts::bind::Bind;
use requests::Requests;

#[derive(Debug)]
pub(crate) struct Endpoint<L> {
    pub(crate) id: EpId,
    pub(crate) net: Net<L>,
    pub(crate) bind: Bind,
    pub(crate) requests: Requests,
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
            requests: Requests::new(),
            adapt: Adapt::default(),
        }
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
