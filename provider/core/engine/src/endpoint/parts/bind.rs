//! What an endpoint is bound to: where its receives are posted, and where completions go.

use crate::config::Cntrs;
use crate::types::*;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bind {
    rx: RxId,
    /// A receive with any of these is written to the queue when it succeeds.
    writes: OpFlags,
    tx_cq: Option<CqId>,
    rx_cq: Option<CqId>,
    cntrs: Cntrs,
    av: AvId,
    /// Where the parts of collective operations are received, if it may take part in any.
    collective: Option<RxId>,
}

impl Bind {
    pub(in crate::endpoint) fn new(
        av: AvId,
        rx: RxId,
        tx_cq: Option<CqId>,
        rx_cq: Option<CqId>,
        cntrs: Cntrs,
    ) -> Bind {
        Bind { av, rx, collective: None, tx_cq, rx_cq, cntrs, writes: OpFlags::COMPLETION }
    }

    pub(crate) fn av(&self) -> AvId {
        self.av
    }

    #[inline(always)]
    pub(crate) fn rx(&self) -> RxId {
        self.rx
    }

    /// Parts of collective operations are received by this context. Returns what their receives are bound
    /// to.
    pub(crate) fn set_collective(&mut self, rx: RxId) -> Bind {
        self.collective = Some(rx);
        Bind { rx, collective: None, tx_cq: None, rx_cq: None, cntrs: Cntrs::default(), ..*self }
    }

    /// See [`Bind::set_collective`].
    pub(crate) fn collective(&self) -> Option<RxId> {
        self.collective
    }

    /// All contexts that it receives by.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = RxId> + use<> {
        [Some(self.rx), self.collective].into_iter().flatten()
    }

    #[inline(always)]
    pub(crate) fn tx_cq(&self) -> Option<CqId> {
        self.tx_cq
    }

    #[inline(always)]
    pub(crate) fn rx_cq(&self) -> Option<CqId> {
        self.rx_cq
    }

    #[inline(always)]
    pub(crate) fn cntrs(&self) -> &Cntrs {
        &self.cntrs
    }

    /// Other counters from now on; those that it had.
    pub(crate) fn set_cntrs(&mut self, cntrs: Cntrs) -> Cntrs {
        std::mem::replace(&mut self.cntrs, cntrs)
    }

    /// Receives of a shared context that leave it to the endpoint are written to its queue.
    pub(crate) fn write_every_receive(&mut self) {
        self.writes |= OpFlags::AS_BOUND;
    }

    /// The flags of a receive any of which has its success written to the queue.
    #[inline(always)]
    pub(crate) fn writes(&self) -> OpFlags {
        self.writes
    }
}
